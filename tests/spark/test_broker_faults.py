"""A broker restarts, or a log loses its first segments, while Spark reads."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kiel_groups.config import HostPort
from kiel_groups.embedded import Cluster
from kiel_groups.errors import OffsetOutOfRangeError
from kiel_groups.ops.actions.topics import ZooKeeperTopics
from kiel_groups.spark.side_tables import LOSSES, read_rows
from kiel_groups.spark.task_planner import ReadTask
from tests.helpers.spark.queries import Query, batch_tasks, brokers_of, fill, filled, records, running
from tests.proxies import KafkaProxy
from tests.proxies.kafka_proxy import Exchange

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark-session")]

Unique = Callable[[str], str]

FETCH = 1

VALUES = [b"%0100d" % number for number in range(300)]

#: A broker takes seconds to start, and more on a busy machine.
PATIENT = {"kafka_request_timeout_ms": "120000", "fetchOffset_retryIntervalMs": "100"}


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[Cluster]:
    """Provide a broker for tests that restart it. Each log segment has about fifty records."""
    with Cluster(broker_overrides={"log.segment.bytes": 8_000, "zookeeper.session.timeout.ms": 10_000}) as cluster:
        yield cluster


@pytest.fixture
def topic(own_cluster: Cluster, unique: Unique) -> str:
    """Return the name of a topic of two partitions with 300 records."""
    name = unique("topic")
    ZooKeeperTopics(own_cluster.zk_hosts).create(name, 2)
    for start in range(0, len(VALUES), 20):
        # A broker starts a new segment only between two requests.
        fill(own_cluster, name, VALUES[start : start + 20])
    return name


def test_a_task_survives_a_restart_of_its_broker(own_cluster: Cluster, topic: str) -> None:
    """After a restart of its broker, a task resumes at its position: no record is read twice or skipped."""
    options = {"subscribe": topic, "maxPartitions": "1", "kafka_fetch_max_bytes": "2000"}
    reader, (task,) = batch_tasks(own_cluster, **options)
    rows = records(reader, task)
    found = [next(rows)]
    asyncio.run(own_cluster.kafka[0].restart())
    found += rows
    assert sorted(record.value for record in found) == VALUES


def test_a_query_survives_a_restart_of_its_broker(
    spark: SparkSession, own_cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    """The query waits for the broker, and then reads further records."""
    options = {"kafka.bootstrap.servers": brokers_of(own_cluster), "subscribe": topic, "startingOffsets": "earliest"}
    patient = {name.replace("_", "."): text for name, text in PATIENT.items()}
    rows = spark.readStream.format("kiel").options(**options, **patient).load()
    query = rows.writeStream.format("memory").queryName("restarted").start()
    try:
        query.processAllAvailable()
        asyncio.run(own_cluster.kafka[0].restart())
        fill(own_cluster, topic, [b"afterwards"])
        query.processAllAvailable()
        found = sorted(bytes(row["value"]) for row in spark.table("restarted").collect())
    finally:
        query.stop()
    assert found == [*VALUES, b"afterwards"]


def test_a_truncated_log_is_a_loss(own_cluster: Cluster, topic: str, tmp_path: Path) -> None:
    """
    If retention has deleted records before the query read them, the error has the remedy. With failOnDataLoss=false,
    the query reads the remaining records. Every lost offset is accounted, whether the worker finds the loss, in a batch
    that was planned before, or the driver.
    """
    options = {"subscribe": topic, "startingOffsets": "earliest", **PATIENT}
    with running(Query(own_cluster, **options, maxOffsetsPerTrigger="10")) as query:
        query.trigger()
        planned = query.trigger(fails=True)
    asyncio.run(lose_first_segments(own_cluster, topic))
    with running(Query(own_cluster, query.checkpoint, **options)) as strict:
        expected = rf"{topic}:[01]: offsets \d+ to \d+ are to be read, and the log has [1-9]\d* to .* failOnDataLoss"
        with pytest.raises(OffsetOutOfRangeError, match=expected):
            strict.trigger()
    archive = tmp_path.as_uri()
    options |= {"failOnDataLoss": "false", "kiel_archive_output": archive}
    with running(Query(own_cluster, query.checkpoint, **options)) as lenient:
        assert lenient.trigger() == []
        in_workers = [row.loss for row in read_rows(archive, LOSSES)]
        assert sum(loss.size for loss in in_workers) == len(planned)
        assert "@lost" not in (lenient.reader.reportLatestOffset() or {})
        found = lenient.trigger()
        losses = [row.loss for row in read_rows(archive, LOSSES)]
        in_driver = sum(loss.size for loss in losses) - len(planned)
        assert lenient.reader.reportLatestOffset()["@lost"] == {"ranges": 2, "offsets": in_driver}
    for partition in (0, 1):
        lost = [(loss.start, loss.end) for loss in losses if loss.topic_partition.partition == partition]
        (before, first), (second, after) = lost
        assert first == second
        offsets = [record.offset for record in found if record.partition == partition]
        assert offsets == list(range(after, offsets[-1] + 1))
        assert before < first < after
    assert sum(loss.size for loss in losses) + len(found) + 10 == len(VALUES)


def emptied(exchange: Exchange) -> bytes:
    """Return a fetch answer for one partition with its high watermark, but without its messages."""
    (topic_bytes,) = struct.unpack_from(">h", exchange.response, 4)
    up_to_watermark = 4 + 2 + topic_bytes + 4 + 4 + 2 + 8
    return exchange.response[:up_to_watermark] + struct.pack(">i", 0)


@pytest.mark.parametrize("times", [2, 1_000], ids=["for a while", "for good"])
def test_an_empty_answer_skips_nothing(own_cluster: Cluster, unique: Unique, times: int) -> None:
    """
    If a fetch answer has no messages although the high watermark is beyond the range, the task repeats the request. If
    such answers continue, it reports a loss.
    """
    name = filled(own_cluster, unique("topic"), 1, VALUES)
    reader, (task,) = batch_tasks(own_cluster, subscribe=name)
    with KafkaProxy(own_cluster.brokers[0]) as proxy:
        proxy.answer = lambda exchange: (
            emptied(exchange) if exchange.api_key == FETCH and exchange.number <= times else exchange.response
        )
        address = HostPort("127.0.0.1", proxy.port)
        task.value = ReadTask(dict.fromkeys(task.value.leaders, address), task.value.ranges)
        reader._options = replace(reader._options, brokers=(address,))
        if times < 5:
            assert [record.value for record in records(reader, task)] == VALUES
        else:
            with pytest.raises(OffsetOutOfRangeError, match=f"{name}:0: offsets 0 to 300 .* failOnDataLoss"):
                list(records(reader, task))


async def lose_first_segments(cluster: Cluster, topic: str) -> None:
    """Delete all segments but the last one of each partition, as retention does."""
    broker = cluster.kafka[0]
    await broker.stop()
    for partition in (0, 1):
        (folder,) = broker.folder.rglob(f"{topic}-{partition}")
        segments = sorted(folder.glob("*.log"))
        assert len(segments) > 1
        for segment in segments[:-1]:
            segment.unlink()
            segment.with_suffix(".index").unlink()
    await broker.start()
