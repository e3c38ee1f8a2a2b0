"""A leader's eye on owners: an alarm where its plan is not followed for too long."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Mapping
from itertools import islice

from kiel_groups.coordination.session.session_tasks import TaskSet
from kiel_groups.coordination.session.zk_session import Session
from kiel_groups.errors import CoordinationError, ProtocolError, SessionLostError
from kiel_groups.group.leader.ownership_audit import Suspicion, alarms, suspect
from kiel_groups.group.znodes.contents import parse_owner
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.metrics import Metrics
from kiel_groups.model import MemberId, TopicPartition

__all__ = ["OwnershipMonitor"]

log = logging.getLogger(__name__)

#: Of so many partitions the owner is read at one look; of which there is none, every look tells.
MOST_OWNERS = 2_000

KINDS = ("partitions_unowned", "partitions_wrongly_owned", "partitions_orphaned")


class OwnershipMonitor:
    """
    Compares the owners with what one leader has published, twice in every ``limit_s``.

    Each alarm is an error in the log, said again while it lasts; the gauges ``partitions_unowned``,
    ``partitions_wrongly_owned`` and ``partitions_orphaned`` count what has been so for ``limit_s``.
    """

    def __init__(self, session: Session, layout: GroupLayout, tasks: TaskSet, metrics: Metrics, limit_s: float) -> None:
        self._session = session
        self._layout = layout
        self._tasks = tasks
        self._metrics = metrics
        self._limit_s = limit_s
        self._timer: asyncio.TimerHandle | None = None
        self._wanted: Mapping[TopicPartition, MemberId] = {}
        self._members: Collection[MemberId] = ()
        self._suspicions: dict[TopicPartition, Suspicion] = {}
        self._next = 0

    def expect(self, wanted: Mapping[TopicPartition, MemberId], members: Collection[MemberId]) -> None:
        """This is published: from now on, look whether it comes true."""
        self._wanted, self._members = wanted, members
        if self._timer is None:
            self._wait()

    def stop(self) -> None:
        """Somebody else leads, or nobody."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            # It is not known here any more, and another's to say.
            self._show(Counter())
        self._suspicions.clear()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._limit_s / 2, self._due)

    def _due(self) -> None:
        self._tasks.start(self._look(self._timer))

    async def _look(self, timer: asyncio.TimerHandle | None) -> None:
        try:
            owners = await self._owners()
        except SessionLostError:
            raise
        except CoordinationError as error:
            log.warning("group %s: the owners cannot be read: %s; again soon", self._layout.group, error)
            owners = {}
        if self._timer is not timer:
            # It was stopped meanwhile, and may have begun anew since: with a timer of its own, which leads to looks.
            return
        now_s = asyncio.get_running_loop().time()
        self._suspicions = suspect(self._suspicions, self._wanted, owners, now_s)
        self._tell(now_s)
        self._wait()

    def _tell(self, now_s: float) -> None:
        counts: Counter[str] = Counter()
        for alarm in alarms(self._suspicions, self._members, now_s, self._limit_s):
            counts[alarm.kind] += len(alarm.partitions)
            self._metrics.count("ownership_alarms")
            log.error("group %s: %s", self._layout.group, alarm.text)
        self._show(counts)

    def _show(self, counts: Counter[str]) -> None:
        for kind in KINDS:
            self._metrics.gauge(kind, counts[kind])

    async def _owners(self) -> dict[TopicPartition, MemberId | None]:
        """Who owns what: of all partitions whether anybody does, of some, in turn, who."""
        owners: dict[TopicPartition, MemberId | None] = {}
        owned: list[TopicPartition] = []
        for topic in sorted({partition.topic for partition in self._wanted}):
            names = set(await self._session.children(self._layout.topic_owners(topic)) or ())
            for partition in sorted(p for p in self._wanted if p.topic == topic):
                if str(partition.partition) in names:
                    owned.append(partition)
                else:
                    owners[partition] = None
        looked_at = self._turn(owned)
        nodes = await self._session.get_many([self._layout.owner(partition) for partition in looked_at])
        for partition, node in zip(looked_at, nodes, strict=True):
            try:
                owners[partition] = None if node is None else parse_owner(node.data, self._layout.owner(partition))
            except ProtocolError as error:
                log.error("group %s: %s", self._layout.group, error)
                owners[partition] = "somebody who wrote no name"
        return owners

    def _turn(self, owned: list[TopicPartition]) -> list[TopicPartition]:
        """The next ``MOST_OWNERS``, and those that were suspicious."""
        start = self._next if self._next < len(owned) else 0
        self._next = start + MOST_OWNERS
        return sorted({*islice(owned, start, self._next), *(p for p in owned if p in self._suspicions)})
