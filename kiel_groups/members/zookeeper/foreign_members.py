"""
Foreign members: Java, pykafka and kiel consumers, which do not take part in this library's protocol.

Foreign members would read and commit partitions that members own. A member refuses to join a group that has foreign
members. If these join later, the leader can only raise an alarm, because no znode that it writes would stop them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kiel_groups.group.znodes.contents import unsigned_hex
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.zookeeper.session import Session
from kiel_groups.zookeeper.tasks import SessionContext

__all__ = [
    "ForeignMembers",
    "ForeignMemberMonitor",
    "find_foreign_members",
]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ForeignMembers:
    """
    The names of foreign members, and the folder that lists them.

    If both ``/consumers/<group>/ids`` and kiel's folder list foreign members, this is the first of the two folders.
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

    Consumer ids and members cannot be read in one step. So consumer ids are read before and after the members: an id
    that exists both times does not belong to a member that joined or left meanwhile.

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
    kiel = await session.children(layout.kiel_members, watcher)
    if kiel is None and watcher is not None and await session.exists(layout.kiel_members, watcher) is not None:
        kiel = await session.children(layout.kiel_members, watcher)
    if foreign:
        return ForeignMembers(tuple(sorted(foreign)), layout.ids)
    return ForeignMembers(tuple(sorted(kiel)), layout.kiel_members) if kiel else ForeignMembers()


async def _without_our_own(session: Session, layout: GroupLayout, names: Sequence[str]) -> set[str]:
    """
    Return the existing consumer ids that, unlike member ids, do not end in the id of the session that owns them.

    A member whose id is left out has lost its member znode to an operator or a forced release. The member notices this
    at its next heartbeat.
    """
    nodes = await session.exists_many([layout.consumer_id(name) for name in names])
    return {
        name
        for name, node in zip(names, nodes, strict=True)
        if node is not None and not name.endswith(f"-{unsigned_hex(node.owner)}")
    }


class ForeignMemberMonitor:
    """Watches for foreign members while this process leads: it logs an error and sets a gauge if there are any."""

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
