"""Streams with Spark before 4.2, which does not pass the position of the query to the reader."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kiel_groups.embedded import Cluster
from kiel_groups.errors import OffsetOutOfRangeError
from kiel_groups.ops.actions.topics import ZooKeeperTopics
from kiel_groups.spark.checkpoint import Positions, without_reading
from kiel_groups.spark.options import ReadOptions
from kiel_groups.spark.readers import StreamReader
from tests.helpers.cluster_data import stored_offsets, zookeeper
from tests.helpers.spark.queries import (
    await_partitions,
    fill,
    filled,
    recreate_topic,
    source,
)
from tests.helpers.waiting import eventually_blocking

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("impatient")]

Unique = Callable[[str], str]

VALUES = [b"%d" % number for number in range(100)]

#: Repeat lookups at once, to see whether lost data reappears.
IMPATIENT = {"fetchOffset_retryIntervalMs": "10"}


@pytest.fixture
def topic(cluster_39: Cluster, unique: Unique) -> str:
    """Return the name of a topic of four partitions with 100 records."""
    return filled(cluster_39, unique("topic"), 4, VALUES)


def reader_of_spark_4_0(cluster: Cluster, topic: str, **options: str) -> StreamReader:
    """
    Return a reader as Spark 4.0 uses it: without the query's position, and with latestOffset called before
    initialOffset.
    """
    made = source(cluster, **(options if "subscribePattern" in options else {"subscribe": topic, **options}))
    return StreamReader(ReadOptions.parse(made.options, streaming=True), made.schema())


def size_of(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> int:
    return sum(task.value.size for task in reader.partitions(start, end))


def test_a_query_resumes_at_its_checkpoint(cluster_39: Cluster, topic: str) -> None:
    """A query resumes at its checkpoint in a new process, too, even after partitions were added."""
    first = reader_of_spark_4_0(cluster_39, topic, startingOffsets="earliest")
    end = first.latestOffset()
    start = first.initialOffset()
    assert size_of(first, start, end) == len(VALUES)
    fill(cluster_39, topic, [b"100"])
    later = first.latestOffset()
    assert size_of(first, end, later) == 1
    group = f"kiel-spark-{start['@query']}"
    with zookeeper(cluster_39) as client:
        # The commit is in the background.
        eventually_blocking(
            lambda: sum(stored_offsets(client, group, topic).values()) == len(VALUES), "the batch is committed"
        )
    first.stop()
    ZooKeeperTopics(cluster_39.zk_hosts).grow(topic, 5)
    await_partitions(cluster_39, topic, 5)
    fill(cluster_39, topic, [b"101"], partition=4)
    second = reader_of_spark_4_0(cluster_39, topic, startingOffsets="earliest")
    assert size_of(second, later, second.latestOffset()) == 1
    second.stop()


def test_a_first_batch_is_repeated_from_its_start(cluster_39: Cluster, topic: str) -> None:
    """
    A new process that repeats the first batch finds a later 'latest' offset, and must not skip the records before it.
    """
    first = reader_of_spark_4_0(cluster_39, topic)
    with pytest.MonkeyPatch.context() as patched:
        bounds = first._driver._bounds  # type: ignore[attr-defined]
        ends = bounds.ends

        def ends_later(known: Any) -> Any:
            fill(cluster_39, topic, [b"100"])
            return ends(known)

        patched.setattr(bounds, "ends", ends_later)
        end = first.latestOffset()
    assert size_of(first, first.initialOffset(), end) == 1
    first.stop()
    fill(cluster_39, topic, [b"101"])
    second = reader_of_spark_4_0(cluster_39, topic)
    assert size_of(second, second.initialOffset(), end) == 1
    assert size_of(second, end, second.latestOffset()) == 1
    second.stop()


def test_a_new_process_detects_deleted_and_recreated_topics(cluster_39: Cluster, topic: str, unique: Unique) -> None:
    """The new process reads the log ends before it gets the query's position."""
    kept, recreated = filled(cluster_39, unique("kept"), 1, VALUES), filled(cluster_39, unique("recreated"), 1, VALUES)
    options = {"subscribePattern": f"{topic}|{kept}|{recreated}", "startingOffsets": "earliest", **IMPATIENT}
    first = reader_of_spark_4_0(cluster_39, topic, **options)
    end = first.latestOffset()
    assert size_of(first, first.initialOffset(), end) == 3 * len(VALUES)
    first.stop()
    recreate_topic(cluster_39, recreated, 1, [b"7", b"8"])

    def planned(**further: str) -> int:
        reader = reader_of_spark_4_0(cluster_39, topic, **options, **further)
        try:
            return size_of(reader, end, reader.latestOffset())
        finally:
            reader.stop()

    with pytest.raises(
        OffsetOutOfRangeError, match=f"{recreated}:0: offset 100 is to be read next, and the log ended at 2"
    ):
        planned()
    assert planned(failOnDataLoss="false") == 2
    recreate_topic(cluster_39, recreated, 1, VALUES)
    assert planned() == 0
    ZooKeeperTopics(cluster_39.zk_hosts).delete(topic)
    await_partitions(cluster_39, topic, 0)
    fill(cluster_39, kept, [b"9"])
    with pytest.raises(OffsetOutOfRangeError, match=f"{topic}:0: .* there is no such partition"):
        planned()
    assert planned(failOnDataLoss="false") == 1


