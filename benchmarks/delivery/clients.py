"""The clients that read topics, and the command lines of their programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.delivery.watched_process import Command
from benchmarks.peers import available_peer
from kiel_groups.embedded.jars import java_class_path
from kiel_groups.embedded.releases import CLASS_PATHS

__all__ = [
    "CONFLUENT",
    "HERE",
    "OUR_WAYS",
    "Client",
    "Run",
    "java_report",
    "kiel_clients",
    "peer_program",
    "peers",
    "program",
]

HERE = Path(__file__).parents[2]
OUR_WAYS = ("async for", "consume()", "getmany()", "consume_batches()", "sync")
CONFLUENT_WAYS = ("consume()", "consume() crc", "poll()")

#: The client to which the others are compared.
CONFLUENT = "confluent-kafka consume()"

#: The reports of one run of Java's program, which divides by the milliseconds between two, and fails if there are none.
_JAVA_REPORTS = 10

#: Runs a module of this checkout with the kiel-groups of the first folder in ``PYTHONPATH``, which may be another one.
#: It needs ``-P``: otherwise the current folder, in which benchmarks are started, comes before ``PYTHONPATH``.
_PROGRAM = (
    "import runpy, sys; import kiel_groups; sys.path.insert(0, sys.argv.pop(1)); "
    "runpy.run_module('benchmarks.members.' + sys.argv.pop(1), run_name='__main__', alter_sys=False)"
)


@dataclass(frozen=True, slots=True)
class Run:
    """One reading of a topic: at most ``records``, for at most ``limit_s`` seconds after the first delivery."""

    broker: str
    zookeeper: str
    topic: str
    partitions: int
    group: str
    records: int
    limit_s: float


@dataclass(frozen=True, slots=True)
class Client:
    """A client, or one of its ways to read. Those that are not ``everywhere`` are measured in a few cells only."""

    name: str
    command: Callable[[Run], Command]
    everywhere: bool = True


def program(checkout: Path, module: str, *arguments: object) -> Command:
    """Return the command that runs a module of ``benchmarks.members`` with the kiel-groups of a checkout."""
    # -P: without it, Python would import kiel-groups from the present folder, which is mostly this checkout.
    python = [sys.executable, "-P", "-c", _PROGRAM]
    return Command([*python, str(HERE), module, *map(str, arguments)], _environment(checkout))


def peer_program(python: Path, module: str, *arguments: object) -> Command:
    """Return the command that runs a module of ``benchmarks.members`` in the environment of a peer."""
    return Command([str(python), "-m", f"benchmarks.members.{module}", *map(str, arguments)], _environment(HERE))


def _environment(checkout: Path) -> Mapping[str, str]:
    return os.environ | {"PYTHONPATH": str(checkout)}


def kiel_clients(checkouts: Mapping[str, Path]) -> list[Client]:
    """Return our ways to read, with the code of each of the checkouts, whose names are put before those of the ways."""

    def command(way: str, checkout: Path, run: Run) -> Command:
        where = [run.broker, run.zookeeper, run.topic, run.group]
        return program(checkout, "kiel_reader", way, *where, run.records, run.limit_s)

    return [
        Client(f"{name} {way}", partial(command, way, checkout))
        for way in OUR_WAYS
        for name, checkout in checkouts.items()
    ]


def peers(wanted: Callable[[str], bool]) -> Iterator[Client]:
    """Yield the other clients whose names are wanted. Say which of them cannot be installed, and leave them out."""
    confluent = [name for way in CONFLUENT_WAYS if wanted(name := f"confluent-kafka {way}")]
    python = available_peer("confluent-kafka") if confluent else None
    if python:
        yield from (Client(name, partial(_confluent, python, name.split(" ", 1)[1])) for name in confluent)
    if wanted("kafka-python") and (python := available_peer("kafka-python")):
        yield Client("kafka-python", partial(_kafka_python, python), everywhere=False)
    if wanted("pykafka") and (python := available_peer("pykafka")):
        yield Client("pykafka", partial(_pykafka, python), everywhere=False)
    if wanted("Java"):
        yield Client("Java ConsumerPerformance", _java, everywhere=False)


def _confluent(python: Path, way: str, run: Run) -> Command:
    arguments = (way, run.broker, run.topic, run.partitions, run.records, run.limit_s)
    return peer_program(python, "confluent_reader", *arguments)


def _kafka_python(python: Path, run: Run) -> Command:
    arguments = (run.broker, run.topic, run.partitions, run.records, run.limit_s)
    return peer_program(python, "kafka_python_reader", *arguments)


def _pykafka(python: Path, run: Run) -> Command:
    return peer_program(python, "pykafka_reader", run.broker, run.topic, run.records, run.limit_s)


def _java(run: Run) -> Command:
    """
    Run Kafka 0.8's own program, which reads with the high-level consumer and adds up the lengths of the values.

    It reads all records, and takes five seconds to notice that there are no more; so it is killed. With less heap it
    cannot hold the answers for 200 partitions.
    """
    arguments = ["--zookeeper", run.zookeeper, "--topic", run.topic, "--group", run.group, "--threads", "1"]
    arguments += ["--messages", str(run.records), "--show-detailed-stats", "--hide-header"]
    arguments += ["--reporting-interval", str(max(1, run.records // _JAVA_REPORTS))]
    start = ["java", "-Xmx2g", "-cp", java_class_path(CLASS_PATHS["kafka-0.8.2.2"])]
    return Command(
        [*start, "kafka.tools.ConsumerPerformance", *arguments],
        os.environ,
        report=java_report,
        reports=_JAVA_REPORTS,
        orderly=False,
    )


def java_report(line: str) -> dict[str, int] | None:
    """Return what ``time, thread, fetch size, MiB, MiB/s, messages, messages/s`` reports."""
    columns: Sequence[str] = line.split(", ")
    if len(columns) != 7:
        return None
    return {"records": int(columns[5]), "bytes": round(float(columns[3]) * (1 << 20))}
