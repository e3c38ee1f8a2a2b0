"""Schedules: what every seed must give, and what a file must hold."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chaos.faults import _INFLICT
from tests.chaos.schedule import FAULTS_BETWEEN_RESTS, KINDS, Domain, Schedule, ScheduleError, make_schedule
from tests.integration.commands import environment

pytestmark = pytest.mark.property

seeds = st.integers(0, 1 << 32)
counts = st.integers(1, 120)
no_deadline = settings(deadline=None)


@no_deadline
@given(seeds, counts)
def test_a_seed_gives_one_schedule(seed: int, count: int) -> None:
    """The same seed gives the same faults, of which a longer schedule has more."""
    schedule = make_schedule(seed, count)
    assert schedule == make_schedule(seed, count)
    assert [fault.number for fault in schedule.faults] == list(range(1, count + 1))
    assert make_schedule(seed, count + 5).faults[:count] == schedule.faults


@no_deadline
@given(seeds, counts, st.integers(2, 6), st.integers(2, 4), st.floats(1, 10))
def test_every_fault_can_be_inflicted(seed: int, count: int, members: int, brokers: int, timeout_s: float) -> None:
    """Targets exist, durations are those of the kind, and two faults in a row have different members."""
    schedule = make_schedule(seed, count, members=members, brokers=brokers, session_timeout_s=timeout_s)
    for fault in schedule.faults:
        kind = KINDS[fault.kind]
        assert kind.shortest * timeout_s - 0.01 <= fault.lasts_s <= kind.longest * timeout_s + 0.01
        places = {Domain.MEMBER: members + 1, Domain.BROKERS: brokers, Domain.ENSEMBLE: 3}
        assert 0 <= fault.target < places[kind.domain]
        assert (fault.target == members) == (kind.name == "member-join") or kind.domain is not Domain.MEMBER
    for before, after in pairwise(schedule.faults):
        if {before.kind, after.kind} != {"member-join"} and KINDS[after.kind].domain is Domain.MEMBER:
            assert before.busy != after.busy


@no_deadline
@given(seeds)
def test_rests_are_long_enough_to_judge_in(seed: int) -> None:
    """Now and then everything recovers for longer than a partition may be without an owner."""
    schedule = make_schedule(seed, 5 * FAULTS_BETWEEN_RESTS)
    rests = [fault.rest_s for fault in schedule.faults if fault.rest_s]
    assert len(rests) == 4
    assert min(rests) > schedule.session_timeout_s + 4


@no_deadline
@given(seeds)
def test_each_deck_has_every_kind(seed: int) -> None:
    """No kind is left to luck: so many faults as a deck has cards have all of them, in their shares."""
    cards = sum(kind.weight for kind in KINDS.values())
    dealt = [fault.kind for fault in make_schedule(seed, 2 * cards).faults]
    for deck in (dealt[:cards], dealt[cards:]):
        assert {name: deck.count(name) for name in KINDS} == {name: kind.weight for name, kind in KINDS.items()}


@no_deadline
@given(seeds, counts)
def test_it_is_loaded_as_it_was_stored(seed: int, count: int) -> None:
    """JSON and back is the same schedule."""
    schedule = make_schedule(seed, count)
    assert Schedule.parse(schedule.to_json()) == schedule


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda stored: stored.update(version=2), "expected version 1"),
        (lambda stored: stored["faults"][0].update(kind="flood"), "no such fault: flood; expected one of member-kill,"),
        (lambda stored: stored["faults"][0].pop("target"), "no schedule: TypeError"),
        (lambda stored: stored.pop("seed"), "no schedule: TypeError"),
    ],
)
def test_what_is_no_schedule_is_refused(change, said: str) -> None:  # type: ignore[no-untyped-def]
    """A file of another version, or with faults that do not exist, is refused before anything is started."""
    stored = json.loads(make_schedule(1, 2).to_json())
    change(stored)
    with pytest.raises(ScheduleError, match=said):
        Schedule.parse(json.dumps(stored))


def test_every_kind_can_be_inflicted() -> None:
    """The table of kinds and the table of what is done have the same names."""
    assert _INFLICT.keys() == KINDS.keys()


def test_the_command_refuses_a_file_that_is_no_schedule(tmp_path: Path) -> None:
    """It says so in a line, with the exit status of a run that says nothing about the group."""
    path = tmp_path / "schedule.json"
    path.write_text("{}")
    command = [sys.executable, "-m", "tests.chaos", "--replay", str(path)]
    refused = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == "error: no schedule: KeyError 'version'\n"
