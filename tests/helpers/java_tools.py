"""Run the tools of Kafka 0.8 and ZooKeeper as operators do. Each tool is a Java process that takes about a second."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kiel_groups.embedded.jars import java_class_path
from kiel_groups.embedded.releases import ClassPath, kafka_release, zookeeper_class_path
from tests.helpers.commands import Running

__all__ = [
    "ConsumerOffset",
    "consume_some",
    "console_consumer",
    "offset_checker",
    "offset_table",
    "run_java",
    "running_java",
    "zk_cli",
    "zk_offsets_tool",
]

_LOG4J = """\
log4j.rootLogger=WARN, stderr
log4j.appender.stderr=org.apache.log4j.ConsoleAppender
log4j.appender.stderr.target=System.err
log4j.appender.stderr.layout=org.apache.log4j.PatternLayout
log4j.appender.stderr.layout.ConversionPattern=%p %c{1}: %m%n
"""
_QUICK = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Djava.net.preferIPv4Stack=true")
_LIMIT_S = 60


@dataclass(frozen=True, slots=True)
class ConsumerOffset:
    """A row of ConsumerOffsetChecker, as text: ``unknown`` for an unknown offset, ``none`` for no owner."""

    partition: int
    offset: str
    log_size: str
    lag: str
    owner: str


@contextmanager
def _command(classes: ClassPath, main: str, arguments: Sequence[str]) -> Iterator[list[str]]:
    java = shutil.which("java")
    assert java is not None, "tests need Java"
    with tempfile.TemporaryDirectory() as folder:
        logging = Path(folder) / "log4j.properties"
        logging.write_text(_LOG4J, encoding="utf-8")
        quiet = [f"-Dlog4j.configuration=file:{logging}", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        yield [java, *_QUICK, *quiet, "-cp", java_class_path(classes), main, *arguments]


def _run(classes: ClassPath, main: str, arguments: Sequence[str], typed: str = "") -> subprocess.CompletedProcess[str]:
    with _command(classes, main, arguments) as command:
        return subprocess.run(
            command, input=typed, capture_output=True, encoding="utf-8", timeout=_LIMIT_S, check=False
        )


def run_java(classes: ClassPath, source: Path, typed: str) -> str:
    """
    Run a Java program from its one source file, which needs a JDK, and return its standard output.

    Args:
        classes: The jars that the program uses.
        source: The file, with the class that has the main method first.
        typed: The program's standard input.
    """
    outcome = _run(classes, str(source), [], typed)
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


@contextmanager
def running_java(classes: ClassPath, source: Path) -> Iterator[Running]:
    """Run a Java program from its one source file during the block. The caller types its standard input."""
    with _command(classes, str(source), []) as command, Running(command[1:], program=command[0], typed=True) as process:
        yield process


def offset_checker(version: str, zookeeper: str, group: str) -> subprocess.CompletedProcess[str]:
    """
    Run ``kafka.tools.ConsumerOffsetChecker``, and return its output. It exits with 0 even after a failure, so callers
    check the output.
    """
    return _run(
        kafka_release(version).classes,
        "kafka.tools.ConsumerOffsetChecker",
        ["--zookeeper" if version.startswith("0.8.2") else "--zkconnect", zookeeper, "--group", group],
    )


def offset_table(text: str) -> list[ConsumerOffset]:
    """Parse the rows of ConsumerOffsetChecker: group, topic, partition, offset, log size, lag, owner."""
    rows = [line.split() for line in text.splitlines()]
    return [ConsumerOffset(int(row[2]), *row[3:]) for row in rows if len(row) == 7 and row[2].isdigit()]


def zk_offsets_tool(
    main: str, version: str, zookeeper: str, file: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run ``kafka.tools.ExportZkOffsets`` or ``ImportZkOffsets`` with a file."""
    option = "--output-file" if main.startswith("Export") else "--input-file"
    return _run(
        kafka_release(version).classes, f"kafka.tools.{main}", ["--zkconnect", zookeeper, option, str(file), *arguments]
    )


def zk_cli(version: str, zookeeper: str, *commands: str) -> str:
    """
    Type commands into zkCli, and return its standard output and standard error.

    The commands are typed because zkCli of 3.4.6 prints nothing for a command in its arguments.
    """
    typed = "".join(f"{command}\n" for command in (*commands, "quit"))
    outcome = _run(zookeeper_class_path(version), "org.apache.zookeeper.ZooKeeperMain", ["-server", zookeeper], typed)
    return outcome.stdout + outcome.stderr


def consume_some(zookeeper: str, group: str, topic: str, count: int) -> None:
    """Let the high-level consumer of 0.8.2.2 read ``count`` records of a topic from its start, commit them, and end."""
    arguments = ["--zookeeper", zookeeper, "--topic", topic, "--from-beginning", "--max-messages", str(count)]
    with tempfile.NamedTemporaryFile("w", suffix=".properties") as settings:
        print(f"group.id={group}", file=settings, flush=True)
        arguments += ["--consumer.config", settings.name]
        outcome = _run(kafka_release("0.8.2.2").classes, "kafka.tools.ConsoleConsumer", arguments)
    assert f"Consumed {count} messages" in outcome.stderr, outcome.stderr


@contextmanager
def console_consumer(version: str, zookeeper: str, group: str, topic: str, *more: str) -> Iterator[Running]:
    """
    Run Kafka's high-level consumer, which prints values, as a member of ``group`` during the block.

    ``more`` are further settings of a consumer of 0.8.2, such as ``offsets.storage=kafka``.
    """
    with tempfile.TemporaryDirectory() as folder:
        package, member = "consumer", ["--group", group]
        if version.startswith("0.8.2"):
            settings = Path(folder) / "consumer.properties"
            lines = [f"group.id={group}", "zookeeper.session.timeout.ms=4000", *more]
            settings.write_text("\n".join(lines), encoding="utf-8")
            package, member = "tools", ["--consumer.config", str(settings)]
        main, arguments = f"kafka.{package}.ConsoleConsumer", ["--zookeeper", zookeeper, "--topic", topic, *member]
        with (
            _command(kafka_release(version).classes, main, arguments) as command,
            Running(command[1:], program=command[0]) as process,
        ):
            yield process
