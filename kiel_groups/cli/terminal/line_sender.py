"""Send the lines of a file, a pipe or a terminal to a topic, and report the lines that were not stored."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import groupby
from pathlib import Path

from kiel_groups.cli.terminal.messages import Lines
from kiel_groups.cli.terminal.rendering import bar, has_bar
from kiel_groups.cli.terminal.termination import Termination
from kiel_groups.clients import Producer, RecordMetadata
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.config import KAFKA_PORT, BrokerConfig, parse_hosts
from kiel_groups.errors import ConfigError, KielGroupsError, NoBrokersError, OutcomeUnknownError
from kiel_groups.metrics import Metrics
from kiel_groups.wording import counted

_CHUNK_BYTES = 1 << 18
#: More than any broker accepts; without a bound, a binary file would fill the memory.
_LONGEST_LINE_BYTES = 64 << 20


class LineInput:
    """
    Reads lines from an open descriptor, without Python's buffers.

    ``size_bytes`` is the size of the input, or None if unknown; ``read_bytes`` is the number of bytes read so far.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.size_bytes = os.fstat(descriptor).st_size or None
        self.is_terminal = os.isatty(descriptor)
        self.read_bytes = 0

    async def lines(self) -> AsyncIterator[list[bytes]]:
        """
        Yield lists of lines, without newlines, as soon as they arrive. The last line may lack a newline.

        Raises:
            ConfigError: The input cannot be read, or has a line of over 64 MiB.
        """
        partial: list[bytes] = []
        count, size = 0, 0
        while data := await self._read():
            first, *rest = data.split(b"\n")
            partial.append(first)
            size += len(first)
            if size > _LONGEST_LINE_BYTES:
                raise ConfigError(f"line {count + 1} is longer than {_LONGEST_LINE_BYTES >> 20} MiB; is that text?")
            if rest:
                whole = [b"".join(partial), *rest[:-1]]
                partial, size, count = [rest[-1]], len(rest[-1]), count + len(whole)
                yield whole
        if last := b"".join(partial):
            yield [last]

    async def _read(self) -> bytes:
        await self._wait()
        try:
            data = os.read(self._descriptor, _CHUNK_BYTES)
        except OSError as error:
            raise ConfigError(f"the input cannot be read: {error.strerror}") from error
        self.read_bytes += len(data)
        return data

    async def _wait(self) -> None:
        """Wait for data. A file is always readable; then only let other tasks run."""
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        try:
            loop.add_reader(self._descriptor, readable.set)
        except PermissionError:
            await asyncio.sleep(0)
            return
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._descriptor)


