"""A leader: debounce, one plan at a time, and what ends a publication."""

from __future__ import annotations

import pytest

from kiel_groups.config import DebounceConfig
from kiel_groups.group.leader.leader_state import (
    RETRY_S,
    Changed,
    DebounceChanged,
    Deposed,
    Effect,
    Elected,
    Event,
    LeaderPhase,
    LeaderState,
    MakePlan,
    Planned,
    Prepare,
    Prepared,
    Published,
    Tick,
    Write,
    Written,
    step,
)
from kiel_groups.group.leader.planner import Publication
from kiel_groups.group.znodes.transactions import Answer, Check, Done, Failure, Refused, Unknown

pytestmark = pytest.mark.unit

ME = "/election/me"
OTHER = "/election/other"
DONE = Done((None,), (None,))
OPENING, BATCH, CLOSING = (Check("opening"),), (Check("batch"),), (Check("closing"),)
PLAN = Publication(7, 3, ("/folder",), (OPENING, BATCH, CLOSING))
DEBOUNCE = DebounceConfig(quiet_ms=100, bound_ms=1_000, initial_delay_ms=300)

VOID: list[Answer] = [Refused(0, Failure.NO_NODE), Refused(1, Failure.BAD_VERSION), Unknown()]


class Bench:
    """One leader, fed by hand; ``told`` collects its effects."""

    def __init__(self, debounce: DebounceConfig = DEBOUNCE) -> None:
        self.leader = LeaderState(debounce)
        self.told: list[Effect] = []

    def feed(self, *events: Event) -> list[Effect]:
        """Take events; returns the effects of all of them."""
        told: list[Effect] = []
        for event in events:
            self.leader, effects = step(self.leader, event)
            told += effects
        self.told += told
        return told

    def watching(self) -> Bench:
        """Elected at 0, first plan made and found to change nothing at 0.3."""
        self.feed(Elected(ME, 0.0), Tick(0.3), Planned(1, None, 0.3))
        assert self.leader.duty is LeaderPhase.WATCHING
        self.told.clear()
        return self

    def publishing(self, *answered: Event) -> Bench:
        """As ``watching``, then a change at 10 whose plan is ready at 10.1."""
        self.watching().feed(Changed("join", 10.0), Tick(10.1), Planned(1, PLAN, 10.1), *answered)
        assert self.leader.duty is LeaderPhase.PUBLISHING
        return self


def test_the_first_plan_waits_for_the_group_to_gather() -> None:
    """A new leader plans after its initial delay, not before."""
    bench = Bench()
    bench.feed(Elected(ME, 5.0))
    assert bench.leader.due_s == pytest.approx(5.3)
    assert bench.feed(Tick(5.29)) == []
    assert bench.feed(Tick(5.3)) == [MakePlan(1, ME, "first plan")]


def test_a_successor_waits_for_nobody_to_gather() -> None:
    """Its group is there: the quiet time will do, and the bound where that is shorter."""
    bench = Bench()
    bench.feed(Elected(ME, 5.0, succeeds=True))
    assert bench.leader.due_s == pytest.approx(5.1)
    hasty = Bench(DebounceConfig(quiet_ms=500, bound_ms=200, initial_delay_ms=300))
    hasty.feed(Elected(ME, 5.0, succeeds=True))
    assert hasty.leader.due_s == pytest.approx(5.2)


def test_what_is_urgent_ends_the_quiet_time() -> None:
    """A returning instance finds its place at once, whatever else is still being gathered."""
    bench = Bench().watching()
    bench.feed(Changed("join", 10.0), Changed("return", 10.02, urgent=True))
    assert bench.feed(Tick(10.02)) == [MakePlan(1, ME, "join, return")]
    assert bench.feed(Changed("return", 10.03, urgent=True)) == []
    assert bench.leader.duty is LeaderPhase.PLANNING


