"""The role of a member of a group of programs on one session, and the checks before it joins."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from functools import partial

from kiel_groups.config import GroupConfig
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.group.znodes.round_contents import Offer, RoundLayout
from kiel_groups.listeners import Stall
from kiel_groups.members.partition_handler import Work
from kiel_groups.members.programs.round_member import RoundMembership
from kiel_groups.members.programs.round_planner import RoundPlanner
from kiel_groups.members.zookeeper.group_member import admit_program
from kiel_groups.members.zookeeper.leader import Candidacy
from kiel_groups.zookeeper.session import Session
from kiel_groups.zookeeper.tasks import SessionContext

__all__ = [
    "RoundKind",
    "RoundRole",
]


class RoundKind:
    """
    The roles of one member of a group of programs on its sessions; see ``RoleKind``.

    Args:
        protocol_type: The type of the member's program, which all members of a group share.
        offer: Returns what the member joins with now.
        rebalance_timeout_s: How long a round waits for members, while this process leads.
    """

    paused = "this member is paused"

    def __init__(self, protocol_type: str, offer: Callable[[], Awaitable[Offer]], rebalance_timeout_s: float) -> None:
        self._protocol_type = protocol_type
        self._offer = offer
        self._rebalance_timeout_s = rebalance_timeout_s

    def layout(self, group: str) -> GroupLayout:
        """Return the paths of a group of programs."""
        return RoundLayout(group)

    async def admit(self, session: Session, layout: GroupLayout, config: GroupConfig) -> None:
        """Check that the group's members are programs of the same type; raises as ``admit_program``."""
        await admit_program(session, layout, self._protocol_type)

    def new_role(self, context: SessionContext) -> RoundRole:
        return RoundRole(context, self._offer, self._rebalance_timeout_s)


class RoundRole:
    """A member of a group of programs on one session; see ``SessionRole``."""

    def __init__(
        self, context: SessionContext, offer: Callable[[], Awaitable[Offer]], rebalance_timeout_s: float
    ) -> None:
        self.proof = context.layout.member(context.member_id)
        self.membership = membership = RoundMembership(context, offer)
        planner = partial(RoundPlanner, context, membership.exchange, rebalance_timeout_s)
        self.candidacy = Candidacy(context, planner, self.proof)

    async def register(self) -> None:
        """Register the member; raises as ``RoundMembership.register``."""
        await self.membership.register()

    async def joined(self) -> None:
        """Follow the rounds."""
        self.membership.recheck()

    def recheck(self) -> None:
        """Read the newest round again."""
        self.membership.recheck()

    async def restore(self) -> None:
        """Read the newest round again, in case its watch was lost; restore the member znode."""
        self.membership.recheck()
        await self.membership.restore()

    def in_progress(self) -> Collection[Work]:
        """Return nothing: the program watches its own work."""
        return ()

    def stalled(self, stall: Stall) -> None:
        """Do nothing: the watchdog has logged the stall of the event loop."""

    async def release(self, *, alone: bool) -> None:
        """Do nothing: the program has given its assignment back before the session is closed."""

    def end(self) -> None:
        """Do nothing: the member hears of the session's end from the session."""
