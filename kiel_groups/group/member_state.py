"""
The state machine of one member of a group that brokers coordinate, by Kafka's group protocol.

The machine is level-triggered: after each event, the state alone decides the next step.

Rules
  1. Any broker names the coordinator. No answer, or an answer that another broker coordinates the group, makes the
     member search again. Only the answer to the newest search is used. The membership continues meanwhile.
  2. Before the member joins again, its partitions are revoked, once for a rebalance, however many tries the join takes.
     If the coordinator still counts the member, the partitions are drained and committed (``Drain``). After the
     coordinator has removed the member, the partitions are lost (``Lose``), and nothing is committed.
  3. A join is sent only when the partitions are revoked, and no other request to the coordinator is in flight.
  4. A coordinator from Kafka 2.2 on answers a join without a member id at once, with an id. The member joins again with
     this id, and waits for the others then. If the coordinator does not know the member id of a join, the member joins
     again without a member id, at once if it had a generation. If the coordinator refuses a join for good, the member
     fails.
  5. After a failed sync, the member joins again. It drops its member id only if the coordinator does not know the id.
  6. A request to rejoin during a join or a sync takes effect after it, so that the group is not disturbed twice.
  7. The answer to a heartbeat or a commit is used only for the generation and the member id of that request.
  8. The member leaves in one attempt, and only if it has a member id, also during its first join. It looks for the
     coordinator as long as it has partitions to commit, but not for the leave request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, IntEnum, auto
from typing import TypeAlias

# The reactions of a member to the error codes of its group's coordinator, by request, in one table.
#
# The numbers are Kafka's. ``wire.error_codes`` has the same numbers with names and hints for users. The two packages do
# not import each other, so a test compares them.


class CoordinatorCode(IntEnum):
    """The error codes in a coordinator's answers that a member distinguishes."""

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
    MEMBER_ID_REQUIRED = 79


class GroupRequest(Enum):
    """The requests about a group, by the names that errors and logs use."""

    FIND = "FindCoordinator"
    JOIN = "JoinGroup"
    SYNC = "SyncGroup"
    HEARTBEAT = "Heartbeat"
    COMMIT = "OffsetCommit"
    FETCH = "OffsetFetch"


class Reaction(Enum):
    """The reactions of a member to an answer of the coordinator."""

    #: The request has succeeded, or its sender handles the code alone.
    PROCEED = auto()
    #: Send the request again after a pause.
    WAIT = auto()
    #: The broker does not coordinate the group any more, or is gone: find the coordinator, then continue.
    FIND = auto()
    #: The group rebalances: give the partitions back in order, then join with the same member id.
    REJOIN = auto()
    #: The coordinator has named the member: join with this member id.
    TAKE_ID = auto()
    #: The coordinator does not know the member id of a member without partitions: join without one.
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
        _C.MEMBER_ID_REQUIRED: _R.TAKE_ID,
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

#: The reactions to codes that a request's table lacks. A coordinator that refuses a join in an unknown way will do so
#: again. After any other failure of a sync, the member joins again. An unknown answer to a heartbeat confirms nothing.
#: An unknown code of an offset concerns that offset, and the sender of the request.
_OTHERWISE: Mapping[GroupRequest, Reaction] = {
    GroupRequest.FIND: _R.WAIT,
    GroupRequest.JOIN: _R.FAIL,
    GroupRequest.SYNC: _R.WAIT,
    GroupRequest.HEARTBEAT: _R.FIND,
    GroupRequest.COMMIT: _R.PROCEED,
    GroupRequest.FETCH: _R.PROCEED,
}


def reaction_to(request: GroupRequest, code: int | None) -> Reaction:
    """Return the member's reaction to the answer to a request. ``code`` is None if no answer came."""
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
    """A broker has named the node id of the coordinator, in answer to the search with the number ``discovery``."""

    discovery: int
    coordinator: int


@dataclass(frozen=True, slots=True)
class FindFailed:
    """The search ``discovery`` has found no coordinator. ``code`` is None if no broker answered."""

    discovery: int
    code: int | None


@dataclass(frozen=True, slots=True)
class PauseOver:
    """The pause with the number ``pause`` has ended."""

    pause: int


@dataclass(frozen=True, slots=True)
class Drained:
    """The drain has ended for all partitions. Partitions whose drain took too long were lost."""