def test_another_debounce_counts_from_the_next_change_on() -> None:
    """What waits already goes on waiting as it began; the floor is 0."""
    bench = Bench().watching()
    bench.feed(Changed("join", 10.0), DebounceChanged(DebounceConfig(quiet_ms=0, bound_ms=0, initial_delay_ms=0)))
    assert bench.leader.due_s == pytest.approx(10.1)
    bench.feed(Tick(10.1), Planned(1, None, 10.2), Changed("join", 11.0))
    assert bench.feed(Tick(11.0)) == [MakePlan(1, ME, "join")]


def test_the_floor_of_the_initial_delay_is_nothing() -> None:
    """With a delay of 0 the first tick plans."""
    bench = Bench(DebounceConfig(quiet_ms=0, bound_ms=0, initial_delay_ms=0))
    assert bench.feed(Elected(ME, 5.0), Tick(5.0)) == [MakePlan(1, ME, "first plan")]
    bench.feed(Planned(1, None, 5.0), Changed("join", 6.0))
    assert bench.feed(Tick(6.0)) == [MakePlan(1, ME, "join")]


def test_changes_do_not_shorten_the_initial_delay() -> None:
    """A change right after the election waits with the rest."""
    bench = Bench()
    bench.feed(Elected(ME, 0.0), Changed("join", 0.01))
    assert bench.feed(Tick(0.2)) == []
    assert bench.feed(Tick(0.3)) == [MakePlan(1, ME, "first plan, join")]


def test_changes_before_the_first_plan_are_bounded() -> None:
    """A stream of changes postpones the first plan to the bound, not for ever."""
    bench = Bench()
    bench.feed(Elected(ME, 0.0), *(Changed("join", number / 20) for number in range(1, 40)))
    assert bench.leader.due_s == pytest.approx(1.0)


def test_an_initial_delay_beyond_the_bound_is_kept() -> None:
    """The bound counts for changes; it does not cut the delay that was asked for."""
    bench = Bench(DebounceConfig(quiet_ms=100, bound_ms=1_000, initial_delay_ms=3_000))
    bench.feed(Elected(ME, 0.0), Changed("join", 2.95))
    assert bench.leader.due_s == pytest.approx(3.0)


def test_a_change_is_planned_after_a_quiet_time() -> None:
    """Each further change begins the quiet time anew."""
    bench = Bench().watching()
    bench.feed(Changed("join", 10.0), Changed("leave", 10.08))
    assert bench.feed(Tick(10.17)) == []
    assert bench.feed(Tick(10.18)) == [MakePlan(1, ME, "join, leave")]
    assert bench.feed(Tick(10.3)) == []


def test_changes_without_end_are_planned_at_the_bound() -> None:
    """The bound counts from the first change."""
    bench = Bench().watching()
    bench.feed(*(Changed("join", 10 + number / 20) for number in range(30)))
    assert bench.leader.due_s == pytest.approx(11.0)
    assert bench.feed(Tick(11.0)) == [MakePlan(1, ME, "join")]


def test_a_quiet_time_beyond_the_bound_ends_at_the_bound() -> None:
    """The bound is the upper one of the two, also for a single change."""
    bench = Bench(DebounceConfig(quiet_ms=5_000, bound_ms=1_000, initial_delay_ms=0))
    bench.feed(Elected(ME, 0.0), Tick(0.0), Planned(1, None, 0.0), Changed("join", 10.0))
    assert bench.leader.due_s == pytest.approx(11.0)


def test_causes_are_told_once_each_in_order() -> None:
    """A thousand joins are one cause."""
    bench = Bench().watching()
    bench.feed(*(Changed(cause, 10.0) for cause in ("join", "topic", "join", "leave", "topic")))
    assert bench.feed(Tick(10.1)) == [MakePlan(1, ME, "join, topic, leave")]


