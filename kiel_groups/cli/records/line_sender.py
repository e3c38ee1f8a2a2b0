"""Lines on their way to a topic: which were stored, and which were not, by their numbers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from itertools import groupby

from kiel_groups.cli.records.line_input import LineInput
from kiel_groups.cli.terminal.termination import Ending
from kiel_groups.clients import Producer, RecordMetadata
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.config import KAFKA_PORT, BrokerConfig, parse_hosts
from kiel_groups.errors import ConfigError, KielGroupsError, NoBrokersError, OutcomeUnknownError
from kiel_groups.metrics import Metrics

__all__ = ["Sending", "check_topic", "ranges"]

#: They would end every other line alike.
_HOPELESS = (ConfigError, NoBrokersError)
_MOST_RANGES = 10
_SHOW_INTERVAL_S = 0.1


class Sending:
    """
    Sends each line of an input as a record; used once.

    Args:
        producer: Not connected yet; it is closed at the end.
        topic: Where to.
        key_separator: What stands between key and value of a line; without one, lines have no key.
        partition: The only partition; without one, the producer's partitioner chooses.
        say: Told of the first line of every kind of failure, at once.

    ``show`` is called ten times a second, for a display of the progress.
    """

    def __init__(
        self,
        producer: Producer,
        topic: str,
        *,
        key_separator: bytes | None = None,
        partition: int | None = None,
        say: Callable[[str], None],
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._key_separator = key_separator
        self._partition = partition
        self._say = say
        self.show: Callable[[], None] = lambda: None
        self._told: set[str] = set()
        self._failed: list[int] = []
        self._unknown: list[int] = []
        self._reading: asyncio.Task[object] | None = None
        self._hopeless: KielGroupsError | None = None
        self._began_s = time.monotonic()
        self.read = 0
        self.stored = 0

    @property
    def share_done(self) -> float:
        """How many of the lines that were read have an outcome, 0 to 1."""
        return (self.stored + self.failed + self.unknown) / self.read if self.read else 1.0

    @property
    def took_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began_s

    @property
    def failed(self) -> int:
        """How many lines were not stored, as far as is known."""
        return len(self._failed)

    @property
    def failed_lines(self) -> str:
        """Their numbers, such as ``3, 7 to 12``."""
        return ranges(sorted(self._failed))

    @property
    def unknown(self) -> int:
        """How many lines were sent and may or may not be stored."""
        return len(self._unknown)

    @property
    def unknown_lines(self) -> str:
        """The numbers of those."""
        return ranges(sorted(self._unknown))

    async def run(self, source: LineInput) -> int:
        """
        Read to the end, and wait until every record has an outcome.

        Returns:
            0, or 128 and the number of the signal that ended it; what was read by then had two seconds to be stored.

        Raises:
            KielGroupsError: The input cannot be read, no broker answers, or no line can be stored at all.
        """
        ending = Ending()
        self._reading = asyncio.current_task()
        try:
            async with _now_and_then(self.show), self._producer:
                await self._send(source)
                self._reading = None
        except asyncio.CancelledError:
            if ending.status is None and self._hopeless is None:
                raise
        if self._hopeless is not None:
            raise self._hopeless
        return ending.status or 0

    async def _send(self, source: LineInput) -> None:
        async for lines in source.lines():
            for line in lines:
                self.read += 1
                self._send_line(line)
            await self._producer.drain()

    def _send_line(self, line: bytes) -> None:
        key, value = None, line
        if self._key_separator is not None:
            key, separator, value = line.partition(self._key_separator)
            if not separator:
                self._fail(self.read, f"there is no key separator {self._key_separator.decode()!r}")
                return
        outcome = self._producer.produce(self._topic, value, key=key, partition=self._partition)
        outcome.add_done_callback(partial(self._settle, self.read))

    def _settle(self, line: int, outcome: asyncio.Future[RecordMetadata]) -> None:
        error = outcome.exception()
        if error is None:
            self.stored += 1
        elif isinstance(error, OutcomeUnknownError):
            self._unknown.append(line)
            self._tell(line, str(error))
        elif isinstance(error, _HOPELESS):
            self._failed.append(line)
            self._give_up(error)
        else:
            self._fail(line, str(error))

    def _fail(self, line: int, why: str) -> None:
        self._failed.append(line)
        self._tell(line, why)

    def _tell(self, line: int, why: str) -> None:
        if why not in self._told:
            self._told.add(why)
            self._say(f"line {line}: {why}")

    def _give_up(self, error: KielGroupsError) -> None:
        if self._hopeless is None:
            self._hopeless = error
            if self._reading is not None:
                self._reading.cancel()


@asynccontextmanager
async def _now_and_then(show: Callable[[], None]) -> AsyncIterator[None]:
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
    Ask for a topic, as a first record does; brokers that create topics on demand create it.

    Raises:
        UnknownTopicError: No broker knows it.
        NoBrokersError: Nobody could be asked.
    """
    cluster = ClusterMetadata(BrokerConfig(hosts=parse_hosts(brokers, KAFKA_PORT, "brokers")), Metrics())
    try:
        await cluster.partitions_of(topic)
    finally:
        cluster.close()


def ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers, neighbours as one."""
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    told = [f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    more = f" and {len(told) - _MOST_RANGES} more ranges" if len(told) > _MOST_RANGES else ""
    return ", ".join(told[:_MOST_RANGES]) + more