@dataclass(frozen=True, slots=True)
class JoinAnswered:
    """
    The join with the number ``join`` was answered. ``code`` is None if no answer came in time.

    ``member_id`` is the member's id if the code is NO_ERROR or MEMBER_ID_REQUIRED.
    """

    join: int
    code: int | None
    generation: int = NO_GENERATION
    member_id: str = ""
    is_leader: bool = False


@dataclass(frozen=True, slots=True)
class Assigned:
    """This member, as the leader, has made the assignments of all members."""

    join: int


@dataclass(frozen=True, slots=True)
class AssignFailed:
    """This member is the leader, and its assignor has failed."""

    join: int


@dataclass(frozen=True, slots=True)
class SyncAnswered:
    """The sync after the join ``join`` was answered. ``code`` is None if no answer came in time."""

    join: int
    code: int | None


@dataclass(frozen=True, slots=True)
class Answered:
    """A heartbeat, a commit or a read of offsets was answered. ``code`` is None if no answer came in time."""

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
    """The watchdog has ended the membership, because the application makes no progress."""


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
    """Wait for a time that grows with ``failures``, the number of failures in a row; answer with PauseOver."""

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
    """Start the assignment that the sync has returned."""


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


class Phase(Enum):
    """The phases of a member, from its first join to its end."""

    #: Entry: the start, a failed join or sync, or removal. Duty: find the coordinator. Exit: a join is sent.
    UNJOINED = "unjoined"
    #: Entry: a join is sent. Duty: wait for the other members. Exit: the coordinator's answer, or none in time.
    JOINING = "joining"
    #: Entry: joined a generation. Duty: as the leader, assign; sync. Exit: the assignment, or a failure.
    SYNCING = "awaiting sync"
    #: Entry: the assignment has arrived. Duty: send heartbeats, fetch, commit. Exit: a rebalance or removal.
    STABLE = "stable"
    #: Entry: the partitions are released. Duty: send one leave request. Exit: its answer, or none in time.
    LEAVING = "leaving"
    #: Entry: left, failed, or never joined. Duty: none. Exit: none.
    ENDED = "ended"


#: The legal changes of a member's phase.
MOVES: Mapping[Phase, frozenset[Phase]] = {
    Phase.UNJOINED: frozenset({Phase.JOINING, Phase.LEAVING, Phase.ENDED}),
    Phase.JOINING: frozenset({Phase.SYNCING, Phase.UNJOINED, Phase.LEAVING, Phase.ENDED}),
    Phase.SYNCING: frozenset({Phase.STABLE, Phase.UNJOINED, Phase.LEAVING, Phase.ENDED}),
    Phase.STABLE: frozenset({Phase.JOINING, Phase.UNJOINED, Phase.LEAVING, Phase.ENDED}),
    Phase.LEAVING: frozenset({Phase.ENDED}),
    Phase.ENDED: frozenset(),
}


class Holding(Enum):
    """The states of the member's partitions: given to the application, being revoked, or neither."""

    #: No partition. The application may still process records of lost partitions, and cannot commit them.
    NOTHING = "nothing"
    #: The partitions of the last assignment.
    ASSIGNED = "assigned"
    #: Partitions that are being revoked: their records in flight are finished and committed.
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class MemberState:
    """
    The state of one member.

    ``coordinator`` is the node id of the group's coordinator, or None while the coordinator is unknown. ``discovery``,
    ``join`` and ``pause`` are the numbers of the newest search for the coordinator, of the newest join and of the
    newest pause. ``rejoin_due`` is true if a join must follow. ``failures`` is the number of failures in a row.
    ``in_flight`` is the number of commits and reads of offsets that the coordinator has not answered. A member with a
    ``member_id`` has no ``generation`` until the coordinator has answered its join with that id.
    """

    phase: Phase = Phase.UNJOINED
    holding: Holding = Holding.NOTHING
    coordinator: int | None = None
    member_id: str = ""
    generation: int = NO_GENERATION
    rejoin_due: bool = False
    is_leaving: bool = False
    discovery: int = 0
    is_discovering: bool = False
    join: int = 0
    pause: int = 0
    is_pausing: bool = False
    failures: int = 0
    in_flight: int = 0

    @property
    def is_member(self) -> bool:
        """
        Whether this member has joined a generation, and no answer of the coordinator has said that the member was
        removed.
        """
        return self.generation != NO_GENERATION and self.phase is not Phase.ENDED

    @property
    def leaves_from(self) -> int | None:
        """
        The coordinator that must be told when this member leaves, or None if there is none.

        The coordinator waits for a member that it has named, also before the member has joined a generation.
        """
        return self.coordinator if self.member_id and self.phase is not Phase.ENDED else None

    @property
    def is_joining(self) -> bool:
        """Whether the member waits for its next assignment, also after a failed join or sync."""
        return self.rejoin_due or self.phase in (Phase.JOINING, Phase.SYNCING)

    @property
    def may_commit(self) -> bool:
        """Whether the application may commit: it has partitions of the present generation."""
        return self.phase is Phase.STABLE and self.holding is not Holding.NOTHING

    def beats(self, *, while_draining: bool) -> bool:
        """
        Return whether heartbeats are sent.

        Args:
            while_draining: Whether the coordinator accepts heartbeats of a member that has not joined again yet. The
                coordinator does so from JoinGroup v1 on. Before v1, the coordinator removes such a member after the
                session timeout in any case.
        """
        if self.phase is not Phase.STABLE or self.coordinator is None:
            return False
        return while_draining or not self.rejoin_due