@pytest.mark.parametrize("with_zookeeper", [True, False])
def test_a_new_process_detects_a_log_that_has_grown_past_its_position(
    cluster_39: Cluster, unique: Unique, with_zookeeper: bool
) -> None:
    """The end of a process's first batch identifies the log, too."""
    name = filled(cluster_39, unique("recreated"), 1, VALUES)
    options = {"startingOffsets": "earliest", **IMPATIENT}
    if with_zookeeper:
        options["kiel_zookeeper_connect"] = cluster_39.zk_hosts
    first = reader_of_spark_4_0(cluster_39, name, **options)
    end = first.latestOffset()
    first.stop()
    recreate_topic(cluster_39, name, 1, [b"x"] * (len(VALUES) + 1))
    strict = reader_of_spark_4_0(cluster_39, name, **options)
    with pytest.raises(
        OffsetOutOfRangeError, match=f"{name}:0: offset 100 is to be .*(incarnation|at offset 99 the log has)"
    ):
        strict.partitions(end, strict.latestOffset())
    strict.stop()
    lenient = reader_of_spark_4_0(cluster_39, name, **options, failOnDataLoss="false")
    # Spark 4.0 and 4.1 tell a resumed reader its position with an empty batch.
    assert size_of(lenient, end, end) == 0
    later = lenient.latestOffset()
    assert size_of(lenient, end, later) == len(VALUES) + 1
    lenient.stop()


def test_a_topic_that_an_archive_leaves_out_keeps_its_position(cluster_39: Cluster, topic: str, unique: Unique) -> None:
    """
    The query neither reads the topic nor asks for it, and each end has its position: after a first batch that was
    changed to leave it out, and in later batches. A query that reads it again continues there.
    """
    kept = filled(cluster_39, unique("kept"), 1, VALUES)
    options = {"subscribePattern": f"{topic}|{kept}", "startingOffsets": "earliest", **IMPATIENT}
    first = reader_of_spark_4_0(cluster_39, topic, **options)
    end = first.latestOffset()
    first.initialOffset()
    first.stop()
    changed = without_reading({topic}, None, Positions.from_json(end)).to_json()
    ZooKeeperTopics(cluster_39.zk_hosts).delete(topic)
    await_partitions(cluster_39, topic, 0)
    held = json.dumps({topic: changed[topic]})
    second = reader_of_spark_4_0(cluster_39, topic, **options, kiel_archive_held=held)
    latest = second.latestOffset()
    assert latest[topic] == changed[topic]
    assert size_of(second, second.initialOffset(), changed) == len(VALUES)
    fill(cluster_39, kept, [b"100"])
    later = second.latestOffset()
    assert size_of(second, changed, later) == 1
    assert later[topic] == changed[topic]
    second.stop()
    third = reader_of_spark_4_0(cluster_39, topic, **options)
    with pytest.raises(OffsetOutOfRangeError, match=f"{topic}:0: offset 0 is to be read next, .* no such partition"):
        size_of(third, later, third.latestOffset())
    third.stop()
