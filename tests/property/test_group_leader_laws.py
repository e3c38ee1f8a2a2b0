"""The leader state after any sequence of events."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiel_groups.config import DebounceConfig
from kiel_groups.group import leader_state
from kiel_groups.group.planner import Publication
from kiel_groups.group.znodes.transactions import Answer, Check, Done, Failure, Refused, Unknown
from tests.helpers.examples import examples

pytestmark = pytest.mark.property

DONE = Done((None,), (None,))
WRITES = tuple((Check(f"/{number}"),) for number in range(3))
PLAN = Publication(1, 0, (), WRITES)

debounces = st.builds(
    DebounceConfig,
    quiet_ms=st.integers(0, 500),
    bound_ms=st.integers(0, 2_000),
    initial_delay_ms=st.integers(0, 3_000),
)
answers: st.SearchStrategy[Answer] = st.sampled_from([DONE, DONE, Refused(0, Failure.NO_NODE), Unknown()])
publications = st.sampled_from([None, PLAN])


class Driver:
    """A driver that answers the requests of the leader state later, and checks that only one is pending at a time."""

    def __init__(self, debounce: DebounceConfig) -> None:
        self.leader = leader_state.LeaderState(debounce)
        self.now_s = 0.0
        self.request: leader_state.Effect | None = None
        self.written = 0
        self.unplanned = False
        self.first_change_s: float | None = None

    def feed(self, event: leader_state.Event) -> None:
        if isinstance(event, leader_state.Deposed) or (
            isinstance(event, leader_state.Elected) and self.leader.phase is leader_state.LeaderPhase.NONE
        ):
            self.request = self.first_change_s = None
        self.leader, effects = leader_state.step(self.leader, event)
        for effect in effects:
            if isinstance(effect, leader_state.Published):
                assert self.written == len(WRITES)
                continue
            assert self.request is None, "two requests at a time"
            self.request = effect
            if isinstance(effect, leader_state.MakePlan):
                self.unplanned, self.first_change_s, self.written = False, None, 0
            elif isinstance(effect, leader_state.Write):
                assert effect.operations == WRITES[self.written]

    def change(self) -> None:
        if self.leader.phase is not leader_state.LeaderPhase.NONE:
            self.unplanned = True
            if self.leader.phase is leader_state.LeaderPhase.WATCHING:
                self.first_change_s = self.now_s
        self.feed(leader_state.Changed("change", self.now_s))

    def answer(self, publication: Publication | None, outcome: Answer) -> None:
        request, self.request = self.request, None
        failed = not isinstance(outcome, Done)
        if isinstance(request, leader_state.MakePlan):
            self.feed(leader_state.Planned(request.term, publication, self.now_s, failed=failed))
        elif isinstance(request, leader_state.Prepare):
            self.feed(leader_state.Prepared(request.term, self.now_s, failed=failed))
        elif isinstance(request, leader_state.Write):
            self.written += not failed
            self.feed(leader_state.Written(request.term, outcome, self.now_s))

    def pass_time(self, seconds: float) -> None:
        """Advance the time, and fire the timer when it is due."""
        end_s = self.now_s + seconds
        if self.leader.due_s is not None and self.leader.due_s <= end_s:
            self.now_s = max(self.now_s, self.leader.due_s)
            self.feed(leader_state.Tick(self.now_s))
        self.now_s = end_s

    def assert_due(self) -> None:
        """Assert that a leader in its quiet time has a due time, at most the bound after the first change."""
        settling = self.leader.phase is leader_state.LeaderPhase.SETTLING
        assert (self.leader.due_s is not None) == settling
        assert not (self.leader.phase is leader_state.LeaderPhase.WATCHING and self.unplanned), "a change is forgotten"
        if settling and self.first_change_s is not None:
            assert self.leader.due_s is not None
            assert self.leader.due_s <= self.first_change_s + self.leader.debounce.bound_ms / 1000 + 1e-9


steps = st.one_of(
    st.tuples(st.just("change")),
    st.tuples(st.just("time"), st.floats(0, 1)),
    st.tuples(st.just("answer"), publications, answers),
    st.tuples(st.just("elected"), st.sampled_from(["/a", "/b"])),
    st.tuples(st.just("deposed")),
)


def take_step(driver: Driver, step: tuple[object, ...]) -> None:
    """Feed one drawn event to the driver."""
    match step:
        case ("change",):
            driver.change()
        case ("time", float(seconds)):
            driver.pass_time(seconds)
        case ("answer", publication, outcome):
            driver.answer(publication, outcome)  # type: ignore[arg-type]
        case ("elected", str(candidate)):
            if driver.leader.candidate not in (None, candidate):
                driver.feed(leader_state.Deposed())
            driver.feed(leader_state.Elected(candidate, driver.now_s))
            driver.unplanned = True
        case _:
            driver.feed(leader_state.Deposed())
            driver.unplanned = False


@settings(max_examples=examples(200))
@given(debounces, st.lists(steps, max_size=60))
def test_every_change_is_planned_by_one_request_at_a_time(
    debounce: DebounceConfig, drawn: list[tuple[object, ...]]
) -> None:
    """
    A leader sends one request at a time, writes in order, and plans within the bound. In the end, every change has been
    included in a plan.
    """
    driver = Driver(debounce)
    for step in drawn:
        take_step(driver, step)
        driver.assert_due()
    for _ in range(100):
        driver.answer(PLAN, DONE)
        driver.pass_time(1.0)
    assert driver.leader.phase in (leader_state.LeaderPhase.WATCHING, leader_state.LeaderPhase.NONE)
    assert not driver.unplanned
    assert driver.request is None
