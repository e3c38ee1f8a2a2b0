"""The batches of a stream, called as Spark calls its readers, with a real broker and without a JVM."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from kiel_groups.embedded import Cluster
from kiel_groups.ops.actions.topics import ZooKeeperTopics
from tests.helpers.cluster_data import stored_offsets, zookeeper
from tests.helpers.spark.queries import (
    Query,
    await_partitions,
    fill,
    filled,
    running,
    source,
    values_of,
)

pytestmark = pytest.mark.spark

Unique = Callable[[str], str]

VALUES = [b"%d" % number for number in range(100)]


def offsets_of(query: Query) -> dict[str, Any]:
    """Return the query's offsets by topic and partition."""
    end = json.loads(query.checkpoint.ends[-1])
    end.pop("@query")
    return {topic: {number: entry["to"] for number, entry in entries.items()} for topic, entries in end.items()}


@pytest.fixture
def topic(cluster_39: Cluster, unique: Unique) -> str:
    """Return the name of a topic of four partitions with 100 records."""
    return filled(cluster_39, unique("topic"), 4, VALUES)


def test_each_batch_has_the_records_since_the_last(cluster_39: Cluster, topic: str) -> None:
    """Each batch has the records since the last batch. If there is no new record, there is no batch."""
    with running(Query(cluster_39, subscribe=topic, startingOffsets="earliest")) as query:
        assert values_of(query.trigger()) == VALUES
        assert query.trigger() == []
        fill(cluster_39, topic, [b"100", b"101"])
        assert values_of(query.trigger()) == [b"100", b"101"]


def test_latest_is_resolved_once(cluster_39: Cluster, topic: str) -> None:
    """
    Spark calls initialOffset twice, but 'latest' is resolved once. Records produced between the calls belong to the
    query.
    """
    with running(Query(cluster_39, subscribe=topic)) as query:
        first = query.reader.initialOffset()
        fill(cluster_39, topic, [b"100"])
        assert query.reader.initialOffset() == first
        assert values_of(query.trigger()) == [b"100"]


def test_a_failed_first_batch_is_repeated_from_its_start(cluster_39: Cluster, topic: str) -> None:
    """
    A new process that repeats a failed first batch finds a later 'latest' offset, and must not skip the records before
    it.
    """
    with running(Query(cluster_39, subscribe=topic)) as query:
        query.reader.initialOffset()
        fill(cluster_39, topic, [b"100"])
        assert values_of(query.trigger(fails=True)) == [b"100"]
    fill(cluster_39, topic, [b"101"])
    with running(Query(cluster_39, query.checkpoint, subscribe=topic)) as again:
        assert values_of(again.trigger()) == [b"100"]
        assert values_of(again.trigger()) == [b"101"]


def test_a_failed_later_batch_is_repeated_unchanged_after_a_change_of_limits(cluster_39: Cluster, topic: str) -> None:
    """The checkpoint, not the options, determines the records of a repeated batch."""
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    with running(Query(cluster_39, **options, maxOffsetsPerTrigger="30")) as query:
        first = query.trigger()
        failed = query.trigger(fails=True)
        assert (len(first), len(failed)) == (30, 30)
    with running(Query(cluster_39, query.checkpoint, **options, maxOffsetsPerTrigger="7")) as again:
        assert sorted(again.trigger()) == sorted(failed)
        assert len(again.trigger()) == 7


def test_a_bound_is_divided_in_proportion(cluster_39: Cluster, unique: Unique) -> None:
    """
    A bound is divided in proportion, so that a large partition does not delay a small partition, nor a small partition
    a large one.
    """
    name = unique("topic")
    ZooKeeperTopics(cluster_39.zk_hosts).create(name, 2)
    fill(cluster_39, name, VALUES[:90], partition=0)
    fill(cluster_39, name, VALUES[90:], partition=1)
    options = {"subscribe": name, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "50"}
    with running(Query(cluster_39, **options)) as query:
        query.trigger()
        assert offsets_of(query) == {name: {"0": 45, "1": 5}}
        assert query.reader.reportLatestOffset()["@behind"] == {
            "minOffsetsBehindLatest": 5,
            "maxOffsetsBehindLatest": 45,
            "avgOffsetsBehindLatest": 25,
        }


