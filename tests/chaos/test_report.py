"""The report of a made-up run."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from tests.chaos.checker import check
from tests.chaos.history import Delivery, Inflicted
from tests.chaos.report import make_report, print_report
from tests.chaos.run import Result
from tests.chaos.schedule import make_schedule
from tests.helpers.chaos_history import FIRST_PID, LIMITS, SECOND_PID, sound_history

pytestmark = pytest.mark.unit

SCHEDULE = make_schedule(1, 20)


def test_figures_belong_to_the_fault_before_them() -> None:
    """Unowned time, a hand-over and a repeat are attributed to the kill before them, not to the fault after them."""
    history = sound_history()
    history.faults.append(Inflicted(2, "broker-stop", "broker-1", 40.0, 45.5))
    report = make_report(SCHEDULE, Result(history, wall_s=61.04), [], LIMITS)
    rows = {row["kind"]: row for row in report["by_kind"]}
    assert rows["member-kill"] == {
        "kind": "member-kill",
        "faults": 1,
        "longest_s": 2.0,
        "hand_overs": 1,
        "duplicates": 1,
        "longest_unowned_s": 5.2,
    }
    assert rows["broker-stop"]["longest_s"] == 5.5
    assert rows["broker-stop"]["hand_overs"] == rows["broker-stop"]["duplicates"] == 0
    expected = {"faults_scheduled": 20, "faults_inflicted": 2, "records_acknowledged": 10, "records_delivered": 10}
    assert report.items() >= (expected | {"duplicates": 1, "hand_overs": 1, "wall_s": 61.0}).items()


def test_the_report_is_stored_as_json() -> None:
    """The stored report contains the findings."""
    history = sound_history()
    without = replace(history, deliveries=[each for each in history.deliveries if each.number != 3])
    report = make_report(SCHEDULE, Result(without), check(without, LIMITS), LIMITS)
    assert [finding["kind"] for finding in json.loads(json.dumps(report))["findings"]] == ["lost", "late", "skipped"]


def test_the_first_findings_of_each_kind_are_printed() -> None:
    """Many findings of one kind do not hide the only one of another kind."""
    history = sound_history()
    stale = [Delivery(FIRST_PID, 0, 6, 7, 6, 20.0 + index, 20.1 + index) for index in range(30)]
    lost = Delivery(SECOND_PID, 0, 9, 9, 9, 20.0, None)
    deliveries = [*(each for each in history.deliveries if each.number != 9), *stale, lost]
    damaged = replace(history, deliveries=deliveries)
    console = Console(record=True, width=200, file=StringIO())
    result = Result(damaged, ["kafka-1 was restarted"], interrupted=True)
    print_report(console, make_report(SCHEDULE, result, check(damaged, LIMITS), LIMITS))
    lines = console.export_text().splitlines()
    assert len([line for line in lines if line.startswith("overlap: partition 0")]) == 5
    assert "overlap: 25 more" in lines
    assert any(line.startswith("lost: partition 0") for line in lines)
    assert "not in the schedule: kafka-1 was restarted" in lines
    assert lines[-1] == "32 findings"
