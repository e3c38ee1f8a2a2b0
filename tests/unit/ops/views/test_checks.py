"""Findings: each problem of a group is found, and distinguished from a rebalance in progress."""

from __future__ import annotations

import pytest

from kiel_groups.group.znodes.contents import MemberAssignment, MemberInfo, Snapshot, Znode
from kiel_groups.model import TopicPartition
from kiel_groups.ops.views.checks import UNOPENED_MS, check_group
from kiel_groups.ops.views.znodes import view_group
from tests.helpers.group_snapshots import (
    HEALTHY,
    LATER_MS,
    LOG_ENDS,
    PARTITIONS,
    PLANNED_MS,
    PROBLEMS,
    A,
    B,
    config,
    findings,
    report_text,
    without,
)

pytestmark = pytest.mark.unit


def test_a_healthy_group_has_no_findings() -> None:
    """A healthy group has no findings, and its state is "settled"."""
    assert findings(HEALTHY) == ()
    assert view_group("g", HEALTHY, LOG_ENDS).state == "settled"


@pytest.mark.parametrize("kind", PROBLEMS)
def test_each_problem_is_found(kind: str) -> None:
    """
    Each problem causes exactly one finding of its kind, which says what is wrong. The report shows it directly below
    its title.
    """
    znodes, text = PROBLEMS[kind]
    found = [finding for finding in findings(znodes) if finding.kind == kind]
    assert len(found) == 1
    assert text in found[0].text
    lines = report_text(view_group("g", znodes, LOG_ENDS), tuple(found)).splitlines()
    assert lines[0] == "group g in ZooKeeper at z:2181/x"
    assert lines[2].startswith(("wrong", "settling"))


@pytest.mark.parametrize("kind", ["wrongly-owned", "unowned", "unassigned", "publishing"])
def test_a_finding_about_a_new_plan_is_passing(kind: str) -> None:
    """
    A finding that a new plan explains is passing, because a rebalance ends by itself. If it lasts too long, the finding
    becomes a problem.
    """
    znodes, _ = PROBLEMS[kind]
    young = [finding.passing for finding in findings(znodes, PLANNED_MS + 500) if finding.kind == kind]
    old = [finding.passing for finding in findings(znodes, LATER_MS) if finding.kind == kind]
    assert (young, old) == ([True], [False])


def test_a_claim_with_an_unreadable_offset_counts_as_opened() -> None:
    """
    A claim with an unreadable offset counts as opened, because the owner overwrites the offset with its next commit.
    The offset itself is a finding.
    """
    garbled = {**HEALTHY, "/consumers/g/offsets/t/1": Znode(b"garbage", modified_ms=PLANNED_MS)}
    garbled["/consumers/g/owners/t/1"] = Znode(f"{A}-0".encode(), 0xAAAA, created_ms=PLANNED_MS)
    assert [finding.kind for finding in findings(garbled, PLANNED_MS + 2 * UNOPENED_MS)] == ["unreadable"]


@pytest.mark.parametrize(("written", "kinds"), [(6, ["unopened"]), (8, [])], ids=["before", "after"])
def test_an_offset_from_before_the_claim_does_not_prove_it_open(written: int, kinds: list[str]) -> None:
    """
    An offset that is older than the claim does not prove that the claim was opened, because an owner that opens a claim
    rewrites the offset.
    """
    claimed = {
        **HEALTHY,
        "/consumers/g/owners/t/1": Znode(f"{A}-0".encode(), 0xAAAA, created_ms=PLANNED_MS, czxid=7),
        "/consumers/g/offsets/t/1": Znode(b"10", modified_ms=PLANNED_MS, czxid=1, mzxid=written),
    }
    found = findings(claimed, PLANNED_MS + UNOPENED_MS)
    assert [finding.kind for finding in found] == kinds
    assert all(finding.partitions == (PARTITIONS[1],) for finding in found)


