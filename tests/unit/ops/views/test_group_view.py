"""The znodes of a group become one view, even if some are missing or unreadable."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, RenderableType

from kiel_groups.demo.demo_run import GroupProgress, member_table, offset_table, status_line
from kiel_groups.group.znodes.contents import GroupState, MemberAssignment, MemberInfo, Snapshot, Znode
from kiel_groups.model import TopicPartition
from kiel_groups.ops.views.znodes import view_group

pytestmark = pytest.mark.unit

PARTITIONS = [TopicPartition("t", number) for number in range(3)]


def member(name: str, started_at_ms: int) -> bytes:
    info = MemberInfo(
        member_id=name, session_timeout_ms=6_000, subscription=("t",), pid=17, started_at_ms=started_at_ms
    )
    return info.encode()


DATA = {
    "/kiel-groups/g": b"",
    "/kiel-groups/g/members": b"",
    "/kiel-groups/g/members/g_h-1700000000002-b": member("g_h-1700000000002-b", 2),
    "/kiel-groups/g/members/g_h-1700000000001-a": member("g_h-1700000000001-a", 1),
    "/kiel-groups/g/election": b"",
    # The sequence number at the end decides, not the uuid at the start.
    "/kiel-groups/g/election/aaaa-n_0000000002": b"g_h-1700000000002-b",
    "/kiel-groups/g/election/ffff-n_0000000001": b"g_h-1700000000001-a",
    "/kiel-groups/g/allocation": GroupState(generation=4, state="done", leader="g_h-1700000000001-a").encode(),
    "/kiel-groups/g/allocation/g_h-1700000000001-a": MemberAssignment(
        4, "g_h-1700000000001-a", frozenset(PARTITIONS[:2])
    ).encode(),
    "/kiel-groups/g/allocation/g_h-1700000000002-b": MemberAssignment(
        4, "g_h-1700000000002-b", frozenset(PARTITIONS[2:])
    ).encode(),
    "/consumers/g/owners": b"",
    "/consumers/g/owners/t": b"",
    "/consumers/g/owners/t/0": b"g_h-1700000000001-a-0",
    "/consumers/g/owners/t/2": b"g_h-1700000000002-b-0",
    "/consumers/g/offsets": b"",
    "/consumers/g/offsets/t": b"",
    "/consumers/g/offsets/t/0": b"10",
    "/consumers/g/offsets/t/2": b"30",
}
ZNODES = {path: Znode(data) for path, data in DATA.items()}
LOG_ENDS = {PARTITIONS[0]: 15, PARTITIONS[1]: 5, PARTITIONS[2]: 29}


def test_members_leader_owners_and_lag_are_read() -> None:
    """
    The view has members, oldest first, the leader, owners and lag. Lag is the log end less the committed offset, and
    never negative.
    """
    view = view_group("g", ZNODES, LOG_ENDS)
    assert [member.member_id for member in view.members] == ["g_h-1700000000001-a", "g_h-1700000000002-b"]
    assert [member.leads for member in view.members] == [True, False]
    assert [[owned.topic_partition for owned in member.owned] for member in view.members] == [
        [PARTITIONS[0]],
        [PARTITIONS[2]],
    ]
    assert [partition.lag for partition in view.partitions] == [5, None, 0]
    assert (view.lag, view.owned, view.unreadable) == (5, 2, ())


def test_a_group_without_znodes_is_an_empty_view() -> None:
    """The view of a group without znodes has neither a leader, members, partitions nor a plan."""
    view = view_group("g", {}, {})
    assert (view.group_state, view.leader, view.members, view.partitions) == (None, None, (), ())


@pytest.mark.parametrize("path", [path for path, data in DATA.items() if data])
def test_one_unreadable_znode_does_not_hide_the_others(path: str) -> None:
    """If one znode is unreadable, the view has its path and all other data."""
    view = view_group("g", ZNODES | {path: Znode(b"\xff{garbage"), "/brokers/topics/t": TOPIC}, LOG_ENDS)
    free_text = "/election/" in path or "/owners/" in path
    assert free_text or any(path in each.text for each in view.unreadable)
    assert len(view.partitions) == 3
    assert view.lag in (0, 5)
    table_text(member_table(GroupProgress(view, {}, {})))


def table_text(table: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_tables_show_owners_and_offsets_in_80_columns() -> None:
    """
    The tables fit 80 columns. They show members by name, moving partitions as "1 → 2", and unknown offsets as "?".
    """
    view = view_group("g", ZNODES, LOG_ENDS)
    members = table_text(
        member_table(GroupProgress(view, {"g_h-1700000000001-a": "consumer-1"}, {"g_h-1700000000001-a": 1234.5}))
    )
    assert "group g · generation 4 · leader consumer-1" in members
    assert "1 → 2" in members
    assert "1,234" in members
    offsets = table_text(offset_table(view))
    assert "0:    10, 5" in offsets
    assert "1:     -, ?" in offsets
    assert max(map(len, (members + offsets).splitlines())) <= 80
    line = status_line(GroupProgress(view, {}, {}))
    assert line == "generation 4, 2 members, leader g_h-1700000000001-a, 2 of 3 partitions owned, lag 5, 0 records/s"


TOPIC = Znode(b'{"version":1,"partitions":{"0":[0],"1":[0],"2":[0]}}')
GROWN = Znode(b'{"version":1,"partitions":{"0":[0],"1":[0],"2":[0],"3":[0]}}')
REASONED = GroupState(
    generation=4, state="done", leader="g_h-1700000000001-a", unassigned={"all its members are drained": 1}
)

SETTLED = ZNODES | {"/consumers/g/owners/t/1": Znode(b"g_h-1700000000001-a-0"), "/brokers/topics/t": TOPIC}


def test_a_group_is_settled_once_the_plan_covers_all_members_and_partitions() -> None:
    """
    A member without an assignment waits for the leader's plan, or its assignment was written while the znodes were
    read: with half of the partitions released for it, and no plan that assigns them, nothing is settled.
    """

    def state(znodes: Snapshot) -> str:
        return view_group("g", znodes).state

    assert state(SETTLED) == "settled"
    late = ("/kiel-groups/g/allocation/g_h-1700000000002-b", "/consumers/g/owners/t/2")
    torn = {path: znode for path, znode in SETTLED.items() if path not in late}
    assert state(torn) == "moving", "a partition is assigned to no member"
    whole = MemberAssignment(4, "g_h-1700000000001-a", frozenset(PARTITIONS))
    of_one = {
        "/kiel-groups/g/allocation/g_h-1700000000001-a": Znode(whole.encode()),
        "/consumers/g/owners/t/2": Znode(b"g_h-1700000000001-a-0"),
    }
    assert state(torn | of_one) == "moving", "the plan lacks a member"
    assert state(SETTLED | {"/brokers/topics/t": GROWN}) == "moving", "the plan lacks a partition"
    reasoned = {"/brokers/topics/t": GROWN, "/kiel-groups/g/allocation": Znode(REASONED.encode())}
    assert state(SETTLED | reasoned) == "settled", "the plan says why a partition has no member"
