"""
Measure how fast Spark reads 0.8 topics, and how long a micro-batch takes.

    python -m benchmarks.spark_read [--quick] [--json FILE] [--only batch|stream] [--kafka 3.9.1]

The benchmark runs a real broker, and one Spark session on all cores of this machine, with the settings in
docs/spark-installing.rst. The figures are medians of the rounds, in which the ways to read take turns.

- ``batch``: all columns of a topic of 1, 16 or 100 partitions, into Spark's ``noop`` sink; messages of 100 bytes and of
  1 KiB. ``kiel`` is our data source. ``kafka-python`` is a program without our data source: ``mapPartitions`` over as
  many tasks, a consumer in each, into a table of the same columns. It reads only the beginning of the topic, because
  the whole topic would take ten times as long as all the rest. On a busy computer the others do so, too: a first round
  reads a tenth, and no later read has more rows than twenty seconds suffice for by its speed; ``rows`` has their
  number. A line on standard error follows each read. ``arrow`` is the upper bound of any source in Python: it
  returns one ready-made Arrow batch again and again, in as many tasks. ``copied`` returns each time a copy in new
  memory, as the bytes of a socket are. Planning, some tenths of a second for each way, is part of the time. ``cpu_us``
  is the processor time for each row of Spark and its Python workers, ``broker_us`` that of the broker, in microseconds.
  ``to …`` is the rate divided by that of another way in the same round; above 1 is faster.
- ``stream``: queries whose micro-batches have as many rows, in one task: ``kiel`` on 100 partitions, each of which gets
  a few messages between two micro-batches, with and without commits for its group; ``ready-made``, which looks nothing
  up and returns one ready-made Arrow batch, and so is the lower bound of any source in Python; and Spark's own ``rate``
  source. The figures are the times that Spark reports for a micro-batch and its parts, in milliseconds, the shortest
  micro-batch, the processor time of Spark and its Python for each (the start and the end of the query included), and
  the time divided by that of ``rate`` in the same round.

With ``--kafka 3.9.1``, ``spark`` is Spark's own source, ``spark-sql-kafka-0-10``, which reads no topics of 0.8. Maven
fetches its jars into the cache of the servers' jars. The release of the jars is that of Spark, 4.0.0, so this needs
PySpark 4.0.

kafka-python has an environment of its own (see ``benchmarks.peers``); if it cannot be installed, the benchmark says so
and continues without it.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from benchmarks.delivery.set_writer import SetWriter
from benchmarks.members.spark_sources import (
    KEY_BYTES,
    ReadyMade,
    kafka_python_rows,
    message_set,
    messages_in,
)
from benchmarks.peers import available_peer
from kiel_groups import TopicPartition
from kiel_groups.embedded import Cluster
from kiel_groups.embedded.jars import jar_folder
from kiel_groups.embedded.releases import DEFAULT_KAFKA, ClassPath, Coordinate
from kiel_groups.spark.columns import READ_SCHEMA

REPOSITORY = Path(__file__).parents[1]
CORES = os.cpu_count() or 1
#: As many tasks as our source makes of many partitions.
TASKS = 2 * CORES
PARTITIONS = (1, 16, 100)
#: The size of the message sets in the topics. A broker's index has the position of each set, and the broker scans the
#: messages in between: with the largest sets that it accepts, it would scan for longer than it sends.
SET_BYTES = 16 << 10
STREAM_PARTITIONS = 100
STREAM_MESSAGES = 10
LIMIT_S = 60.0
#: How long one read may take, in seconds, by the speed of the first round, which reads only a part of the rows.
READ_S = 20.0
FIRST_PART = 10
PEER, OTHERS = "kafka-python", "others"

#: Spark's own source, for the release of Kafka that it reads. Spark has what else it needs.
NEWER_KAFKA = "3.9.1"
SPARKS_OWN = ClassPath(
    "spark-sql-kafka-4.0.0",
    (
        Coordinate("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.0.0"),
        Coordinate("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
        Coordinate("org.apache.kafka", "kafka-clients", "3.9.0"),
        Coordinate("org.apache.commons", "commons-pool2", "2.12.0"),
    ),
)

QUIET = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
TUNED = {"spark.python.unix.domain.socket.enabled": "true"}

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic, and the number and size of its messages."""

    partitions: int
    value_bytes: int
    rows_each: int

    @property
    def name(self) -> str:
        return f"{self.partitions}-times-{self.rows_each}-of-{self.value_bytes}"

    @property
    def rows(self) -> int:
        return self.rows_each * self.partitions

    @property
    def tasks(self) -> int:
        return min(TASKS, self.partitions)


