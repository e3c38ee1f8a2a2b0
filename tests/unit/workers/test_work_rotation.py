"""Round robin over connectors and tasks, on one cursor."""

from __future__ import annotations

import pytest

from kiel_groups.workers.allocation import rotate_work, work_in_order
from kiel_groups.workers.values import ConnectorId, TaskId, Work

pytestmark = pytest.mark.unit

A, B, C = ConnectorId("a"), ConnectorId("b"), ConnectorId("c")


def tasks(connector: str, count: int) -> list[TaskId]:
    return [TaskId(connector, number) for number in range(count)]


@pytest.mark.parametrize(
    ("members", "works", "expected"),
    [
        pytest.param([], [A], {}, id="no member"),
        pytest.param(["x", "y"], [], {"x": (), "y": ()}, id="no work"),
        pytest.param(["y", "x"], [A], {"x": (A,), "y": ()}, id="the first member in order begins"),
        pytest.param(
            ["x", "y"],
            [A, *tasks("a", 4)],
            {"x": (A, TaskId("a", 1), TaskId("a", 3)), "y": (TaskId("a", 0), TaskId("a", 2))},
            id="tasks go on where connectors have ended",
        ),
        pytest.param(
            ["x", "y"],
            [B, A, *tasks("b", 1), *tasks("a", 2)],
            {"x": (A, TaskId("a", 0), TaskId("b", 0)), "y": (B, TaskId("a", 1))},
            id="all connectors come before all tasks",
        ),
        pytest.param(
            ["x", "y", "z"],
            [A, C, B, *tasks("c", 2)],
            {"x": (A, TaskId("c", 0)), "y": (B, TaskId("c", 1)), "z": (C,)},
            id="three members",
        ),
    ],
)
def test_work_is_assigned_in_turn(members: list[str], works: list[Work], expected: dict[str, tuple[Work, ...]]) -> None:
    """The sorted members get the sorted connectors in turn, and then the sorted tasks, on the same cursor."""
    assert rotate_work(members, works, {}) == expected


def test_previous_members_do_not_count() -> None:
    """Round robin assigns by order alone, whichever member had the work before."""
    assert rotate_work(["x", "y"], [A, B], {A: "y", B: "y"}) == {"x": (A,), "y": (B,)}


def test_connectors_are_ordered_as_text_and_tasks_by_number() -> None:
    """Connectors are ordered by their names as text; the tasks of each one by number, so 10 follows 9."""
    names = ["c-10", "c-9", "C", "c"]
    works: list[Work] = [*tasks("c-9", 11), *map(ConnectorId, names), *tasks("c-10", 2)]
    assert work_in_order(works[::-1]) == [
        *map(ConnectorId, ["C", "c", "c-10", "c-9"]),
        *tasks("c-10", 2),
        *tasks("c-9", 11),
    ]
