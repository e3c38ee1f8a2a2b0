"""
Members that do not take part in the protocol: Java's consumers, pykafka's, kiel's.

They would read, and commit, what ours own. Found first they refuse a join; found later they are an alarm, since nothing
that a leader could write would stop them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kiel_groups.coordination.session.session_tasks import TaskSet
from kiel_groups.coordination.session.zk_session import Session
from kiel_groups.group.znodes.contents import unsigned_hex
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.metrics import Metrics

__all__ = ["ForeignMembers", "ForeignMemberMonitor", "find_foreigners"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ForeignMembers:
    """Names of foreign members and the folder that they stand in; of both kinds, those under ``/consumers``."""

    names: tuple[str, ...] = ()
    folder: str = ""

    def __str__(self) -> str:
        members = "member that does" if len(self.names) == 1 else "members that do"
        return (
            f"{len(self.names)} {members} not take part in its protocol, first {self.names[0]!r} (under {self.folder})"
        )


async def find_foreigners(
    session: Session, layout: GroupLayout, watcher: Callable[[], None] | None = None
) -> ForeignMembers:
    """
    Look for foreign members.

    The two folders cannot be read at one moment: an id that stands there before and after the members were read is not
    one of a member that came or went meanwhile.

    Args:
        session: Where to look.
        layout: The group.
        watcher: Called when consumers, or members of kiel's, come or go.
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
    Leave out ids that end in the number of the session which owns them: that is how our members are named.

    Such a member has lost its member znode, by hand or by a forced release, and will find out at its next heartbeat.
    """
    nodes = await session.exists_many([layout.consumer_id(name) for name in names])
    return {
        name
        for name, node in zip(names, nodes, strict=True)
        if node is not None and not name.endswith(f"-{unsigned_hex(node.owner)}")
    }


class ForeignMemberMonitor:
    """A leader's eye on foreign members: an error in the log and a gauge while there are any."""

    def __init__(self, session: Session, layout: GroupLayout, tasks: TaskSet, metrics: Metrics) -> None:
        self._session = session
        self._layout = layout
        self._tasks = tasks
        self._metrics = metrics
        self._active = False
        self._looking = False
        self._again = False
        self._seen = ForeignMembers()

    def start(self) -> None:
        """This process leads, or leads on: look, and keep looking."""
        self._active = True
        self._changed()

    def stop(self) -> None:
        """It leads no more; the next leader looks, and what this one saw is no news of its next term."""
        self._active = self._again = False
        if self._seen.names:
            self._metrics.gauge("foreign_members", 0)
        self._seen = ForeignMembers()

    def _changed(self) -> None:
        self._again = self._active
        if self._active and not self._looking:
            self._tasks.start(self._look())

    async def _look(self) -> None:
        self._looking = True
        try:
            while self._again:
                self._again = False
                found = await find_foreigners(self._session, self._layout, self._changed)
                if self._active:  # It may have been stopped meanwhile.
                    self._tell(found)
        finally:
            self._looking = False

    def _tell(self, found: ForeignMembers) -> None:
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
