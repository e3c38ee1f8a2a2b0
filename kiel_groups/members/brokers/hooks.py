"""Define the hooks that a coordinated member calls, and the context that the member's parts share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from kiel_groups.config import CoordinatorConfig, GroupConfig
from kiel_groups.members.brokers.gate import GenerationGate
from kiel_groups.members.brokers.transport import GroupTransport
from kiel_groups.members.brokers.versions import GroupVersions
from kiel_groups.metrics import Metrics
from kiel_groups.wire.framing import Request
from kiel_groups.wire.group_requests import GroupProtocol
from kiel_groups.zookeeper.runtime import Runtime

T = TypeVar("T")


class JoinedGroup(NamedTuple):
    """
    The result of a join: the ``protocol`` that the coordinator chose, and the id of the leader.

    ``members`` has the metadata of each member by its id. ``members`` is empty unless this member is the leader.
    """

    protocol: str
    leader_id: str
    members: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatedContext:
    """
    The settings and tools that the parts of a member share in a group that brokers coordinate.

    ``versions`` says whether the brokers know JoinGroup v1 and v4. Without v1, a rebalance waits for each member for up
    to the session timeout. Without v4, a member has no id, and so cannot leave, until its first join is answered.
    """

    group: GroupConfig
    timing: CoordinatorConfig
    transport: GroupTransport
    versions: GroupVersions
    metrics: Metrics
    runtime: Runtime

    @property
    def has_rebalance_timeout(self) -> bool:
        """Whether a join sends the member's rebalance timeout to the coordinator."""
        return self.versions.has_rebalance_timeout

    @property
    def names_members_first(self) -> bool:
        """Whether the coordinator names a new member before the member waits for the other members."""
        return self.versions.names_members_first

    @property
    def rebalance_timeout_s(self) -> float:
        """How long the coordinator waits for the members of a rebalance, in seconds."""
        limit_ms = self.timing.rebalance_timeout_ms if self.has_rebalance_timeout else self.timing.session_timeout_ms
        return limit_ms / 1000

    def aside(self, request: Request[T], timeout_s: float) -> Callable[[int], Awaitable[T]]:
        """Return a function that sends a request to a coordinator once, even while a join or a sync is in flight."""
        return lambda coordinator: self.transport.send(coordinator, request, timeout_s, aside=True)


class MemberHooks(Protocol):
    """
    The hooks of the program that a member belongs to. The member calls them on the event loop.

    For each generation, the member calls ``complete`` once, and then ``prepare`` or ``lost``. Before ``lost``, the
    member cancels a ``complete`` or a ``prepare`` that still runs.
    """

    @property
    def protocol_type(self) -> str:
        """The kind of the group, such as "consumer". All members of a group have the same kind."""

    async def protocols(self) -> Sequence[GroupProtocol]:
        """Return the protocols for the member's next join: names with metadata, the preferred protocol first."""

    async def perform_assignment(self, joined: JoinedGroup) -> Mapping[str, bytes]:
        """
        Return an assignment for each member. Only the leader calls this method. An error stops the leader.

        Raises:
            KielGroupsError: No assignment can be made.
        """

    async def complete(self, gate: GenerationGate, joined: JoinedGroup, assignment: bytes) -> None:
        """
        Take over this member's assignment. The program may use the assignment while the gate is open.

        Raises:
            ProtocolError: The assignment cannot be read. The member has no assignment, and joins again later.
        """

    async def prepare(self, gate: GenerationGate) -> None:
        """
        Release the assignment before the member joins again or leaves.

        When the gate closes, the program loses the parts that it has not released, and this method returns promptly.
        """

    def lost(self, gate: GenerationGate) -> None:
        """Drop the assignment at once: other members may have it already. The gate is shut before this call."""
