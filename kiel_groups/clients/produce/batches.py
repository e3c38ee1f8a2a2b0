"""
Batches of records, and the short way by which records are added to an open batch.

Where a compiler was found, ``Records``, ``Appender`` and both functions are those of ``_batches.c``, and a call of
``produce`` costs half as much. Otherwise they are those of this module.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, repeat
from operator import is_not
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from kiel_groups.clients.produce.outcomes import JointOutcome, Outcome, RecordMetadata, settle_failed
from kiel_groups.model import TopicPartition

#: Offset, size, CRC, magic, attributes, and the lengths of key and value.
MESSAGE_OVERHEAD_BYTES = 26


def messages_bytes(keys: Iterable[bytes | None], values: Sequence[bytes | None]) -> int:
    """Return the size of messages on the wire, uncompressed."""
    content = sum(map(len, filter(None, keys))) + sum(map(len, filter(None, values)))
    return MESSAGE_OVERHEAD_BYTES * len(values) + content


class PythonRecords:
    """The records of a batch: a list of keys, a list of values, and a list of what gets the outcomes."""

    __slots__ = ("keys", "outcomes", "sealed", "size_bytes", "values")

    keys: list[bytes | None]
    values: list[bytes | None]
    #: For each record. Records that share a JointOutcome are neighbours.
    outcomes: list[Outcome]
    size_bytes: int
    #: Set once the batch was sent: no more records are added.
    sealed: bool

    def __new__(cls, *_: object, **__: object) -> Self:
        self = super().__new__(cls)
        self.keys, self.values, self.outcomes = [], [], []
        self.size_bytes, self.sealed = 0, False
        return self


F = TypeVar("F", bound=Outcome)


class PythonAppender:
    """
    Adds records to open batches, and counts the bytes of all records without an outcome.

    Args:
        choose: A partitioner of this package, or None.
        random: A function that returns a random number from 0 to below 1, if such numbers choose the partition.
        running_loop: ``asyncio.get_running_loop``.
        future: ``asyncio.Future``.

    Attributes:
        topics: By topic: the partition numbers, and for each of them the queue, whose newest batch may be open.
        buffered_bytes: The size on the wire of all records without an outcome, uncompressed.
        most_buffered_bytes: No record is added if so many bytes are buffered.
        most_batch_bytes: The largest size of a batch.
        due_after: The record that follows so many in a batch is not added, because it makes the batch due. Later ones
            are. With 0, no record is added.
    """

    __slots__ = ("buffered_bytes", "due_after", "most_batch_bytes", "most_buffered_bytes", "topics")

    def __init__(self, choose: object, random: object, running_loop: object, future: object) -> None:
        self.topics: dict[str, tuple[tuple[int, ...], dict[int, Any]]] = {}
        self.buffered_bytes = self.most_buffered_bytes = self.most_batch_bytes = self.due_after = 0

    @overload
    def append(
        self, topic: str, value: Any, key: Any, partition: int | None, /
    ) -> asyncio.Future[RecordMetadata] | int | None: ...

    @overload
    def append(self, topic: str, value: Any, key: Any, partition: int | None, outcome: F, /) -> F | int | None: ...

    def append(self, topic: str, value: Any, key: Any, partition: int | None, outcome: object = None, /) -> Any:
        """
        Add a record to the open batch of its partition, and return its outcome: the given one, or a new future of the
        running loop. In Python, no record is added.

        The record is not added if anything about it is unusual: its partition has no open batch with room, its key or
        value is not bytes, or no event loop runs. Then the method returns the partition that was given or chosen.
        """
        return partition


def python_set_places(
    futures: Iterable[Outcome], place_type: type[RecordMetadata], topic: str, partition: int, offset: int
) -> None:
    """Set the result of each future that is not done: its place. ``offset`` is the first one's; -1 is unknown."""
    offsets = count(offset) if offset >= 0 else repeat(-1)
    for future, number in zip(futures, offsets, strict=False):
        if not future.done():
            future.set_result(place_type(topic, partition, number))


def python_track(futures: list[Outcome]) -> None:
    """Have the garbage collector visit these futures again, which it does already if Python code has created them."""


if TYPE_CHECKING:
    COMPILED: bool
    Records = PythonRecords
    Appender = PythonAppender
    set_places = python_set_places
    track = python_track
else:
    try:
        from kiel_groups.clients.produce._batches import Appender, Records, set_places, track
    except ImportError:
        COMPILED, Records, Appender = False, PythonRecords, PythonAppender
        set_places, track = python_set_places, python_track
    else:
        COMPILED = True


@dataclass(eq=False)
class Batch(Records):
    """Records of one partition that are sent together. ``created_s`` is when the first record was added."""

    created_s: float
    #: Failed tries, and the reason of the last one.
    failures: int = 0
    failure: Exception | None = None
    #: Tries that may have stored the batch: they were sent, and no broker has answered that it stored nothing.
    unresolved_tries: int = 0
    #: Tries that a broker refused because it takes a message for invalid.
    invalid_tries: int = 0
    #: Message sets by partition, with that of this batch, if it is compressed while the batch before it is in flight.
    compressing: asyncio.Future[dict[TopicPartition, bytes]] | None = None

    def __len__(self) -> int:
        return len(self.outcomes)

    def part(self, numbers: Sequence[int]) -> Batch:
        """Return a sealed batch of some of this batch's records, by their numbers, counted from 0, ascending."""
        part = Batch(self.created_s, unresolved_tries=self.unresolved_tries)
        part.keys = [self.keys[number] for number in numbers]
        part.values = [self.values[number] for number in numbers]
        part.outcomes = [self.outcomes[number] for number in numbers]
        part.size_bytes = messages_bytes(part.keys, part.values)
        part.sealed = True
        return part

    def stored(self, topic_partition: TopicPartition, base_offset: int) -> None:
        """Set the outcome of each record: it is stored. ``base_offset`` is the first one's offset; -1 is unknown."""
        outcomes, start = self.outcomes, 0
        while start < len(outcomes) and type(first := outcomes[start]) is JointOutcome:
            stop = bisect_left(outcomes, True, start, key=partial(is_not, first))
            first.settle(stop - start)
            start = stop
        if start < len(outcomes):
            rest = outcomes[start:] if start else outcomes
            set_places(rest, RecordMetadata, *topic_partition, base_offset + start if base_offset >= 0 else -1)

    def failed(self, error: Exception) -> None:
        """Set the outcome of each record: it has failed."""
        track(self.outcomes)
        for outcome in self.outcomes:
            settle_failed(outcome, error)
