"""Queries as members of a group, by the contract of Spark's readers, against real servers and without a JVM."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kiel_groups.admin.cluster_admin import create_topic, delete_topic
from kiel_groups.embedded import Cluster
from kiel_groups.errors import GroupConfigError, OffsetOutOfRangeError
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.model import TopicPartition
from kiel_groups.sync import GroupedConsumer
from tests.helpers.cluster_data import owners, stored_offsets, zookeeper
from tests.helpers.commands import Running
from tests.helpers.spark.queries import Checkpoint, Query, await_partitions, fill, running

pytestmark = pytest.mark.spark

Unique = Callable[[str], str]

PARTITIONS = 4


@pytest.fixture
def topic(cluster_39: Cluster, unique: Unique) -> str:
    """A topic of four partitions."""
    name = unique("topic")
    create_topic(cluster_39.zk_hosts, name, PARTITIONS)
    return name


@pytest.fixture
def group(unique: Unique) -> str:
    return unique("group")


def joining(cluster: Cluster, topic: str, group: str, checkpoint: Checkpoint | None = None, **options: str) -> Query:
    """A query that is a member."""
    given = {"subscribe": topic, "kafka_group_id": group, "membership": "join", "startingOffsets": "earliest"}
    return Query(cluster, checkpoint, kiel_zookeeper_connect=cluster.zk_hosts, **{**given, **options})


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def values_of(records: list) -> list[bytes]:
    return sorted((record.value for record in records), key=int)


def committed(cluster: Cluster, group: str, topic: str) -> int:
    """How many records the group has committed."""
    with zookeeper(cluster) as client:
        return sum(stored_offsets(client, group, topic).values())


def members(cluster: Cluster, group: str) -> list[str]:
    with zookeeper(cluster) as client:
        return list(client.get_children(GroupLayout(group).members))


def held(query: Query) -> set[int]:
    """The partitions that the last planned batch may read."""
    ends = json.loads(query.checkpoint.ends[-1])
    return {int(number) for entries in ends.values() for number in entries}


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"not within 60 s: {what}"
        time.sleep(0.01)


def trigger_until(query: Query, condition: Callable[[], bool], what: str) -> list:
    """Make batches until something has come true; returns what they read."""
    found, deadline = [], time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"not within 60 s: {what}"
        found += query.trigger()
        time.sleep(0.05)
    return found


def test_a_batch_is_committed_once_the_next_is_asked_for(cluster_39: Cluster, topic: str, group: str) -> None:
    """Not before: its sink may have failed. The owners and offsets are those of any member; it leaves with the rest."""
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
def test_the_last_batch_is_committed_where_the_checkpoint_has_it(
    cluster_39: Cluster, topic: str, group: str, tmp_path: Path, done: bool, offset: int
) -> None:
    """When a query is stopped between two triggers, before it leaves; a batch that was planned only is not."""
    fill(cluster_39, topic, numbered(0, 100))
    with running(joining(cluster_39, topic, group, checkpointLocation=str(tmp_path))) as query:
        query.trigger()
        query.checkpoint.write(tmp_path, done=done)
    assert committed(cluster_39, group, topic) == offset
    assert members(cluster_39, group) == []


def test_a_query_that_is_started_again_reads_nothing_twice(cluster_39: Cluster, topic: str, group: str) -> None:
    """Its last batch was done and not committed: nobody else has read on, so the checkpoint decides."""
    fill(cluster_39, topic, numbered(0, 50))
    with running(joining(cluster_39, topic, group)) as query:
        assert values_of(query.trigger()) == numbered(0, 50)
    assert committed(cluster_39, group, topic) == 0
    fill(cluster_39, topic, numbered(50, 60))
    with running(joining(cluster_39, topic, group, query.checkpoint)) as again:
        assert values_of(again.trigger()) == numbered(50, 60)
        assert committed(cluster_39, group, topic) == 50


def test_a_batch_that_failed_is_the_same_batch(cluster_39: Cluster, topic: str, group: str) -> None:
    """Planned, read and not done; the next run does it again, whatever has come since, and then goes on."""
    fill(cluster_39, topic, numbered(0, 50))
    with running(joining(cluster_39, topic, group)) as query:
        assert values_of(query.trigger(fails=True)) == numbered(0, 50)
    fill(cluster_39, topic, numbered(50, 60))
    with running(joining(cluster_39, topic, group, query.checkpoint)) as again:
        assert values_of(again.trigger()) == numbered(0, 50)
        assert values_of(again.trigger()) == numbered(50, 60)
        assert again.trigger() == []
    assert committed(cluster_39, group, topic) == 60


def test_a_partition_that_comes_back_is_read_from_where_the_other_stopped(
    cluster_39: Cluster, topic: str, group: str
) -> None:
    """A consumer takes a share while the query runs, and gives it back: nothing is lost, nothing comes twice."""
    got: list[bytes] = []
    fill(cluster_39, topic, numbered(0, 100))
    with running(joining(cluster_39, topic, group)) as query:
        got += [record.value for record in query.trigger()]
        assert held(query) == set(range(PARTITIONS))
        with GroupedConsumer(cluster_39.brokers, group, cluster_39.zk_hosts) as consumer:
            consumer.subscribe(topic)
            # What the batch reads is not let go before it is done.
            assert consumer.allocation == {}
            got += [r.value for r in trigger_until(query, lambda: len(consumer.allocation[topic]) == 2, "a share")]
            got += [record.value for record in query.trigger()]
            assert held(query).isdisjoint(consumer.allocation[topic])
            fill(cluster_39, topic, numbered(100, 200))
            for number, record in enumerate(consumer):
                got.append(record.value)
                if number == 20:
                    break
            got += [record.value for record in query.trigger()]
        got += [r.value for r in trigger_until(query, lambda: held(query) == set(range(PARTITIONS)), "all of it")]
        got += [record.value for record in query.trigger()]
        assert query.trigger() == []
    assert sorted(got, key=int) == numbered(0, 200)
    assert committed(cluster_39, group, topic) == 200


def test_two_queries_share_a_group(cluster_39: Cluster, topic: str, group: str) -> None:
    """Each reads its part; what one leaves goes to the other."""
    with running(joining(cluster_39, topic, group)) as first:
        first.trigger()
        got = []
        with running(joining(cluster_39, topic, group)) as second:
            second.trigger()
            got += trigger_until(first, lambda: len(held(first)) == 2, "the first one shares")
            got += trigger_until(second, lambda: len(held(second)) == 2, "the second one has a share")
            assert held(first) | held(second) == set(range(PARTITIONS))
            fill(cluster_39, topic, numbered(0, 100))
            got += first.trigger() + second.trigger()
            assert values_of(got) == numbered(0, 100)
            second.trigger()
        got += trigger_until(first, lambda: len(held(first)) == PARTITIONS, "the first one has all of it")
        fill(cluster_39, topic, numbered(100, 120))
        got += first.trigger()
    assert values_of(got) == numbered(0, 120)


def test_an_idle_query_hands_over_without_a_trigger(cluster_39: Cluster, topic: str, group: str) -> None:
    """No batch reads anything: there is nothing to wait for."""
    with running(joining(cluster_39, topic, group)) as query:
        query.trigger()

        with GroupedConsumer(cluster_39.brokers, group, cluster_39.zk_hosts) as consumer:
            consumer.subscribe(topic)
            wait_until(lambda: len(consumer.allocation[topic]) == 2, "it has a share")


def test_a_batch_of_a_partition_that_was_lost_is_not_committed(
    cluster_39: Cluster, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The session went between its planning and its end: that is said loudly, and the records come again."""
    fill(cluster_39, topic, numbered(0, 50))
    with running(joining(cluster_39, topic, group)) as query:
        assert values_of(query.trigger()) == numbered(0, 50)
        (member,) = members(cluster_39, group)
        with zookeeper(cluster_39) as client:
            # As an operator's release does: the session's claims are worth nothing any more.
            client.delete(f"{GroupLayout(group).members}/{member}")
        wait_until(lambda: members(cluster_39, group) not in ([], [member]), "it has joined again")
        got = trigger_until(query, lambda: committed(cluster_39, group, topic) == 50, "the records are done")
    assert "that is not committed, and their present owners read it again" in caplog.text
    assert values_of(got) == numbered(0, 50)


