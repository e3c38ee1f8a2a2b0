"""Queries that are members of a group, called as Spark calls its readers, with real servers and without a JVM."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from kiel_groups.embedded import Cluster
from kiel_groups.errors import GroupConfigError, OffsetOutOfRangeError
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.model import Record, TopicPartition
from kiel_groups.ops.actions.topics import ZooKeeperTopics
from kiel_groups.spark import log_view
from kiel_groups.sync import GroupedConsumer
from tests.helpers.cluster_data import committed, members, owners, zookeeper
from tests.helpers.commands import Running
from tests.helpers.spark.queries import Checkpoint, Query, await_partitions, fill, running, values_of
from tests.helpers.waiting import eventually_blocking

pytestmark = pytest.mark.spark

Unique = Callable[[str], str]

PARTITIONS = 4


@pytest.fixture
def topic(cluster_39: Cluster, unique: Unique) -> str:
    """Return the name of a topic of four partitions."""
    name = unique("topic")
    ZooKeeperTopics(cluster_39.zk_hosts).create(name, PARTITIONS)
    return name


@pytest.fixture
def group(unique: Unique) -> str:
    return unique("group")


def joining(cluster: Cluster, topic: str, group: str, checkpoint: Checkpoint | None = None, **options: str) -> Query:
    """Return a query that is a member."""
    given = {"subscribe": topic, "kafka_group_id": group, "membership": "join", "startingOffsets": "earliest"}
    return Query(cluster, checkpoint, kiel_zookeeper_connect=cluster.zk_hosts, **{**given, **options})


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def planned(query: Query) -> set[int]:
    """Return the partitions that the last planned batch may read."""
    ends = json.loads(query.checkpoint.ends[-1])
    return {int(number) for entries in ends.values() for number in entries}


def trigger_until(query: Query, condition: Callable[[], bool], what: str) -> list[Record]:
    """Trigger batches until a condition is true, and return their records."""
    found: list[Record] = []

    def triggered() -> bool:
        if condition():
            return True
        found.extend(query.trigger())
        return False

    eventually_blocking(triggered, what, 60)
    return found


def test_a_batch_is_committed_when_the_next_is_planned(cluster_39: Cluster, topic: str, group: str) -> None:
    """
    A batch is not committed before the next batch is planned, because its sink may have failed. Owner znodes and
    offsets are as for any member.
    """
    fill(cluster_39, topic, numbered(0, 100))
    with running(joining(cluster_39, topic, group, kafka_client_id="nightly job")) as query:
        assert values_of(query.trigger()) == numbered(0, 100)
        assert committed(cluster_39, group, topic) == 0
        with zookeeper(cluster_39) as client:
            assert set(owners(client, group, topic)) == set(range(PARTITIONS))
        assert [name.partition(".")[0] for name in members(cluster_39, group)] == [f"{group}_spark-nightly-job"]
        assert query.trigger() == []
        assert committed(cluster_39, group, topic) == 100
        fill(cluster_39, topic, numbered(100, 110))
        assert values_of(query.trigger()) == numbered(100, 110)
    assert committed(cluster_39, group, topic) == 100
    assert members(cluster_39, group) == []


@pytest.mark.parametrize(("done", "offset"), [(True, 100), (False, 0)])
def test_the_last_batch_is_committed_if_the_checkpoint_has_it(
    cluster_39: Cluster, topic: str, group: str, tmp_path: Path, done: bool, offset: int
) -> None:
    """
    The query is stopped between two triggers, and commits the finished batch before it leaves. A batch that was only
    planned is not committed.
    """
    fill(cluster_39, topic, numbered(0, 100))
    with running(joining(cluster_39, topic, group, checkpointLocation=str(tmp_path))) as query:
        query.trigger()
        query.checkpoint.write(tmp_path, done=done)
    assert committed(cluster_39, group, topic) == offset
    assert members(cluster_39, group) == []


def test_a_restarted_query_reads_no_record_twice(cluster_39: Cluster, topic: str, group: str) -> None:
    """
    If a query's last batch is done and not committed, and no other member has read further, the restarted query resumes
    at its checkpoint.
    """
    fill(cluster_39, topic, numbered(0, 50))
    with running(joining(cluster_39, topic, group)) as query:
        assert values_of(query.trigger()) == numbered(0, 50)
    assert committed(cluster_39, group, topic) == 0
    fill(cluster_39, topic, numbered(50, 60))
    with running(joining(cluster_39, topic, group, query.checkpoint)) as again:
        assert values_of(again.trigger()) == numbered(50, 60)
        assert committed(cluster_39, group, topic) == 50


def test_a_failed_batch_is_repeated_unchanged(cluster_39: Cluster, topic: str, group: str) -> None:
    """The run after a failed batch repeats the batch without newer records, and then continues."""
    fill(cluster_39, topic, numbered(0, 50))
    with running(joining(cluster_39, topic, group)) as query:
        assert values_of(query.trigger(fails=True)) == numbered(0, 50)
    fill(cluster_39, topic, numbered(50, 60))
    with running(joining(cluster_39, topic, group, query.checkpoint)) as again:
        assert values_of(again.trigger()) == numbered(0, 50)
        assert values_of(again.trigger()) == numbered(50, 60)
        assert again.trigger() == []
    assert committed(cluster_39, group, topic) == 60


def test_a_partition_that_returns_is_read_from_the_committed_offset(
    cluster_39: Cluster, topic: str, group: str
) -> None:
    """
    If a consumer owns some partitions for a while and leaves, the query reads them from the committed offsets. No
    record is lost or repeated.
    """
    got: list[bytes] = []
    fill(cluster_39, topic, numbered(0, 100))
    with running(joining(cluster_39, topic, group)) as query:
        got += [record.value for record in query.trigger()]
        assert planned(query) == set(range(PARTITIONS))
        with GroupedConsumer(cluster_39.brokers, group, cluster_39.zk_hosts) as consumer:
            consumer.subscribe(topic)
            # The partitions that the batch reads are not released before the batch is done.
            assert consumer.allocation == {}
            got += [
                r.value
                for r in trigger_until(query, lambda: len(consumer.allocation[topic]) == 2, "the consumer owns a share")
            ]
            got += [record.value for record in query.trigger()]
            assert planned(query).isdisjoint(consumer.allocation[topic])
            fill(cluster_39, topic, numbered(100, 200))
            for number, record in enumerate(consumer):
                got.append(record.value)
                if number == 20:
                    break
            got += [record.value for record in query.trigger()]
        got += [
            r.value
            for r in trigger_until(
                query, lambda: planned(query) == set(range(PARTITIONS)), "the query owns all partitions"
            )
        ]
        got += [record.value for record in query.trigger()]
        assert query.trigger() == []
    assert sorted(got, key=int) == numbered(0, 200)
    assert committed(cluster_39, group, topic) == 200


def test_two_queries_share_a_group(cluster_39: Cluster, topic: str, group: str) -> None:
    """Each of two queries reads its share. When one query leaves, the other query gets its partitions."""
    with running(joining(cluster_39, topic, group)) as first:
        first.trigger()
        got = []
        with running(joining(cluster_39, topic, group)) as second:
            second.trigger()
            got += trigger_until(first, lambda: len(planned(first)) == 2, "the first query has released partitions")
            got += trigger_until(second, lambda: len(planned(second)) == 2, "the second query owns a share")
            assert planned(first) | planned(second) == set(range(PARTITIONS))
            fill(cluster_39, topic, numbered(0, 100))
            got += first.trigger() + second.trigger()
            assert values_of(got) == numbered(0, 100)
            second.trigger()
        got += trigger_until(first, lambda: len(planned(first)) == PARTITIONS, "the first query owns all partitions")
        fill(cluster_39, topic, numbered(100, 120))
        got += first.trigger()
    assert values_of(got) == numbered(0, 120)


def test_an_idle_query_releases_without_a_trigger(cluster_39: Cluster, topic: str, group: str) -> None:
    """An idle query releases partitions that no batch reads without waiting for a trigger."""
    with running(joining(cluster_39, topic, group)) as query:
        query.trigger()

        with GroupedConsumer(cluster_39.brokers, group, cluster_39.zk_hosts) as consumer:
            consumer.subscribe(topic)
            eventually_blocking(lambda: len(consumer.allocation[topic]) == 2, "the consumer owns a share", 60)


def test_a_batch_of_a_lost_partition_is_not_committed(
    cluster_39: Cluster, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    """
    If the session ends while a planned batch is not finished, a warning is logged, the batch is not committed, and its
    records are read again.
    """
    fill(cluster_39, topic, numbered(0, 50))
    with running(joining(cluster_39, topic, group)) as query:
        assert values_of(query.trigger()) == numbered(0, 50)
        (member,) = members(cluster_39, group)
        with zookeeper(cluster_39) as client:
            # As after an operator's forced release, the session's claims are no longer valid.
            client.delete(f"{GroupLayout(group).members}/{member}")
        eventually_blocking(lambda: members(cluster_39, group) not in ([], [member]), "it has joined again", 60)
        got = trigger_until(query, lambda: committed(cluster_39, group, topic) == 50, "the records are committed")
    assert "that is not committed, and their present owners read it again" in caplog.text
    assert values_of(got) == numbered(0, 50)


def test_an_operators_reset_is_adopted(cluster_39: Cluster, topic: str, group: str) -> None:
    """After an operator's reset, the running query starts a new interval at the operator's offset."""
    fill(cluster_39, topic, numbered(0, 10), partition=0)
    with running(joining(cluster_39, topic, group)) as query:
        assert values_of(query.trigger()) == numbered(0, 10)
        assert query.trigger() == []
        with zookeeper(cluster_39) as client:
            client.set(GroupLayout(group).offset(TopicPartition(topic, 0)), b"7")
        fill(cluster_39, topic, numbered(10, 12), partition=0)
        # The current batch reads to its end, and is not committed.
        assert values_of(query.trigger()) == numbered(10, 12)
        assert values_of(query.trigger()) == numbered(7, 12)
        assert query.trigger() == []
    assert committed(cluster_39, group, topic) == 12


@pytest.mark.parametrize("size", [7, 150], ids=["shorter", "grown past the position"])
def test_a_topic_recreated_while_no_query_ran_is_a_loss(
    cluster_39: Cluster, topic: str, group: str, size: int, impatient: None
) -> None:
    """
    A topic that was recreated while no query ran is a loss, however many records its new log has. The failed query
    commits nothing, so both remedies in its error work: a reset of the offset, and failOnDataLoss=false. The group then
    reads the new log.
    """
    retries = {"fetchOffset_retryIntervalMs": "10"}
    fill(cluster_39, topic, numbered(0, 100), partition=0)
    with running(joining(cluster_39, topic, group)) as query:
        query.trigger()
        query.trigger()
    assert committed(cluster_39, group, topic) == 100
    ZooKeeperTopics(cluster_39.zk_hosts).delete(topic)
    ZooKeeperTopics(cluster_39.zk_hosts).create(topic, PARTITIONS)
    await_partitions(cluster_39, topic, PARTITIONS)
    fill(cluster_39, topic, numbered(1_000, 1_000 + size), partition=0)
    znode = GroupLayout(group).offset(TopicPartition(topic, 0))
    for _ in range(2):
        with running(joining(cluster_39, topic, group, query.checkpoint, **retries)) as strict:
            remedies = f"offset 100 is to be read next.*'set {znode} 0' in zkCli.*failOnDataLoss to false"
            with pytest.raises(OffsetOutOfRangeError, match=remedies):
                strict.trigger()
    before = Checkpoint(list(query.checkpoint.ends), query.checkpoint.done)
    with running(joining(cluster_39, topic, group, before, **retries, failOnDataLoss="false")) as lenient:
        assert values_of(lenient.trigger()) == numbered(1_000, 1_000 + size)
        assert lenient.trigger() == []
        assert committed(cluster_39, group, topic) == size
    with zookeeper(cluster_39) as client:
        client.set(znode, b"0")
    with running(joining(cluster_39, topic, group, **retries)) as fresh:
        assert values_of(fresh.trigger()) == numbered(1_000, 1_000 + size)
        assert fresh.trigger() == []
    assert committed(cluster_39, group, topic) == size


@pytest.mark.parametrize("size", [7, 150], ids=["shorter", "grown past the position"])
def test_a_running_query_continues_in_a_recreated_topic(
    cluster_39: Cluster, topic: str, group: str, size: int, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A running query with failOnDataLoss=false reads the new log, whether the query or the group detects the new topic
    first. It is accounted.
    """
    options = {"fetchOffset_retryIntervalMs": "10", "failOnDataLoss": "false"}
    monkeypatch.setattr(log_view, "_INCARNATIONS_S", 0.0)
    fill(cluster_39, topic, numbered(0, 100), partition=0)
    with running(joining(cluster_39, topic, group, **options)) as query:
        query.trigger()
        query.trigger()
        ZooKeeperTopics(cluster_39.zk_hosts).delete(topic)
        ZooKeeperTopics(cluster_39.zk_hosts).create(topic, PARTITIONS)
        await_partitions(cluster_39, topic, PARTITIONS)
        fill(cluster_39, topic, numbered(1_000, 1_000 + size), partition=0)
        got = trigger_until(query, lambda: committed(cluster_39, group, topic) == size, "the new log is read")
        assert set(values_of(got)) == set(numbered(1_000, 1_000 + size))
        assert query.reader.reportLatestOffset()["@lost"]["ranges"] >= 1


