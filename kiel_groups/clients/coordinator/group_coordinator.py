"""Define what coordinates a member's group, as the member sees it: brokers, or the group's leader on ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TypeAlias

from kiel_groups.clients.coordinator.generation_gate import GenerationGate
from kiel_groups.clients.coordinator.group_transport import BeatAnswer
from kiel_groups.clients.coordinator.member_hooks import JoinedGroup
from kiel_groups.coordination.session.close_limit import CloseLimit
from kiel_groups.errors import KielGroupsError
from kiel_groups.group.coordinated.coordinator_codes import GroupRequest
from kiel_groups.model import GenerationToken
from kiel_groups.wire.error_codes import ErrorCode

__all__ = ["BeatReport", "BeatTarget", "CoordinatorWords", "GroupCoordinator", "JoinAnswer", "SyncAnswer"]


class CoordinatorWords(NamedTuple):
    """The words of a member's log: what confirms its membership, and how it finds that."""

    confirmer: str = "the coordinator"
    find: str = "find its coordinator"


class JoinAnswer(NamedTuple):
    """The answer to a join: an error, or the membership and what all members have joined with."""

    error: ErrorCode
    token: GenerationToken
    joined: JoinedGroup

    @property
    def is_leader(self) -> bool:
        """Whether the member leads its generation."""
        return self.joined.leader_id == self.token.member_id


class SyncAnswer(NamedTuple):
    """The answer to a sync: an error, or the member's assignment."""

    error: ErrorCode
    assignment: bytes


class BeatTarget(NamedTuple):
    """The membership that is proved, and the coordinator that it is proved to."""

    coordinator: int
    gate: GenerationGate


#: Called on the event loop with a membership and what the coordinator thinks of it.
BeatReport: TypeAlias = Callable[[BeatTarget, BeatAnswer], None]


class GroupCoordinator(Protocol):
    """
    The coordinator of one member's group.

    Coordinators are known by numbers: the node ids of brokers, or one number for each ZooKeeper session. Requests raise
    ``BrokerError`` or ``ProtocolError`` if there is no answer, or none that can be read.
    """

    @property
    def words(self) -> CoordinatorWords:
        """The words for the coordinator in the log of the member."""

    @property
    def beats_while_draining(self) -> bool:
        """Whether the coordinator counts proofs of a member that has to join again and has not done so yet."""

    async def find(self) -> int:
        """
        Return the number of the present coordinator.

        Raises:
            FindError: It is not known at the moment.
        """

    async def join(self, coordinator: int, member_id: str) -> JoinAnswer:
        """Join with what the hooks offer now, and wait for the other members; a new member has no id."""

    async def sync(self, coordinator: int, token: GenerationToken, assignments: Mapping[str, bytes]) -> SyncAnswer:
        """Wait for the member's assignment; the leader brings those of all members."""

    async def leave(self, coordinator: int, member_id: str) -> None:
        """Leave the group, in one attempt; raises ``KielGroupsError`` if the coordinator refuses."""

    def abandon(self) -> None:
        """Cancel the join or the sync under way, and with it the task that waits for its answer."""

    def new_gate(self, token: GenerationToken, sent_s: float) -> GenerationGate:
        """Return the gate of a generation whose sync was sent at the boot time ``sent_s``."""

    def follow(self, target: BeatTarget | None) -> None:
        """Prove this membership from now on, and report what becomes of it; None: prove nothing."""

    def leave_at_once(self, target: BeatTarget) -> None:
        """Leave without an event loop. Any thread may call it."""

    def stop(self) -> None:
        """Have everything that runs beside the event loop end soon, without waiting for it."""

    async def closed(self, limit: CloseLimit) -> None:
        """Wait, after ``stop``, until nothing of the coordinator runs on the event loop, but not beyond the limit."""

    def wait_ended(self, timeout_s: float) -> None:
        """Block until that has ended, after ``stop``, but at most ``timeout_s``."""

    def unreachable(self, error: KielGroupsError) -> KielGroupsError:
        """Return the error of a first join whose coordinator was not found in time; ``error`` is the last cause."""

    def refusal(self, request: GroupRequest, code: int) -> KielGroupsError:
        """Return the error of a member that the coordinator refuses for good."""
