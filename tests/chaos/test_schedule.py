"""Schedules: properties that hold for every seed, and files that are refused."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chaos.faults import INFLICT
from tests.chaos.schedule import FAULTS_BETWEEN_RESTS, KINDS, Domain, Schedule, ScheduleError, make_schedule

pytestmark = pytest.mark.property

seeds = st.integers(0, 1 << 32)
counts = st.integers(1, 120)
no_deadline = settings(deadline=None)


@no_deadline
@given(seeds, counts)
def test_a_seed_gives_one_schedule(seed: int, count: int) -> None:
    """A seed always gives the same faults. A longer schedule starts with the faults of a shorter schedule."""
    schedule = make_schedule(seed, count)
    assert schedule == make_schedule(seed, count)
    assert [fault.number for fault in schedule.faults] == list(range(1, count + 1))
    assert make_schedule(seed, count + 5).faults[:count] == schedule.faults


@no_deadline
@given(seeds, counts, st.integers(2, 6), st.integers(2, 4), st.floats(1, 10))
def test_every_fault_can_be_inflicted(seed: int, count: int, members: int, brokers: int, timeout_s: float) -> None:
    """
    Targets exist, durations are within the range of the kind, and two faults in a row hit different members unless both
    are ``member-join``.
    """
    schedule = make_schedule(seed, count, members=members, brokers=brokers, session_timeout_s=timeout_s)
    for fault in schedule.faults:
        kind = KINDS[fault.kind]
        assert kind.shortest * timeout_s - 0.01 <= fault.lasts_s <= kind.longest * timeout_s + 0.01
        targets = {Domain.MEMBER: members + 1, Domain.BROKERS: brokers, Domain.ENSEMBLE: 3}
        assert 0 <= fault.target < targets[kind.domain]
        assert (fault.target == members) == (kind.name == "member-join") or kind.domain is not Domain.MEMBER
    for before, after in pairwise(schedule.faults):
        if {before.kind, after.kind} != {"member-join"} and KINDS[after.kind].domain is Domain.MEMBER:
            assert before.exclusive != after.exclusive


@no_deadline
@given(seeds)
def test_rests_are_longer_than_the_allowed_unowned_time(seed: int) -> None:
    """
    A rest is longer than a partition may be unowned, so that the checker can find a partition that stays without an
    owner.
    """
    schedule = make_schedule(seed, 5 * FAULTS_BETWEEN_RESTS)
    rests = [fault.rest_s for fault in schedule.faults if fault.rest_s]
    assert len(rests) == 4
    assert min(rests) > schedule.session_timeout_s + 4


@no_deadline
@given(seeds)
def test_each_deck_has_every_kind(seed: int) -> None:
    """A schedule with as many faults as a deck has cards contains every kind as often as its weight says."""
    cards = sum(kind.weight for kind in KINDS.values())
    dealt = [fault.kind for fault in make_schedule(seed, 2 * cards).faults]
    for deck in (dealt[:cards], dealt[cards:]):
        assert {name: deck.count(name) for name in KINDS} == {name: kind.weight for name, kind in KINDS.items()}


@no_deadline
@given(seeds, counts)
def test_a_stored_schedule_is_loaded_unchanged(seed: int, count: int) -> None:
    """A schedule that is stored as JSON is loaded unchanged."""
    schedule = make_schedule(seed, count)
    assert Schedule.parse(schedule.to_json()) == schedule


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("version", 2, "schedule.version: 2 given; expected version 1"),
        ("seed", "one", 'schedule.seed: "one" given; expected a whole number of -'),
        ("seed", None, "schedule.seed: missing"),
        ("flood", 1, "schedule: no such field: flood"),
        ("members", "four", 'schedule.members: "four" given; expected a whole number of 1 to 32'),
        ("members", True, "schedule.members: true given; expected"),
        ("members", 100_000, "schedule.members: 100000 given; expected a whole number of 1 to 32"),
        ("brokers", 0, "schedule.brokers: 0 given; expected a whole number of 2 to 16"),
        ("session_timeout_s", 0, "schedule.session_timeout_s: 0 given; expected a number of 1 to 3600"),
        ("session_timeout_s", float("nan"), "schedule.session_timeout_s: NaN given; expected"),
        ("faults", [], "schedule.faults: [] given; expected a list of at least one fault"),
        ("faults", {}, "schedule.faults: {} given; expected a list"),
        ("faults", ["member-kill"], 'faults[0]: "member-kill" given; expected an object'),
    ],
)
def test_a_schedule_with_a_wrong_field_is_refused(field: str, value: object, expected: str) -> None:
    """The error names the field, its value and the expected values. The parameter None means a missing field."""
    stored = json.loads(make_schedule(1, 2).to_json()) | {field: value}
    if value is None:
        del stored[field]
    with pytest.raises(ScheduleError, match=re.escape(expected)):
        Schedule.parse(json.dumps(stored))


@pytest.mark.parametrize(
    ("kind", "field", "value", "expected"),
    [
        ("member-kill", "kind", "flood", 'faults[1].kind: "flood" given; expected one of member-kill,'),
        ("member-kill", "kind", ["flood"], 'faults[1].kind: ["flood"] given; expected one of'),
        ("member-kill", "number", 0, "faults[1].number: 0 given; expected a whole number of 1 to"),
        ("member-kill", "target", None, "faults[1].target: missing"),
        ("member-kill", "target", 99, "faults[1].target: 99 given; expected a whole number of 0 to 3"),
        ("member-kill", "target", 1.0, "faults[1].target: 1.0 given; expected a whole number of 0 to 3"),
        ("member-join", "target", 0, "faults[1].target: 0 given; expected a whole number of 4 to 4"),
        ("broker-stop", "target", 3, "faults[1].target: 3 given; expected a whole number of 0 to 2"),
        ("zookeeper-stop", "target", -1, "faults[1].target: -1 given; expected a whole number of 0 to 2"),
        ("member-kill", "lasts_s", "long", 'faults[1].lasts_s: "long" given; expected a number of 0 to 3600'),
        ("member-kill", "after_s", -1, "faults[1].after_s: -1 given; expected a number of 0 to 3600"),
        ("member-kill", "rest_s", float("inf"), "faults[1].rest_s: Infinity given; expected a number of 0 to 3600"),
        ("member-kill", "note", "x", "faults[1]: no such field: note"),
    ],
)
def test_a_fault_with_a_wrong_field_is_refused(kind: str, field: str, value: object, expected: str) -> None:
    """The error names the fault's index in the list. The parameter None means a missing field."""
    stored = json.loads(make_schedule(1, 2).to_json())
    stored["faults"][1] |= {"kind": kind, "target": 4 if kind == "member-join" else 0, field: value}
    if value is None:
        del stored["faults"][1][field]
    with pytest.raises(ScheduleError, match=re.escape(expected)):
        Schedule.parse(json.dumps(stored))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[]", "schedule: [] given; expected an object"),
        ("{}", "schedule.version: missing"),
        ("", "no schedule: Expecting value"),
        ("[" * 100_000, "no schedule: maximum recursion depth"),
    ],
)
def test_a_text_that_is_not_a_schedule_is_refused(text: str, expected: str) -> None:
    with pytest.raises(ScheduleError, match=re.escape(expected)):
        Schedule.parse(text)


def test_every_kind_has_a_function_that_inflicts_it() -> None:
    """The tables of kinds and of functions have the same names."""
    assert INFLICT.keys() == KINDS.keys()