def test_a_publication_goes_out_write_by_write() -> None:
    """Folders first, each write when the one before was answered, and the news at the end."""
    bench = Bench().watching()
    bench.feed(Changed("join", 10.0), Tick(10.1))
    assert bench.feed(Planned(1, PLAN, 10.2)) == [Prepare(1, ("/folder",))]
    assert bench.feed(Prepared(1, 10.3)) == [Write(1, OPENING)]
    assert bench.feed(Written(1, DONE, 10.4)) == [Write(1, BATCH)]
    assert bench.feed(Written(1, DONE, 10.5)) == [Write(1, CLOSING)]
    assert bench.feed(Written(1, DONE, 10.6)) == [Published(7, 3)]
    assert bench.leader.duty is LeaderPhase.WATCHING
    assert bench.leader.due_s is None
    assert bench.feed(Written(1, DONE, 10.7), Prepared(1, 10.7), Planned(1, PLAN, 10.7), Tick(99.0)) == []


def test_a_plan_that_changes_nothing_is_not_published() -> None:
    """Nothing is written, and nothing more is to be done."""
    bench = Bench().watching()
    bench.feed(Changed("join", 10.0), Tick(10.1))
    assert bench.feed(Planned(1, None, 10.2), Tick(99.0)) == []
    assert bench.leader.duty is LeaderPhase.WATCHING


@pytest.mark.parametrize(
    "during",
    [
        (),
        (Planned(1, PLAN, 10.2),),
        (Planned(1, PLAN, 10.2), Prepared(1, 10.2)),
        (Planned(1, PLAN, 10.2), Prepared(1, 10.2), Written(1, DONE, 10.2)),
    ],
    ids=["planning", "preparing", "opening", "writing"],
)
def test_what_changes_during_a_plan_makes_the_next_one(during: tuple[Event, ...]) -> None:
    """The plan under way goes on undisturbed; the change is planned after it, with its own quiet time."""
    bench = Bench().watching()
    bench.feed(Changed("join", 10.0), Tick(10.1), *during)
    assert bench.feed(Changed("leave", 10.3), Tick(20.0)) == []
    rest = (Planned(1, PLAN, 10.4), Prepared(1, 10.4), *[Written(1, DONE, 10.5)] * 3)
    assert bench.feed(*rest)[-1] == Published(7, 3)
    assert bench.leader.due_s == pytest.approx(10.6)
    assert bench.feed(Tick(10.6)) == [MakePlan(1, ME, "leave")]


def test_a_change_during_a_plan_that_changes_nothing_is_not_forgotten() -> None:
    """It came after the reading, perhaps."""
    bench = Bench().watching()
    bench.feed(Changed("join", 10.0), Tick(10.1), Changed("leave", 10.2), Planned(1, None, 10.3))
    assert bench.feed(Tick(10.4)) == [MakePlan(1, ME, "leave")]


@pytest.mark.parametrize("answered", range(3))
@pytest.mark.parametrize("answer", VOID, ids=repr)
def test_an_answer_that_is_not_done_voids_the_plan(answered: int, answer: Answer) -> None:
    """After a refusal or an unknown outcome nothing more of the plan goes out, and a new one is made soon."""
    bench = Bench().publishing(Prepared(1, 10.2), *[Written(1, DONE, 10.3)] * answered)
    assert bench.feed(Written(1, answer, 11.0)) == []
    assert bench.leader.publication is None
    assert bench.feed(Tick(11.0 + RETRY_S - 0.01)) == []
    assert bench.feed(Tick(11.0 + RETRY_S)) == [MakePlan(1, ME, "publication interrupted")]


@pytest.mark.parametrize(
    "failure", [Planned(1, None, 11.0, failed=True), Planned(1, PLAN, 11.0, failed=True)], ids=["no plan", "a plan"]
)
def test_a_plan_that_cannot_be_made_is_tried_again(failure: Event) -> None:
    """After a pause, and with what changed meanwhile."""
    bench = Bench().watching()
    bench.feed(Changed("join", 10.0), Tick(10.1), Changed("leave", 10.2))
    assert bench.feed(failure, Tick(11.0 + RETRY_S - 0.01)) == []
    assert bench.feed(Tick(11.0 + RETRY_S)) == [MakePlan(1, ME, "leave, retry")]


