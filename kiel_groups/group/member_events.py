"""The events and effects of ``member_state``, and how a member reacts to each error code of its coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from typing import TypeAlias

__all__ = [
    "CoordinatorCode",
    "GroupRequest",
    "REACTIONS",
    "Reaction",
    "reaction_to",
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


# What a member makes of the error codes of its group's coordinator, by request: one table.
#
# The numbers are Kafka's. ``wire.error_codes`` has the same ones with names and hints for users; the two packages do
# not know each other, so a test compares them.


class CoordinatorCode(IntEnum):
    """The codes of a coordinator that a member distinguishes."""

    UNKNOWN = -1
    NO_ERROR = 0
    REQUEST_TIMED_OUT = 7
    LOADING = 14
    NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    ILLEGAL_GENERATION = 22
    INCONSISTENT_PROTOCOL = 23
    INVALID_GROUP = 24
    UNKNOWN_MEMBER = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    GROUP_AUTHORIZATION_FAILED = 30


class GroupRequest(Enum):
    """The requests about a group, by the names that errors and logs use."""

    FIND = "FindCoordinator"
    JOIN = "JoinGroup"
    SYNC = "SyncGroup"
    HEARTBEAT = "Heartbeat"
    COMMIT = "OffsetCommit"
    FETCH = "OffsetFetch"


class Reaction(Enum):
    """What a member does about an answer."""

    #: The request has succeeded, or its sender handles the code alone.
    PROCEED = auto()
    #: Send the request again after a pause.
    WAIT = auto()
    #: The broker does not coordinate the group any more, or is gone: find the coordinator, then continue.
    FIND = auto()
    #: The group rebalances: give the partitions back in order, then join with the same member id.
    REJOIN = auto()
    #: The coordinator does not know the member id, which the member has not used yet: join without one.
    NEW_ID = auto()
    #: The coordinator has removed the member: its partitions are lost. Join without a member id.
    LOST = auto()
    #: The member stops: a further try would fail in the same way.
    FAIL = auto()


_C, _R = CoordinatorCode, Reaction

_MOVED: Mapping[int, Reaction] = {_C.NOT_AVAILABLE: _R.FIND, _C.NOT_COORDINATOR: _R.FIND}
_REMOVED: Mapping[int, Reaction] = {_C.ILLEGAL_GENERATION: _R.LOST, _C.UNKNOWN_MEMBER: _R.LOST}
_REFUSED: Mapping[int, Reaction] = {_C.INVALID_GROUP: _R.FAIL, _C.GROUP_AUTHORIZATION_FAILED: _R.FAIL}

#: The reactions to the codes of each request. ``reaction_to`` has those to other codes, and to no answer at all.
REACTIONS: Mapping[GroupRequest, Mapping[int, Reaction]] = {
    GroupRequest.FIND: {_C.NO_ERROR: _R.PROCEED, **_REFUSED},
    GroupRequest.JOIN: {
        _C.NO_ERROR: _R.PROCEED,
        _C.UNKNOWN: _R.WAIT,
        _C.REQUEST_TIMED_OUT: _R.WAIT,
        _C.LOADING: _R.WAIT,
        _C.REBALANCE_IN_PROGRESS: _R.WAIT,
        **_MOVED,
        _C.ILLEGAL_GENERATION: _R.NEW_ID,
        _C.UNKNOWN_MEMBER: _R.NEW_ID,
        _C.INCONSISTENT_PROTOCOL: _R.FAIL,
        _C.INVALID_SESSION_TIMEOUT: _R.FAIL,
        **_REFUSED,
    },
    GroupRequest.SYNC: {
        _C.NO_ERROR: _R.PROCEED,
        _C.REBALANCE_IN_PROGRESS: _R.REJOIN,
        **_MOVED,
        _C.ILLEGAL_GENERATION: _R.NEW_ID,
        _C.UNKNOWN_MEMBER: _R.NEW_ID,
        **_REFUSED,
    },
    GroupRequest.HEARTBEAT: {
        _C.NO_ERROR: _R.PROCEED,
        _C.LOADING: _R.PROCEED,
        _C.REBALANCE_IN_PROGRESS: _R.REJOIN,
        **_MOVED,
        **_REMOVED,
        **_REFUSED,
    },
    GroupRequest.COMMIT: {
        # The coordinator cannot have the offsets replicated, as when it is cut off from its cluster. It answers
        # heartbeats all the same, so nothing else makes the member look for its successor.
        _C.REQUEST_TIMED_OUT: _R.FIND,
        _C.REBALANCE_IN_PROGRESS: _R.REJOIN,
        **_MOVED,
        **_REMOVED,
        **_REFUSED,
    },
    GroupRequest.FETCH: {**_MOVED, **_REMOVED, **_REFUSED},
}

#: What a code means that a request's table lacks. A coordinator that refuses a join in an unknown way will do so again.
#: After any other failure of a sync, the member joins again. An unknown answer to a heartbeat confirms nothing. An
#: unknown code of an offset concerns that offset, and the sender of the request.
_OTHERWISE: Mapping[GroupRequest, Reaction] = {
    GroupRequest.FIND: _R.WAIT,
    GroupRequest.JOIN: _R.FAIL,
    GroupRequest.SYNC: _R.WAIT,
    GroupRequest.HEARTBEAT: _R.FIND,
    GroupRequest.COMMIT: _R.PROCEED,
    GroupRequest.FETCH: _R.PROCEED,
}


def reaction_to(request: GroupRequest, code: int | None) -> Reaction:
    """Return what a member does about the answer to a request; ``code`` is None if no answer came."""
    if code is None:
        return Reaction.WAIT if request is GroupRequest.FIND else Reaction.FIND
    return REACTIONS[request].get(code, _OTHERWISE[request])


#: The generation of a member that has not joined, as the protocol writes it.
NO_GENERATION = -1

# Events: what the driver observed.


@dataclass(frozen=True, slots=True)
class Rejoin:
    """The member must join, for the first time or because its subscription or its topics have changed."""


@dataclass(frozen=True, slots=True)
class CoordinatorFound:
    """A broker has named the coordinator: the answer to the question ``discovery``."""

    discovery: int
    coordinator: int


@dataclass(frozen=True, slots=True)
class FindFailed:
    """No broker has named the coordinator. ``code`` is None if no broker answered."""

    discovery: int
    code: int | None


@dataclass(frozen=True, slots=True)
class PauseOver:
    """A pause has ended."""

    pause: int


@dataclass(frozen=True, slots=True)
class Drained:
    """All partitions are drained; partitions that took too long were lost."""


@dataclass(frozen=True, slots=True)
class JoinAnswered:
    """A join was answered; ``code`` is None if no answer came in time."""

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
    """A sync was answered; ``code`` is None if no answer came in time."""

    join: int
    code: int | None


@dataclass(frozen=True, slots=True)
class Answered:
    """A heartbeat, a commit or a read of offsets was answered; ``code`` is None if no answer came in time."""

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
    """The member must leave the group for good."""


@dataclass(frozen=True, slots=True)
class LeaveAtOnce:
    """The member must leave the group for good, without waiting for the application."""


@dataclass(frozen=True, slots=True)
class LeaveAnswered:
    """The leave request was answered, or no answer came in time."""


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
    """Wait for a time that grows with this number of failures in a row; answer with PauseOver."""

    pause: int
    failures: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Stop fetching, wait for the application, commit, and end the assignment; answer with Drained."""


@dataclass(frozen=True, slots=True)
class Lose:
    """End the assignment at once: its partitions must no longer be delivered or committed."""


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