def test_static_members_are_known_by_their_slots() -> None:
    """
    A static member is known by its slot: the assignment of an instance is its member's. An absent instance keeps its
    partitions for the grace time.
    """
    slot = f"/kiel-groups/g/allocation/{B}"
    info = MemberInfo(member_id=B, session_timeout_ms=6_000, subscription=("t",), instance_id="two", started_at_ms=1)
    static = {
        **without(slot),
        f"/kiel-groups/g/members/{B}": Znode(info.encode(), 0xBBBB),
        "/kiel-groups/g/allocation/two": Znode(MemberAssignment(4, B, frozenset(PARTITIONS[2:])).encode()),
    }
    assert findings(static) == ()
    away = {path: znode for path, znode in static.items() if B not in path and path != "/consumers/g/owners/t/2"}
    kept = MemberAssignment(4, B, frozenset(PARTITIONS[2:]), away_since_ms=LATER_MS - 20_000)
    (found,) = findings({**away, "/kiel-groups/g/allocation/two": Znode(kept.encode())})
    assert (found.kind, found.passing) == ("away", True)
    assert found.text == "1 partition is reserved for instance two, which has been away for 20 s: t:2"
    idle = MemberAssignment(4, "g_host-1700000000003-cccc", frozenset(), away_since_ms=LATER_MS - 20_000)
    assert findings({**HEALTHY, "/kiel-groups/g/allocation/three": Znode(idle.encode())}) == ()


def test_lasting_findings_come_before_passing_ones() -> None:
    """Lasting findings come before passing ones, because an operator has to act on them."""
    znodes = {
        **PROBLEMS["unowned"][0],
        **{path: PROBLEMS["foreign"][0][path] for path in ("/kiel/groups/g/members/w:1",)},
    }
    assert [finding.passing for finding in findings(znodes, PLANNED_MS)] == [False, True]


def test_a_group_of_foreign_members_only_has_no_findings() -> None:
    """A group that has only Java consumers is healthy, and its state is "foreign"."""
    znodes = {"/consumers/g/ids/g_java-1-abcdef01": Znode(b"{}", 7)}
    view = view_group("g", znodes)
    assert (view.state, findings(znodes)) == ("foreign", ())
    assert "g_java-1-abcdef01" in report_text(view)


@pytest.mark.parametrize(
    ("state", "znodes"),
    [
        ("empty", {"/kiel-groups/g/config": config()}),
        ("memberless", {}),
        ("moving", PROBLEMS["unowned"][0]),
        ("moving", PROBLEMS["unplanned"][0]),
        ("publishing", PROBLEMS["publishing"][0]),
    ],
)
def test_states(state: str, znodes: Snapshot) -> None:
    """One word describes the state of the whole group."""
    assert view_group("g", znodes).state == state


def test_missing_brokers_are_the_first_finding() -> None:
    """Missing brokers are the first finding. Other findings are consequences, or matter less."""
    view = view_group("g", PROBLEMS["foreign"][0]).with_log_ends({}, brokers=0)
    first, *others = check_group(view, LATER_MS)
    assert (first.kind, first.passing, [finding.kind for finding in others]) == ("brokerless", False, ["foreign"])
    assert first.text.startswith("no broker is registered")


@pytest.mark.parametrize("log_ends", [dict.fromkeys(PARTITIONS, 10), {}], ids=["no lag", "unknown lag"])
def test_a_group_without_members_and_lag_has_no_findings(log_ends: dict[TopicPartition, int]) -> None:
    """
    A group without members has no findings if it has no lag, if its lag is unknown, or if Java consumers read its
    topics.
    """
    memberless = PROBLEMS["unconsumed"][0]
    assert check_group(view_group("g", memberless, log_ends), LATER_MS) == ()
    java = {**memberless, "/consumers/g/ids/g_java-1-abcdef01": Znode(b"{}", 7)}
    assert check_group(view_group("g", java, LOG_ENDS), LATER_MS) == ()
