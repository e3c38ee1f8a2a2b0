"""One member of a group that brokers coordinate: every event in every state that it can reach."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

from kiel_groups.group import member_state as member_state_module
from kiel_groups.group.member_state import (
    NO_GENERATION,
    Answered,
    Assigned,
    AssignFailed,
    CoordinatorCode,
    CoordinatorFound,
    Drain,
    Drained,
    Effect,
    Ended,
    Event,
    FindCoordinator,
    FindFailed,
    GivenUp,
    GroupRequest,
    Holding,
    Join,
    JoinAnswered,
    Leave,
    LeaveAnswered,
    LeaveAtOnce,
    Lose,
    MemberState,
    Open,
    PauseOver,
    Phase,
    Rejoin,
    RequestEnded,
    RequestStarted,
    SendLeave,
    SyncAnswered,
    step,
)
from tests.helpers.coordinated_states import CODES
from tests.helpers.recorded_moves import assert_moves_of_table, record_moves

pytestmark = pytest.mark.unit

C = CoordinatorCode
UNJOINED, JOINING, SYNCING, STABLE, LEAVING, ENDED = Phase
NOTHING, ASSIGNED, DRAINING = Holding
HEARTBEAT, COMMIT, FETCH = GroupRequest.HEARTBEAT, GroupRequest.COMMIT, GroupRequest.FETCH


def events_in(state: MemberState) -> Iterator[Event]:
    """Yield every event that can occur in a state, and those that come too late."""
    yield from (Rejoin(), GivenUp(), Leave(), LeaveAtOnce(), Drained(), LeaveAnswered())
    for late in (0, 1):
        yield from (CoordinatorFound(state.discovery - late, 1), PauseOver(state.pause - late))
        yield from (Assigned(state.join - late), AssignFailed(state.join - late))
        for code in CODES:
            yield SyncAnswered(state.join - late, code)
            if code is None or code != C.NO_ERROR:
                yield FindFailed(state.discovery - late, code)
                yield JoinAnswered(state.join - late, code)
        yield from (JoinAnswered(state.join - late, 0, 5, "m", is_leader=leads) for leads in (False, True))
    for request in (HEARTBEAT, COMMIT, FETCH):
        for code in CODES:
            yield Answered(request, code, state.generation, state.member_id)
    yield Answered(HEARTBEAT, C.UNKNOWN_MEMBER, 4, "old")
    yield RequestEnded() if state.in_flight else RequestStarted()


@cache
def every_step() -> tuple[tuple[MemberState, Event, MemberState, tuple[Effect, ...]], ...]:
    """Return every event in every state that a new member can reach. Numbers that only count are left out of states."""
    found, waiting = [], [MemberState()]
    seen = set(waiting)
    while waiting:
        before = waiting.pop()
        for event in events_in(before):
            after, effects = step(before, event)
            found.append((before, event, after, effects))
            same = replace(after, discovery=1, join=1, pause=1, failures=min(after.failures, 1))
            if same not in seen:
                seen.add(same)
                waiting.append(same)
    return tuple(found)


def test_a_member_makes_every_legal_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """The moves of all events in all states are those of the table: none is missing there, and none is superfluous."""
    steps = [(before, event) for before, event, _, _ in every_step()]

    def play() -> None:
        for before, event in steps:
            step(before, event)

    assert_moves_of_table(monkeypatch, member_state_module, play)


def test_a_member_makes_no_illegal_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """A move that the table lacks raises an error, whatever the move."""
    forbidden = {
        move: (before, event)
        for before, event, after, _ in every_step()
        if (move := (before.phase, after.phase)) and after.phase in member_state_module.MOVES[before.phase]
    }
    recorded = record_moves(monkeypatch, member_state_module)
    for move, (before, event) in forbidden.items():
        recorded.seen, recorded.forbidden = set(), None
        step(before, event)
        if move in recorded.seen:
            recorded.forbidden = move
            with pytest.raises(AssertionError):
                step(before, event)


def test_an_ended_member_does_nothing() -> None:
    """Whatever arrives after the end changes nothing and has no effect."""
    for before, event, after, effects in every_step():
        if before.phase is ENDED:
            assert (after, effects) == (before, ()), event


def test_what_the_application_holds_is_given_back_in_every_case() -> None:
    """
    Partitions are held by a stable member only, drained and lost only while held, and a join is sent only without any.
    """
    for before, event, after, effects in every_step():
        kinds = [type(effect) for effect in effects]
        assert after.holding is NOTHING or after.phase is STABLE, (before, event)
        if Drain in kinds:
            assert before.holding is ASSIGNED or kinds == [Open, Drain], (before, event)
        if Lose in kinds:
            assert before.holding is not NOTHING, (before, event)
        if {Join, SendLeave, Ended} & set(kinds):
            assert after.holding is NOTHING, (before, event)
        if before.holding is not NOTHING and after.holding is NOTHING:
            assert Lose in kinds or event == Drained(), (before, event)
        if Open in kinds:
            assert event == SyncAnswered(before.join, 0), (before, event)


def test_a_join_has_what_it_needs() -> None:
    """A join is sent to a known coordinator, outside of a pause, with no request in flight, by no leaving member."""
    for before, event, after, effects in every_step():
        for effect in effects:
            if isinstance(effect, Join):
                assert after.coordinator is not None, (before, event)
                assert not after.is_pausing, (before, event)
                assert not after.in_flight, (before, event)
                assert not after.is_leaving, (before, event)
                assert effect == Join(before.join + 1, after.member_id), (before, event)
            if isinstance(effect, FindCoordinator):
                assert not before.is_discovering or event in (CoordinatorFound(before.discovery, 1),), (before, event)
            if isinstance(effect, SendLeave):
                assert after.generation != NO_GENERATION, (before, event)
                assert after.coordinator is not None, (before, event)


def test_a_member_that_wants_something_waits_for_something() -> None:
    """
    In no state is a member stuck: one that is to join or to leave has a question, a pause, a request or a drain under
    way, whose end is its next event.
    """
    for before, event, after, _ in every_step():
        if after.phase is UNJOINED and after.rejoin_due:
            assert after.is_discovering or after.is_pausing or after.in_flight, (before, event)
        if after.phase is STABLE and after.holding is NOTHING:
            assert after.is_discovering or after.is_pausing or after.in_flight, (before, event)
        if after.is_leaving:
            assert after.phase in (LEAVING, ENDED) or after.holding is DRAINING, (before, event)
        if after.phase is STABLE and after.coordinator is None:
            assert after.is_discovering or after.is_pausing, (before, event)


def test_a_failure_is_not_repeated_without_a_pause() -> None:
    """
    A failed search, join or sync is followed by a pause, except where the member does something else than before: it
    joins without its id, joins another rebalance, or stops.
    """
    for before, event, _, effects in every_step():
        if isinstance(event, FindFailed) and event.discovery == before.discovery and before.is_discovering:
            assert not any(isinstance(effect, FindCoordinator) for effect in effects), (before, event)
        if isinstance(event, JoinAnswered) and event.code and before.phase is JOINING and not before.member_id:
            assert not any(isinstance(effect, Join | FindCoordinator) for effect in effects), (before, event)
