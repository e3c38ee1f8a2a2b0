"""The data source in Spark: a real session and a real broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from kiel_groups.embedded import Cluster
from kiel_groups.ops.actions.topics import ZooKeeperTopics
from tests.helpers.cluster_data import stored_offsets, zookeeper
from tests.helpers.spark.queries import brokers_of, fill, filled, read_batch
from tests.helpers.waiting import eventually_blocking

pytestmark = pytest.mark.spark

Unique = Callable[[str], str]

ROWS_S = 300
VALUES = [b"%d" % number for number in range(60)]


@pytest.fixture
def topic(cluster_39: Cluster, unique: Unique) -> str:
    """Return the name of a topic of three partitions with 60 records."""
    return filled(cluster_39, unique("topic"), 3, VALUES)


def stream(spark: SparkSession, cluster: Cluster, topic: str, **options: str) -> DataFrame:
    named = {name.replace("_", "."): text for name, text in options.items()}
    reader = spark.readStream.format("kiel").option("kafka.bootstrap.servers", brokers_of(cluster))
    return reader.option("subscribe", topic).option("startingOffsets", "earliest").options(**named).load()


def finished(query: StreamingQuery) -> StreamingQuery:
    """Wait for the end of a query that ends without being stopped, and return the query."""
    assert query.awaitTermination(ROWS_S), "the query has not ended"
    return query


def to_files(rows: DataFrame, folder: Path) -> StreamingQuery:
    """Write the existing records that the checkpoint does not contain yet to Parquet files."""
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    return finished(writer.trigger(availableNow=True).start(str(folder / "data")))


def values_in(spark: SparkSession, folder: Path) -> list[bytes]:
    found = spark.read.parquet(str(folder / "data")).collect()
    return sorted((bytes(row["value"]) for row in found), key=int)


def test_a_table_is_read_by_the_name_of_the_format(spark: SparkSession, cluster_39: Cluster, unique: Unique) -> None:
    """The name of the format needs no registration, the case of option names does not matter, and null stays null."""
    topic = unique("topic")
    ZooKeeperTopics(cluster_39.zk_hosts).create(topic, 2)
    fill(cluster_39, topic, [None, b"", b"full"], partition=1)
    table = (
        spark.read.format("kiel").option("KAFKA.bootstrap.Servers", brokers_of(cluster_39)).option("SUBSCRIBE", topic)
    ).load()
    assert table.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
    ]
    text = table.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)", "partition", "offset", "timestamp")
    assert [tuple(row) for row in text.orderBy("offset").collect()] == [
        (None, None, 1, 0, None),
        ("", "", 1, 1, None),
        ("full", "full", 1, 2, None),
    ]


def test_a_schema_may_have_some_of_the_columns(spark: SparkSession, cluster_39: Cluster, topic: str) -> None:
    """Only the columns of the schema are read."""
    reader = spark.read.format("kiel").schema("offset BIGINT, value BINARY")
    table = reader.option("kafka.bootstrap.servers", brokers_of(cluster_39)).option("subscribe", topic).load()
    assert table.columns == ["offset", "value"]
    assert table.count() == len(VALUES)


def test_a_refusal_reaches_the_user(spark: SparkSession, cluster_39: Cluster, topic: str) -> None:
    """The data source's error is in the first line of Spark's, before tracebacks: of a wrong option, and of a task."""
    reader = spark.read.format("kiel").option("kafka.bootstrap.servers", brokers_of(cluster_39))
    with pytest.raises(Exception, match="did you mean subscribePattern") as found:
        reader.option("subscribePatern", topic).load().collect()
    assert "kiel_groups.errors.ConfigError: subscribepatern: " in str(found.value).splitlines()[0]
    writer = spark.range(1).selectExpr("'x' AS value", "7 AS partition").write.format("kiel").mode("append")
    with pytest.raises(Exception, match="kiel_groups") as found:
        writer.option("kafka.bootstrap.servers", brokers_of(cluster_39)).option("topic", topic).save()
    lines = str(found.value).splitlines()
    (first,) = [number for number, line in enumerate(lines) if line.startswith("kiel_groups.errors.")][:1]
    assert not [line for line in lines[:first] if "Traceback" in line]


def test_a_stopped_query_resumes_at_its_checkpoint(
    spark: SparkSession, cluster_39: Cluster, topic: str, tmp_path: Path
) -> None:
    """Batches have the largest allowed size, the files have every record once, and the last batch is committed, too."""
    rows = stream(spark, cluster_39, topic, maxOffsetsPerTrigger="25")
    first = to_files(rows, tmp_path)
    assert [progress["numInputRows"] for progress in first.recentProgress if progress["numInputRows"]] == [25, 25, 10]
    more = [b"%d" % number for number in range(60, 90)]
    fill(cluster_39, topic, more)
    to_files(rows, tmp_path)
    assert values_in(spark, tmp_path) == [*VALUES, *more]
    committed = sum(offsets_of_queries(cluster_39, topic))
    assert committed == 90


def offsets_of_queries(cluster: Cluster, topic: str) -> list[int]:
    """Return the committed offsets of a topic for all queries without a group option."""
    with zookeeper(cluster) as client:
        groups = [name for name in client.get_children("/consumers") if name.startswith("kiel-spark-")]
        return [offset for group in groups for offset in stored_offsets(client, group, topic).values()]


@pytest.mark.parametrize("failing", [0, 1])
def test_a_sink_that_fails_gets_the_same_batch_again(
    spark: SparkSession, cluster_39: Cluster, topic: str, tmp_path: Path, failing: int
) -> None:
    """
    If the sink fails in the first or in a later batch, it gets the same batch again. A failed batch is not committed.
    """
    seen: dict[int, list[list[bytes]]] = {}
    fails = [True]

    def sink(batch: DataFrame, number: int) -> None:
        found = sorted((bytes(row["value"]) for row in batch.collect()), key=int)
        seen.setdefault(number, []).append(found)
        if number == failing and fails:
            fails.clear()
            raise RuntimeError("the sink is full")

    def run(**options: str) -> None:
        rows = stream(spark, cluster_39, topic, **options)
        writer = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
        finished(writer.trigger(availableNow=True).start())

    with pytest.raises(Exception, match="the sink is full"):
        run(maxOffsetsPerTrigger="20")
    assert sum(offsets_of_queries(cluster_39, topic)) == 20 * failing
    fill(cluster_39, topic, [b"60"])
    run(maxOffsetsPerTrigger="50")
    assert seen[failing][0] == seen[failing][1]
    assert sorted((value for batches in seen.values() for value in batches[-1]), key=int) == [*VALUES, b"60"]
    assert sum(offsets_of_queries(cluster_39, topic)) == 61


def test_a_running_query_reads_new_records_and_stops_without_an_error(
    spark: SparkSession, cluster_39: Cluster, topic: str, tmp_path: Path
) -> None:
    """
    The query's progress shows its end offsets and the latest offsets. Finished batches are committed when it stops.
    """
    name = f"rows_{tmp_path.name.replace('-', '_')}"
    writer = stream(spark, cluster_39, topic).writeStream.format("memory").queryName(name)
    query = writer.start()
    try:
        query.processAllAvailable()
        fill(cluster_39, topic, [b"60"])
        query.processAllAvailable()
        assert spark.table(name).count() == len(VALUES) + 1
        progress: Any = query.lastProgress
        assert topic in progress["sources"][0]["endOffset"]
        assert topic in progress["sources"][0]["latestOffset"]
    finally:
        query.stop()
    assert query.exception() is None
    assert sum(offsets_of_queries(cluster_39, topic)) == len(VALUES) + 1


def test_the_last_batch_of_a_query_with_a_long_trigger_is_committed(
    spark: SparkSession, cluster_39: Cluster, topic: str, tmp_path: Path
) -> None:
    """
    If a query is stopped before Spark calls the reader again, the reader finds the finished batch in the checkpoint,
    and commits it.
    """
    rows = stream(spark, cluster_39, topic, checkpointLocation=str(tmp_path))
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    query = writer.trigger(processingTime="1 hour").start()
    try:
        eventually_blocking((tmp_path / "commits" / "0").exists, "the first batch is done", 120)
        assert sum(offsets_of_queries(cluster_39, topic)) == 0
    finally:
        query.stop()
    # Spark does not wait for the end of the source's process.
    eventually_blocking(
        lambda: sum(offsets_of_queries(cluster_39, topic)) == len(VALUES), "its offsets are committed", 120
    )


def test_rows_are_written_to_the_given_partitions(
    spark: SparkSession, cluster_39: Cluster, topic: str, unique: Unique
) -> None:
    """The partition column selects the partition, null stays null, and columns that only the source has are ignored."""
    copy = unique("copy")
    ZooKeeperTopics(cluster_39.zk_hosts).create(copy, 3)
    fill(cluster_39, topic, [None])
    reader = spark.read.format("kiel").option("kafka.bootstrap.servers", brokers_of(cluster_39))
    table = reader.option("subscribe", topic).load()
    writer = table.write.format("kiel").mode("append").option("kafka.bootstrap.servers", brokers_of(cluster_39))
    writer.option("topic", copy).save()

    def rows(name: str) -> set[tuple[int, bytes | None, bytes | None]]:
        return {(record.partition, record.key, record.value) for record in read_batch(cluster_39, subscribe=name)}

    assert rows(copy) == rows(topic)
    with pytest.raises(Exception, match="'overwrite' given, and records of a topic cannot be replaced"):
        table.write.format("kiel").mode("overwrite").options(
            **{"kafka.bootstrap.servers": brokers_of(cluster_39), "topic": copy}
        ).save()


def test_a_stream_is_written_to_topics_that_a_column_names(
    spark: SparkSession, cluster_39: Cluster, topic: str, unique: Unique, tmp_path: Path
) -> None:
    """The text of the value column is written as UTF-8."""
    even, odd = unique("even"), unique("odd")
    for name in (even, odd):
        ZooKeeperTopics(cluster_39.zk_hosts).create(name, 1)
    rows = stream(spark, cluster_39, topic).selectExpr(
        "CAST(value AS STRING) AS value", f"IF(CAST(CAST(value AS STRING) AS INT) % 2 = 0, '{even}', '{odd}') AS topic"
    )
    writer = rows.writeStream.format("kiel").option("kafka.bootstrap.servers", brokers_of(cluster_39))
    finished(writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start())
    for name, rest in ((even, 0), (odd, 1)):
        found = sorted(int(record.value) for record in read_batch(cluster_39, subscribe=name))
        assert found == list(range(rest, 60, 2))