def open_input(path: Path | None) -> LineInput:
    """
    Open a file for reading lines. For None, use standard input.

    Raises:
        ConfigError: The file cannot be opened, or standard input is closed.
    """
    if path is None:
        if sys.stdin is None:
            raise ConfigError("standard input is closed; name a file, or give the command a pipe")
        return LineInput(sys.stdin.fileno())
    try:
        return LineInput(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


#: Errors that every further line would cause, too.
_FATAL = (ConfigError, NoBrokersError)
_MOST_RANGES = 10
_SHOW_INTERVAL_S = 0.1
#: How long lines that were read may take to be stored after a signal.
_SIGNALLED_S = 2.0


class LineSender:
    """
    Sends each line of an input as a record, and counts the outcomes. It is used once.

    Args:
        producer: A producer that is not connected yet; ``run`` connects and closes it.
        topic: The topic to send to.
        key_separator: The text between key and value of a line. Without a separator, lines have no key.
        null: The text that means a null value, or None.
        partition: The partition of all records. By default, the producer's partitioner chooses.
        say: Called with a message when an error text occurs for the first time.

    ``read`` and ``stored`` are the numbers of lines that were read and stored so far. ``show`` is called ten times a
    second, to display the progress. The caller may replace it.
    """

    def __init__(
        self,
        producer: Producer,
        topic: str,
        *,
        key_separator: bytes | None = None,
        null: bytes | None = None,
        partition: int | None = None,
        say: Callable[[str], None],
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._key_separator = key_separator
        self._null = null
        self._partition = partition
        self._say = say
        self.show: Callable[[], None] = lambda: None
        self._reported: set[str] = set()
        #: The numbers of the lines without an outcome, and the futures of their records.
        self._waiting: list[tuple[int, asyncio.Future[RecordMetadata]]] = []
        self._failed: list[int] = []
        self._unknown: list[int] = []
        self._reading: asyncio.Task[object] | None = None
        self._fatal: KielGroupsError | None = None
        self._first_s = self._last_s = time.monotonic()
        self.read = 0
        self.stored = 0

    @property
    def share_done(self) -> float:
        """The share of the lines read so far that have an outcome, 0 to 1."""
        return (self.stored + self.failed + self.unknown) / self.read if self.read else 1.0

    @property
    def took_s(self) -> float:
        """
        The seconds from the first line to the last outcome so far, which counts within 0.1 s. The input may begin late,
        and end late.
        """
        return self._last_s - self._first_s

    @property
    def failed(self) -> int:
        """The number of lines that are known not to be stored."""
        return len(self._failed)

    @property
    def failed_lines(self) -> str:
        """The numbers of the failed lines, such as ``3, 7 to 12``."""
        return ranges(sorted(self._failed))

    @property
    def unknown(self) -> int:
        """The number of lines that were sent, and may or may not be stored."""
        return len(self._unknown)

    @property
    def unknown_lines(self) -> str:
        """The numbers of the lines with an unknown outcome, such as ``3, 7 to 12``."""
        return ranges(sorted(self._unknown))

    async def run(self, source: LineInput) -> int:
        """
        Send all lines of the input, and wait until every record has an outcome.

        After SIGINT or SIGTERM, stop reading. Lines that were read have two seconds to be stored.

        Returns:
            0, or 128 plus the number of the signal that ended the run.

        Raises:
            KielGroupsError: The input cannot be read, no broker answers, or an error occurred that would occur for all
                lines.
        """
        ending = Termination()
        self._reading = asyncio.current_task()
        try:
            async with _called_regularly(self._settle), self._producer:
                await self._send(source)
                self._reading = None
                await self._close()
        except asyncio.CancelledError:
            if ending.status is None and self._fatal is None:
                raise
        finally:
            self._settle()
        if self._fatal is not None:
            raise self._fatal
        return ending.status or 0

    async def _send(self, source: LineInput) -> None:
        async for lines in source.lines():
            if not self.read:
                self._first_s = self._last_s = time.monotonic()
            for line in lines:
                self.read += 1
                self._send_line(line)
            await self._producer.drain()

    async def _close(self) -> None:
        """Close the producer. A signal may come with the end of the input, as in a pipe: lines have their time then."""
        closing = self._producer.close()
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await asyncio.wait({closing}, timeout=_SIGNALLED_S)
            closing.cancel()
            raise

    def _send_line(self, line: bytes) -> None:
        key: bytes | None = None
        text = line
        if self._key_separator is not None:
            key, separator, text = line.partition(self._key_separator)
            if not separator:
                self._failed.append(self.read)
                self._report(self.read, f"there is no key separator {self._key_separator.decode()!r}")
                return
        value = None if text == self._null else text
        self._waiting.append((self.read, self._producer.produce(self._topic, value, key, self._partition)))

    def _settle(self) -> None:
        """Count the records that have an outcome by now. A callback of each future would cost as much as sending."""
        if len(self._waiting) != self._producer.unsent_count:
            waiting, self._waiting = self._waiting, []
            for line, outcome in waiting:
                if not outcome.done():
                    self._waiting.append((line, outcome))
                elif (error := outcome.exception()) is None:
                    self.stored += 1
                else:
                    (self._unknown if isinstance(error, OutcomeUnknownError) else self._failed).append(line)
                    if isinstance(error, _FATAL):
                        self._give_up(error)
                    else:
                        self._report(line, str(error))
            self._last_s = time.monotonic()
        self.show()

    def _report(self, line: int, why: str) -> None:
        if why not in self._reported:
            self._reported.add(why)
            self._say(f"line {line}: {why}")

    def _give_up(self, error: KielGroupsError) -> None:
        if self._fatal is None:
            self._fatal = error
            if self._reading is not None:
                self._reading.cancel()


@asynccontextmanager
async def _called_regularly(show: Callable[[], None]) -> AsyncIterator[None]:
    async def repeat() -> None:
        while True:
            await asyncio.sleep(_SHOW_INTERVAL_S)
            show()

    showing = asyncio.create_task(repeat())
    try:
        yield
    finally:
        showing.cancel()


async def check_topic(brokers: str, topic: str) -> None:
    """
    Check that a topic exists. If the brokers create topics on demand, this creates the topic, as a first record would.

    Raises:
        UnknownTopicError: The topic does not exist.
        NoBrokersError: No broker answered.
    """
    cluster = ClusterMetadata(BrokerConfig(hosts=parse_hosts(brokers, KAFKA_PORT, "brokers")), Metrics())
    try:
        await cluster.partitions_of(topic)
    finally:
        cluster.close()


def ranges(numbers: Iterable[int]) -> str:
    """
    Return ascending numbers as a text, with consecutive numbers as a range, such as ``3, 7 to 12``.

    After ten ranges, the text has only the number of further ranges.
    """
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    texts = [f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    more = f" and {len(texts) - _MOST_RANGES} more ranges" if len(texts) > _MOST_RANGES else ""
    return ", ".join(texts[:_MOST_RANGES]) + more


@contextmanager
def progress(source: LineInput, sending: LineSender, *, quiet: bool) -> Iterator[None]:
    """
    Show a bar with the progress of ``sending`` within the block.

    Show nothing if ``quiet`` is set, if standard error is no terminal, or if the user types the lines.
    """
    if quiet or source.is_terminal or not has_bar():
        yield
        return
    with bar(source.size_bytes, _rate(sending)) as update:

        def show() -> None:
            update(_rate(sending), source.read_bytes * sending.share_done)

        sending.show = show
        yield
        show()


def summarize(lines: Lines, sending: LineSender, *, acks: str, quiet: bool) -> None:
    """
    Print which lines have failed, and which lines have an unknown outcome.

    Unless ``quiet`` is set, first print the count and the rate of the stored records. With ``acks`` "0", say "sent" in
    place of "stored".
    """
    done = "sent" if acks == "0" else "stored"
    if not quiet:
        lines.say("info", f"{done} {counted(sending.stored, 'record')} in {sending.took_s:.1f} s, {_rate(sending)}")
    if sending.failed:
        lines.say("error", f"not {done}: {counted(sending.failed, 'line')}, {sending.failed_lines}")
    if sending.unknown:
        lines.say("error", f"may or may not be stored: {counted(sending.unknown, 'line')}, {sending.unknown_lines}")


def _rate(sending: LineSender) -> str:
    return f"{sending.stored / max(sending.took_s, 1e-3):,.0f} records/s"
