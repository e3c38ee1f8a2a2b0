"""Snapshots of a group's znodes, healthy and with each problem that is reported, and their reports as text."""

from __future__ import annotations

import io
import json

from rich.console import Console

from kiel_groups.group.topic_patterns import PatternMatch
from kiel_groups.group.znodes.contents import GroupSettings, GroupState, MemberAssignment, MemberInfo, Snapshot, Znode
from kiel_groups.model import TopicPartition
from kiel_groups.ops.views.checks import SETTLING_MS, UNOPENED_MS, Finding, check_group
from kiel_groups.ops.views.group_view import GroupView
from kiel_groups.ops.views.report import group_report, groups_table
from kiel_groups.ops.views.znodes import view_group

PLANNED_MS = 1_700_000_000_000


LATER_MS = PLANNED_MS + SETTLING_MS + 1


PARTITIONS = [TopicPartition("t", number) for number in range(3)]


A, B = "g_host-1700000000001-aaaa", "g_host-1700000000002-bbbb"


def member(name: str, started_at_ms: int, *topics: str, pattern: str | None = None) -> Znode:
    info = MemberInfo(
        member_id=name,
        session_timeout_ms=6_000,
        subscription=topics,
        host="host",
        pid=17,
        started_at_ms=started_at_ms,
        pattern=pattern,
    )
    return Znode(info.encode(), int(name.rpartition("-")[2], 16))


def plan(**differing: object) -> Znode:
    fields = {"generation": 4, "state": "done", "leader": A, "allocator": "round_robin", "created_at_ms": PLANNED_MS}
    return Znode(GroupState(**(fields | differing)).encode())  # type: ignore[arg-type]


def config(**dynamic_config: object) -> Znode:
    return Znode(
        json.dumps({"store": "zookeeper", "mode": "eager", "auto_offset_reset": "latest"} | dynamic_config).encode()
    )


#: A healthy group of two members.
HEALTHY: Snapshot = {
    f"/kiel-groups/g/members/{A}": member(A, PLANNED_MS, "t"),
    f"/kiel-groups/g/members/{B}": member(B, PLANNED_MS + 1, "t"),
    "/kiel-groups/g/election/ffff-n_0000000001": Znode(A.encode()),
    "/kiel-groups/g/election/aaaa-n_0000000002": Znode(B.encode()),
    "/kiel-groups/g/allocation": plan(),
    f"/kiel-groups/g/allocation/{A}": Znode(MemberAssignment(4, A, frozenset(PARTITIONS[:2])).encode()),
    f"/kiel-groups/g/allocation/{B}": Znode(MemberAssignment(4, B, frozenset(PARTITIONS[2:])).encode()),
    "/kiel-groups/g/config": Znode(
        GroupSettings(store="zookeeper", mode="cooperative", auto_offset_reset="earliest").encode()
    ),
    f"/consumers/g/ids/{A}": Znode(b"{}", 0xAAAA),
    f"/consumers/g/ids/{B}": Znode(b"{}", 0xBBBB),
    "/consumers/g/owners/t": Znode(),
    "/consumers/g/owners/t/0": Znode(f"{A}-0".encode(), 0xAAAA),
    "/consumers/g/owners/t/1": Znode(f"{A}-0".encode(), 0xAAAA),
    "/consumers/g/owners/t/2": Znode(f"{B}-0".encode(), 0xBBBB),
    "/consumers/g/offsets/t": Znode(),
    **{f"/consumers/g/offsets/t/{number}": Znode(b"10", modified_ms=PLANNED_MS) for number in range(3)},
    "/brokers/topics/t": Znode(b'{"version":1,"partitions":{"0":[0],"1":[0],"2":[0]}}'),
}


LOG_ENDS = dict.fromkeys(PARTITIONS, 12)


JAVA = "g_shop-1-1700000000003-0000cccc"


#: A group of one console consumer, which does not own the last partition and has no offset in it.
OF_JAVA: Snapshot = {
    f"/consumers/g/ids/{JAVA}": Znode(b'{"version":1,"subscription":{"t":1},"pattern":"white_list"}', 0xCCCC),
    **{f"/consumers/g/owners/t/{number}": Znode(f"{JAVA}-0".encode(), 0xCCCC) for number in range(2)},
    **{f"/consumers/g/offsets/t/{number}": Znode(b"10", modified_ms=PLANNED_MS) for number in range(2)},
    **{f"/consumers/g/{folder}/t": Znode() for folder in ("owners", "offsets")},
    "/brokers/topics/t": HEALTHY["/brokers/topics/t"],
}


def without(*paths: str) -> Snapshot:
    return {path: znode for path, znode in HEALTHY.items() if path not in paths}


