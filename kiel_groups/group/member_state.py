"""
The state machine of one member of a group that brokers coordinate: Kafka's group protocol, level-triggered.

Rules
  1. Any broker names the coordinator. No answer, or an answer that another broker coordinates the group, makes the
     member ask again. Only the answer to the newest question is used. The membership continues meanwhile.
  2. Before the member joins again, its partitions are revoked, once for a rebalance, however many tries the join takes.
     If the membership is live, they are drained and committed (``Drain``). After the coordinator has removed the
     member, they are lost (``Lose``), and nothing is committed.
  3. A join is sent only when the partitions are revoked, and no other request to the coordinator is in flight.
  4. A join with a member id that the coordinator does not know is repeated without one, at once. A refused join fails
     the member: it is not repeated.
  5. After a failed sync, the member joins again. Its id is void only if the coordinator says so.
  6. A request to rejoin during a join or a sync takes effect after it, so that the group is not disturbed twice.
  7. The answer to a heartbeat or a commit is used only for the generation and the member id of that request.
  8. The member leaves in one attempt, and only if it has a generation. It looks for the coordinator as long as it has
     partitions to commit, but not for the leave request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

from kiel_groups.group.member_events import (
    NO_GENERATION,
    Answered,
    Assign,
    Assigned,
    AssignFailed,
    CoordinatorCode,
    CoordinatorFound,
    Drain,
    Drained,
    Effect,
    Ended,
    Event,
    Fail,
    FindCoordinator,
    FindFailed,
    GivenUp,
    GroupRequest,
    Join,
    JoinAnswered,
    Leave,
    LeaveAnswered,
    LeaveAtOnce,
    Lose,
    Open,
    Pause,
    PauseOver,
    Reaction,
    Rejoin,
    RequestEnded,
    RequestStarted,
    SendLeave,
    Sync,
    SyncAnswered,
    reaction_to,
)

__all__ = [
    "Holding",
    "MOVES",
    "MemberState",
    "Phase",
    "step",
]


class Phase(Enum):
    """The phase of a member."""

    #: Entry: the start, a failed join or sync, or removal. Duty: find the coordinator. Exit: a join is sent.
    UNJOINED = "unjoined"
    #: Entry: a join is sent. Duty: wait for the other members. Exit: the coordinator's answer, or none in time.
    JOINING = "joining"
    #: Entry: joined a generation. Duty: as the leader, assign; sync. Exit: the assignment, or a failure.
    SYNCING = "awaiting sync"
    #: Entry: the assignment is there. Duty: beat, fetch, commit. Exit: a rebalance or removal.
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
    """Which partitions of the member's assignment the application still has."""

    #: No partition, or none that the member still answers for.
    NOTHING = "nothing"
    #: The partitions of the last assignment.
    ASSIGNED = "assigned"
    #: Partitions that are being revoked: their records in flight are finished and committed.
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class MemberState:
    """
    The state of one member.

    ``coordinator`` is the node id of the group's coordinator, None while it is unknown. ``discovery``, ``join`` and
    ``pause`` are the numbers of the newest question, join and pause. ``rejoin_due``: a join must follow. ``failures``
    is the number of failures in a row. ``in_flight`` is the number of requests to the coordinator other than joins,
    syncs and heartbeats.
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
        """Whether the coordinator regards this process as a member, as far as the process knows."""
        return self.generation != NO_GENERATION and self.phase is not Phase.ENDED

    @property
    def is_joining(self) -> bool:
        """Whether the member waits for its next assignment, even after a failed try."""
        return self.rejoin_due or self.phase in (Phase.JOINING, Phase.SYNCING)

    @property
    def may_commit(self) -> bool:
        """Whether the application has the assignment of the present generation, so that it may commit."""
        return self.phase is Phase.STABLE and self.holding is not Holding.NOTHING

    def beats(self, *, while_draining: bool) -> bool:
        """
        Return whether heartbeats are sent.

        Args:
            while_draining: Whether the coordinator accepts heartbeats of a member that has not joined again yet, as
                from JoinGroup v1 on. Before v1, it removes such a member after its session timeout in any case.
        """
        if self.phase is not Phase.STABLE or self.coordinator is None:
            return False
        return while_draining or not self.rejoin_due


_Step: TypeAlias = tuple[MemberState, tuple[Effect, ...]]


def step(state: MemberState, event: Event) -> _Step:
    """Return the next state and the effects of an event. The function is total and deterministic."""
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
    """Apply an event, without the steps that follow from the new state."""
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
    return _do(replace(state, phase=Phase.UNJOINED, rejoin_due=True), GroupRequest.JOIN, reaction, code)


def _synced(state: MemberState, code: int | None) -> _Step:
    reaction = reaction_to(GroupRequest.SYNC, code)
    if reaction is Reaction.PROCEED:
        return replace(state, phase=Phase.STABLE, holding=Holding.ASSIGNED, failures=0), (Open(),)
    return _do(replace(state, phase=Phase.UNJOINED, rejoin_due=True), GroupRequest.SYNC, reaction, code)


def _do(state: MemberState, request: GroupRequest, reaction: Reaction, code: int | None) -> _Step:
    match reaction:
        case Reaction.PROCEED:
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
            # A coordinator that refuses even a join without a member id is not asked in a tight loop.
            return (unknown, ()) if state.member_id else _pausing(unknown)
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
    """End the membership, and the application's assignment with it."""
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
    if state.is_member and state.coordinator is not None:
        return replace(state, phase=Phase.LEAVING), SendLeave(state.member_id)
    return replace(state, phase=Phase.ENDED), Ended()
