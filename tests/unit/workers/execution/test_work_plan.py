"""What a worker runs of its assignment, and which changes of the configuration concern the whole group."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kiel_groups.group.znodes.worker_contents import TargetState
from kiel_groups.workers.execution.work_plan import WorkSpec, needs_rejoin, outdated, planned, still_valid
from kiel_groups.workers.values import ConfigSnapshot, ConnectorEntry, ConnectorId, TaskId

pytestmark = pytest.mark.unit

C, C0, C1 = ConnectorId("c"), TaskId("c", 0), TaskId("c", 1)
CONFIG = {"name": "c", "topics": "t", "url": "u"}
ENTRY = ConnectorEntry(CONFIG, tasks=({"a": "1"}, {"a": "2"}))


def config(entry: ConnectorEntry | None, **others: ConnectorEntry) -> ConfigSnapshot:
    return ConfigSnapshot(1, ({} if entry is None else {"c": entry}) | others)


def test_a_task_has_its_own_settings_and_the_standard_ones_of_its_connector() -> None:
    """A change of another setting of the connector does not restart the task."""
    assert planned(config(ENTRY), [C, C1]) == {
        C: WorkSpec(CONFIG),
        C1: WorkSpec({"name": "c", "topics": "t"}, {"a": "2"}),
    }


@pytest.mark.parametrize(
    ("entry", "running"),
    [
        (ENTRY, {C, C0, C1}),
        (replace(ENTRY, target=TargetState.PAUSED), {C, C0, C1}),
        (replace(ENTRY, tasks=({},)), {C, C0}),
        (replace(ENTRY, tasks=()), {C}),
        (replace(ENTRY, tasks=None), {C}),
        (replace(ENTRY, problem="garbage"), {C}),
        (None, set()),
    ],
)
def test_work_that_the_configuration_lacks_is_not_run(entry: ConnectorEntry | None, running: set[Any]) -> None:
    """A connector with a problem is kept, so that its owner reports it."""
    found = planned(config(entry), [C, C0, C1])
    assert found.keys() == running
    for spec in found.values():
        assert entry is not None
        assert (spec.target, spec.problem) == (entry.target, entry.problem)


@pytest.mark.parametrize(
    ("entry", "rejoins"),
    [
        (ENTRY, False),
        (replace(ENTRY, config={"name": "c", "topics": "x"}), False),
        (replace(ENTRY, target=TargetState.PAUSED), False),
        (replace(ENTRY, created=9), True),
        (replace(ENTRY, tasks=({"a": "1"}, {"a": "3"})), True),
        (replace(ENTRY, tasks=({"a": "1"},)), True),
        (replace(ENTRY, tasks=None), True),
        (replace(ENTRY, problem="garbage"), True),
        (None, True),
    ],
)
def test_only_changed_sets_and_tasks_have_the_group_assign_again(entry: ConnectorEntry | None, rejoins: bool) -> None:
    """A changed setting of a connector, a pause and a resume do not."""
    assert needs_rejoin(config(ENTRY), config(entry)) is rejoins
    assert needs_rejoin(config(entry), config(ENTRY)) is rejoins


def test_a_new_connector_has_the_group_assign_again() -> None:
    """Also before it has tasks."""
    assert needs_rejoin(config(ENTRY), config(ENTRY, d=ConnectorEntry({})))


CHANGES = [
    (ENTRY, []),
    (replace(ENTRY, config={"name": "c", "topics": "x"}, target=TargetState.PAUSED), []),
    (replace(ENTRY, tasks=({"a": "1"}, {"a": "3"})), [C1]),
    (replace(ENTRY, tasks=({"a": "1"},)), [C1]),
    (replace(ENTRY, problem="garbage"), [C0, C1]),
    (replace(ENTRY, created=9), [C, C0, C1]),
    (None, [C, C0, C1]),
]


@pytest.mark.parametrize(("entry", "expected"), CHANGES)
def test_work_is_outdated_if_the_group_assigns_it_anew(entry: ConnectorEntry | None, expected: list[Any]) -> None:
    """Tasks that are gone or have other settings are, and all work of another connector of the same name."""
    running = planned(config(ENTRY), [C, C0, C1])
    assert outdated(config(entry), running) == expected


@pytest.mark.parametrize(("entry", "expected"), CHANGES)
def test_work_is_still_valid_if_it_is_not_outdated(entry: ConnectorEntry | None, expected: list[Any]) -> None:
    """What a newer configuration assigns anew waits for the next assignment."""
    wanted = planned(config(entry), [C, C0, C1])
    found = still_valid(config(ENTRY), wanted)
    assert found == {work: spec for work, spec in wanted.items() if work not in expected}


def test_without_the_assigned_configuration_no_task_is_valid() -> None:
    """A connector may run: its settings are its owner's business."""
    wanted = planned(config(ENTRY), [C, C0, C1])
    assert still_valid(None, wanted) == {C: wanted[C]}
    assert still_valid(config(None), wanted) == {C: wanted[C]}
