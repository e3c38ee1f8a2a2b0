"""The report of weights, and the hint if an allocator ignores weights."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from kiel_groups.group.znodes.contents import GroupState, MemberAssignment, Snapshot, Znode
from kiel_groups.model import TopicPartition
from kiel_groups.ops.views.load_view import PlanView, view_plan, weights_report

pytestmark = pytest.mark.unit

A, LONG = "g_host-1700000000001-aaaa", "a" * 90
PARTITIONS = [TopicPartition("t", number) for number in range(4)]

#: Assignments: of a dynamic and a static member, of a present and a departed member without partitions, and one that
#: is unreadable.
PLAN: Snapshot = {
    "/kiel-groups/g/allocation": Znode(GroupState(generation=4, state="done", leader=A, allocator="weighted").encode()),
    f"/kiel-groups/g/allocation/{A}": Znode(MemberAssignment(4, A, frozenset(PARTITIONS[:1])).encode()),
    "/kiel-groups/g/allocation/shelf-1": Znode(
        MemberAssignment(4, "g_host-1700000000001-bbbb", frozenset(PARTITIONS[1:])).encode()
    ),
    "/kiel-groups/g/allocation/g_host-1700000000001-cccc": Znode(
        MemberAssignment(4, "g_host-1700000000001-cccc", frozenset()).encode()
    ),
    "/kiel-groups/g/allocation/g_host-1700000000001-dddd": Znode(
        MemberAssignment(4, "g_host-1700000000001-dddd", frozenset()).encode()
    ),
    "/kiel-groups/g/allocation/g_host-1-eeee": Znode(b"{"),
}


def report_lines(weights: dict[TopicPartition, float], plan: PlanView) -> list[str]:
    text = StringIO()
    output = Console(file=text, width=80)
    for part in weights_report(weights, plan):
        output.print(part)
    return [line.strip() for line in text.getvalue().splitlines() if line.strip()]


def test_dynamic_members_are_shown_by_session_and_static_ones_by_instance() -> None:
    """
    The report of weights shows dynamic members by session and static ones by instance. It omits departed members and
    unreadable assignments, and counts a partition without a weight as the median.
    """
    plan = view_plan("g", PLAN, [A, "g_host-1700000000001-bbbb", "g_host-1700000000001-cccc"])
    assert plan.allocation == {"aaaa": {PARTITIONS[0]}, "shelf-1": set(PARTITIONS[1:]), "cccc": set()}
    shown = report_lines(
        {PARTITIONS[0]: 1_000_000, PARTITIONS[1]: 0.5, PARTITIONS[2]: 2, TopicPartition(LONG, 0): 1}, plan
    )
    assert shown[:2] == [
        "group g: 4 partitions have weights",
        "1 partition without one counts 2, the median of the others",
    ]
    rows = [line.split() for line in shown]
    assert ["aaaa", "1", "1,000,000", "100.0", "%"] in rows
    assert ["shelf-1", "3", "4.5", "0.0", "%"] in rows
    assert ["cccc", "0", "0", "0.0", "%"] in rows
    assert rows[-3:] == [["0", "1,000,000", "aaaa"], ["1", "0.5", "shelf-1"], ["2", "2", "shelf-1"]]
    assert max(map(len, shown)) <= 80


def test_before_the_first_plan_only_weights_are_shown() -> None:
    """Before the first plan, the report shows only weights, because no member has a load."""
    assert report_lines({PARTITIONS[0]: 1}, view_plan("g", {}, []))[:2] == [
        "group g: 1 partition has a weight",
        "topic t",
    ]


@pytest.mark.parametrize(
    ("allocator", "expected"),
    [
        ("", ""),
        ("weighted", ""),
        ("round_robin", "group g is allocated by round_robin, which does not use weights; to make weights effective,"),
        ("sticky", "group g is allocated by sticky, which does not use weights; to make weights effective, start the"),
        ("mine", "group g is allocated by mine, which uses weights only if it was written to do so; to make"),
    ],
)
def test_a_hint_says_that_an_allocator_ignores_weights(allocator: str, expected: str) -> None:
    """
    If the allocator ignores weights, a hint says what to do. It is omitted if the allocator uses weights, or if no plan
    was published yet.
    """
    hint = PlanView("g", allocator, {}).hint
    assert hint.startswith(expected)
    assert bool(hint) == bool(expected)