def test_an_operators_reset_is_followed(cluster_39: Cluster, topic: str, group: str) -> None:
    """Another stretch of reading begins where the operator says, in the running query."""
    fill(cluster_39, topic, numbered(0, 10), partition=0)
    with running(joining(cluster_39, topic, group)) as query:
        assert values_of(query.trigger()) == numbered(0, 10)
        assert query.trigger() == []
        with zookeeper(cluster_39) as client:
            client.set(GroupLayout(group).offset(TopicPartition(topic, 0)), b"7")
        fill(cluster_39, topic, numbered(10, 12), partition=0)
        # The batch that is under way is done with what it read, and commits nothing.
        assert values_of(query.trigger()) == numbered(10, 12)
        assert values_of(query.trigger()) == numbered(7, 12)
        assert query.trigger() == []
    assert committed(cluster_39, group, topic) == 12


def test_a_topic_that_was_made_anew_while_nobody_read_is_a_loss(cluster_39: Cluster, topic: str, group: str) -> None:
    """Nothing is committed by finding it, so both remedies in the error help; the group follows into the new log."""
    impatient = {"fetchOffset_retryIntervalMs": "10", "kafka_request_timeout_ms": "1000"}
    fill(cluster_39, topic, numbered(0, 100), partition=0)
    with running(joining(cluster_39, topic, group)) as query:
        query.trigger()
        query.trigger()
    assert committed(cluster_39, group, topic) == 100
    delete_topic(cluster_39.zk_hosts, topic)
    create_topic(cluster_39.zk_hosts, topic, PARTITIONS)
    await_partitions(cluster_39, topic, PARTITIONS)
    fill(cluster_39, topic, numbered(0, 7), partition=0)
    znode = GroupLayout(group).offset(TopicPartition(topic, 0))
    for _ in range(2):
        with running(joining(cluster_39, topic, group, query.checkpoint, **impatient)) as strict:
            remedies = f"offset 100 is to be read next.*'set {znode} 0' in zkCli.*failOnDataLoss to false"
            with pytest.raises(OffsetOutOfRangeError, match=remedies):
                strict.trigger()
    before = Checkpoint(list(query.checkpoint.ends), query.checkpoint.done)
    with running(joining(cluster_39, topic, group, before, **impatient, failOnDataLoss="false")) as lenient:
        assert values_of(lenient.trigger()) == numbered(0, 7)
        assert lenient.trigger() == []
        assert committed(cluster_39, group, topic) == 7
    with zookeeper(cluster_39) as client:
        client.set(znode, b"0")
    with running(joining(cluster_39, topic, group, **impatient)) as anew:
        assert values_of(anew.trigger()) == numbered(0, 7)
        assert anew.trigger() == []
    assert committed(cluster_39, group, topic) == 7


