"""The events and effects of ``member_state``: what its driver observed, and what the driver must do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from kiel_groups.group.coordinated.coordinator_codes import GroupRequest

__all__ = [
    "Answered",
    "Assign",
    "AssignFailed",
    "Assigned",
    "CoordinatorFound",
    "Drain",
    "Drained",
    "Effect",
    "Ended",
    "Event",
    "Fail",
    "FindCoordinator",
    "FindFailed",
    "GivenUp",
    "Join",
    "JoinAnswered",
    "Leave",
    "LeaveAnswered",
    "LeaveAtOnce",
    "Lose",
    "NO_GENERATION",
    "Open",
    "Pause",
    "PauseOver",
    "Rejoin",
    "RequestEnded",
    "RequestStarted",
    "SendLeave",
    "Sync",
    "SyncAnswered",
]

#: The generation of a member that has not joined, as the protocol writes it.
NO_GENERATION = -1

# Events: what the driver observed.


@dataclass(frozen=True, slots=True)
class Rejoin:
    """The member is to join, for the first time or because its subscription or its topics have changed."""


@dataclass(frozen=True, slots=True)
class CoordinatorFound:
    """A broker has named the coordinator: the answer to the question ``discovery``."""

    discovery: int
    coordinator: int


@dataclass(frozen=True, slots=True)
class FindFailed:
    """No broker has named the coordinator. ``code`` is None if none answered."""

    discovery: int
    code: int | None


@dataclass(frozen=True, slots=True)
class PauseOver:
    """A pause has ended."""

    pause: int


@dataclass(frozen=True, slots=True)
class Drained:
    """The application has given all partitions back; those that took too long were lost."""


@dataclass(frozen=True, slots=True)
class JoinAnswered:
    """The coordinator has answered a join (``code`` None: it has not, in time)."""

    join: int
    code: int | None
    generation: int = NO_GENERATION
    member_id: str = ""
    is_leader: bool = False


@dataclass(frozen=True, slots=True)
class Assigned:
    """The leader has made the assignments of all members."""

    join: int


@dataclass(frozen=True, slots=True)
class AssignFailed:
    """The leader's assignor has failed."""

    join: int


@dataclass(frozen=True, slots=True)
class SyncAnswered:
    """The coordinator has answered a sync (``code`` None: it has not, in time)."""

    join: int
    code: int | None


@dataclass(frozen=True, slots=True)
class Answered:
    """A heartbeat, a commit or a read of offsets was answered; ``code`` is None if it was not, in time."""

    request: GroupRequest
    code: int | None
    generation: int
    member_id: str


@dataclass(frozen=True, slots=True)
class RequestStarted:
    """A commit or a read of offsets is about to be sent."""


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """A commit or a read of offsets has its answer, or was given up."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The watchdog has given the membership up, because the application makes no progress."""


@dataclass(frozen=True, slots=True)
class Leave:
    """The member is to leave the group for good."""


@dataclass(frozen=True, slots=True)
class LeaveAtOnce:
    """The member is to leave the group for good, without waiting for the application."""


@dataclass(frozen=True, slots=True)
class LeaveAnswered:
    """The coordinator has answered the leave request, or has not, in time."""


Event: TypeAlias = (
    Rejoin
    | CoordinatorFound
    | FindFailed
    | PauseOver
    | Drained
    | JoinAnswered
    | Assigned
    | AssignFailed
    | SyncAnswered
    | Answered
    | RequestStarted
    | RequestEnded
    | GivenUp
    | Leave
    | LeaveAtOnce
    | LeaveAnswered
)


# Effects: what the driver must do.


@dataclass(frozen=True, slots=True)
class FindCoordinator:
    """Ask any broker for the coordinator; answer with CoordinatorFound or FindFailed."""

    discovery: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait as long as fits this number of failures in a row; answer with PauseOver."""

    pause: int
    failures: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Stop fetching, wait for the application, commit, and end the assignment; answer with Drained."""


@dataclass(frozen=True, slots=True)
class Lose:
    """End the assignment at once: nothing of it may be delivered or committed any more."""


@dataclass(frozen=True, slots=True)
class Join:
    """Send a join; answer with JoinAnswered."""

    join: int
    member_id: str


@dataclass(frozen=True, slots=True)
class Assign:
    """As the leader, assign partitions to all members; answer with Assigned or AssignFailed."""

    join: int


@dataclass(frozen=True, slots=True)
class Sync:
    """Send a sync, with the assignments of all members if this member leads; answer with SyncAnswered."""

    join: int


@dataclass(frozen=True, slots=True)
class Open:
    """Take over the assignment that the sync has brought."""


@dataclass(frozen=True, slots=True)
class SendLeave:
    """Send one leave request; answer with LeaveAnswered."""

    member_id: str


@dataclass(frozen=True, slots=True)
class Fail:
    """Stop for good: the coordinator has refused this request with this code."""

    request: GroupRequest
    code: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The member has ended."""


Effect: TypeAlias = FindCoordinator | Pause | Drain | Lose | Join | Assign | Sync | Open | SendLeave | Fail | Ended
