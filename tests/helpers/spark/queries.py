"""Queries without a JVM: they make the calls that Spark makes to the data source, in the same order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.types import StructType

from kiel_groups.clients import Producer
from kiel_groups.clients.produce.partitioners import hash_partitioner
from kiel_groups.config import BrokerConfig, parse_hosts
from kiel_groups.embedded import Cluster
from kiel_groups.model import Record
from kiel_groups.ops.actions.topics import ZooKeeperTopics
from kiel_groups.spark import KielDataSource
from kiel_groups.spark.worker_connections import find_leaders
from tests.helpers.waiting import eventually_blocking

__all__ = [
    "Checkpoint",
    "Query",
    "await_partitions",
    "batch_tasks",
    "brokers_of",
    "fill",
    "filled",
    "read_batch",
    "records",
    "recreate_topic",
    "running",
    "source",
    "values_of",
]


def brokers_of(cluster: Cluster) -> str:
    """Return the value of ``kafka.bootstrap.servers``."""
    return ",".join(cluster.brokers)


def fill(
    cluster: Cluster,
    topic: str,
    values: Iterable[bytes | None],
    partition: int | None = None,
    compression: str | None = None,
) -> None:
    """Produce values. Each value is also the key, which determines the partition unless ``partition`` is given."""

    async def produce() -> None:
        async with Producer(
            cluster.brokers, partitioner=hash_partitioner, linger_ms=1, batch_size=1_000, compression=compression
        ) as producer:
            await asyncio.gather(*(producer.produce(topic, value, value, partition) for value in values))

    asyncio.run(produce())


def filled(cluster: Cluster, topic: str, partitions: int, values: Sequence[bytes | None]) -> str:
    """Create a topic, produce values to it, and return its name."""
    ZooKeeperTopics(cluster.zk_hosts).create(topic, partitions)
    fill(cluster, topic, values)
    return topic


def await_partitions(cluster: Cluster, topic: str, count: int) -> None:
    """Wait until brokers report ``count`` partitions. ZooKeeper has the partitions earlier."""
    brokers = parse_hosts(cluster.brokers, 0, "brokers")
    config = BrokerConfig(hosts=tuple(brokers), client_id="test")
    eventually_blocking(lambda: len(find_leaders(brokers, config, [topic])) == count, f"{topic} has {count} partitions")


def recreate_topic(cluster: Cluster, topic: str, partitions: int, values: Iterable[bytes]) -> None:
    """Delete a topic and create it again, with ``values`` in its first partition."""
    ZooKeeperTopics(cluster.zk_hosts).delete(topic)
    ZooKeeperTopics(cluster.zk_hosts).create(topic, partitions)
    await_partitions(cluster, topic, partitions)
    fill(cluster, topic, values, partition=0)


def source(cluster: Cluster, **options: str) -> KielDataSource:
    """Create the data source as Spark does. An underscore in an argument's name becomes a dot in the option's name."""
    named = {name.replace("_", "."): text for name, text in options.items()}
    return KielDataSource(CaseInsensitiveDict({"kafka.bootstrap.servers": brokers_of(cluster), **named}))


def batch_tasks(cluster: Cluster, schema: StructType | None = None, **options: str) -> tuple[Any, list[InputPartition]]:
    """Return the reader and the tasks of a batch, as workers receive them."""
    made = source(cluster, **options)
    reader = made.reader(schema or made.schema())
    tasks = reader.partitions()
    return sent(reader), [sent(task) for task in tasks]


def read_batch(cluster: Cluster, **options: str) -> list[Record]:
    """Return all records of a batch, in the order of its tasks."""
    reader, tasks = batch_tasks(cluster, **options)
    return [record for task in tasks for record in records(reader, task)]


def sent(value: Any) -> Any:
    """Return a pickled copy, as a worker receives it."""
    return cloudpickle.loads(cloudpickle.dumps(value))


def records(reader: Any, task: InputPartition) -> Iterator[Record]:
    """Yield the records of a task."""
    for batch in reader.read(task):
        for row in batch.to_pylist():
            assert (row["timestamp"], row["timestampType"]) == (None, -1)
            yield Record(row["topic"], row["partition"], row["offset"], row["key"], row["value"])


def values_of(found: Iterable[Record]) -> list[bytes]:
    """Return the values of records, sorted by the numbers that they contain."""
    return sorted((record.value for record in found), key=int)


@dataclass
class Checkpoint:
    """A query's checkpoint: the end offsets of its planned batches as JSON, and the number of completed batches."""

    ends: list[str] = field(default_factory=list)
    done: int = 0

    def write(self, folder: Path, *, done: bool) -> None:
        """Write the checkpoint as Spark does for a query with two sources. This query's source is the second."""
        for name in ("offsets", "commits"):
            (folder / name).mkdir()
        for number, end in enumerate(self.ends):
            (folder / "offsets" / str(number)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n-\n{end}')
            (folder / "commits" / f".{number}.crc").touch()
            if done:
                (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')


class Query:
    """A streaming query that starts at its checkpoint, or at its start option. Each trigger runs at most one batch."""

    def __init__(self, cluster: Cluster, checkpoint: Checkpoint | None = None, **options: str) -> None:
        made = source(cluster, **options)
        self.checkpoint = checkpoint or Checkpoint()
        self.reader: Any = made.streamReader(made.schema())
        self._limit = self.reader.getDefaultReadLimit()

    def trigger(self, *, fails: bool = False) -> list[Record]:
        """
        Plan and read the next batch, or read a planned batch that is not completed, and return its records.

        With ``fails``, the sink fails: the batch is planned and read, but not completed.
        """
        number, ends = self.checkpoint.done, self.checkpoint.ends
        start = ends[number - 1] if number else json.dumps(self.reader.initialOffset())
        if len(ends) == number:
            end = json.dumps(self.reader.latestOffset(json.loads(start), self._limit))
            if number and end == start:
                return []
            ends.append(end)
            if number:
                self.reader.commit(json.loads(start))
        found = self._read(json.loads(start), json.loads(ends[number]))
        if not fails:
            self.checkpoint.done += 1
        return found

    def tasks(self) -> Sequence[InputPartition]:
        """Return the tasks of the batch that was planned last."""
        number, ends = len(self.checkpoint.ends) - 1, self.checkpoint.ends
        start = json.loads(ends[number - 1]) if number else self.reader.initialOffset()
        tasks: Sequence[InputPartition] = self.reader.partitions(start, json.loads(ends[number]))
        return tasks

    def _read(self, start: dict[str, Any], end: dict[str, Any]) -> list[Record]:
        reader = sent(self.reader)
        return [record for task in self.reader.partitions(start, end) for record in records(reader, sent(task))]

    def await_commits(self) -> None:
        """Wait until the background has committed what the query has done. Raise a commit's failure that is fatal."""
        self.reader._driver._offsets.flush()

    def stop(self) -> None:
        """Stop the reader, as Spark does when a query ends."""
        self.reader.stop()


@contextmanager
def running(query: Query) -> Iterator[Query]:
    """Stop the query at the end of the block."""
    try:
        yield query
    finally:
        query.stop()
