"""What is wrong with a group is found, named, and told from what a rebalance looks like."""

from __future__ import annotations

import pytest

from kiel_groups.group.znodes.contents import MemberAssignment, MemberInfo
from kiel_groups.group.znodes.snapshot import Snapshot, Znode
from kiel_groups.model import TopicPartition
from kiel_groups.ops.checks import UNOPENED_MS, check_group
from kiel_groups.ops.group_view import view_group
from tests.helpers.group_snapshots import (
    LATER_MS,
    LOG_ENDS,
    PARTITIONS,
    PLANNED_MS,
    WELL,
    WRONG,
    A,
    B,
    config,
    drawn,
    findings,
    without,
)

pytestmark = pytest.mark.unit


def test_nothing_is_wrong_with_a_healthy_group() -> None:
    """No rule fires without a reason."""
    assert findings(WELL) == ()
    assert view_group("g", WELL, LOG_ENDS).state == "settled"


@pytest.mark.parametrize("kind", WRONG)
def test_each_wrong_is_found_and_named(kind: str) -> None:
    """One finding of its kind, which says whom and what it is about; a person reads it before anything else."""
    znodes, said = WRONG[kind]
    found = [finding for finding in findings(znodes) if finding.kind == kind]
    assert len(found) == 1
    assert said in found[0].text
    lines = drawn(view_group("g", znodes, LOG_ENDS), tuple(found)).splitlines()
    assert lines[0] == "group g in ZooKeeper at z:2181/x"
    assert lines[2].startswith(("wrong", "settling"))


@pytest.mark.parametrize("kind", ["wrongly-owned", "unowned", "unassigned", "publishing"])
def test_a_young_plan_is_given_time(kind: str) -> None:
    """What a rebalance looks like passes by itself, until it has lasted too long."""
    znodes, _ = WRONG[kind]
    young = [finding.passing for finding in findings(znodes, PLANNED_MS + 500) if finding.kind == kind]
    old = [finding.passing for finding in findings(znodes, LATER_MS) if finding.kind == kind]
    assert (young, old) == ([True], [False])


def test_a_claim_whose_offset_is_garbage_was_opened() -> None:
    """The owner writes over it with its next commit; that it is unreadable is another finding."""
    garbled = {**WELL, "/consumers/g/offsets/t/1": Znode(b"garbage", modified_ms=PLANNED_MS)}
    garbled["/consumers/g/owners/t/1"] = Znode(f"{A}-0".encode(), 0xAAAA, created_ms=PLANNED_MS)
    assert [finding.kind for finding in findings(garbled, PLANNED_MS + 2 * UNOPENED_MS)] == ["unreadable"]


@pytest.mark.parametrize(("written", "kinds"), [(6, ["unopened"]), (8, [])], ids=["before", "after"])
def test_an_offset_that_is_older_than_the_claim_opens_nothing(written: int, kinds: list[str]) -> None:
    """As where a topic was deleted and created again, and has no leader: an owner that opens a claim rewrites it."""
    claimed = {
        **WELL,
        "/consumers/g/owners/t/1": Znode(f"{A}-0".encode(), 0xAAAA, created_ms=PLANNED_MS, czxid=7),
        "/consumers/g/offsets/t/1": Znode(b"10", modified_ms=PLANNED_MS, czxid=1, mzxid=written),
    }
    found = findings(claimed, PLANNED_MS + UNOPENED_MS)
    assert [finding.kind for finding in found] == kinds
    assert all(finding.partitions == (PARTITIONS[1],) for finding in found)


def test_static_members_are_known_by_their_slots() -> None:
    """The slice of an instance counts for the member it is meant for; one that went keeps its share for a while."""
    slot = f"/kiel-groups/g/allocation/{B}"
    info = MemberInfo(member_id=B, session_timeout_ms=6_000, subscription=("t",), instance_id="two", started_at_ms=1)
    static = {
        **without(slot),
        f"/kiel-groups/g/members/{B}": Znode(info.encode(), 0xBBBB),
        "/kiel-groups/g/allocation/two": Znode(MemberAssignment(4, B, frozenset(PARTITIONS[2:])).encode()),
    }
    assert findings(static) == ()
    gone = {path: znode for path, znode in static.items() if B not in path and path != "/consumers/g/owners/t/2"}
    kept = MemberAssignment(4, B, frozenset(PARTITIONS[2:]), away_since_ms=LATER_MS - 20_000)
    (found,) = findings({**gone, "/kiel-groups/g/allocation/two": Znode(kept.encode())})
    assert (found.kind, found.passing) == ("away", True)
    assert found.text == "1 partition is reserved for instance two, which has been away for 20 s: t:2"


def test_what_will_not_pass_is_said_first() -> None:
    """Among several findings, those that need somebody stand on top."""
    znodes = {**WRONG["unowned"][0], **{path: WRONG["foreign"][0][path] for path in ("/kiel/groups/g/members/w:1",)}}
    assert [finding.passing for finding in findings(znodes, PLANNED_MS)] == [False, True]


def test_a_group_of_others_is_not_wrong() -> None:
    """Java consumers by themselves are a group like any other."""
    znodes = {"/consumers/g/ids/g_java-1-abcdef01": Znode(b"{}", 7)}
    view = view_group("g", znodes)
    assert (view.state, findings(znodes)) == ("foreign", ())
    assert "g_java-1-abcdef01" in drawn(view)


@pytest.mark.parametrize(
    ("state", "znodes"),
    [
        ("empty", {"/kiel-groups/g/config": config()}),
        ("memberless", {}),
        ("moving", WRONG["unowned"][0]),
        ("moving", WRONG["unplanned"][0]),
        ("publishing", WRONG["publishing"][0]),
    ],
)
def test_states(state: str, znodes: Snapshot) -> None:
    """One word for the whole group."""
    assert view_group("g", znodes).state == state


def test_without_brokers_that_is_said_first() -> None:
    """Whatever else is wrong follows from it, or matters less."""
    view = view_group("g", WRONG["foreign"][0]).with_log_ends({}, brokers=0)
    first, *others = check_group(view, LATER_MS)
    assert (first.kind, first.passing, [finding.kind for finding in others]) == ("brokerless", False, ["foreign"])
    assert first.text.startswith("no broker is registered")


@pytest.mark.parametrize("log_ends", [dict.fromkeys(PARTITIONS, 10), {}], ids=["no lag", "unknown lag"])
def test_a_group_at_rest_is_not_wrong(log_ends: dict[TopicPartition, int]) -> None:
    """Nobody consumes, and there is nothing to consume as far as anybody knows; nor where others consume it."""
    at_rest = WRONG["unconsumed"][0]
    assert check_group(view_group("g", at_rest, log_ends), LATER_MS) == ()
    java = {**at_rest, "/consumers/g/ids/g_java-1-abcdef01": Znode(b"{}", 7)}
    assert check_group(view_group("g", java, LOG_ENDS), LATER_MS) == ()
