"""States of a cluster: what successive loads of its groups show."""

from __future__ import annotations

import json

import pytest

from kiel_groups.group.znodes.contents import MemberAssignment, Snapshot, Znode
from kiel_groups.group.znodes.group_settings import HistoryEntry
from kiel_groups.model import TopicPartition
from kiel_groups.ops.loaded_groups import LoadedGroups
from kiel_groups.ops.views.znodes import view_group
from kiel_groups.service.cluster_state import ClusterHistory, ClusterState, cause_kind
from tests.helpers.group_snapshots import (
    HEALTHY,
    JAVA,
    LATER_MS,
    LOG_ENDS,
    OF_JAVA,
    PARTITIONS,
    PLANNED_MS,
    PROBLEMS,
    A,
    B,
    member,
)

pytestmark = pytest.mark.unit


def loaded(znodes: Snapshot, at_ms: int = LATER_MS) -> LoadedGroups:
    return LoadedGroups((view_group("g", znodes, LOG_ENDS),), 2, seen_ms=at_ms)


def test_a_healthy_group_has_no_findings_and_a_course_of_its_lag() -> None:
    """Each load adds a point to the course, and the state tells when and how long the load was."""
    history = ClusterHistory()
    assert not ClusterState().is_ready
    history.take(loaded(HEALTHY), 0.5)
    state = history.take(loaded(HEALTHY, LATER_MS + 5_000), 0.5)
    status = state.groups["g"]
    assert (state.is_ready, state.version, state.brokers, state.took_s) == (True, 2, 2, 0.5)
    assert (status.findings, status.needs_operator, status.unowned_since_ms) == ((), False, {})
    assert [at_ms for at_ms, _ in status.lags] == [LATER_MS, LATER_MS + 5_000]


def test_a_partition_without_an_owner_has_its_time() -> None:
    """The time is that of the first state in which the owner was missing, and ends when there is one."""
    znodes, _ = PROBLEMS["unowned"]
    history = ClusterHistory()
    history.take(loaded(HEALTHY), 0.5)
    first = history.take(loaded(znodes), 0.5).groups["g"]
    later = history.take(loaded(znodes, LATER_MS + 60_000), 0.5).groups["g"]
    assert set(first.unowned_since_ms.values()) == {LATER_MS}
    assert later.unowned_since_ms == first.unowned_since_ms
    assert later.needs_operator
    assert history.take(loaded(HEALTHY, LATER_MS + 70_000), 0.5).groups["g"].unowned_since_ms == {}


@pytest.mark.parametrize(
    ("pattern", "subscription", "owners", "unowned"),
    [
        ("white_list", "t", 2, {2}),
        ("static", "t", 0, {0, 1, 2}),
        ("white_list", "t|u", 0, {0, 1, 2}),
        ("white_list", "t.*", 2, {2}),
        ("white_list", "t.*", 0, {0, 1, 2}),
        ("white_list", "(?!u).*", 0, set()),
        ("black_list", "t", 0, set()),
        ("black_list", "u.*", 0, {0, 1, 2}),
        ("static", "u", 0, set()),
    ],
)
def test_unowned_partitions_of_java_consumers(pattern: str, subscription: str, owners: int, unowned: set[int]) -> None:
    """Partitions without an owner count if a member subscribes to their topic, or owns another partition of it."""
    ids = {"version": 1, "subscription": {subscription: 1}, "pattern": pattern}
    znodes = {
        path: znode
        for path, znode in OF_JAVA.items()
        if not path.startswith("/consumers/g/owners/t/") or int(path[-1]) < owners
    }
    znodes[f"/consumers/g/ids/{JAVA}"] = Znode(json.dumps(ids).encode(), 0xCCCC)
    history = ClusterHistory()
    for state in (history.refresh([view_group("g", znodes)], LATER_MS), history.take(loaded(znodes), 0.5)):
        assert {each.partition for each in state.groups["g"].unowned_since_ms} == unowned


def test_a_refresh_keeps_what_brokers_have_told() -> None:
    """A group that is read without the brokers keeps the ends of its logs, and so its lag."""
    history = ClusterHistory()
    before = history.take(loaded(HEALTHY), 0.5).groups["g"].view
    after = history.refresh([view_group("g", HEALTHY)], LATER_MS + 100).groups["g"].view
    assert after.known_lag == before.known_lag is not None
    assert [each.log_end for each in after.partitions] == [each.log_end for each in before.partitions]


def test_an_offset_is_not_beyond_an_end_that_was_read_before_it() -> None:
    """A group that commits while it rebalances has no problem. An offset that was beyond the end before still is."""
    history = ClusterHistory()

    def at(offset: int) -> Snapshot:
        return {**HEALTHY, "/consumers/g/offsets/t/0": Znode(b"%d" % offset, modified_ms=PLANNED_MS)}

    history.take(loaded(HEALTHY), 0.5)
    after = history.refresh([view_group("g", at(15))], LATER_MS + 100).groups["g"]
    assert (after.findings, after.view.partitions[0].lag) == ((), 0)
    after = history.take(loaded(HEALTHY), 0.5, ["g"]).groups["g"]
    assert (after.findings, after.view.partitions[0].committed) == ((), 15)
    for status in (
        history.take(loaded(at(15)), 0.5).groups["g"],
        history.refresh([view_group("g", at(15))], LATER_MS + 100).groups["g"],
    ):
        assert [each.kind for each in status.findings] == ["beyond-end"]


