"""The leader's monitor of owners: it raises an alarm if the plan is not followed for too long."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Mapping
from itertools import islice

from kiel_groups.errors import CoordinationError, ProtocolError, SessionLostError
from kiel_groups.group.ownership_audit import OwnerMismatch, alarms, find_mismatches
from kiel_groups.group.znodes.contents import parse_owner
from kiel_groups.model import MemberId, TopicPartition
from kiel_groups.zookeeper.tasks import SessionContext

__all__ = [
    "OwnershipMonitor",
]

log = logging.getLogger(__name__)


#: The most owner znodes that one check reads, besides those of suspected partitions. Each check finds all missing owner
#: znodes.
MOST_OWNERS = 2_000

KINDS = ("partitions_unowned", "partitions_wrongly_owned", "partitions_orphaned")


class OwnershipMonitor:
    """
    Compares the owners of partitions with the published plan, twice in every ``limit_s``.

    Each alarm is an error in the log, repeated at each check while it lasts. The gauges ``partitions_unowned``,
    ``partitions_wrongly_owned`` and ``partitions_orphaned`` count partitions in that state for ``limit_s`` or longer.
    """

    def __init__(self, context: SessionContext) -> None:
        self._session = context.session
        self._layout = context.layout
        self._tasks = context.tasks
        self._metrics = context.metrics
        self._limit_s = context.config.drain_alarm_ms / 1000
        self._timer: asyncio.TimerHandle | None = None
        self._wanted: Mapping[TopicPartition, MemberId] = {}
        self._members: Collection[MemberId] = ()
        self._suspicions: dict[TopicPartition, OwnerMismatch] = {}
        self._next = 0

    def expect(self, wanted: Mapping[TopicPartition, MemberId], members: Collection[MemberId]) -> None:
        """Compare owners with this published plan from now on."""
        self._wanted, self._members = wanted, members
        if self._timer is None:
            self._wait()

    def stop(self) -> None:
        """Stop the checks and reset the gauges, because this process is no longer the leader."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            # Only the leader reports these gauges; the old values would stay forever.
            self._set_gauges(Counter())
        self._suspicions.clear()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._limit_s / 2, self._due)

    def _due(self) -> None:
        self._tasks.start(self._check(self._timer))

    async def _check(self, timer: asyncio.TimerHandle | None) -> None:
        try:
            owners = await self._owners()
        except SessionLostError:
            raise
        except CoordinationError as error:
            log.warning("group %s: the owners cannot be read: %s; retrying soon", self._layout.group, error)
            owners = {}
        if self._timer is not timer:
            # The monitor was stopped meanwhile. If it was started again, its new timer schedules the checks.
            return
        now_s = asyncio.get_running_loop().time()
        self._suspicions = find_mismatches(self._suspicions, self._wanted, owners, now_s)
        self._report(now_s)
        self._wait()

    def _report(self, now_s: float) -> None:
        counts: Counter[str] = Counter()
        for alarm in alarms(self._suspicions, self._members, now_s, self._limit_s):
            counts[alarm.kind] += len(alarm.partitions)
            self._metrics.count("ownership_alarms")
            log.error("group %s: %s", self._layout.group, alarm.text)
        self._set_gauges(counts)

    def _set_gauges(self, counts: Counter[str]) -> None:
        for kind in KINDS:
            self._metrics.gauge(kind, counts[kind])

    async def _owners(self) -> dict[TopicPartition, MemberId | None]:
        """
        Read the owners of a part of the partitions.

        Returns:
            None for each partition without an owner znode. The owner for each partition of the next batch, and for each
            suspected partition.
        """
        owners: dict[TopicPartition, MemberId | None] = {}
        owned: list[TopicPartition] = []
        for topic in sorted({partition.topic for partition in self._wanted}):
            names = set(await self._session.children(self._layout.topic_owners(topic)) or ())
            for partition in sorted(p for p in self._wanted if p.topic == topic):
                if str(partition.partition) in names:
                    owned.append(partition)
                else:
                    owners[partition] = None
        looked_at = self._next_batch(owned)
        nodes = await self._session.get_many([self._layout.owner(partition) for partition in looked_at])
        for partition, node in zip(looked_at, nodes, strict=True):
            try:
                owners[partition] = None if node is None else parse_owner(node.data, self._layout.owner(partition))
            except ProtocolError as error:
                log.error("group %s: %s", self._layout.group, error)
                owners[partition] = "an unknown owner"
        return owners

    def _next_batch(self, owned: list[TopicPartition]) -> list[TopicPartition]:
        """Return the next ``MOST_OWNERS`` owned partitions, and all that are under suspicion."""
        start = self._next if self._next < len(owned) else 0
        self._next = start + MOST_OWNERS
        return sorted({*islice(owned, start, self._next), *(p for p in owned if p in self._suspicions)})
