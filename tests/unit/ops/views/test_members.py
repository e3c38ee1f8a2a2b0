"""The list of a group's members, of any client and whatever coordinates the group."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from kiel_groups.group.znodes.contents import MemberInfo, Snapshot, Znode
from kiel_groups.ops.views.answers import view_coordinated_group
from kiel_groups.ops.views.config_view import effective_settings
from kiel_groups.ops.views.members import members_document, members_report
from kiel_groups.ops.views.znodes import view_group
from kiel_groups.wire.consumer_protocol import ConsumerAssignment, ConsumerSubscription
from kiel_groups.wire.error_codes import NO_ERROR
from kiel_groups.wire.group_requests import DescribedGroup, DescribedMember
from tests.helpers.group_snapshots import HEALTHY, PLANNED_MS, A, B, config

pytestmark = pytest.mark.unit

JAVA = "g_some-host.example.org-1700000000000-abcdef01"

STATIC = MemberInfo(
    member_id=B,
    session_timeout_ms=10_000,
    subscription=("t",),
    host="host",
    pid=17,
    client="spark",
    started_at_ms=PLANNED_MS,
    instance_id="one",
    capacity=2.5,
    rack="east",
)

MIXED: Snapshot = {
    **HEALTHY,
    "/kiel-groups/g/config": config(drained=["one"]),
    f"/kiel-groups/g/members/{B}": Znode(STATIC.encode(), 0xBBBB),
    f"/consumers/g/ids/{JAVA}": Znode(b"{}", 7),
    "/consumers/g/ids/host:0a1b": Znode(b"{}", 7),
    "/consumers/g/owners/t/1": Znode(f"{JAVA}-0".encode(), 7),
    "/kiel/groups/g/members/worker-1:17": Znode(b"", 8),
}


def lines(document: dict[str, object], width: int = 200) -> list[str]:
    console = Console(file=(text := io.StringIO()), width=width)
    for part in members_report(document, "in ZooKeeper at z:2181", PLANNED_MS + 20_000):
        console.print(part)
    return [line.rstrip() for line in text.getvalue().splitlines() if line.strip()]


def test_the_allocator_is_that_of_config_show() -> None:
    """The group's config overrides that of the newest plan, which the next leader of a dead group need not have."""
    dead = {path: znode for path, znode in HEALTHY.items() if "/members/" not in path and "/election/" not in path}
    for snapshot, planned in ((HEALTHY, "round_robin"), (dead, None)):
        for settings, expected in (({}, planned), ({"allocator": "sticky"}, "sticky")):
            view = view_group("g", {**snapshot, "/kiel-groups/g/config": config(**settings)})
            (shown,) = [each for each in effective_settings(view) if each.name == "allocator"]
            assert members_document(view)["allocator"] == shown.value == expected


def test_members_of_all_clients_are_listed() -> None:
    """Each has its kind; what is not known of it is null. A foreign member's id may tell its host and its start."""
    document = members_document(view_group("g", MIXED))
    assert (document["allocator"], document["state"]) == ("round_robin", "moving")
    ours, static, java, other, of_kiel = document["members"]
    assert (ours["id"], ours["kind"], ours["partitions"], ours["assigned"], ours["drained"]) == (A, *OURS)
    assert (static["instance_id"], static["capacity"], static["rack"], static["drained"]) == ("one", 2.5, "east", True)
    assert (java["kind"], java["host"], java["partitions"], java["started_at"]) == ("java", *JAVAS)
    assert (other["kind"], other["host"], other["partitions"]) == ("other", None, 0)
    assert (of_kiel["kind"], of_kiel["id"], of_kiel["partitions"]) == ("kiel", "worker-1:17", None)
    assert {tuple(each) for each in document["members"]} == {tuple(ours)}


OURS = ("kiel-groups", 1, 2, False)
JAVAS = ("some-host.example.org", 1, 1_700_000_000_000)


def test_the_table_has_a_line_for_each_member() -> None:
    """A column that no member needs is left out, so that a usual group fits 80 columns."""
    heading, names, _, *rows = lines(members_document(view_group("g", MIXED)))
    assert heading == "group g in ZooKeeper at z:2181: 5 members, moving, allocator round_robin"
    assert names.split() == [
        "member",
        "instance",
        "client",
        "host",
        "owns",
        "capacity",
        "rack",
        "timeout",
        "joined",
        "drained",
    ]
    assert " ".join(rows[0].split()) == "aaaa leads ours host 1 → 2 6 s 20 s ago"
    assert rows[1].split()[:5] == ["bbbb", "one", "ours,", "spark", "host"]
    assert " ".join(rows[2].split()) == "abcdef01 Java some-host.example.org 1 20 s ago"
    assert " ".join(rows[4].split()) == "worker-1:17 kiel ?"
    usual = lines(members_document(view_group("g", HEALTHY)), 80)
    assert " ".join(usual[1].split()) == "member host owns timeout joined"
    assert max(map(len, usual)) <= 80
    assert lines(members_document(view_group("none", {}))) == [
        "group none in ZooKeeper at z:2181: 0 members, memberless"
    ]
    hidden = view_group("g", {"/kiel-groups/g": Znode(closed=True)})
    assert lines(members_document(hidden)) == ["group g in ZooKeeper at z:2181: ? members, unreadable"]


@pytest.mark.parametrize(("strategy", "kind"), [("range", None), ("kiel-sticky", "kiel-groups")])
def test_a_coordinator_tells_less_of_members(strategy: str, kind: str | None) -> None:
    """Of a stable group it has what members subscribe with; otherwise, no member's partitions are known."""
    member = DescribedMember(
        *("m-1", "shop", "/10.0.0.1"), ConsumerSubscription(("t",)).encode(), ConsumerAssignment({"t": (0, 1)}).encode()
    )
    described = DescribedGroup(NO_ERROR, "g", "Stable", "consumer", strategy, (member,))
    document = members_document(view_coordinated_group(described, "broker 1", {"t": (0, 1)}, {}))
    (found,) = document["members"]
    assert (found["kind"], found["client"], found["host"], found["partitions"]) == (kind, "shop", "10.0.0.1", 2)
    assert (found["protocol_version"], found["session_timeout_ms"], found["capacity"]) == (0, None, None)
    assert lines(document)[-1].split() == ["1", "shop,", "protocol", "0", "10.0.0.1", "2"]
    moving = described._replace(state="PreparingRebalance")
    (found,) = members_document(view_coordinated_group(moving, "broker 1", {"t": (0, 1)}, {}))["members"]
    assert (found["partitions"], found["assigned"]) == (None, None)
