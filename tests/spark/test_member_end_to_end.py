"""Spark and Tornado in one group: a real session, real servers, and members that join and leave."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.ops.actions.topics import ZooKeeperTopics
from kiel_groups.sync import Producer
from tests.helpers.cluster_data import owners, zookeeper
from tests.helpers.members import Group, group_of
from tests.helpers.spark.queries import brokers_of
from tests.helpers.waiting import eventually, eventually_blocking

# The session takes seconds to start, and a minute on a busy computer.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.xdist_group("spark-session")]

PATIENCE_S = 240.0
PARTITIONS = 4


class Query:
    """A streaming query that is a member of the group, and the values of its batches."""

    def __init__(self, spark: SparkSession, cluster: Cluster, topic: str, group: str, checkpoint: Path) -> None:
        self.values: list[bytes] = []
        options = {
            "kafka.bootstrap.servers": brokers_of(cluster),
            "kiel.zookeeper.connect": cluster.zk_hosts,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "kafka.group.id": group,
            "membership": "join",
        }
        writer = spark.readStream.format("kiel").options(**options).load().writeStream.foreachBatch(self._take)
        self._writer = writer.option("checkpointLocation", str(checkpoint)).trigger(processingTime="100 milliseconds")
        self.query: StreamingQuery = self._writer.start()

    def restart_if_spark_failed(self) -> None:
        """
        Start the query again if Spark itself has failed, because Spark gives a Python worker only ten seconds to start.
        """
        if not self.query.isActive and "Python worker failed to connect back" in str(self.query.exception()):
            self.query = self._writer.start()

    def _take(self, batch: DataFrame, _: int) -> None:
        self.values += [bytes(row["value"]) for row in batch.select("value").collect()]


@contextmanager
def producing(cluster: Cluster, topic: str) -> Iterator[list[bytes]]:
    """Produce numbered values during the block. The yielded list has the values that were stored."""
    stored: list[bytes] = []
    enough = threading.Event()

    def produce() -> None:
        with Producer(cluster.brokers) as producer:
            while not enough.wait(0.005):
                value = b"%d" % len(stored)
                producer.produce(topic, value, partition=len(stored) % PARTITIONS).result(PATIENCE_S)
                stored.append(value)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield stored
    finally:
        enough.set()
        thread.join(PATIENCE_S)


async def join_and_leave(cluster: Cluster, group: Group, topic: str, query: Query, stored: list[bytes]) -> None:
    """
    Run the query alone, with one consumer, with two consumers, without the first consumer, and alone again. Values are
    produced all the time.
    """

    def owned_by_spark() -> int:
        query.restart_if_spark_failed()
        with zookeeper(cluster) as client:
            return sum("_spark." in member for member, _ in owners(client, group.name, topic).values())

    async def until_spark_owns(count: int) -> None:
        await eventually(lambda: owned_by_spark() == count, f"Spark owns {count} partitions", PATIENCE_S)
        before = len(stored)
        await eventually(lambda: len(stored) > before + 50, "values flow", PATIENCE_S)

    await until_spark_owns(PARTITIONS)
    first = await group.join()
    await until_spark_owns(2)
    second = await group.join()
    await eventually(lambda: first.partitions(topic) and second.partitions(topic), "both consume", PATIENCE_S)
    await group.leave(first)
    await until_spark_owns(2)
    await group.leave(second)
    await until_spark_owns(PARTITIONS)
    assert query.query.isActive, query.query.exception()


def test_spark_and_tornado_share_a_topic_while_members_join_and_leave(
    spark: SparkSession, cluster_39: Cluster, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Every record is delivered to the query or to a consumer. When the query has stopped, the group has no members."""
    topic, name = unique("topic"), unique("group")
    ZooKeeperTopics(cluster_39.zk_hosts).create(topic, PARTITIONS)
    query = Query(spark, cluster_39, topic, name, tmp_path)

    async def run() -> None:
        async with group_of(cluster_39, name, [topic]) as group:
            with producing(cluster_39, topic) as stored:
                await join_and_leave(cluster_39, group, topic, query, stored)
            wanted = set(stored)
            await eventually(lambda: wanted <= {*query.values, *group.values}, "every record was read", PATIENCE_S)
            assert query.values
            assert group.values

    try:
        asyncio.run(run())
    finally:
        query.query.stop()
    with zookeeper(cluster_39) as client:
        members = GroupLayout(name).members
        eventually_blocking(lambda: client.get_children(members) == [], "the query has left", PATIENCE_S)
