"""``kiel-groups produce`` as a process: the stored records, the printed lines, and its end."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kiel_groups.clients import BEGINNING, SingleConsumer
from kiel_groups.embedded import Cluster
from tests.helpers.commands import REPOSITORY, environment
from tests.proxies import KafkaProxy
from tests.proxies.kafka_proxy import Exchange, Reply

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]
Produce = Callable[..., tuple[int, list[str]]]

PRODUCE = 0

TERMINAL = {"TERM": "xterm", "COLUMNS": "80", "NO_COLOR": "1"}


@pytest.fixture
def topic(unique: Unique) -> str:
    """Return the name of a topic that does not exist yet."""
    return unique("topic")


@pytest.fixture
def produce(cluster_39: Cluster, topic: str, tmp_path: Path) -> Produce:
    """
    Return a function that runs ``kiel-groups produce`` with some input, and returns its status and the lines of its
    errors.
    """

    def run(sent: bytes, *further: str) -> tuple[int, list[str]]:
        words = command(cluster_39, topic, *further)
        done = subprocess.run(words, input=sent, cwd=tmp_path, env=environment(), capture_output=True, timeout=60)
        assert done.stdout == b""
        return done.returncode, done.stderr.decode().splitlines()

    return run


def command(cluster: Cluster, topic: str, *further: str) -> list[str]:
    """Return the command. If an option is given twice, the last one counts."""
    return [sys.executable, "-m", "kiel_groups", "produce", topic, f"--brokers={cluster.brokers[0]}", *further]


async def stored(cluster: Cluster, topic: str, count: int) -> list[tuple[int, bytes | None, bytes | None]]:
    """Wait for ``count`` records, and return partition, key and value of each, sorted by partition."""
    found = []
    async with SingleConsumer(cluster.brokers) as consumer:
        await consumer.subscribe(topic, BEGINNING)
        while len(found) < count:
            record = await anext(consumer)
            found.append((record.partition, record.key, record.value))
    return sorted(found, key=lambda each: each[0])


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
async def test_each_line_becomes_a_record(cluster_39: Cluster, topic: str, produce: Produce, codec: str) -> None:
    """
    The order of the lines is kept. Empty lines, lines that are not text, and a last line without a line end are stored
    and counted.
    """
    await cluster_39.create_topic(topic, 1)
    status, printed = produce(b"first\n\n\xff\r\nlast", f"--codec={codec}")
    assert status == 0
    assert re.fullmatch(r"info: stored 4 records in \d+\.\d s, [\d,]+ records/s", "\n".join(printed))
    assert await stored(cluster_39, topic, 4) == [(0, None, value) for value in (b"first", b"", b"\xff\r", b"last")]


async def test_keys_select_partitions_and_lines_without_a_key_are_reported(
    cluster_39: Cluster, topic: str, produce: Produce
) -> None:
    """Records with equal keys go to the same partition. A line without a key is not stored, and the status is 1."""
    await cluster_39.create_topic(topic, 8)
    lines = [f"{number % 3}\t{number}" for number in range(30)]
    lines[7:10] = ["no", "key", "here"]
    status, printed = produce("\n".join(lines).encode(), "--key-separator=\\t")
    assert (status, printed[0]) == (1, r"error: line 8: there is no key separator '\t'")
    assert printed[1].startswith("info: stored 27 records in ")
    assert printed[2] == "error: not stored: 3 lines, 8 to 10"
    records = await stored(cluster_39, topic, 27)
    assert len({(partition, key) for partition, key, _ in records}) == 3
    assert {int(value) % 3 == int(key or b"") for _, key, value in records} == {True}


async def test_a_value_that_equals_the_text_of_null_is_null(cluster_39: Cluster, topic: str, produce: Produce) -> None:
    """A value that equals the text of --null is sent as null; longer, shorter and empty ones are sent as they are."""
    await cluster_39.create_topic(topic, 1)
    status, printed = produce(b"a:1\nb:NULL\nc:NULLs\nd:\n", "--key-separator=:", "--null=NULL")
    assert (status, len(printed)) == (0, 1)
    expected = [(0, b"a", b"1"), (0, b"b", None), (0, b"c", b"NULLs"), (0, b"d", b"")]
    assert await stored(cluster_39, topic, 4) == expected


async def test_a_file_is_produced_to_one_partition(
    cluster_39: Cluster, topic: str, produce: Produce, tmp_path: Path
) -> None:
    """The file is larger than one read. With --quiet nothing is printed."""
    await cluster_39.create_topic(topic, 3)
    values = [b"%06d" % number * 10 for number in range(10_000)]
    (tmp_path / "lines").write_bytes(b"\n".join(values) + b"\n")
    assert produce(b"", "lines", "--partition=2", "--quiet") == (0, [])
    assert await stored(cluster_39, topic, len(values)) == [(2, None, value) for value in values]


async def test_a_refused_record_is_reported_and_the_others_are_stored(
    cluster_39: Cluster, topic: str, produce: Produce
) -> None:
    """A record of more than a million bytes, which the broker refuses, is reported. The other records are stored."""
    await cluster_39.create_topic(topic, 1)
    status, printed = produce(b"before\n" + b"x" * 2_000_000 + b"\nafter\n")
    assert status == 1
    assert printed[0].startswith(
        f"error: line 2: producing to {topic}:0 failed: a message of 2000026 bytes was refused"
    )
    assert printed[-1] == "error: not stored: 1 line, 2"
    assert [value for _, _, value in await stored(cluster_39, topic, 2)] == [b"before", b"after"]


def started(words: list[str], **streams: int) -> subprocess.Popen[bytes]:
    """Start a command with some of its streams redirected."""
    return subprocess.Popen(words, cwd=REPOSITORY, env=environment() | TERMINAL, **streams)


async def test_ctrl_c_stores_what_was_read(cluster_39: Cluster, topic: str) -> None:
    """Lines are read from an open pipe as they arrive. Ctrl-C ends the command with a summary and status 130."""
    await cluster_39.create_topic(topic, 1)
    reader, writer = os.pipe()
    process = started(command(cluster_39, topic), stdin=reader, stderr=subprocess.PIPE)
    with process, os.fdopen(writer, "wb", buffering=0) as pipe:
        os.close(reader)
        pipe.write(b"one\ntwo\n")
        assert [value for _, _, value in await stored(cluster_39, topic, 2)] == [b"one", b"two"]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert process.stderr is not None
        assert process.stderr.read().startswith(b"info: stored 2 records in ")


async def test_ctrl_c_reports_records_with_an_unknown_outcome(cluster_39: Cluster, topic: str) -> None:
    """The broker stores the lines but does not answer, so the command counts them as neither stored nor failed."""
    await cluster_39.create_topic(topic, 1)
    reader, writer = os.pipe()
    asked = threading.Event()

    def no_answer(exchange: Exchange) -> Reply:
        if exchange.api_key != PRODUCE:
            return exchange.response
        asked.set()
        return None

    with KafkaProxy(cluster_39.brokers[0], no_answer) as proxy:
        words = command(cluster_39, topic, f"--brokers={proxy.address}")
        process = started(words, stdin=reader, stderr=subprocess.PIPE)
        with process, os.fdopen(writer, "wb", buffering=0) as pipe:
            os.close(reader)
            pipe.write(b"one\ntwo\n")
            assert asked.wait(20)
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
            assert process.stderr is not None
            first, *_, stored_line, last = process.stderr.read().decode().splitlines()
    assert first.startswith(f"error: line 1: the outcome of producing to {topic}:0 is unknown")
    assert stored_line.startswith("info: stored 0 records in ")
    assert last == "error: may or may not be stored: 2 lines, 1 to 2"


async def test_a_frozen_broker_and_its_recovery_are_reported(start_cluster: Callable[..., Cluster], topic: str) -> None:
    """
    After ten seconds, one line reports the frozen broker. Another line reports its recovery. The record is stored.
    """
    cluster = start_cluster()
    await cluster.create_topic(topic, 1)
    reader, writer = os.pipe()
    process = started(command(cluster, topic), stdin=reader, stderr=subprocess.PIPE)
    with process, os.fdopen(writer, "wb", buffering=0) as pipe:
        os.close(reader)
        pipe.write(b"one\n")
        await stored(cluster, topic, 1)
        cluster.kafka[0].pause()
        pipe.write(b"two\n")
        assert process.stderr is not None
        # The answer to the first record may still be in the broker, too.
        waiting = (
            rf"warning: no broker has stored a record of {topic}:0 for 10 s; [12] records? waits? for the first answer"
        )
        assert re.fullmatch(waiting, process.stderr.readline().decode().strip())
        cluster.kafka[0].resume()
        assert process.stderr.readline().startswith(
            b"warning: brokers store the records of all partitions again, after 1"
        )
        pipe.close()
        assert process.wait(20) == 0
        assert process.stderr.read().startswith(b"info: stored 2 records in ")


async def test_at_a_terminal_a_bar_shows_the_rate(cluster_39: Cluster, topic: str, tmp_path: Path) -> None:
    """The bar is removed at the end. With NO_COLOR the bar has no colours."""
    await cluster_39.create_topic(topic, 1)
    (tmp_path / "lines").write_bytes(b"a line\n" * 100)
    ours, theirs = pty.openpty()
    with started(command(cluster_39, topic, str(tmp_path / "lines")), stderr=theirs) as process:
        os.close(theirs)
        printed = b""
        while chunk := _read(ours):
            printed += chunk
        assert process.wait(20) == 0
    os.close(ours)
    assert b" records/s" in printed
    assert "\N{BOX DRAWINGS HEAVY HORIZONTAL}".encode() in printed
    assert not re.search(rb"\x1b\[[0-9;]*3[0-9]", printed)
    assert printed.rstrip().rpartition(b"\n")[2].rpartition(b"info: ")[2].startswith(b"stored 100 records in ")


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""  # the last writer has closed the terminal


@pytest.mark.parametrize(
    ("further", "status", "message"),
    [
        (["missing.txt"], 2, "File 'missing.txt' does not exist."),
        (["."], 2, "File '.' is a directory."),
        (["--partition=9"], 2, "partition: 9 given; {topic} has 0 to 1"),
        (["--codec=zip"], 2, "'zip' is not one of 'none', 'gzip', 'snappy', 'lz4'."),
        (["--acks=2"], 2, "'2' is not one of 'all', '1', '0'."),
        (["--key-separator="], 2, "--key-separator: nothing given; expected at least one character"),
        (["--brokers=127.0.0.1:1"], 1, "no broker answered: 127.0.0.1:1: cannot connect: Connection refused"),
        (["--brokers=localhost:kafka"], 2, "brokers: 'localhost:kafka' is not an address; expected 'host' or"),
        (["--key", "x"], 2, "No such option '--key'. See 'kiel-groups produce --help'."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
async def test_mistakes_give_one_line(
    cluster_39: Cluster, topic: str, produce: Produce, further: list[str], status: int, message: str
) -> None:
    """The line says what is wrong, and may suggest a remedy. Nothing is stored."""
    await cluster_39.create_topic(topic, 2)
    done, lines = produce(b"one\ntwo\n", *further)
    assert (done, len(lines)) == (status, 1)
    assert message.format(topic=topic) in lines[0]


@pytest.mark.parametrize("lines", [0, 1000])
def test_a_topic_that_does_not_exist_gives_one_line(topic: str, produce: Produce, lines: int) -> None:
    """If the topic does not exist, the error is one line for any number of input lines."""
    status, (line,) = produce(b"line\n" * lines)
    assert status == 2
    assert line == (
        f"error: no broker knows the topic {topic}; check the name, or create it first; 'kiel-groups topics list' shows"
        " the existing topics, 'topics create' creates one"
    )
