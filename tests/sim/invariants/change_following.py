"""
The time limit for consumers to follow changes. They reconcile in every interval, so it holds even if watches are lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from kiel_groups.config import BROKER_V0
from kiel_groups.errors import ProtocolError
from kiel_groups.group.znodes.contents import MemberAssignment
from kiel_groups.model import TopicPartition
from kiel_groups.zookeeper.tasks import AUDIT_JITTER
from tests.sim.history.history import History
from tests.sim.invariants.invariant import Invariant

if TYPE_CHECKING:
    from tests.sim.consumer import Consumer

__all__ = ["ChangesFollowedInTime"]

#: The interval of the checks, in seconds.
CHECK_S = 1.0
#: The longest time, in seconds, that a consumer may need to reconcile, after a reconnection and a commit.
TOLERANCE_S = 4.0
#: Additional seconds with brokers: a commit waits for slow brokers until the lease ends.
BROKERS_S = 5.0

#: The consumer that should follow a change, what changed, and the zxid of the change.
Change: TypeAlias = "tuple[Consumer, str, int]"


class ChangesFollowedInTime(Invariant):
    """
    A consumer follows its assignment, and offsets that operators or late brokers set, within one reconcile interval.

    Time during which a fault affects the consumer does not count.
    """

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._limit_s = self.world.reconcile_interval_ms / 1000 * (1 + AUDIT_JITTER) + TOLERANCE_S
        if self.world.store == BROKER_V0:
            self._limit_s += BROKERS_S
        #: For each change that is not followed yet, the seconds that count so far.
        self._waiting: dict[Change, float] = {}

    def on_start(self) -> None:
        self.world.timeline.after(CHECK_S, self._check)

    def _check(self) -> None:
        self.world.timeline.after(CHECK_S, self._check)
        waiting: dict[Change, float] = {}
        for consumer in self.world.consumers:
            if not consumer.is_running:
                continue
            passed_s = 0.0 if self._is_disturbed(consumer) else CHECK_S
            for what, zxid in self._not_followed(consumer):
                waited_s = self._waiting.get((consumer, what, zxid), -CHECK_S) + passed_s
                if waited_s > self._limit_s:
                    raise self.violation(f"{consumer.name} has not followed {what} for {waited_s:g} s")
                waiting[consumer, what, zxid] = waited_s
        self._waiting = waiting

    def _is_disturbed(self, consumer: Consumer) -> bool:
        """
        Return whether the consumer's gate is shut, or a fault affects its process, its network, its server or
        ZooKeeper's leader.
        """
        process, leader = consumer.process, self.world.ensemble.leader
        server = process.server
        is_reached = not process.stalled and server is not None and process.reaches(server)
        is_blocked = self.world.timeline.now_s < process.blocked_until_s
        if not (is_reached and process.runs and consumer.gate_is_open) or is_blocked or server is None:
            return True
        return leader is None or leader.frozen or not server.contact or server.frozen or bool(server.lag_s)

    def _not_followed(self, consumer: Consumer) -> Iterator[tuple[str, int]]:
        for partition, zxid in self.history.set_by_operators.items():
            if not (self._follows_offset(consumer, partition) or self._may_be_its_own(consumer, partition)):
                yield f"the offset of {partition} that an operator set", zxid
        for partition, zxid in self.history.requests.replacing.items():
            if not self._follows_offset(consumer, partition):
                yield f"the offset of {partition} that a broker set late", zxid
        path = consumer.assignment_path
        znode = None if path is None else self.world.ensemble.tree.znodes.get(path)
        if znode is not None:
            wanted = _partitions(znode.data, consumer.member.member_id)
            if wanted is not None and wanted != consumer.wanted:
                yield "its assignment", znode.mzxid

    def _follows_offset(self, consumer: Consumer, partition: TopicPartition) -> bool:
        """
        Return whether a consumer follows the offset that another writer has set, or need not follow it.

        A consumer follows the offset if it knows the offset znode's version. It need not follow an offset that was
        deleted, garbled or set in an old log, or of a partition that it does not deliver.
        """
        znode = self.world.ensemble.tree.znodes.get(self.history.layout.offset(partition))
        known = consumer.finished(partition)
        if partition not in consumer.opened or znode is None or known is None:
            return True
        return known[0] == znode.version or self._offset_is_void(consumer, partition)

    def _offset_is_void(self, consumer: Consumer, partition: TopicPartition) -> bool:
        """
        Return whether the offset was deleted or garbled since, or the consumer first has to reset the partition to a
        new log.
        """
        return partition in self.history.damaged or self.history.topics.is_outdated(consumer, partition)

    def _may_be_its_own(self, consumer: Consumer, partition: TopicPartition) -> bool:
        """
        Return whether the consumer requested the same offset last, so that it may mistake the operator's offset for its
        own.
        """
        stored = self.history.stored(partition)
        return self.history.requests.may_have_requested(consumer, partition, stored)


@lru_cache(maxsize=1_000)
def _partitions(data: bytes, member_id: str | None) -> frozenset[object] | None:
    """Return the partitions of an assignment, or None if it is invalid, or for another member."""
    try:
        found = MemberAssignment.parse(data, "")
    except ProtocolError:
        return None
    return frozenset(found.partitions) if found.member_id == member_id else None