def test_a_group_with_another_reset_policy_refuses_the_query(cluster_39: Cluster, topic: str, group: str) -> None:
    """The error names the option to change. With startingOffsets=group the query uses the group's policy."""
    with GroupedConsumer(cluster_39.brokers, group, cluster_39.zk_hosts) as consumer:
        consumer.subscribe(topic)
        refused = joining(cluster_39, topic, group, startingOffsets="latest")
        with running(refused), pytest.raises(GroupConfigError, match=r"'latest' here.* startingOffsets says where"):
            refused.trigger()
        with running(joining(cluster_39, topic, group, startingOffsets="group")) as query:
            assert query.trigger() == []


def test_a_sigterm_leaves_the_group(cluster_39: Cluster, topic: str, group: str) -> None:
    """Spark ends a query by SIGTERM. Before the process ends, it commits finished batches and leaves the group."""
    fill(cluster_39, topic, numbered(0, 30))
    arguments = ["-m", "tests.helpers.spark.member_process", *cluster_39.brokers, cluster_39.zk_hosts]
    with Running([*arguments, topic, group]) as process:
        assert process.wait_for_lines(2, 60) == ["30", "done"]
        assert len(members(cluster_39, group)) == 1
        process.end(signal.SIGTERM, 60)
        assert members(cluster_39, group) == []
    assert committed(cluster_39, group, topic) == 30


def test_a_long_batch_raises_an_alarm_that_names_the_job(
    cluster_39: Cluster, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Another member waits for partitions that the batch reads, and the group's leader logs the owner's name."""
    fill(cluster_39, topic, numbered(0, 30))
    with GroupedConsumer(cluster_39.brokers, group, cluster_39.zk_hosts, drain_alarm_ms=200) as leader:
        leader.connect()
        with running(joining(cluster_39, topic, group, kafka_client_id="nightly")) as query:
            query.trigger()
            leader.subscribe(topic)
            job = re.compile(rf"partitions, first {topic}:\d, allocated to \S+: owned by {group}_spark-nightly\.")
            eventually_blocking(lambda: job.search(caplog.text) is not None, "the leader raises an alarm", 60)