_Step: TypeAlias = tuple[MemberState, tuple[Effect, ...]]


def step(state: MemberState, event: Event) -> _Step:
    """Return the state after an event, and the effects that the driver must carry out. Any event is permitted."""
    if state.phase is Phase.ENDED:
        return state, ()
    reacted, effects = _react(state, event)
    after, more = _advance(reacted)
    # A step makes at most two moves: one that the event says, and one that follows from the state after that.
    assert _is_legal(state.phase, reacted.phase), (state, event, reacted)
    assert _is_legal(reacted.phase, after.phase), (state, event, reacted, after)
    return after, effects + more


def _is_legal(before: Phase, after: Phase) -> bool:
    return after is before or after in MOVES[before]


def _react(state: MemberState, event: Event) -> _Step:
    """Apply an event alone. ``_advance`` takes the steps that follow from the new state."""
    match event:
        case Rejoin():
            return replace(state, rejoin_due=True), ()
        case CoordinatorFound(discovery, coordinator) if discovery == state.discovery:
            return replace(state, coordinator=coordinator, is_discovering=False), ()
        case FindFailed(discovery, code) if discovery == state.discovery:
            searching = replace(state, is_discovering=False)
            return _do(searching, GroupRequest.FIND, reaction_to(GroupRequest.FIND, code), code)
        case PauseOver(pause) if pause == state.pause:
            return replace(state, is_pausing=False), ()
        case Drained() if state.holding is Holding.DRAINING:
            return replace(state, holding=Holding.NOTHING), ()
        case JoinAnswered(join, code) if join == state.join and state.phase is Phase.JOINING:
            return _joined(state, event, code)
        case Assigned(join) if join == state.join and state.phase is Phase.SYNCING:
            return state, (Sync(join),)
        case AssignFailed(join) if join == state.join and state.phase is Phase.SYNCING:
            # The driver has the error, and reports it. The other members wait for this leader's sync until it leaves.
            return replace(state, is_leaving=True), ()
        case SyncAnswered(join, code) if join == state.join and state.phase is Phase.SYNCING:
            return _synced(state, code)
        case Answered(request, code, generation, member_id):
            if (generation, member_id) == (state.generation, state.member_id) and state.phase is Phase.STABLE:
                if request is GroupRequest.HEARTBEAT and code == CoordinatorCode.NO_ERROR:
                    state = replace(state, failures=0)
                return _do(state, request, reaction_to(request, code), code)
        case RequestStarted():
            return replace(state, in_flight=state.in_flight + 1), ()
        case RequestEnded():
            return replace(state, in_flight=state.in_flight - 1), ()
        case GivenUp():
            return _lost(replace(state, rejoin_due=False))
        case Leave():
            return replace(state, is_leaving=True), ()
        case LeaveAtOnce():
            effects = () if state.holding is Holding.NOTHING else (Lose(),)
            return replace(state, is_leaving=True, holding=Holding.NOTHING), effects
        case LeaveAnswered() if state.phase is Phase.LEAVING:
            return replace(state, phase=Phase.ENDED), (Ended(),)
    return state, ()


