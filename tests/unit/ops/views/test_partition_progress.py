"""Two readings distinguish stuck partitions from partitions with new records."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kiel_groups.cli.app import run
from kiel_groups.cli.commands import describe
from kiel_groups.group.commit_note import NotedOffset
from kiel_groups.group.znodes.contents import GroupState, MemberAssignment, MemberInfo, Znode
from kiel_groups.model import TopicPartition
from kiel_groups.ops.loaded_groups import LoadedGroups
from kiel_groups.ops.views.group_view import GroupView
from kiel_groups.ops.views.progress import SLOW_MS, STUCK_MS, WATCHED_MS, ProgressTracker
from kiel_groups.ops.views.znodes import view_group
from kiel_groups.ops.zookeeper_groups import ZooKeeperGroups
from tests.helpers.group_snapshots import JAVA, LOG_ENDS, OF_JAVA

pytestmark = pytest.mark.unit

NOW_MS = 1_700_000_000_000
LONG_AGO_MS = NOW_MS - STUCK_MS
MEMBER = "g_host-1700000000001-aaaa"
PARTITION = TopicPartition("t", 0)
LATER_MS = NOW_MS + WATCHED_MS
#: A time at which the commits of ``OF_JAVA`` are old.
LONG_AFTER_MS = NOW_MS + 2 * STUCK_MS


def view(committed_ms: int = LONG_AGO_MS, *, claimed_ms: int = LONG_AGO_MS, end: int = 12) -> GroupView:
    """Return a view of a member that owns one partition, with the committed offset 10."""
    info = MemberInfo(member_id=MEMBER, session_timeout_ms=6_000, subscription=("t",), pid=17, started_at_ms=1)
    data = {
        f"/kiel-groups/g/members/{MEMBER}": Znode(info.encode(), 0xAAAA),
        "/kiel-groups/g/election/uuid-n_0000000001": Znode(MEMBER.encode()),
        "/kiel-groups/g/allocation": Znode(GroupState(generation=4, state="done", leader=MEMBER).encode()),
        f"/kiel-groups/g/allocation/{MEMBER}": Znode(MemberAssignment(4, MEMBER, frozenset({PARTITION})).encode()),
        "/brokers/topics/t": Znode(b'{"version":1,"partitions":{"0":[0]}}'),
        "/consumers/g/owners/t": Znode(),
        "/consumers/g/owners/t/0": Znode(f"{MEMBER}-0".encode(), 0xAAAA, created_ms=claimed_ms),
        "/consumers/g/offsets/t": Znode(),
        "/consumers/g/offsets/t/0": Znode(b"10", modified_ms=committed_ms),
    }
    return view_group("g", data, {PARTITION: end})


def test_a_partition_without_a_commit_between_two_readings_is_stuck() -> None:
    """
    A partition is stuck if it has had lag since the first reading, and its last commit is minutes old. The finding has
    its owner.
    """
    progress = ProgressTracker()
    assert progress.take(view(), NOW_MS) == ()
    assert progress.suspicion(NOW_MS)
    assert progress.take(view(), LATER_MS - 1) == ()
    (finding,) = progress.take(view(end=15), LATER_MS)
    assert (finding.kind, finding.passing, finding.partitions) == ("stuck", False, (PARTITION,))
    assert finding.members == (MEMBER,)
    assert finding.text.startswith("1 partition makes no progress: lag 5, and no commit for 5 min: t:0, owned by aaaa")


def test_a_slow_owner_is_named_before_its_session_ends() -> None:
    """The finding passes until the commit is five minutes old: by then, the watchdog has ended a session that hangs."""
    progress = ProgressTracker()
    slow = view(LATER_MS - SLOW_MS)
    progress.take(slow, NOW_MS)
    assert progress.suspicion(NOW_MS) == ""
    (finding,) = progress.take(slow, LATER_MS)
    assert (finding.kind, finding.passing, finding.members) == ("stuck", True, (MEMBER,))
    assert finding.text.endswith("no commit for 1 min: t:0, owned by aaaa; its application is slow or hangs")
    assert [each.passing for each in progress.take(slow, LATER_MS - SLOW_MS + STUCK_MS)] == [False]
    quick = view(LATER_MS - SLOW_MS + 1)
    progress = ProgressTracker()
    progress.take(quick, NOW_MS)
    assert progress.take(quick, LATER_MS) == ()


def test_all_partitions_of_an_owner_that_hangs_are_one_finding() -> None:
    """The owner of a stuck partition is slow in its other partitions for the same reason; another owner's are apart."""
    progress, before = ProgressTracker(), view()
    (stuck,), (member,) = before.partitions, before.members
    ages_ms = (STUCK_MS, SLOW_MS, SLOW_MS - 1)
    mine = [
        replace(stuck, topic_partition=TopicPartition("t", at), committed_ms=LATER_MS - age_ms)
        for at, age_ms in enumerate(ages_ms)
    ]
    other = replace(mine[1], topic_partition=TopicPartition("u", 0), owner="g_host-1700000000002-bbbb")
    members = (member, replace(member, member_id=other.owner))
    both = replace(before, partitions=(*mine, other), members=members)
    progress.take(both, NOW_MS)
    first, second = progress.take(both, LATER_MS)
    assert (first.passing, first.partitions) == (False, (mine[0].topic_partition, mine[1].topic_partition))
    assert "no commit for up to 5 min: t:0, t:1, owned by aaaa" in first.text
    assert (second.passing, second.partitions, second.members) == (True, (other.topic_partition,), (other.owner,))