class Feeder:
    """Creates topics, and writes messages to the only broker of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._writer = SetWriter(cluster.brokers[0])

    def fill(self, topic: Topic) -> None:
        """Create a topic with all of its rows."""
        start_s = time.perf_counter()
        asyncio.run(self._cluster.create_topic(topic.name, topic.partitions))
        partitions = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
        at_once = messages_in(SET_BYTES, topic.value_bytes)
        counts = [min(at_once, topic.rows_each - start) for start in range(0, topic.rows_each, at_once)]
        # The broker knows only after a moment that it is the leader: ``append`` waits for that.
        self.append(partitions, counts[0], topic.value_bytes)
        sets = (message_set(count, topic.value_bytes) for count in counts[1:])
        self._writer.append_all(dict.fromkeys(partitions, each) for each in sets)
        progress(f"{topic.name}: written in {time.perf_counter() - start_s:.1f} s")

    def append(self, partitions: Sequence[TopicPartition], count: int, value_bytes: int) -> None:
        """Write ``count`` messages to each of the partitions."""
        self._writer.append(dict.fromkeys(partitions, message_set(count, value_bytes)))

    def close(self) -> None:
        self._writer.close()


def progress(text: str) -> None:
    click.echo(f"# {text}", err=True)


# ---------------------------------------------------------------------- ways to read


class Contest:
    """
    The ways to read a topic, in one Spark session.

    Each way gets a topic and a number of rows for each partition, and returns a table of these rows.
    """

    def __init__(
        self, spark: SparkSession, cluster: Cluster, kafka: str, peer_packages: str | None, peer_rows: int
    ) -> None:
        self._spark = spark
        self._broker = cluster.brokers[0]
        self._is_newer = kafka == NEWER_KAFKA
        self._peer_packages = peer_packages
        #: The most rows of kafka-python.
        self.peer_rows = peer_rows
        #: The processes whose time is measured: Java with its workers, and the broker.
        self.processes = (spark.sparkContext._gateway.proc.pid, cluster.kafka[0].pid)
        self.ways: dict[str, Callable[[Topic, int], DataFrame]] = {
            "kiel": self._kiel,
            "arrow": self._ready_made,
            "copied": partial(self._ready_made, copies=1),
        }
        if self._is_newer:
            self.ways["spark"] = partial(self._kiel, source="kafka")
        if peer_packages:
            self.ways[PEER] = self._kafka_python
        spark.dataSource.register(ReadyMade)

    def _kiel(self, topic: Topic, rows_each: int, source: str = "kiel") -> DataFrame:
        ends = json.dumps({topic.name: dict.fromkeys(map(str, range(topic.partitions)), rows_each)})
        places = {"startingOffsets": "earliest", "endingOffsets": ends}
        options = {"kafka.bootstrap.servers": self._broker, "subscribe": topic.name, **places}
        return self._spark.read.format(source).options(**options).load()

    def _ready_made(self, topic: Topic, rows_each: int, copies: int = 0) -> DataFrame:
        sizes = {"rows": rows_each * topic.partitions, "value_bytes": topic.value_bytes}
        return self._spark.read.format("ready-made").options(tasks=topic.tasks, copies=copies, **sizes).load()

    def _kafka_python(self, topic: Topic, rows_each: int) -> DataFrame:
        shares = [range(task, topic.partitions, topic.tasks) for task in range(topic.tasks)]
        version = None if self._is_newer else (0, 8, 2)
        read = partial(kafka_python_rows, self._peer_packages, self._broker, version, topic.name, rows_each)
        rows = self._spark.sparkContext.parallelize(shares, topic.tasks).mapPartitions(read)
        return self._spark.createDataFrame(rows, READ_SCHEMA)


def read_in_turns(contest: Contest, topic: Topic, rounds: int) -> Iterator[Row]:
    """Measure the speed of each way to read. An additional first round warms up, and bounds the rows of the others."""
    rates: dict[str, list[float]] = defaultdict(list)
    used_us: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    # Planning is part of the time. So rates compare only if all ways read as much, as all but kafka-python do.
    most = {PEER: max(1, min(topic.rows_each, contest.peer_rows // topic.partitions)), OTHERS: topic.rows_each}
    for number in range(rounds + 1):
        bounds = dict(most)
        for name, way in contest.ways.items():
            kind = PEER if name == PEER else OTHERS
            rows_each = most[kind] if number else max(1, most[kind] // FIRST_PART)
            rows = rows_each * topic.partitions
            start_s, before_s = time.perf_counter(), [cpu_time_below_s(pid) for pid in contest.processes]
            way(topic, rows_each).write.format("noop").mode("overwrite").save()
            took_s = time.perf_counter() - start_s
            progress(f"{topic.name}: round {number} of {rounds}: {name}: {rows:,} rows in {took_s:.1f} s")
            if number:
                rates[name].append(rows / took_s)
                after_s = (cpu_time_below_s(pid) for pid in contest.processes)
                used_us[name].append(tuple(1e6 * (a - b) / rows for a, b in zip(after_s, before_s, strict=True)))
            else:
                bounds[kind] = min(bounds[kind], max(rows_each, int(rows_each * READ_S / took_s)))
        most = bounds
    for name, found in rates.items():
        others = [other for other in ("arrow", "copied", "kafka-python", "spark") if other in rates]
        cpu_us, broker_us = (round(median(each), 2) for each in zip(*used_us[name], strict=True))
        yield {
            "partitions": topic.partitions,
            "value_bytes": topic.value_bytes,
            "way": name,
            "rows": most[PEER if name == PEER else OTHERS] * topic.partitions,
            "rows_per_s": round(median(found)),
            "mb_per_s": round(median(found) * (topic.value_bytes + KEY_BYTES) / 1e6, 1),
            "cpu_us": cpu_us,
            "broker_us": broker_us,
            **{f"to {other}": ratio(found, rates[other]) for other in others},
        }


def ratio(ones: Sequence[float], others: Sequence[float]) -> float:
    """Return the median of the ratios within each round."""
    return round(median(one / other for one, other in zip(ones, others, strict=True)), 2)


def cpu_time_below_s(pid: int) -> float:
    """Return the processor time of a process and of all processes below it, those included that have ended."""
    children: dict[int, list[int]] = defaultdict(list)
    ticks: dict[int, int] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = file.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # The process has ended meanwhile.
        children[int(fields[1])].append(int(file.parent.name))
        ticks[int(file.parent.name)] = sum(map(int, fields[11:15]))
    total, waiting = 0, [pid]
    while waiting:
        total += ticks.get(each := waiting.pop(), 0)
        waiting += children[each]
    return total / os.sysconf("SC_CLK_TCK")


# ---------------------------------------------------------------------- micro-batches

#: Spark's names for the parts of a micro-batch, and the names of the figures.
PARTS = {"triggerExecution": "total", "latestOffset": "offsets", "addBatch": "tasks", "walCommit": "log"}


def stream(spark: SparkSession, feeder: Feeder, broker: str, turns: int, rounds: int) -> Iterator[Row]:
    """
    Measure the micro-batches of each kind of query, which take turns. Each is compared with ``rate``.

    An additional first turn warms up: Java is three times as slow in the first query, whatever it reads.
    """
    topic = Topic(STREAM_PARTITIONS, 100, STREAM_MESSAGES)
    feeder.fill(topic)
    partitions = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
    read = {"kafka.bootstrap.servers": broker, "subscribe": topic.name, "startingOffsets": "earliest"}
    # So few messages are one task.
    options: dict[str, Row] = {
        "kiel": read,
        "kiel, no commits": {**read, "kiel.commit": "false"},
        "ready-made": {"rows": topic.rows, "value_bytes": topic.value_bytes},
        "rate": {"rowsPerSecond": topic.rows, "numPartitions": 1},
    }
    spark.dataSource.register(ReadyMade)

    def feed() -> None:
        feeder.append(partitions, STREAM_MESSAGES, topic.value_bytes)

    found: dict[str, list[Mapping[str, int]]] = {way: [] for way in options}
    totals: dict[str, list[float]] = {way: [] for way in options}
    used_ms: dict[str, list[float]] = {way: [] for way in options}
    java: int = spark.sparkContext._gateway.proc.pid
    for turn in range(turns + 1):
        for way in options:
            table = spark.readStream.format(way.partition(",")[0]).options(**options[way]).load()
            before_s = cpu_time_below_s(java)
            times = list(micro_batches(table, rounds, topic.rows, feed if "subscribe" in options[way] else None))
            progress(f"turn {turn} of {turns}: {way}: {len(times)} micro-batches")
            if not turn:
                continue
            used_ms[way].append(1e3 * (cpu_time_below_s(java) - before_s) / rounds)
            found[way] += times
            totals[way].append(median(each["triggerExecution"] for each in times))
    for way, times in found.items():
        figures = {name: round(median(each.get(part, 0) for each in times)) for part, name in PARTS.items()}
        least, cpu_ms = min(each["triggerExecution"] for each in times), round(median(used_ms[way]))
        compared = {"least": least, "cpu_ms": cpu_ms, "to rate": ratio(totals[way], totals["rate"])}
        yield {"way": way, "micro_batches": len(times), **figures, **compared}


def micro_batches(
    table: DataFrame, rounds: int, rows: int, feed: Callable[[], None] | None
) -> Iterator[Mapping[str, int]]:
    """Yield the times of the micro-batches with at least ``rows`` rows; ``feed`` is called before each."""
    with tempfile.TemporaryDirectory() as folder:
        writer = table.writeStream.format("noop").option("checkpointLocation", folder)
        query = writer.trigger(processingTime="1 second").start()
        try:
            last = micro_batch(query, -1)["batchId"]
            for number in range(rounds + 1):
                if feed is not None:
                    feed()
                found = micro_batch(query, last)
                last = found["batchId"]
                # Leave out the first one, and those that began while the messages were being written.
                if number and found["numInputRows"] >= rows:
                    yield found["durationMs"]
        finally:
            query.stop()


def micro_batch(query: StreamingQuery, last: int) -> Mapping[str, Any]:
    """Return Spark's report of the first micro-batch with rows after the micro-batch ``last``."""
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        for progress in query.recentProgress:
            if progress["batchId"] > last and progress["numInputRows"]:
                return progress
        time.sleep(0.05)
    raise click.ClickException(f"no micro-batch within {LIMIT_S:.0f} s: {query.exception() or query.status}")


