"""One member of a broker-coordinated group, with any order of answers, any error codes, and answers that come late."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiel_groups.group import member_state as e
from kiel_groups.group.member_state import CoordinatorCode, GroupRequest, Holding, MemberState, Phase, step
from tests.helpers.examples import examples

pytestmark = pytest.mark.property

BESIDE = (GroupRequest.HEARTBEAT, GroupRequest.COMMIT, GroupRequest.FETCH)

numbers = st.integers(0, 3)
codes = st.none() | st.sampled_from([*CoordinatorCode, 8, 81])
failures = st.none() | st.sampled_from([code for code in CoordinatorCode if code is not CoordinatorCode.NO_ERROR])
member_ids = st.sampled_from(["", "m-1", "m-2"])
generations = st.sampled_from([e.NO_GENERATION, 1, 2])
events = st.one_of(
    st.sampled_from([e.Rejoin(), e.GivenUp(), e.Leave(), e.LeaveAtOnce(), e.Drained(), e.LeaveAnswered()]),
    st.sampled_from([e.RequestStarted(), e.RequestEnded()]),
    st.builds(e.CoordinatorFound, numbers, st.integers(0, 2)),
    st.builds(e.FindFailed, numbers, failures),
    st.builds(e.PauseOver, numbers),
    st.builds(e.JoinAnswered, numbers, codes, generations, member_ids, st.booleans()),
    st.builds(e.Assigned, numbers),
    st.builds(e.AssignFailed, numbers),
    st.builds(e.SyncAnswered, numbers, codes),
    st.builds(e.Answered, st.sampled_from(BESIDE), codes, generations, member_ids),
)
states = st.builds(
    MemberState,
    phase=st.sampled_from(Phase),
    holding=st.sampled_from(Holding),
    coordinator=st.none() | st.integers(0, 2),
    member_id=member_ids,
    generation=generations,
    rejoin_due=st.booleans(),
    is_leaving=st.booleans(),
    discovery=numbers,
    is_discovering=st.booleans(),
    join=numbers,
    pause=numbers,
    is_pausing=st.booleans(),
    failures=numbers,
    in_flight=numbers,
)


@given(states, st.lists(events, max_size=30))
def test_any_sequence_of_events_is_accepted(state: MemberState, drawn: list[e.Event]) -> None:
    """No sequence of events fails an assertion, from no state, not even an impossible one. A step is repeatable."""
    for event in drawn:
        after = step(state, event)
        assert step(state, event) == after
        state, _ = after


@dataclass
class Driver:
    """
    A driver that performs the effects of one member, as the test chooses: each effect is answered once, at any time.

    It checks the order that the rules promise.
    """

    state: MemberState = field(default_factory=MemberState)
    finds: list[int] = field(default_factory=list)
    pauses: list[int] = field(default_factory=list)
    joins: list[int] = field(default_factory=list)
    assigns: list[int] = field(default_factory=list)
    syncs: list[int] = field(default_factory=list)
    drains: int = 0
    leaves: int = 0
    requests: int = 0
    #: The number of the join whose sync has succeeded last.
    synced: int = 0
    is_open: bool = False
    is_draining: bool = False
    has_ended: bool = False
    generation: int = 0

    def feed(self, event: e.Event) -> None:
        self.state, effects = step(self.state, event)
        for effect in effects:
            self.take(effect)
        assert self.is_open == (self.state.holding is not Holding.NOTHING)
        assert len([find for find in self.finds if find == self.state.discovery]) <= 1
        if self.state.phase is Phase.ENDED:
            assert self.has_ended
        else:
            assert self.state.in_flight == self.requests

    def take(self, effect: e.Effect) -> None:
        """Check an effect against those before it, and queue it."""
        match effect:
            case e.FindCoordinator(discovery):
                assert not self.finds or discovery > max(self.finds)
                self.finds.append(discovery)
            case e.Pause(pause, failed):
                assert failed >= 1
                self.pauses.append(pause)
            case e.Join(join, _):
                assert not self.is_open, "joined with partitions"
                assert self.state.coordinator is not None, "joined without a coordinator"
                assert not self.requests, "joined beside other requests"
                self.joins.append(join)
            case e.Assign(join):
                self.assigns.append(join)
            case e.Sync(join):
                assert join == self.state.join
                self.syncs.append(join)
            case e.Open():
                assert self.synced == self.state.join, "opened without a sync of the newest join"
                assert not self.is_open
                self.is_open = True
            case e.Drain():
                assert self.is_open, "drained without an assignment"
                assert not self.is_draining
                self.is_draining = True
                self.drains += 1
            case e.Lose():
                assert self.is_open, "lost without an assignment"
                self.is_open = self.is_draining = False
                self.drains = 0
            case e.SendLeave():
                assert not self.is_open
                self.leaves += 1
            case e.Ended():
                assert not self.has_ended
                self.has_ended = True

    def answers(self, code: int | None) -> list[e.Event]:
        """Return an answer for each effect that has none, with this code."""
        is_leader = bool(self.generation % 2)
        return [
            *(e.CoordinatorFound(find, 1) if code == 0 else e.FindFailed(find, code) for find in self.finds),
            *(e.PauseOver(pause) for pause in self.pauses),
            *(e.JoinAnswered(join, code, self.generation + 1, "m", is_leader) for join in self.joins),
            *(e.Assigned(join) if code == 0 else e.AssignFailed(join) for join in self.assigns),
            *(e.SyncAnswered(join, code) for join in self.syncs),
            *([e.Drained()] if self.drains else []),
            *([e.LeaveAnswered()] if self.leaves else []),
            *([e.RequestEnded()] if self.requests else []),
        ]

    def answer(self, event: e.Event) -> None:
        """Feed the answer to an effect, which has its answer then."""
        match event:
            case e.CoordinatorFound(discovery, _) | e.FindFailed(discovery, _):
                self.finds.remove(discovery)
            case e.PauseOver(pause):
                self.pauses.remove(pause)
            case e.JoinAnswered(join, _):
                self.joins.remove(join)
                self.generation += 1
            case e.Assigned(join) | e.AssignFailed(join):
                self.assigns.remove(join)
            case e.SyncAnswered(join, code):
                self.syncs.remove(join)
                if code == 0 and join == self.state.join:
                    self.synced = join
            case e.Drained():
                self.drains -= 1
                self.is_open = self.is_draining = False
            case e.LeaveAnswered():
                self.leaves -= 1
            case e.RequestEnded():
                self.requests -= 1
        self.feed(event)

    def settle(self) -> None:
        """Answer all effects with success until there are none."""
        for _ in range(200):
            if not (possible := self.answers(0)):
                return
            self.answer(possible[0])
        raise AssertionError("the member never comes to rest")


choices = st.lists(st.tuples(st.integers(0, 7), codes, st.integers(0, 20)), max_size=60)


def take_step(driver: Driver, kind: int, code: int | None, choice: int) -> None:
    """Answer some effect in most cases. In the others, something happens beside the effects."""
    state = driver.state
    if kind == 0:
        spontaneous = (e.Rejoin(), e.GivenUp(), e.Rejoin(), e.Leave(), e.Rejoin(), e.LeaveAtOnce())
        driver.feed(spontaneous[choice % len(spontaneous)] if choice < 12 else e.Rejoin())
    elif kind == 1:
        driver.feed(e.Answered(BESIDE[choice % 3], code, state.generation, state.member_id))
    elif kind == 2 and state.phase is not Phase.ENDED:
        driver.requests += 1
        driver.feed(e.RequestStarted())
    elif possible := driver.answers(code if choice % 3 == 0 else 0):
        driver.answer(possible[choice % len(possible)])


@settings(max_examples=examples(400))
@given(choices)
def test_effects_come_in_the_promised_order(steps: list[tuple[int, int | None, int]]) -> None:
    """
    Whatever happens: no join with partitions, without a coordinator or beside other requests; an assignment is opened
    after a sync of the newest join only, and is then drained or lost once; one question for the coordinator at a time.
    """
    driver = Driver()
    for kind, code, choice in steps:
        if driver.state.phase is Phase.ENDED:
            return
        take_step(driver, kind, code, choice)


@settings(max_examples=examples(300))
@given(choices)
def test_a_member_that_is_answered_becomes_stable(steps: list[tuple[int, int | None, int]]) -> None:
    """From everywhere, a member that is to join and whose effects are answered owns an assignment in the end."""
    driver = Driver()
    for kind, code, choice in steps:
        take_step(driver, kind, code, choice)
    if driver.state.phase is Phase.ENDED or driver.state.is_leaving:
        return
    driver.feed(e.Rejoin())
    driver.settle()
    assert driver.state.phase is Phase.STABLE
    assert driver.is_open
    assert not driver.state.rejoin_due


@settings(max_examples=examples(300))
@given(choices, st.sampled_from([e.Leave(), e.LeaveAtOnce()]))
def test_a_member_that_leaves_ends(steps: list[tuple[int, int | None, int]], leave: e.Event) -> None:
    """From everywhere, a member that leaves has ended when all its effects are answered."""
    driver = Driver()
    for kind, code, choice in steps:
        take_step(driver, kind, code, choice)
    driver.feed(leave)
    driver.settle()
    assert driver.state.phase is Phase.ENDED
    assert driver.has_ended