def _joined(state: MemberState, answer: JoinAnswered, code: int | None) -> _Step:
    reaction = reaction_to(GroupRequest.JOIN, code)
    if reaction is Reaction.PROCEED:
        # The failures count until the sync has succeeded: otherwise, a coordinator that grants each join and fails each
        # sync would be asked again without a growing pause.
        joined = replace(state, phase=Phase.SYNCING, generation=answer.generation, member_id=answer.member_id)
        return joined, (Assign(state.join) if answer.is_leader else Sync(state.join),)
    unjoined = replace(state, phase=Phase.UNJOINED, rejoin_due=True)
    if reaction is Reaction.TAKE_ID:
        named = replace(unjoined, member_id=answer.member_id, generation=NO_GENERATION)
        # A coordinator that names a member again, or without an id, is not asked in a tight loop.
        return _pausing(named) if state.member_id or not answer.member_id else (named, ())
    return _do(unjoined, GroupRequest.JOIN, reaction, code)


def _synced(state: MemberState, code: int | None) -> _Step:
    reaction = reaction_to(GroupRequest.SYNC, code)
    if reaction is Reaction.PROCEED:
        return replace(state, phase=Phase.STABLE, holding=Holding.ASSIGNED, failures=0), (Open(),)
    return _do(replace(state, phase=Phase.UNJOINED, rejoin_due=True), GroupRequest.SYNC, reaction, code)


def _do(state: MemberState, request: GroupRequest, reaction: Reaction, code: int | None) -> _Step:
    match reaction:
        case Reaction.PROCEED | Reaction.TAKE_ID:
            # ``_joined`` applies TAKE_ID, which has the id of the answer.
            return state, ()
        case Reaction.WAIT:
            return _pausing(state)
        case Reaction.FIND:
            lost = replace(state, coordinator=None)
            # A member that has joined asks at once; after a failed join or sync it pauses, as for any failure.
            return (lost, ()) if state.phase is Phase.STABLE else _pausing(lost)
        case Reaction.REJOIN:
            return replace(state, rejoin_due=True), ()
        case Reaction.NEW_ID:
            unknown = replace(state, member_id="", generation=NO_GENERATION)
            # A coordinator that refuses a join without a member id, or with the id that it has just given, is not asked
            # in a tight loop.
            return _pausing(unknown) if state.generation == NO_GENERATION else (unknown, ())
        case Reaction.LOST:
            return _lost(replace(state, rejoin_due=True))
        case Reaction.FAIL:
            assert code is not None
            failed, effects = _lost(state)
            return replace(failed, phase=Phase.ENDED), (*effects, Fail(request, code), Ended())


def _pausing(state: MemberState) -> _Step:
    paused = replace(state, pause=state.pause + 1, is_pausing=True, failures=state.failures + 1)
    return paused, (Pause(paused.pause, paused.failures),)


def _lost(state: MemberState) -> _Step:
    """End the membership without a leave request, and emit Lose if the application has an assignment."""
    effects = () if state.holding is Holding.NOTHING else (Lose(),)
    phase = state.phase if state.phase is Phase.LEAVING else Phase.UNJOINED
    lost = replace(state, phase=phase, holding=Holding.NOTHING, member_id="", generation=NO_GENERATION)
    return lost, effects


def _advance(state: MemberState) -> _Step:
    """Take the next step that the state requires: revoke partitions, find the coordinator, leave, or join."""
    effects: list[Effect] = []
    if state.phase in (Phase.LEAVING, Phase.ENDED):
        return state, ()
    if state.holding is Holding.ASSIGNED and (state.rejoin_due or state.is_leaving):
        state = replace(state, holding=Holding.DRAINING)
        effects.append(Drain())
    if state.is_leaving and state.holding is Holding.NOTHING:
        state, effect = _leave(state)
        return state, (*effects, effect)
    # A member that leaves needs the coordinator for its last commit, too.
    wants_coordinator = state.rejoin_due or state.phase is not Phase.UNJOINED
    if state.coordinator is None and wants_coordinator and not state.is_discovering and not state.is_pausing:
        state = replace(state, discovery=state.discovery + 1, is_discovering=True)
        effects.append(FindCoordinator(state.discovery))
    if _may_join(state):
        state = replace(state, phase=Phase.JOINING, join=state.join + 1, rejoin_due=False)
        effects.append(Join(state.join, state.member_id))
    return state, tuple(effects)


def _may_join(state: MemberState) -> bool:
    return (
        state.rejoin_due
        and state.phase in (Phase.UNJOINED, Phase.STABLE)
        and state.holding is Holding.NOTHING
        and state.coordinator is not None
        and not state.in_flight
        and not state.is_pausing
    )


def _leave(state: MemberState) -> tuple[MemberState, Effect]:
    if state.leaves_from is not None:
        return replace(state, phase=Phase.LEAVING), SendLeave(state.member_id)
    return replace(state, phase=Phase.ENDED), Ended()
