"""Batch reads, called as Spark calls its readers, with a real broker and without a JVM."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from kiel_groups.config import HostPort
from kiel_groups.embedded import Cluster
from kiel_groups.errors import ConfigError, OffsetOutOfRangeError, UnknownTopicError
from kiel_groups.model import Record
from kiel_groups.ops.actions.topics import ZooKeeperTopics
from kiel_groups.spark.task_planner import ReadTask
from tests.helpers.cluster_data import zookeeper
from tests.helpers.spark.queries import batch_tasks, fill, filled, read_batch, records

pytestmark = pytest.mark.spark

Unique = Callable[[str], str]

VALUES = [b"%d" % number for number in range(200)]


@pytest.fixture
def topic(cluster_39: Cluster, unique: Unique) -> str:
    """Return the name of a topic of four partitions with 200 records."""
    return filled(cluster_39, unique("topic"), 4, VALUES)


def test_every_record_is_read_once_with_partition_and_offset(cluster_39: Cluster, topic: str) -> None:
    """The records of each partition are in the order of their offsets."""
    found = read_batch(cluster_39, subscribe=topic)
    assert sorted(found, key=lambda record: int(record.value)) == [
        Record(topic, record.partition, record.offset, value, value)
        for value, record in zip(VALUES, sorted(found, key=lambda record: int(record.value)), strict=True)
    ]
    for partition in range(4):
        offsets = [record.offset for record in found if record.partition == partition]
        assert offsets == list(range(len(offsets)))


def test_null_keys_and_values_stay_null(cluster_39: Cluster, unique: Unique) -> None:
    """Null keys and values stay null, and empty keys and values stay empty."""
    name = unique("topic")
    ZooKeeperTopics(cluster_39.zk_hosts).create(name, 1)
    fill(cluster_39, name, [None, b"", b"full"])
    found = read_batch(cluster_39, subscribe=name)
    assert [(record.key, record.value) for record in found] == [(None, None), (b"", b""), (b"full", b"full")]


def test_batches_have_exactly_the_schema_that_spark_expects(cluster_39: Cluster, topic: str) -> None:
    """Spark 4.2 compares names, order, types and nullability."""
    schema = StructType([StructField("offset", LongType(), False), StructField("value", BinaryType())])
    for asked in (None, schema):
        reader, tasks = batch_tasks(cluster_39, asked, subscribe=topic)
        made = next(iter(reader.read(tasks[0])))
        assert isinstance(made, pa.RecordBatch)
        if asked is not None:
            assert made.schema.equals(to_arrow_schema(asked))
    assert made.schema.names == ["offset", "value"]


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        (StructField("headers", StringType()), "there is no column 'headers'; there are key, value, topic"),
        (StructField("offset", StringType()), "offset is given as string, and is bigint; cast it after reading"),
        (StructField("value", BinaryType(), False), "value is given as not nullable, and may be null"),
    ],
)
def test_a_schema_with_other_columns_is_refused(cluster_39: Cluster, field: StructField, reason: str) -> None:
    """The error for a schema with other columns names the existing columns."""
    with pytest.raises(ConfigError, match=reason):
        batch_tasks(cluster_39, StructType([field]), subscribe="any")


def test_a_range_of_offsets_is_read_as_given(cluster_39: Cluster, topic: str) -> None:
    """A range of offsets does not include its end offset. -2 and -1 mean the start and the end of the log."""
    found = read_batch(
        cluster_39,
        assign=f'{{"{topic}": [0, 1]}}',
        startingOffsets=f'{{"{topic}": {{"0": 3, "1": -2}}}}',
        endingOffsets=f'{{"{topic}": {{"0": 7, "1": -1}}}}',
    )
    assert [record.offset for record in found if record.partition == 0] == [3, 4, 5, 6]
    assert {record.partition for record in found} == {0, 1}


def test_offsets_must_be_given_for_exactly_the_partitions(cluster_39: Cluster, topic: str) -> None:
    """Missing and unknown partitions in the offsets are errors. Otherwise, a forgotten partition would not be read."""
    with pytest.raises(ConfigError, match=f"startingOffsets: {topic}:1, {topic}:2, {topic}:3 are missing"):
        read_batch(cluster_39, subscribe=topic, startingOffsets=f'{{"{topic}": {{"0": 3}}}}')
    every = ", ".join(f'"{number}": -1' for number in range(5))
    with pytest.raises(ConfigError, match=f"endingOffsets: {topic}:4 is named, and not among"):
        read_batch(cluster_39, subscribe=topic, endingOffsets=f'{{"{topic}": {{{every}}}}}')


def test_offsets_outside_the_log_are_an_error_or_skipped(cluster_39: Cluster, topic: str) -> None:
    """
    For offsets outside the log, the error has the partition, both ranges and the remedy. With failOnDataLoss=false,
    existing records are read.
    """
    beyond = {"assign": f'{{"{topic}": [0]}}', "endingOffsets": f'{{"{topic}": {{"0": 900}}}}'}
    with pytest.raises(OffsetOutOfRangeError, match=f"{topic}:0: offsets 0 to 900 .* has 0 to .* failOnDataLoss"):
        read_batch(cluster_39, **beyond)
    assert read_batch(cluster_39, **beyond, failOnDataLoss="false")


def test_a_topic_or_partition_that_does_not_exist_is_an_error(cluster_39: Cluster, topic: str, unique: Unique) -> None:
    """Reading does not make the brokers create the topic or the partition."""
    missing = unique("missing")
    with pytest.raises(UnknownTopicError, match=missing):
        read_batch(cluster_39, subscribe=missing)
    with pytest.raises(UnknownTopicError, match=f"assign: {topic}:7 does not exist"):
        read_batch(cluster_39, assign=f'{{"{topic}": [7]}}')


def test_topics_are_found_by_a_pattern(cluster_39: Cluster, topic: str, unique: Unique) -> None:
    """A pattern is searched in the names, as Spark's own Kafka source does; anchors make it match whole names."""
    other = f"{topic}-more"
    ZooKeeperTopics(cluster_39.zk_hosts).create(other, 1)
    fill(cluster_39, other, [b"1"])
    assert {record.topic for record in read_batch(cluster_39, subscribePattern=topic[1:])} == {topic, other}
    assert {record.topic for record in read_batch(cluster_39, subscribePattern=f"^{topic}$")} == {topic}


