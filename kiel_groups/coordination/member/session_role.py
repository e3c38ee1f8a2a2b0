"""Define what differs between the processes of a group: a member owns partitions, an allocator process only leads."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, TypeVar

from kiel_groups.config import GroupConfig
from kiel_groups.coordination.leader.candidacy import Candidacy
from kiel_groups.coordination.partition_handler import Work
from kiel_groups.coordination.session.session_context import SessionContext
from kiel_groups.coordination.session.zk_session import Session
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.listeners import Stall

__all__ = ["RoleKind", "SessionRole"]


class SessionRole(Protocol):
    """The role of a process on one session."""

    @property
    def proof(self) -> str:
        """The znode that each heartbeat checks, and without which this process is no candidate."""

    @property
    def candidacy(self) -> Candidacy | None:
        """The part that this process takes in the election, or None if it takes none."""

    async def register(self) -> None:
        """Create the znodes that register this process."""

    async def joined(self) -> None:
        """Start the work of a process that has registered."""

    def recheck(self) -> None:
        """Read again everything that is watched: the watches may have been lost."""

    async def restore(self) -> None:
        """Restore znodes of this process that an operator deleted and that other processes rely on."""

    def in_progress(self) -> Collection[Work]:
        """Return the application's work in progress; also called from other threads."""

    def stalled(self, stall: Stall) -> None:
        """Report work that makes no progress; called on a thread of its own."""

    async def release(self, *, alone: bool) -> None:
        """
        Hand over what this process owns, before it leaves.

        ``alone`` means that this process leads, and that no other process can take over.
        """

    def end(self) -> None:
        """Drop what this process owns, because the session is over."""


_RoleT_co = TypeVar("_RoleT_co", bound=SessionRole, covariant=True)


class RoleKind(Protocol[_RoleT_co]):
    """The kind of role that a process has on each of its sessions."""

    @property
    def paused(self) -> str:
        """The effect of a broken connection, for the log."""

    def layout(self, group: str) -> GroupLayout:
        """Return the paths of the group's znodes."""

    async def admit(self, session: Session, layout: GroupLayout, config: GroupConfig) -> None:
        """Raise an error if this process may not join the group."""

    def new_role(self, context: SessionContext) -> _RoleT_co:
        """Create the role on a session that is open. The role is complete, and starts nothing yet."""
