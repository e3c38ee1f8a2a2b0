"""
Monitor the owners of partitions, and foreign members, while this process leads a group, and log alarms.

Foreign members are Java, pykafka and kiel consumers. They do not take part in this library's protocol. Such members
would read and commit partitions that members own. A member refuses to join a group that has foreign members. If foreign
members join later, the leader can only raise an alarm, because no znode that it writes would stop them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from kiel_groups.errors import CoordinationError, ProtocolError, SessionLostError
from kiel_groups.group.ownership_audit import OwnerMismatch, alarms, find_mismatches
from kiel_groups.group.znodes.contents import parse_owner, unsigned_hex
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.model import MemberId, TopicPartition
from kiel_groups.zookeeper.session import Session, children_watched
from kiel_groups.zookeeper.tasks import SessionContext

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ForeignMembers:
    """
    The names of foreign members, and the folder that lists them.

    ``folder`` is ``/consumers/<group>/ids``, or the folder of kiel's members if only that folder lists foreign members.
    """

    names: tuple[str, ...] = ()
    folder: str = ""

    def __str__(self) -> str:
        members = "member that does" if len(self.names) == 1 else "members that do"
        return (
            f"{len(self.names)} {members} not take part in its protocol, first {self.names[0]!r} (under {self.folder})"
        )


async def find_foreign_members(
    session: Session, layout: GroupLayout, watcher: Callable[[], None] | None = None
) -> ForeignMembers:
    """
    Find the foreign members of a group.

    One request cannot read both consumer ids and members. So the function reads the consumer ids before and after the
    members: an id that exists both times does not belong to a member that joined or left meanwhile.

    Args:
        session: The session to read with.
        layout: The group.
        watcher: Called when the consumer ids or kiel's members change.
    """
    before = set(await session.children(layout.ids, watcher) or ())
    foreign = before - set(await session.children(layout.members) or ())
    if foreign:
        foreign &= set(await session.children(layout.ids) or ())
        foreign = await _without_our_own(session, layout, sorted(foreign))
    if watcher is None:
        kiel = await session.children(layout.kiel_members)
    else:
        kiel = await children_watched(session, layout.kiel_members, watcher)
    if foreign:
        return ForeignMembers(tuple(sorted(foreign)), layout.ids)
    return ForeignMembers(tuple(sorted(kiel)), layout.kiel_members) if kiel else ForeignMembers()


async def _without_our_own(session: Session, layout: GroupLayout, names: Sequence[str]) -> set[str]:
    """
    Return the consumer ids that still exist and are not member ids.

    A member id ends in the id of the session that owns the znode. If ``names`` has a member id, an operator or a forced
    release has deleted the member znode. The member notices this at its next heartbeat.
    """
    nodes = await session.exists_many([layout.consumer_id(name) for name in names])
    return {
        name
        for name, node in zip(names, nodes, strict=True)
        if node is not None and not name.endswith(f"-{unsigned_hex(node.owner)}")
    }


class ForeignMemberMonitor:
    """
    Watches for foreign members while this process leads. If there are some, the monitor logs an error and sets a gauge.
    """

    def __init__(self, context: SessionContext) -> None:
        self._session = context.session
        self._layout = context.layout
        self._tasks = context.tasks
        self._metrics = context.metrics
        self._active = False
        self._is_reading = False
        self._again = False
        self._seen = ForeignMembers()

    def start(self) -> None:
        """Look for foreign members now and at each change, while this process leads."""
        self._active = True
        self._changed()

    def stop(self) -> None:
        """Stop reporting, and reset the gauge: this process no longer leads, and the next leader reports."""
        self._active = self._again = False
        if self._seen.names:
            self._metrics.gauge("foreign_members", 0)
        self._seen = ForeignMembers()

    def _changed(self) -> None:
        self._again = self._active
        if self._active and not self._is_reading:
            self._tasks.start(self._read())

    async def _read(self) -> None:
        self._is_reading = True
        try:
            while self._again:
                self._again = False
                found = await find_foreign_members(self._session, self._layout, self._changed)
                if self._active:  # The monitor may have been stopped meanwhile.
                    self._report(found)
        finally:
            self._is_reading = False

    def _report(self, found: ForeignMembers) -> None:
        if found == self._seen:
            return
        self._seen = found
        self._metrics.gauge("foreign_members", len(found.names))
        if found.names:
            self._metrics.count("foreign_members_alarms")
            log.error(
                "group %s has %s: they read the same partitions; stop them, or give them another group",
                self._layout.group,
                found,
            )
        else:
            log.info("group %s: the foreign members are gone", self._layout.group)


#: The most owner znodes that one check reads, besides those of suspected partitions. Each check finds all missing owner
#: znodes.
MOST_OWNERS = 2_000

KINDS = ("partitions_unowned", "partitions_wrongly_owned", "partitions_orphaned")


class OwnershipMonitor:
    """
    Compares the owners of partitions with the published plan, at intervals of half ``drain_alarm_ms``.

    Each check logs an error for each alarm. The gauges ``partitions_unowned``, ``partitions_wrongly_owned`` and
    ``partitions_orphaned`` count the partitions that have been in that state for ``drain_alarm_ms`` or longer.
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
        #: Why the owners could not be read at the last check, as the log says, or "".
        self._problem = ""
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
            self._problem = ""
        except SessionLostError:
            raise
        except CoordinationError as error:
            if str(error) != self._problem:
                log.warning("group %s: the owners cannot be read: %s; retrying soon", self._layout.group, error)
            self._problem = str(error)
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
            The owner of each partition in the next batch, and of each suspected partition, or None for each partition
            without an owner znode.
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
        """Return the next ``MOST_OWNERS`` owned partitions, and all suspected partitions."""
        start = self._next if self._next < len(owned) else 0
        self._next = start + MOST_OWNERS
        return sorted({*islice(owned, start, self._next), *(p for p in owned if p in self._suspicions)})