def test_a_java_consumer_is_stuck_like_a_member() -> None:
    """Its partitions cannot be released, so the remedy does not say so."""
    progress = ProgressTracker()
    java = view_group("g", OF_JAVA, LOG_ENDS)
    progress.take(java, LONG_AFTER_MS)
    (finding,) = progress.take(java, LONG_AFTER_MS + WATCHED_MS)
    assert (finding.kind, finding.passing, finding.members) == ("stuck", False, (JAVA,))
    assert "release" not in finding.remedy


def test_a_commit_in_kafka_is_as_old_as_the_first_view_of_it() -> None:
    """Only our members note the time of a commit in Kafka; a claim that is old proves nothing."""
    progress = ProgressTracker()
    bare = {path: znode for path, znode in OF_JAVA.items() if "/offsets/" not in path}
    java = view_group("g", bare, LOG_ENDS).with_kafka_offsets({PARTITION: NotedOffset(10, None)})
    disputed = view_group("g", OF_JAVA, LOG_ENDS).with_kafka_offsets(
        {TopicPartition("t", number): NotedOffset(11, None) for number in range(2)}
    )
    assert progress.take(java, LONG_AFTER_MS) == ()
    assert progress.take(java, LONG_AFTER_MS + SLOW_MS - 1) == ()
    assert [each.passing for each in progress.take(java, LONG_AFTER_MS + SLOW_MS)] == [True]
    assert [each.passing for each in progress.take(java, LONG_AFTER_MS + STUCK_MS)] == [False]
    assert progress.take(disputed, LONG_AFTER_MS + STUCK_MS + 1) == ()
    assert progress.take(disputed, LONG_AFTER_MS + 2 * STUCK_MS) == ()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (view(end=10), view()),
        (view(), view(end=10)),
        (view(), view(LATER_MS - 1)),
        (view(), view(claimed_ms=LATER_MS - 1)),
        (view(), replace(view(), members=())),
    ],
    ids=["a new record", "no lag left", "a new commit", "a new owner", "no owner"],
)
def test_a_partition_with_progress_is_not_stuck(first: GroupView, second: GroupView) -> None:
    """
    A partition is not stuck if its lag is new or gone, or if it has a new commit, a new owner or no owner. A quiet
    topic may have no commit for hours, and then lag for a moment.
    """
    progress = ProgressTracker()
    progress.take(first, NOW_MS)
    assert progress.take(second, LATER_MS) == ()


def test_a_partition_with_a_recent_commit_is_no_suspect() -> None:
    """A partition with a recent commit is no suspect, so the check of a healthy group needs no second reading."""
    progress = ProgressTracker()
    progress.take(view(LONG_AGO_MS + 1), NOW_MS)
    assert not progress.suspicion(NOW_MS)


def test_check_reads_twice_only_if_there_are_suspects(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    ``describe --check`` reads a group twice only if there are suspects. The second reading is announced, and the exit
    status depends on its findings.
    """
    pauses_s: list[float] = []
    monkeypatch.setattr(describe.time, "sleep", pauses_s.append)

    def checked(*views: GroupView) -> tuple[int, list[str]]:
        readings = [LoadedGroups((each,), 1, seen_ms=NOW_MS + number * WATCHED_MS) for number, each in enumerate(views)]
        monkeypatch.setattr(ZooKeeperGroups, "load", lambda *_: readings.pop(0))
        status = run(["describe", "g", "--zookeeper", "z", "--check", "--json"])
        assert readings == []
        output = capsys.readouterr()
        assert ("looking again" in output.err) == (len(views) == 2)
        return status, [each["kind"] for each in json.loads(output.out)["wrong"]]

    assert checked(view(), view()) == (1, ["stuck"])
    assert [1000 * pause_s >= WATCHED_MS for pause_s in pauses_s] == [True]
    assert checked(view(), view(NOW_MS + 1)) == (0, [])
    assert checked(view(NOW_MS)) == (0, [])
    assert len(pauses_s) == 2
