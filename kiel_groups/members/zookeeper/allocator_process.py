"""An allocator process: a candidate that can lead a group without being a member or owning partitions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kiel_groups.allocators import Allocator
from kiel_groups.config import GroupConfig
from kiel_groups.errors import KielGroupsError
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.members.zookeeper.group_session import RoleKind, SessionRole, SessionSupervisor
from kiel_groups.members.zookeeper.leader import Candidacy
from kiel_groups.members.zookeeper.planner import PartitionPlanner
from kiel_groups.members.zookeeper.registration import refuse_programs
from kiel_groups.zookeeper.session import Session, get_watched
from kiel_groups.zookeeper.tasks import ProcessContext, SessionContext


def allocator_kind(allocator: Allocator) -> RoleKind[AllocatorRole]:
    """Return the kind of role that an allocator process has on its sessions."""
    return RoleKind("this candidate is paused", GroupLayout, _admit, partial(AllocatorRole, allocator))


async def _admit(session: Session, layout: GroupLayout, _config: GroupConfig) -> None:
    """Check that the group has no members other than consumers. The first consumer writes the group's settings."""
    await refuse_programs(session, layout, await session.get(layout.config))


class AllocatorRole(SessionRole):
    """
    An allocator process on one session; see ``SessionRole``. The process registers nothing and owns nothing.

    The process may start before the group has members. The process follows the settings that the group's first member
    writes, and stops if the members are programs. Programs would wait for an assignment as long as this process led.
    """

    def __init__(self, allocator: Allocator, context: SessionContext) -> None:
        self._layout = context.layout
        self._session = context.session
        self._tasks = context.tasks
        # A candidate has no znode of its own to check. Checking the election folder still goes through the quorum.
        self.proof = context.layout.election
        self.candidacy = Candidacy(context, partial(PartitionPlanner, context, allocator, None), self.proof)

    async def joined(self) -> None:
        """
        Follow the group's settings. The candidacy has started.

        Raises:
            GroupConfigError: The group's members are programs.
        """
        await self._follow_settings()

    async def _follow_settings(self) -> None:
        node = await get_watched(self._session, self._layout.config, self.recheck)
        await refuse_programs(self._session, self._layout, node)

    def recheck(self) -> None:
        """Read the group's settings again. An error ends the session."""
        self._tasks.start(self._follow_settings())

    async def restore(self) -> None:
        """Read the group's settings again, in case a watch was lost. The candidacy restores the election znode."""
        await self._follow_settings()


class AllocatorProcess(SessionSupervisor[AllocatorRole]):
    """
    A candidate in one group's election, from ``start`` to ``close``, across sessions.

    An allocator process registers neither as a member nor as a consumer. Its only znode is its election znode, which is
    deleted when the process closes. Members that join compare their settings with the settings of the group, not with
    those of this process.

    Args:
        process: The process and its settings. Only these settings are used: the group's name, the debounce, and the
            allocator's time limit.
        allocator: Computes the assignments while this process leads.
        on_failure: Called with an error that a new session cannot fix: the group's members are programs.
    """

    def __init__(
        self, process: ProcessContext, allocator: Allocator, on_failure: Callable[[KielGroupsError], None]
    ) -> None:
        super().__init__(process, allocator_kind(allocator), on_failure)