def test_a_trigger_waits_for_min_offsets(cluster_39: Cluster, topic: str) -> None:
    """A trigger returns no records while there are fewer than minOffsetsPerTrigger."""
    options = {"subscribe": topic, "startingOffsets": "latest", "minOffsetsPerTrigger": "5", "maxTriggerDelay": "1h"}
    with running(Query(cluster_39, **options)) as query:
        query.reader.initialOffset()
        fill(cluster_39, topic, [b"100", b"101"])
        assert query.trigger() == []
        fill(cluster_39, topic, [b"102", b"103", b"104"])
        assert values_of(query.trigger()) == [b"100", b"101", b"102", b"103", b"104"]


def test_available_now_reads_the_existing_records_and_stops(cluster_39: Cluster, topic: str) -> None:
    """
    Records produced after the start of the run are not read. Batches have the largest size that the options allow, and
    the last batch is committed, too.
    """
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "40"}
    with running(Query(cluster_39, **options)) as query:
        query.reader.prepareForTriggerAvailableNow()
        fill(cluster_39, topic, [b"100"])
        assert [len(query.trigger()) for _ in range(4)] == [40, 40, 20, 0]
        group = f"kiel-spark-{json.loads(query.checkpoint.ends[-1])['@query']}"
    with zookeeper(cluster_39) as client:
        assert sum(stored_offsets(client, group, topic).values()) == len(VALUES)


def test_read_all_available_ignores_the_bound(cluster_39: Cluster, topic: str) -> None:
    """Trigger.Once reads all available records."""
    made = source(cluster_39, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="7")
    reader: Any = made.streamReader(made.schema())
    start = reader.initialOffset()
    ends = reader.latestOffset(start, ReadAllAvailable())[topic]
    reader.stop()
    assert sum(entry["to"] for entry in ends.values()) == len(VALUES)


def test_added_partitions_are_read_from_their_beginning(cluster_39: Cluster, topic: str) -> None:
    """Added partitions are read from their beginning even if the query started at latest."""
    with running(Query(cluster_39, subscribe=topic)) as query:
        query.trigger()
        ZooKeeperTopics(cluster_39.zk_hosts).grow(topic, 6)
        await_partitions(cluster_39, topic, 6)
        fill(cluster_39, topic, [b"100"], partition=4)
        fill(cluster_39, topic, [b"101"], partition=5)
        assert values_of(query.trigger(fails=True)) == [b"100", b"101"]
    with running(Query(cluster_39, query.checkpoint, subscribe=topic)) as again:
        assert values_of(again.trigger()) == [b"100", b"101"]


def test_topics_that_appear_later_match_a_pattern_too(cluster_39: Cluster, topic: str) -> None:
    """The records of a topic that appears later and matches the pattern are read from its beginning."""
    with running(Query(cluster_39, subscribePattern=f"{topic}.*")) as query:
        query.trigger()
        ZooKeeperTopics(cluster_39.zk_hosts).create(f"{topic}-later", 1)
        fill(cluster_39, f"{topic}-later", [b"100"])
        assert [(record.topic, record.value) for record in query.trigger()] == [(f"{topic}-later", b"100")]


def test_a_hundred_partitions_share_a_few_tasks(cluster_39: Cluster, unique: Unique) -> None:
    """A small batch has one task for each leader, whatever maxPartitions allows. minPartitions asks for more."""
    name = unique("topic")
    ZooKeeperTopics(cluster_39.zk_hosts).create(name, 100)
    fill(cluster_39, name, VALUES)
    with running(Query(cluster_39, subscribe=name, startingOffsets="earliest", maxPartitions="4")) as query:
        assert values_of(query.trigger()) == VALUES
        assert len(query.tasks()) == 1
    with running(Query(cluster_39, subscribe=name, startingOffsets="earliest", minPartitions="4")) as query:
        query.trigger()
        assert len(query.tasks()) == 4