#: Kind of finding → a snapshot with the problem, and a part of the finding's text.
PROBLEMS: dict[str, tuple[Snapshot, str]] = {
    "foreign": (
        {**HEALTHY, "/consumers/g/ids/g_java-1-abcdef01": Znode(b"{}", 7), "/kiel/groups/g/members/w:1": Znode(b"", 8)},
        "g_java-1-abcdef01, w:1 (under /consumers/g/ids and /kiel/groups/g/members)",
    ),
    "unreadable": ({**HEALTHY, "/kiel-groups/g/config": Znode(b"{")}, "/kiel-groups/g/config: not JSON"),
    "refused": (
        {**HEALTHY, "/kiel-groups/g/config": config(allocator="stiky")},
        "config is refused: /kiel-groups/g/config: allocator: there is no allocator 'stiky'",
    ),
    "misspelt": (
        {**HEALTHY, "/kiel-groups/g/config": config(debonce={"quiet_ms": 0})},
        "config: field 'debonce' means nothing here; did you mean 'debounce'?",
    ),
    "unconsumed": (
        {
            "/consumers/g/ids": Znode(),
            "/brokers/topics/t": Znode(b'{"version":1,"partitions":{"0":[0],"1":[0],"2":[0]}}'),
            **{path: znode for path, znode in HEALTHY.items() if path.startswith("/consumers/g/offsets/")},
        },
        "the group has no members; its lag is 6, in 3 partitions",
    ),
    "leaderless": (
        without("/kiel-groups/g/election/ffff-n_0000000001", "/kiel-groups/g/election/aaaa-n_0000000002"),
        "no member is a candidate in the election",
    ),
    "orphans": (
        {**HEALTHY, "/consumers/g/owners/t/1": Znode(b"g_host-9-dead-0")},
        "1 partition is owned by g_host-9-dead, which is no longer a member: t:1",
    ),
    "wrongly-owned": (
        {**HEALTHY, "/consumers/g/owners/t/1": Znode(f"{B}-0".encode(), 0xBBBB)},
        "1 partition is owned by bbbb, but assigned to aaaa: t:1",
    ),
    "unowned": (
        without("/consumers/g/owners/t/0", "/consumers/g/owners/t/1"),
        "2 partitions have no owner: t:0, t:1, to be claimed by aaaa",
    ),
    "unopened": (
        {
            **without("/consumers/g/offsets/t/1", "/consumers/g/offsets/t/2"),
            "/consumers/g/owners/t/1": Znode(f"{A}-0".encode(), 0xAAAA, created_ms=LATER_MS - UNOPENED_MS),
            "/consumers/g/owners/t/2": Znode(f"{B}-0".encode(), 0xBBBB, created_ms=LATER_MS - UNOPENED_MS + 1),
        },
        "1 partition has been claimed for up to 30 s, and no offset has been stored since: t:1;",
    ),
    "unassigned": (
        {**HEALTHY, "/brokers/topics/t": Znode(b'{"partitions":{"0":[0],"1":[0],"2":[0],"3":[0]}}')},
        "1 partition is assigned to no member: t:3",
    ),
    "unplanned": (without("/kiel-groups/g/allocation"), "no plan has been published yet"),
    "publishing": (
        {**HEALTHY, "/kiel-groups/g/allocation": plan(state="publishing")},
        "generation 4 is published only in part",
    ),
    "fallback": (
        {**HEALTHY, "/kiel-groups/g/allocation": plan(fallback="the allocator raised; round robin instead")},
        "the allocator raised; round robin instead",
    ),
    "pattern": (
        {
            **HEALTHY,
            f"/kiel-groups/g/members/{A}": member(A, PLANNED_MS, pattern="(t|t)*u"),
            "/kiel-groups/g/allocation": plan(
                patterns={"(t|t)*u": PatternMatch((), "it takes too long"), "u": PatternMatch((), "no member has it")}
            ),
        },
        "pattern '(t|t)*u' of 1 member: it takes too long",
    ),
    "forged": (
        {**HEALTHY, "/consumers/g/owners/t/1": Znode(f"{A}-0".encode(), 0xCCCC)},
        "1 owner znode names a member whose session did not create it: t:1, in the name of aaaa",
    ),
    "assigned-twice": (
        {
            **HEALTHY,
            f"/kiel-groups/g/allocation/{B}": Znode(MemberAssignment(4, B, frozenset(PARTITIONS[1:])).encode()),
        },
        "1 partition is assigned to several members: t:1, by hand",
    ),
    "orphan-offsets": (
        {
            **HEALTHY,
            "/consumers/g/offsets/old": Znode(),
            "/consumers/g/offsets/old/0": Znode(b"3"),
            "/brokers/topics/old": Znode(b'{"partitions":{"0":[0]}}'),
        },
        "1 offset is of a topic that no member reads: old; the lag of",
    ),
    "gone-offsets": (
        {
            **HEALTHY,
            "/consumers/g/offsets/gone": Znode(),
            "/consumers/g/offsets/gone/1": Znode(b"3"),
            "/consumers/g/offsets/t/9": Znode(b"banana"),
        },
        "the group has offsets in 2 topics or partitions that do not exist: gone, t:9",
    ),
    "beyond-end": (
        {**HEALTHY, "/consumers/g/offsets/t/1": Znode(b"13")},
        "1 committed offset is beyond the end of the log: t:1",
    ),
    "missing-topic": (without("/brokers/topics/t"), "1 subscribed topic does not exist: t"),
    "closed": (
        {**without(f"/kiel-groups/g/members/{A}"), "/kiel-groups/g/members": Znode(closed=True)},
        "an ACL denies reading 1 znode: /kiel-groups/g/members",
    ),
}


def findings(znodes: Snapshot, now_ms: int = LATER_MS) -> tuple[Finding, ...]:
    return check_group(view_group("g", znodes, LOG_ENDS), now_ms)


def report_text(
    view: GroupView, found: tuple[Finding, ...] = (), width: int = 80, lag_problem: str = "", generations: int = 0
) -> str:
    console = Console(file=io.StringIO(), width=width)
    for part in group_report(
        view, found, place="in ZooKeeper at z:2181/x", lag_problem=lag_problem, now_ms=LATER_MS, generations=generations
    ):
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def listing_text(views: list[GroupView], width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(groups_table(views, with_lag=True))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()