def test_a_view_of_the_plan_alone_keeps_owners_and_findings() -> None:
    """
    A member that joins gets what the plan moves to it, and one that has left owns nothing. Owners that are older than
    the plan are no problem: they are read next.
    """
    history = ClusterHistory()
    before = history.take(loaded(HEALTHY), 0.5).groups["g"]
    joined = "g_host-1700000000003-cccc"
    znodes = {
        path: each for path, each in HEALTHY.items() if path.startswith("/kiel-groups/") and not path.endswith(f"/{B}")
    }
    znodes[f"/kiel-groups/g/members/{joined}"] = member(joined, PLANNED_MS + 2, "t")
    znodes[f"/kiel-groups/g/allocation/{A}"] = Znode(MemberAssignment(5, A, frozenset(PARTITIONS[:1])).encode())
    znodes[f"/kiel-groups/g/allocation/{joined}"] = Znode(
        MemberAssignment(5, joined, frozenset({*PARTITIONS[1:], TopicPartition("new", 0)})).encode()
    )
    view = view_group("g", znodes, earlier=before.view)
    assert [each.member_id for each in view.members] == [A, joined]
    assert {str(each.topic_partition): (each.owner, each.target) for each in view.partitions} == {
        "new:0": (None, joined),
        "t:0": (A, A),
        "t:1": (A, joined),
        "t:2": (None, joined),
    }
    assert [each.log_end for each in view.partitions[1:]] == [each.log_end for each in before.view.partitions]
    assert [len(each.owned) for each in view.members] == [2, 0]
    assert (view.state, view.is_partial) == ("moving", True)
    after = history.refresh([view], LATER_MS).groups["g"]
    assert (after.view, after.findings, after.unowned_since_ms) == (view, (), {})
    whole = history.refresh([view_group("g", {**HEALTHY, **znodes})], LATER_MS).groups["g"]
    assert whole.findings


def test_a_view_without_topics_keeps_what_patterns_select() -> None:
    """A Java consumer with a pattern keeps its topics, though the topics are not read again."""
    ids = {"version": 1, "subscription": {"t.*": 1}, "pattern": "white_list"}
    consumer = {f"/consumers/g/ids/{JAVA}": Znode(json.dumps(ids).encode(), 0xCCCC)}
    before = view_group("g", {**OF_JAVA, **consumer})
    after = view_group("g", consumer, earlier=before)
    assert [each.topics for each in before.foreign_members] == [("t",)]
    assert (after.foreign_members, after.partitions) == (before.foreign_members, before.partitions)


def test_a_load_that_is_older_than_a_view_counts_no_plan_twice() -> None:
    """The newer view of a group that was read during the load is kept, with the log ends of the load."""
    entry = HistoryEntry(
        generation=6, cause="join of m-1", leader=A, moved=0, members=2, partitions=3, took_ms=1, created_at_ms=1
    )
    later = {**HEALTHY, "/kiel-groups/g/history/0000000006": Znode(entry.encode())}
    history = ClusterHistory()
    history.take(loaded(HEALTHY), 0.5)
    history.refresh([view_group("g", later)], LATER_MS)
    history.take(loaded(HEALTHY), 0.5, ["g", "other"])
    after = history.refresh([view_group("g", later)], LATER_MS).groups["g"]
    assert (after.rebalances, after.view.known_lag is None) == ({"join": 1}, False)


def test_a_failed_load_keeps_the_groups() -> None:
    """The state says why, and is not ready until a load succeeds."""
    history = ClusterHistory()
    history.take(loaded(HEALTHY), 0.5)
    failed = history.fail("no ZooKeeper answered")
    assert (failed.is_ready, failed.error, list(failed.groups)) == (False, "no ZooKeeper answered", ["g"])
    assert history.take(loaded(HEALTHY), 0.5).is_ready


def test_a_group_that_is_gone_is_forgotten() -> None:
    """Its course of the lag does not come back with a group of the same name."""
    history = ClusterHistory()
    history.take(loaded(HEALTHY), 0.5)
    history.take(LoadedGroups((), 2, seen_ms=LATER_MS), 0.1)
    assert len(history.take(loaded(HEALTHY), 0.5).groups["g"].lags) == 1


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        ("join of m-1, leave of m-2", "join"),
        ("leader change, 3 members", "leader change"),
        ("operator: drain of m-1", "operator"),
        ("expiry of m-1, join of m-2", "expiry"),
        ("absence of worker-1", "absence"),
        ("allocator recovered", "allocator"),
        ("new partitions of pv", "new partitions"),
        ("something new", "other"),
    ],
)
def test_the_kind_of_a_cause(cause: str, kind: str) -> None:
    """The first cause counts; its kind has no names of members, of which there is no end."""
    assert cause_kind(cause) == kind


def test_partitions_have_trends_and_windows() -> None:
    """After ten loads there is a verdict, and the first and last sample of each partition with a known lag."""
    history = ClusterHistory()
    for at in range(10):
        state = history.take(loaded(HEALTHY, LATER_MS + at * 5_000), 0.5)
    status = state.groups["g"]
    known = [each.topic_partition for each in status.view.partitions if each.lag is not None]
    assert known
    for partition in known:
        assert isinstance(partition, TopicPartition)
        first, last = status.windows[partition]
        assert last.at_ms - first.at_ms == 45_000
        assert status.trends[partition].verdict != "unknown"
