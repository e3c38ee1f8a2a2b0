"""Queries without a JVM: what Spark asks of the data source, in the order in which it asks."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.types import StructType

from kiel_groups.admin.cluster_admin import create_topic
from kiel_groups.clients import Producer
from kiel_groups.clients.produce.partitioners import hash_partitioner
from kiel_groups.config import parse_hosts
from kiel_groups.embedded import Cluster
from kiel_groups.model import Record
from kiel_groups.spark import KielDataSource
from kiel_groups.spark.tasks.worker_connections import find_leaders

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
    "running",
    "source",
]


def brokers_of(cluster: Cluster) -> str:
    """The value of ``kafka.bootstrap.servers``."""
    return ",".join(cluster.brokers)


def fill(cluster: Cluster, topic: str, values: Iterable[bytes | None], partition: int | None = None) -> None:
    """Produce values, each as its own key too; spread over the partitions by it, or to one of them."""

    async def produce() -> None:
        async with Producer(
            cluster.brokers, serializer=lambda value: value, partitioner=hash_partitioner, linger_ms=1, batch_size=1_000
        ) as producer:
            await asyncio.gather(*(producer.produce(topic, value, value, partition) for value in values))

    asyncio.run(produce())


def filled(cluster: Cluster, topic: str, partitions: int, values: Sequence[bytes | None]) -> str:
    """Make a topic and produce values into it; returns its name."""
    create_topic(cluster.zk_hosts, topic, partitions)
    fill(cluster, topic, values)
    return topic


def await_partitions(cluster: Cluster, topic: str, count: int) -> None:
    """Wait until brokers tell of so many partitions: ZooKeeper knows before they do."""
    brokers = parse_hosts(cluster.brokers, 0, "brokers")
    deadline = time.monotonic() + 30
    while len(find_leaders(brokers, "test", [topic])) != count:
        assert time.monotonic() < deadline, f"{topic} has not {count} partitions within 30 s"
        time.sleep(0.01)


def source(cluster: Cluster, **options: str) -> KielDataSource:
    """The source as Spark makes it; options whose names have dots are given with underscores."""
    named = {name.replace("_", "."): text for name, text in options.items()}
    return KielDataSource(CaseInsensitiveDict({"kafka.bootstrap.servers": brokers_of(cluster), **named}))


def batch_tasks(cluster: Cluster, schema: StructType | None = None, **options: str) -> tuple[Any, list[InputPartition]]:
    """The reader of a batch as workers get it, and its tasks."""
    made = source(cluster, **options)
    reader = made.reader(schema or made.schema())
    tasks = reader.partitions()
    return sent(reader), [sent(task) for task in tasks]


def read_batch(cluster: Cluster, **options: str) -> list[Record]:
    """All records of a batch, as its tasks bring them."""
    reader, tasks = batch_tasks(cluster, **options)
    return [record for task in tasks for record in records(reader, task)]


def sent(value: Any) -> Any:
    """What comes out of a pickle at a worker."""
    return cloudpickle.loads(cloudpickle.dumps(value))


def records(reader: Any, task: InputPartition) -> Iterator[Record]:
    """The rows of a task."""
    for batch in reader.read(task):
        for row in batch.to_pylist():
            assert (row["timestamp"], row["timestampType"]) == (None, -1)
            yield Record(row["topic"], row["partition"], row["offset"], row["key"], row["value"])


@dataclass
class Checkpoint:
    """Where batches end, as texts, and how many of them are done."""

    ends: list[str] = field(default_factory=list)
    done: int = 0

    def write(self, folder: Path, *, done: bool) -> None:
        """As Spark keeps it, of a query of two sources, of which this is the second."""
        for name in ("offsets", "commits"):
            (folder / name).mkdir()
        for number, end in enumerate(self.ends):
            (folder / "offsets" / str(number)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n-\n{end}')
            (folder / "commits" / f".{number}.crc").touch()
            if done:
                (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')


class Query:
    """A stream, from its start or its checkpoint on; each trigger makes a batch at most."""

    def __init__(self, cluster: Cluster, checkpoint: Checkpoint | None = None, **options: str) -> None:
        made = source(cluster, **options)
        self.checkpoint = checkpoint or Checkpoint()
        self.reader: Any = made.streamReader(made.schema())
        self._limit = self.reader.getDefaultReadLimit()

    def trigger(self, *, fails: bool = False) -> list[Record]:
        """
        Plan a batch, or take the one that was planned and not done, and read it.

        With ``fails``, its sink fails: it is planned and read, and not done.
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
        """The tasks of the last batch that was planned."""
        number, ends = len(self.checkpoint.ends) - 1, self.checkpoint.ends
        start = json.loads(ends[number - 1]) if number else self.reader.initialOffset()
        tasks: Sequence[InputPartition] = self.reader.partitions(start, json.loads(ends[number]))
        return tasks

    def _read(self, start: dict[str, Any], end: dict[str, Any]) -> list[Record]:
        reader = sent(self.reader)
        return [record for task in self.reader.partitions(start, end) for record in records(reader, sent(task))]

    def stop(self) -> None:
        """As with a query that ends."""
        self.reader.stop()


@contextmanager
def running(query: Query) -> Iterator[Query]:
    """A query that stops with the block."""
    try:
        yield query
    finally:
        query.stop()