def test_folders_that_cannot_be_made_void_the_plan() -> None:
    """Nothing is written without them."""
    bench = Bench().publishing()
    assert bench.feed(Prepared(1, 11.0, failed=True), Written(1, DONE, 11.1), Prepared(1, 11.1)) == []
    assert bench.feed(Tick(11.0 + RETRY_S)) == [MakePlan(1, ME, "retry")]


def test_changes_do_not_hasten_a_retry() -> None:
    """What refused a moment ago is not asked again at once because something else changed."""
    bench = Bench(DebounceConfig(quiet_ms=0, bound_ms=0)).publishing(Prepared(1, 10.2))
    bench.feed(Written(1, Unknown(), 11.0), Changed("join", 11.01))
    assert bench.leader.due_s == pytest.approx(11.0 + RETRY_S)


def test_a_leader_that_leads_on_plans_afresh() -> None:
    """After a pause with the same znode it plans as after any change."""
    bench = Bench().watching()
    bench.feed(Elected(ME, 10.0))
    assert bench.feed(Tick(10.1)) == [MakePlan(1, ME, "leader resumed")]


def test_a_leader_that_leads_on_finishes_its_publication_first() -> None:
    """The same znode still guards it."""
    bench = Bench().publishing(Prepared(1, 10.2))
    assert bench.feed(Elected(ME, 10.3)) == []
    assert bench.feed(*[Written(1, DONE, 10.4)] * 3)[-1] == Published(7, 3)
    assert bench.feed(Tick(10.5)) == [MakePlan(1, ME, "leader resumed")]


def test_another_znode_of_its_own_voids_the_publication() -> None:
    """The publication checks the znode it began with, so it cannot go on under another one."""
    bench = Bench().publishing(Prepared(1, 10.2))
    assert bench.feed(Elected(OTHER, 10.3), Written(1, DONE, 10.4)) == []
    assert bench.feed(Tick(10.7)) == [MakePlan(2, OTHER, "first plan")]


SITUATIONS = {
    "settling": (),
    "planning": (Tick(0.3),),
    "preparing": (Tick(0.3), Planned(1, PLAN, 0.4)),
    "writing": (Tick(0.3), Planned(1, PLAN, 0.4), Prepared(1, 0.5), Written(1, DONE, 0.6)),
    "watching": (Tick(0.3), Planned(1, None, 0.4)),
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_who_leads_no_more_stops_everything(situation: str) -> None:
    """Whatever was under way, no answer and no clock brings anything out of a deposed leader."""
    bench = Bench()
    bench.feed(Elected(ME, 0.0), *SITUATIONS[situation], Changed("join", 0.7))
    assert bench.feed(Deposed()) == []
    assert bench.leader == LeaderState(DEBOUNCE, term=1)
    late = (Planned(1, PLAN, 1.0), Prepared(1, 1.0), Written(1, DONE, 1.0), Changed("leave", 1.0), Tick(99.0))
    assert bench.feed(*late) == []
    assert bench.leader == LeaderState(DEBOUNCE, term=1)


def test_the_answer_to_an_earlier_leadership_is_not_taken_for_a_later_one() -> None:
    """Deposed while its allocator ran, elected again: the old outcome must not end the new planning."""
    bench = Bench()
    bench.feed(Elected(ME, 0.0), Tick(0.3), Deposed(), Elected(OTHER, 1.0), Tick(1.3))
    bench.feed(Planned(1, None, 1.4))
    assert bench.feed(Planned(2, PLAN, 1.5)) == [Prepare(2, PLAN.folders)]