def test_a_pattern_that_matches_nothing_reads_nothing(cluster_39: Cluster) -> None:
    """
    If a pattern matches nothing, the reader returns one task that reads nothing, because Spark would create a task of
    its own if it got none.
    """
    assert read_batch(cluster_39, subscribePattern="no-such-topic-[0-9]+") == []


def test_a_batch_starts_at_the_offsets_of_a_group(
    cluster_39: Cluster, topic: str, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """
    A batch starts at the offsets of a group. A partition without an offset is read from its beginning, with a warning.
    """
    group = unique("group")
    with zookeeper(cluster_39) as client:
        client.create(f"/consumers/{group}/offsets/{topic}/2", b"5", makepath=True)
    found = read_batch(cluster_39, subscribe=topic, startingOffsets="group", kafka_group_id=group)
    assert min(record.offset for record in found if record.partition == 2) == 5
    assert min(record.offset for record in found if record.partition == 1) == 0
    missing = f"{topic}:0, {topic}:1, {topic}:3"
    text = f"group {group} has no committed offset of {missing}; starting there at the first offset of the log"
    assert caplog.messages.count(text) == 1


def test_a_task_finds_the_leader_when_it_has_moved(cluster_39: Cluster, topic: str) -> None:
    """If the planned broker does not answer, the task reads from the current leader."""
    reader, tasks = batch_tasks(cluster_39, subscribe=topic, maxPartitions="1")
    (task,) = tasks
    task.value = ReadTask(dict.fromkeys(task.value.leaders, HostPort("127.0.0.1", 1)), task.value.ranges)
    assert len(list(records(reader, task))) == len(VALUES)


def test_a_task_leaves_a_broker_that_is_silent_and_no_leader_any_more(cluster_39: Cluster, topic: str) -> None:
    """A frozen computer accepts connections and does not answer. The task asks the others long before its timeout."""
    reader, (task,) = batch_tasks(cluster_39, subscribe=topic, maxPartitions="1", kafka_request_timeout_ms="600000")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        frozen = HostPort(*silent.getsockname())
        task.value = ReadTask(dict.fromkeys(task.value.leaders, frozen), task.value.ranges)
        assert len(list(records(reader, task))) == len(VALUES)


def test_a_task_does_not_wait_forever_for_missing_records(cluster_39: Cluster, topic: str) -> None:
    """
    If the end is beyond the log, the task raises an error after kafkaConsumer.pollTimeoutMs. It never returns fewer
    rows without an error.
    """
    reader, (task,) = batch_tasks(cluster_39, subscribe=topic, maxPartitions="1", kafkaConsumer_pollTimeoutMs="300")
    beyond = [each._replace(end=each.end + 5) for each in task.value.ranges]
    task.value = ReadTask(task.value.leaders, tuple(beyond))
    with pytest.raises(OffsetOutOfRangeError, match=f"{topic}:[0-3]: offsets .* failOnDataLoss"):
        list(records(reader, task))


def test_a_message_larger_than_an_answer_is_fetched_by_itself(cluster_39: Cluster, unique: Unique) -> None:
    """A message above the fetch limit is fetched alone. The other messages are read, too."""
    name = unique("topic")
    ZooKeeperTopics(cluster_39.zk_hosts).create(name, 1)
    values = [b"a", b"x" * 300_000, b"b"]
    fill(cluster_39, name, values)
    found = read_batch(cluster_39, subscribe=name, kafka_fetch_max_bytes="1000")
    assert [record.value for record in found] == values


def test_tasks_are_split_and_merged_by_the_options(cluster_39: Cluster, topic: str) -> None:
    """All tasks together read every record once."""
    for options, count in (({"minPartitions": "8"}, 8), ({"maxPartitions": "1"}, 1)):
        reader, tasks = batch_tasks(cluster_39, subscribe=topic, **options)
        assert len(tasks) == count
        assert sorted(int(record.value) for task in tasks for record in records(reader, task)) == list(range(200))
    _, tasks = batch_tasks(cluster_39, subscribe=topic, maxRecordsPerPartition="30")
    assert max(task.value.size for task in tasks) <= 30
