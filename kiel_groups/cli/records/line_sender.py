"""Send lines to a topic, and report the numbers of lines that were not stored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from itertools import groupby

from kiel_groups.cli.records.line_input import LineInput
from kiel_groups.cli.terminal.termination import Termination
from kiel_groups.clients import Producer, RecordMetadata
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.config import KAFKA_PORT, BrokerConfig, parse_hosts
from kiel_groups.errors import ConfigError, KielGroupsError, NoBrokersError, OutcomeUnknownError
from kiel_groups.metrics import Metrics

__all__ = ["LineSender", "check_topic", "ranges"]

#: Errors that every further line would cause, too.
_FATAL = (ConfigError, NoBrokersError)
_MOST_RANGES = 10
_SHOW_INTERVAL_S = 0.1


class LineSender:
    """
    Sends each line of an input as a record; used once.

    Args:
        producer: A producer that is not connected yet; ``run`` connects and closes it.
        topic: The topic to send to.
        key_separator: The text between key and value of a line. Without a separator, lines have no key.
        null: The value that is sent as null.
        partition: The partition of all records; by default, the producer's partitioner chooses.
        say: Called with a message about each kind of failure, when it first occurs.

    ``show`` is called ten times a second, for a display of the progress.
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
        """Seconds from the first line to the last outcome so far: the input may begin late, and end late."""
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

        Returns:
            0, or 128 plus the number of the signal that ended the run. After a signal, reading stops, and lines that
            were read have two seconds to be stored.

        Raises:
            KielGroupsError: The input cannot be read, no broker answers, or no line can be stored at all.
        """
        ending = Termination()
        self._reading = asyncio.current_task()
        try:
            async with _called_regularly(self.show), self._producer:
                await self._send(source)
                self._reading = None
        except asyncio.CancelledError:
            if ending.status is None and self._fatal is None:
                raise
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

    def _send_line(self, line: bytes) -> None:
        key: bytes | None = None
        text = line
        if self._key_separator is not None:
            key, separator, text = line.partition(self._key_separator)
            if not separator:
                self._fail(self.read, f"there is no key separator {self._key_separator.decode()!r}")
                return
        value = None if text == self._null else text
        outcome = self._producer.produce(self._topic, value, key=key, partition=self._partition)
        outcome.add_done_callback(partial(self._settle, self.read))

    def _settle(self, line: int, outcome: asyncio.Future[RecordMetadata]) -> None:
        error = outcome.exception()
        self._last_s = time.monotonic()
        if error is None:
            self.stored += 1
        elif isinstance(error, OutcomeUnknownError):
            self._unknown.append(line)
            self._report(line, str(error))
        elif isinstance(error, _FATAL):
            self._failed.append(line)
            self._give_up(error)
        else:
            self._fail(line, str(error))

    def _fail(self, line: int, why: str) -> None:
        self._failed.append(line)
        self._report(line, why)

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
    Check that a topic exists. Brokers that create topics on demand create it now, as they do for a first record.

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
    """Format ascending numbers, with consecutive numbers as a range: ``3, 7 to 12``."""
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    texts = [f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    more = f" and {len(texts) - _MOST_RANGES} more ranges" if len(texts) > _MOST_RANGES else ""
    return ", ".join(texts[:_MOST_RANGES]) + more
