"""The sticky allocator of work: what stays, what moves, and to which member."""

from __future__ import annotations

import pytest

from kiel_groups.workers.allocation import retain_work
from kiel_groups.workers.values import ConnectorId, TaskId, Work

pytestmark = pytest.mark.unit

A, B, C, D = (ConnectorId(name) for name in "abcd")
T0, T1, T2 = (TaskId("a", number) for number in range(3))


@pytest.mark.parametrize(
    ("members", "works", "previous", "expected"),
    [
        pytest.param([], [A], {A: "x"}, {}, id="no member"),
        pytest.param(["x"], [], {A: "x"}, {"x": ()}, id="deleted work"),
        pytest.param(["y", "x"], [A, B, C], {}, {"x": (A, C), "y": (B,)}, id="nothing known: in turn"),
        pytest.param(["x", "y"], [A, B], {A: "y", B: "x"}, {"x": (B,), "y": (A,)}, id="all stays"),
        pytest.param(
            ["x", "y"], [A, B, C], {A: "y", B: "y", C: "x"}, {"x": (C,), "y": (A, B)}, id="one more stays where it was"
        ),
        pytest.param(
            ["x", "y", "z"],
            [A, B, C, D, T0, T1],
            {A: "x", B: "x", C: "x", D: "y", T0: "y", T1: "y"},
            {"x": (A, B), "y": (D, T0), "z": (C, T1)},
            id="a member joins: one piece of each moves",
        ),
        pytest.param(
            ["x", "y"],
            [A, B, T0, T1],
            {A: "x", B: "gone", T0: "gone", T1: "y"},
            {"x": (A, T0), "y": (B, T1)},
            id="a member is gone: its work alone moves, each kind by itself",
        ),
        pytest.param(
            ["x", "z"],
            [A, B, C, D],
            {A: "x", B: "x", C: "y", D: "y"},
            {"x": (A, B), "z": (C, D)},
            id="a member restarts under another id: the others keep their work",
        ),
        pytest.param(
            ["x", "y"],
            [A, T0, T1, T2],
            {A: "x", T0: "x", T1: "x", T2: "x"},
            {"x": (A, T0, T1), "y": (T2,)},
            id="the first pieces stay",
        ),
        pytest.param(
            ["x", "y"],
            [A, B, C, T0],
            {A: "x", B: "y", C: "x"},
            {"x": (A, C), "y": (B, T0)},
            id="the member with fewer connectors gets the task",
        ),
    ],
)
def test_work_stays_where_it_was(
    members: list[str], works: list[Work], previous: dict[Work, str], expected: dict[str, tuple[Work, ...]]
) -> None:
    """Members keep their work up to an even load; what moves goes to the members with the least, in turn."""
    assert retain_work(members, works, previous) == expected


def test_a_member_that_returns_gets_its_share_of_each_kind() -> None:
    """300 connectors of one task each: all have 100 of both kinds again, and nothing moves between the others."""
    names = list(map(str, range(300)))
    works: list[Work] = [*(ConnectorId(name) for name in names), *(TaskId(name, 0) for name in names)]
    before = retain_work(["x", "y"], works, {})
    owners = {work: member for member, its in before.items() for work in its}
    after = retain_work(["x", "y", "z"], works, owners)
    for kind in (ConnectorId, TaskId):
        assert [sum(isinstance(work, kind) for work in its) for its in after.values()] == [100, 100, 100]
    assert all(set(after[member]) < set(before[member]) for member in "xy")
