"""How late a consumer may follow what no watch tells it: once in every reconcile interval it looks without a hint."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from kiel_groups.config import BROKER_V0
from kiel_groups.coordination.member.owned_partitions import JITTER
from kiel_groups.errors import ProtocolError
from kiel_groups.group.znodes.contents import MemberAssignment

if TYPE_CHECKING:
    from tests.sim.consumer import Consumer
    from tests.sim.world import World

__all__ = ["Delays", "slice_path"]

#: How often the checker looks, in seconds.
LOOK_S = 1.0
#: What a look of a consumer may take by itself, in seconds: a broken connection, a commit before it.
TOLERANCE_S = 4.0
#: So much more, where a commit waits for brokers that hold it: for the rest of the lease.
BROKERS_S = 5.0

#: Whose change it is, what changed, and its zxid.
Change: TypeAlias = "tuple[Consumer, str, int]"


class Delays:
    """
    Checks that a change of a slice, or an operator's offset, is followed within one reconcile interval.

    Counted is only the time in which nothing disturbs the consumer: no fault of its process, its network, its server.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._limit_s = world.reconcile_interval_ms / 1000 * (1 + JITTER) + TOLERANCE_S
        if world.store == BROKER_V0:
            self._limit_s += BROKERS_S
        #: For how long each change has not been followed, in seconds.
        self._waiting: dict[Change, float] = {}
        world.timeline.after(LOOK_S, self._look)

    def _look(self) -> None:
        self._world.timeline.after(LOOK_S, self._look)
        waiting: dict[Change, float] = {}
        for consumer in self._world.consumers:
            if not consumer.lives:
                continue
            passed_s = LOOK_S if self._is_undisturbed(consumer) else 0.0
            for what, zxid in self._not_followed(consumer):
                waited_s = self._waiting.get((consumer, what, zxid), -LOOK_S) + passed_s
                if waited_s > self._limit_s:
                    raise self._world.ledger.late(f"{consumer.name} has not followed {what} for {waited_s:g} s")
                waiting[consumer, what, zxid] = waited_s
        self._waiting = waiting

    def _is_undisturbed(self, consumer: Consumer) -> bool:
        process, leader = consumer.process, self._world.ensemble.leader
        server = process.server
        is_reached = not process.stalled and server is not None and process.reaches(server)
        is_blocked = self._world.timeline.now_s < process.blocked_until_s
        if not (is_reached and process.runs and consumer.gate_is_open) or is_blocked or server is None:
            return False
        return leader is not None and not leader.frozen and server.contact and not server.frozen and not server.lag_s

    def _not_followed(self, consumer: Consumer) -> Iterator[tuple[str, int]]:
        for partition, zxid in self._world.ledger.set_by_operators().items():
            if partition in consumer.flowing and not self._world.ledger.follows(consumer, partition):
                yield f"the offset of {partition} that an operator set", zxid
        path = slice_path(self._world, consumer)
        znode = None if path is None else self._world.ensemble.tree.znodes.get(path)
        if znode is not None:
            wanted = _partitions(znode.data, consumer.member.member_id)
            if wanted is not None and wanted != consumer.wanted:
                yield "its slice", znode.mzxid


def slice_path(world: World, consumer: Consumer) -> str | None:
    """Where a consumer's slice stands, None before it has joined."""
    slot = consumer.instance_id or consumer.member.member_id
    return None if slot is None else world.layout.assignment(slot)


@lru_cache(maxsize=1_000)
def _partitions(data: bytes, member_id: str | None) -> frozenset[object] | None:
    """The partitions of a slice; None where it cannot be read, or is for another member."""
    try:
        found = MemberAssignment.parse(data, "")
    except ProtocolError:
        return None
    return frozenset(found.partitions) if found.member_id == member_id else None
