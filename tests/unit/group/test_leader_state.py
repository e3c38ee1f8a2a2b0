"""The leader state: debounce, one plan at a time, and the end of a publication."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kiel_groups.config import DebounceConfig
from kiel_groups.group import leader_state
from kiel_groups.group.leader_state import (
    REPLAN_PAUSE_S,
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
from kiel_groups.group.planner import Publication
from kiel_groups.group.znodes.transactions import Answer, Check, Done, Failure, Refused, Unknown
from tests.helpers.recorded_moves import assert_moves_of_table, record_moves

pytestmark = pytest.mark.unit

ME = "/election/me"
OTHER = "/election/other"
DONE = Done((None,), (None,))
OPENING, BATCH, CLOSING = (Check("opening"),), (Check("batch"),), (Check("closing"),)
PLAN = Publication(7, 3, ("/folder",), (OPENING, BATCH, CLOSING))
DEBOUNCE = DebounceConfig(quiet_ms=100, bound_ms=1_000, initial_delay_ms=300)

NOT_DONE: list[Answer] = [Refused(0, Failure.NO_NODE), Refused(1, Failure.BAD_VERSION), Unknown()]


class Bench:
    """A leader state. ``effects`` lists all its effects."""

    def __init__(self, debounce: DebounceConfig = DEBOUNCE) -> None:
        self.leader = LeaderState(debounce)
        self.effects: list[Effect] = []

    def feed(self, *events: Event) -> list[Effect]:
        """Apply events, and return their effects."""
        found: list[Effect] = []
        for event in events:
            self.leader, effects = step(self.leader, event)
            found += effects
        self.effects += found
        return found

    def watching(self) -> Bench:
        """Elect the leader at time 0. Its first plan, at 0.3 s, changes nothing."""
        self.feed(Elected(ME, 0.0), Tick(0.3), Planned(1, None, 0.3))
        assert self.leader.phase is LeaderPhase.WATCHING
        self.effects.clear()
        return self

    def publishing(self, *answered: Event) -> Bench:
        """Do the same as ``watching``. Then, at 10.1 s, plan a change from 10 s, and apply the events ``answered``."""
        self.watching().feed(Changed("join", 10.0), Tick(10.1), Planned(1, PLAN, 10.1), *answered)
        assert self.leader.phase is LeaderPhase.PUBLISHING
        return self


def test_the_first_plan_waits_for_the_initial_delay() -> None:
    """The first plan of a group waits for the initial delay, during which more members may join."""
    bench = Bench()
    bench.feed(Elected(ME, 5.0))
    assert bench.leader.due_s == pytest.approx(5.3)
    assert bench.feed(Tick(5.29)) == []
    assert bench.feed(Tick(5.3)) == [MakePlan(1, ME, "first plan")]


def test_a_successor_waits_for_the_quiet_time_only() -> None:
    """
    A leader that succeeds another one waits only for the quiet time, or for the bound if that is shorter, because the
    members have already joined.
    """
    bench = Bench()
    bench.feed(Elected(ME, 5.0, succeeds=True))
    assert bench.leader.due_s == pytest.approx(5.1)
    assert bench.feed(Tick(5.2)) == [MakePlan(1, ME, "leader change")]
    hasty = Bench(DebounceConfig(quiet_ms=500, bound_ms=200, initial_delay_ms=300))
    hasty.feed(Elected(ME, 5.0, succeeds=True))
    assert hasty.leader.due_s == pytest.approx(5.2)


def test_an_urgent_change_ends_the_quiet_time() -> None:
    """
    An urgent change, such as the return of a static member, ends the quiet time. The plan includes all earlier changes.
    """
    bench = Bench().watching()
    bench.feed(Changed("join", 10.0), Changed("return", 10.02, urgent=True))
    assert bench.feed(Tick(10.02)) == [MakePlan(1, ME, "join, return")]
    assert bench.feed(Changed("return", 10.03, urgent=True)) == []
    assert bench.leader.phase is LeaderPhase.PLANNING


def test_another_debounce_applies_from_the_next_change() -> None:
    """A new debounce applies from the next change: a pending change keeps its due time."""
    bench = Bench().watching()
    bench.feed(Changed("join", 10.0), DebounceChanged(DebounceConfig(quiet_ms=0, bound_ms=0, initial_delay_ms=0)))
    assert bench.leader.due_s == pytest.approx(10.1)
    bench.feed(Tick(10.1), Planned(1, None, 10.2), Changed("join", 11.0))
    assert bench.feed(Tick(11.0)) == [MakePlan(1, ME, "join")]


def test_the_initial_delay_may_be_zero() -> None:
    """With an initial delay of 0, the first tick starts planning."""
    bench = Bench(DebounceConfig(quiet_ms=0, bound_ms=0, initial_delay_ms=0))
    assert bench.feed(Elected(ME, 5.0), Tick(5.0)) == [MakePlan(1, ME, "first plan")]
    bench.feed(Planned(1, None, 5.0), Changed("join", 6.0))
    assert bench.feed(Tick(6.0)) == [MakePlan(1, ME, "join")]


def test_changes_do_not_shorten_the_initial_delay() -> None:
    """A change right after the election does not shorten the initial delay."""
    bench = Bench()
    bench.feed(Elected(ME, 0.0), Changed("join", 0.01))
    assert bench.feed(Tick(0.2)) == []
    assert bench.feed(Tick(0.3)) == [MakePlan(1, ME, "first plan, join")]


def test_changes_before_the_first_plan_are_bounded() -> None:
    """Repeated changes delay the first plan at most until the bound."""
    bench = Bench()
    bench.feed(Elected(ME, 0.0), *(Changed("join", number / 20) for number in range(1, 40)))
    assert bench.leader.due_s == pytest.approx(1.0)


def test_an_initial_delay_beyond_the_bound_is_kept() -> None:
    """An initial delay beyond the bound is kept, because the bound limits only the wait for changes."""
    bench = Bench(DebounceConfig(quiet_ms=100, bound_ms=1_000, initial_delay_ms=3_000))
    bench.feed(Elected(ME, 0.0), Changed("join", 2.95))
    assert bench.leader.due_s == pytest.approx(3.0)


def test_a_change_is_planned_after_a_quiet_time() -> None:
    """A change is planned after the quiet time. Each further change restarts the quiet time."""
    bench = Bench().watching()
    bench.feed(Changed("join", 10.0), Changed("leave", 10.08))
    assert bench.feed(Tick(10.17)) == []
    assert bench.feed(Tick(10.18)) == [MakePlan(1, ME, "join, leave")]
    assert bench.feed(Tick(10.3)) == []


def test_repeated_changes_are_planned_at_the_bound() -> None:
    """Repeated changes are planned at the bound, which counts from the first change."""
    bench = Bench().watching()
    bench.feed(*(Changed("join", 10 + number / 20) for number in range(30)))
    assert bench.leader.due_s == pytest.approx(11.0)
    assert bench.feed(Tick(11.0)) == [MakePlan(1, ME, "join")]


def test_a_quiet_time_beyond_the_bound_ends_at_the_bound() -> None:
    """A quiet time beyond the bound ends at the bound, even after a single change."""
    bench = Bench(DebounceConfig(quiet_ms=5_000, bound_ms=1_000, initial_delay_ms=0))
    bench.feed(Elected(ME, 0.0), Tick(0.0), Planned(1, None, 0.0), Changed("join", 10.0))
    assert bench.leader.due_s == pytest.approx(11.0)


def test_each_cause_is_named_once_in_order() -> None:
    """Each cause of a plan is named once, in the order of the changes. So a thousand joins are one cause."""
    bench = Bench().watching()
    bench.feed(*(Changed(cause, 10.0) for cause in ("join", "topic", "join", "leave", "topic")))
    assert bench.feed(Tick(10.1)) == [MakePlan(1, ME, "join, topic, leave")]


def test_a_plan_knows_when_its_first_change_was_seen() -> None:
    """A plan has the time of its first change, from which its latency is measured: for a first plan, the election."""
    bench = Bench()
    (first,) = bench.feed(Elected(ME, 5.0), Changed("join", 5.2), Tick(5.3))
    bench.feed(Planned(1, None, 5.4))
    (second,) = bench.feed(Changed("join", 10.0), Changed("leave", 10.05), Tick(10.2))
    assert isinstance(first, MakePlan)
    assert isinstance(second, MakePlan)
    assert (first.since_s, second.since_s) == (5.0, 10.0)


def test_a_publication_is_sent_write_by_write() -> None:
    """
    A publication first creates parents. Each write is sent after the answer to the previous one, and ``Published`` is
    the last effect.
    """
    bench = Bench().watching()
    bench.feed(Changed("join", 10.0), Tick(10.1))
    assert bench.feed(Planned(1, PLAN, 10.2)) == [Prepare(1, ("/folder",))]
    assert bench.feed(Prepared(1, 10.3)) == [Write(1, OPENING)]
    assert bench.feed(Written(1, DONE, 10.4)) == [Write(1, BATCH)]
    assert bench.feed(Written(1, DONE, 10.5)) == [Write(1, CLOSING)]
    assert bench.feed(Written(1, DONE, 10.6)) == [Published(7, 3)]
    assert bench.leader.phase is LeaderPhase.WATCHING
    assert bench.leader.due_s is None
    assert bench.feed(Written(1, DONE, 10.7), Prepared(1, 10.7), Planned(1, PLAN, 10.7), Tick(99.0)) == []


def test_a_plan_that_changes_nothing_is_not_published() -> None:
    """A plan that changes nothing is not written, and no further plan is scheduled."""
    bench = Bench().watching()
    bench.feed(Changed("join", 10.0), Tick(10.1))
    assert bench.feed(Planned(1, None, 10.2), Tick(99.0)) == []
    assert bench.leader.phase is LeaderPhase.WATCHING


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
def test_a_change_during_a_plan_causes_the_next_plan(during: tuple[Event, ...]) -> None:
    """
    A change during a plan does not interrupt it. The change then has its own quiet time, and causes the next plan.
    """
    bench = Bench().watching()
    bench.feed(Changed("join", 10.0), Tick(10.1), *during)
    assert bench.feed(Changed("leave", 10.3), Tick(20.0)) == []
    rest = (Planned(1, PLAN, 10.4), Prepared(1, 10.4), *[Written(1, DONE, 10.5)] * 3)
    assert bench.feed(*rest)[-1] == Published(7, 3)
    assert bench.leader.due_s == pytest.approx(10.6)
    assert bench.leader.causes == ("leave",)
    assert bench.feed(Tick(10.6)) == [MakePlan(1, ME, "leave")]


def test_a_change_during_a_plan_without_effect_is_planned() -> None:
    """
    A change during a plan that changes nothing is planned afterwards, because the plan's data may have been read before
    the change.
    """
    bench = Bench().watching()
    bench.feed(Changed("join", 10.0), Tick(10.1), Changed("leave", 10.2), Planned(1, None, 10.3))
    assert bench.feed(Tick(10.4)) == [MakePlan(1, ME, "leave")]


@pytest.mark.parametrize("answered", range(3))
@pytest.mark.parametrize("answer", NOT_DONE, ids=repr)
def test_a_refused_or_unknown_write_discards_the_plan(answered: int, answer: Answer) -> None:
    """
    If a write of a plan is refused or its outcome is unknown, no further write is sent, and a new plan is made after a
    pause.
    """
    bench = Bench().publishing(Prepared(1, 10.2), *[Written(1, DONE, 10.3)] * answered)
    assert bench.feed(Written(1, answer, 11.0)) == []
    assert bench.leader.publication is None
    assert bench.feed(Tick(11.0 + REPLAN_PAUSE_S - 0.01)) == []
    assert bench.feed(Tick(11.0 + REPLAN_PAUSE_S)) == [MakePlan(1, ME, "publication interrupted")]


@pytest.mark.parametrize(
    "failure", [Planned(1, None, 11.0, failed=True), Planned(1, PLAN, 11.0, failed=True)], ids=["no plan", "a plan"]
)
def test_a_failed_plan_is_retried(failure: Event) -> None:
    """If a plan fails, the next one is made after a pause, and includes the changes until then."""
    bench = Bench().watching()
    bench.feed(Changed("join", 10.0), Tick(10.1), Changed("leave", 10.2))
    assert bench.feed(failure, Tick(11.0 + REPLAN_PAUSE_S - 0.01)) == []
    assert bench.feed(Tick(11.0 + REPLAN_PAUSE_S)) == [MakePlan(1, ME, "leave, retry")]


def test_a_plan_is_discarded_if_its_parents_cannot_be_created() -> None:
    """
    A plan whose parents cannot be created is discarded, because its writes would fail, and a new plan is made after a
    pause.
    """
    bench = Bench().publishing()
    assert bench.feed(Prepared(1, 11.0, failed=True), Written(1, DONE, 11.1), Prepared(1, 11.1)) == []
    assert bench.feed(Tick(11.0 + REPLAN_PAUSE_S)) == [MakePlan(1, ME, "retry")]


def test_changes_do_not_hasten_a_retry() -> None:
    """Changes do not shorten the pause after a failure, even with a debounce of 0."""
    bench = Bench(DebounceConfig(quiet_ms=0, bound_ms=0)).publishing(Prepared(1, 10.2))
    bench.feed(Written(1, Unknown(), 11.0), Changed("join", 11.01))
    assert bench.leader.due_s == pytest.approx(11.0 + REPLAN_PAUSE_S)


def test_a_confirmed_leader_makes_a_new_plan() -> None:
    """A leader whose election znode is confirmed makes a new plan, as after a change."""
    bench = Bench().watching()
    bench.feed(Elected(ME, 10.0))
    assert bench.feed(Tick(10.1)) == [MakePlan(1, ME, "leader resumed")]


def test_a_confirmed_leader_completes_its_publication_first() -> None:
    """
    A leader whose election znode is confirmed completes its publication first, because the same znode still fences it.
    """
    bench = Bench().publishing(Prepared(1, 10.2))
    assert bench.feed(Elected(ME, 10.3)) == []
    assert bench.feed(*[Written(1, DONE, 10.4)] * 3)[-1] == Published(7, 3)
    assert bench.feed(Tick(10.5)) == [MakePlan(1, ME, "leader resumed")]


def test_another_election_znode_discards_the_publication() -> None:
    """
    A leader that is elected with another znode discards its publication. Its writes check the former znode, so
    ZooKeeper would refuse them.
    """
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
def test_a_deposed_leader_has_no_effects(situation: str) -> None:
    """A deposed leader has no effects after late answers and ticks, whatever it was doing."""
    bench = Bench()
    bench.feed(Elected(ME, 0.0), *SITUATIONS[situation], Changed("join", 0.7))
    assert bench.feed(Deposed()) == []
    assert bench.leader == LeaderState(DEBOUNCE, term=1)
    late = (Planned(1, PLAN, 1.0), Prepared(1, 1.0), Written(1, DONE, 1.0), Changed("leave", 1.0), Tick(99.0))
    assert bench.feed(*late) == []
    assert bench.leader == LeaderState(DEBOUNCE, term=1)


def test_an_answer_to_an_earlier_term_is_ignored() -> None:
    """
    An answer to an earlier term is ignored. If a leader was deposed during planning and elected again, the late plan
    must not end the new planning.
    """
    bench = Bench()
    bench.feed(Elected(ME, 0.0), Tick(0.3), Deposed(), Elected(OTHER, 1.0), Tick(1.3))
    bench.feed(Planned(1, None, 1.4))
    assert bench.feed(Planned(2, PLAN, 1.5)) == [Prepare(2, PLAN.folders)]


def every_step() -> Iterator[tuple[LeaderState, Event]]:
    """Yield every event in every state that differs in its phase, in the writes that were answered, or in causes."""
    found = {("start",): LeaderState(DEBOUNCE)}
    waiting = list(found.values())
    while waiting:
        leader = waiting.pop()
        term = leader.term
        answers = (*NOT_DONE, DONE)
        for event in (
            *(Elected(ME, 0.0), Elected(OTHER, 0.0), Deposed(), Changed("join", 0.0), Tick(100.0)),
            *(Planned(term, plan, 0.0, failed=failed) for plan in (None, PLAN) for failed in (False, True)),
            *(Prepared(term, 0.0, failed=failed) for failed in (False, True)),
            *(Written(term, answer, 0.0) for answer in answers),
        ):
            yield leader, event
            after, _ = step(leader, event)
            key = (after.phase, after.written, bool(after.causes), after.candidate)
            if key not in found:
                found[key] = after
                waiting.append(after)


def test_a_leader_makes_every_legal_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """The moves of all events in all states are those of the table: none is missing there, and none is superfluous."""

    def play() -> None:
        for before, event in every_step():
            step(before, event)

    assert_moves_of_table(monkeypatch, leader_state, play)


def test_a_leader_makes_no_illegal_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """A move that the table lacks raises an error, whatever the move."""
    recorded = record_moves(monkeypatch, leader_state)
    for before, event in list(every_step()):
        recorded.forbidden = None
        after, _ = step(before, event)
        if after.phase is not before.phase:
            recorded.forbidden = (before.phase, after.phase)
            with pytest.raises(AssertionError, match="LeaderPhase"):
                step(before, event)