# ---------------------------------------------------------------------- command


def session(stack: ExitStack, kafka: str) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # With PYTHONPATH, workers import the modules of this checkout, wherever the benchmark is started.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    builder = SparkSession.builder.master(f"local[{CORES}]").appName("benchmarks.spark_read")
    settings = {**QUIET, **TUNED}
    if kafka == NEWER_KAFKA:
        if not pyspark.__version__.startswith("4.0."):
            raise click.ClickException(
                f"Spark's own source is of 4.0.0, and PySpark {pyspark.__version__} is installed"
            )
        settings["spark.jars"] = ",".join(map(str, sorted(jar_folder(SPARKS_OWN).glob("*.jar"))))
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    stack.callback(spark.stop)
    return spark


def peer_packages() -> str | None:
    python = available_peer("kafka-python")
    if python is None:
        return None
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()


def run(only: str | None, kafka: str, *, quick: bool) -> Iterator[Row]:
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(kafka=kafka))
        feeder, broker = Feeder(cluster), cluster.brokers[0]
        stack.callback(feeder.close)
        spark = session(stack, kafka)
        if only in (None, "batch"):
            contest = Contest(spark, cluster, kafka, peer_packages(), 20_000 if quick else 100_000)
            # The first reads of a session start its processes, and say nothing about speed.
            feeder.fill(started := Topic(1, 100, 1_000))
            for _ in read_in_turns(contest, started, 0):
                pass
            for value_bytes, rows in ((100, 2_000_000), (1024, 300_000)):
                for partitions in PARTITIONS:
                    topic = Topic(partitions, value_bytes, rows // (10 if quick else 1) // partitions)
                    feeder.fill(topic)
                    for row in read_in_turns(contest, topic, 1 if quick else 3):
                        yield {"what": "batch", **row}
        if only in (None, "stream"):
            for row in stream(spark, feeder, broker, *((1, 5) if quick else (3, 8))):
                yield {"what": "stream", **row}


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--quick", is_flag=True, help="A tenth of the rows, and one round after the first.")
@click.option("--json", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write the result there, too.")
@click.option("--only", type=click.Choice(["batch", "stream"]), help="Measure only one of the two.")
@click.option("--kafka", type=click.Choice([DEFAULT_KAFKA, NEWER_KAFKA]), default=DEFAULT_KAFKA, show_default=True)
def main(quick: bool, target: Path | None, only: str | None, kafka: str) -> None:
    rows = []
    for row in run(only, kafka, quick=quick):
        click.echo(", ".join(f"{name} {figure}" for name, figure in row.items()))
        rows.append(row)
    if target:
        about = {"benchmark": "spark_read", "date": datetime.now(UTC).isoformat(timespec="seconds")}
        machine = {"python": platform.python_version(), "machine": platform.machine(), "cores": CORES}
        versions = {"pyspark": pyspark.__version__, "kafka": kafka}
        target.write_text(json.dumps({**about, **machine, **versions, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