def test_a_running_query_goes_on_in_a_topic_that_was_made_anew(cluster_39: Cluster, topic: str, group: str) -> None:
    """Where that is allowed, whoever notices first, the query or its group."""
    options = {"fetchOffset_retryIntervalMs": "10", "kafka_request_timeout_ms": "1000", "failOnDataLoss": "false"}
    fill(cluster_39, topic, numbered(0, 100), partition=0)
    with running(joining(cluster_39, topic, group, **options)) as query:
        query.trigger()
        query.trigger()
        delete_topic(cluster_39.zk_hosts, topic)
        create_topic(cluster_39.zk_hosts, topic, PARTITIONS)
        await_partitions(cluster_39, topic, PARTITIONS)
        fill(cluster_39, topic, numbered(0, 7), partition=0)
        got = trigger_until(query, lambda: committed(cluster_39, group, topic) == 7, "the new log is read")
        assert set(values_of(got)) == set(numbered(0, 7))


def test_a_group_that_starts_elsewhere_refuses_the_query(cluster_39: Cluster, topic: str, group: str) -> None:
    """The error names the option to change; with 'group' the query follows the group."""
    with GroupedConsumer(cluster_39.brokers, group, cluster_39.zk_hosts) as consumer:
        consumer.subscribe(topic)
        refused = joining(cluster_39, topic, group, startingOffsets="latest")
        with running(refused), pytest.raises(GroupConfigError, match=r"'latest' here.* startingOffsets says where"):
            refused.trigger()
        with running(joining(cluster_39, topic, group, startingOffsets="group")) as query:
            assert query.trigger() == []


def test_a_sigterm_leaves_the_group(cluster_39: Cluster, topic: str, group: str) -> None:
    """That is how Spark ends a query: no member is left when the process has ended, and what was done is stored."""
    fill(cluster_39, topic, numbered(0, 30))
    arguments = [str(Path(__file__).with_name("member_process.py")), *cluster_39.brokers, cluster_39.zk_hosts]
    with Running([*arguments, topic, group]) as process:
        assert process.wait_for_lines(2, 60) == ["30", "done"]
        assert len(members(cluster_39, group)) == 1
        process.end(signal.SIGTERM, 60)
        assert members(cluster_39, group) == []
    assert committed(cluster_39, group, topic) == 30


def test_a_long_batch_is_an_alarm_that_names_the_job(
    cluster_39: Cluster, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Another member waits for partitions that the batch reads: the group's leader says who keeps them."""
    fill(cluster_39, topic, numbered(0, 30))
    with GroupedConsumer(cluster_39.brokers, group, cluster_39.zk_hosts, drain_alarm_ms=200) as leader:
        leader.connect()
        with running(joining(cluster_39, topic, group, kafka_client_id="nightly")) as query:
            query.trigger()
            leader.subscribe(topic)
            job = re.compile(rf"partitions, first {topic}:\d, allocated to \S+: owned by {group}_spark-nightly\.")
            wait_until(lambda: job.search(caplog.text) is not None, "the alarm")
