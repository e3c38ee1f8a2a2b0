"""
Track records in flight: records that a loop or a call delivered, and that the application has not finished.

While records are in flight, automatic commits do not store their offsets, and their partitions are not released. Once
the application has finished them, the offset that a commit stores advances. Unfinished records are delivered again.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Protocol

from kiel_groups.clients.delivery.current_batch import CurrentBatch
from kiel_groups.clients.delivery.values_in_flight import ValuesInFlight
from kiel_groups.coordination.partition_handler import Work
from kiel_groups.errors import BadRecordError
from kiel_groups.group.member.partition_offsets import PartitionOffsets
from kiel_groups.model import TopicPartition

__all__ = ["BadRecordInFlight", "ConsumerInFlight", "DeliveryProgress", "InFlight"]


class InFlight(Protocol):
    """The records in flight of one loop, or of the callers of one topic. There may be none."""

    def in_flight_of(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Return the given partitions that have records in flight."""

    def stop_counting(self, partitions: Collection[TopicPartition]) -> None:
        """Stop counting in-flight records of these partitions. The application may still be processing them."""

    def truncate(self, partition: TopicPartition, end: int) -> None:
        """Stop counting a partition's in-flight records at and after the offset ``end``."""


class BadRecordInFlight:
    """A bad record while ``on_bad_record`` runs, and its partition's state (None if it is no longer counted)."""

    __slots__ = ("_error", "_state")

    def __init__(self, error: BadRecordError, state: PartitionOffsets) -> None:
        self._error = error
        self._state: PartitionOffsets | None = state

    def in_flight_of(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        return frozenset({self._error.topic_partition}).intersection(partitions)

    def finish(self) -> bool:
        """Count the record as finished, and move the position behind it. Return whether it still counts."""
        if self._state is None:
            return False
        self._state.position = self._state.finished = self._error.next_offset
        return True

    def stop_counting(self, partitions: Collection[TopicPartition]) -> None:
        if self._error.topic_partition in partitions:
            self._state = None

    def truncate(self, partition: TopicPartition, end: int) -> None:
        if self._error.topic_partition == partition and self._error.offset >= end:
            self._state = None


class ConsumerInFlight:
    """
    All records in flight of one consumer: that of its loop, what its calls returned, and ``bad`` records.

    ``topics`` has the values of each topic for which ``consume()`` was called. The key None has the records of
    ``getone()``, ``getmany()`` and ``consume_batches()``, which ask for any topic.
    """

    def __init__(self) -> None:
        #: The batch of the loop, with the record in flight.
        self.batch = CurrentBatch()
        #: A topic without values in flight is left out.
        self.topics: dict[str | None, ValuesInFlight] = {}
        #: Records for which ``on_bad_record`` runs.
        self.bad: dict[TopicPartition, BadRecordInFlight] = {}
        #: The last call, for any topic.
        self.last_call: object = None

    def in_flight_of(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        return frozenset().union(*(each.in_flight_of(partitions) for each in self._all()))

    def stop_counting(self, partitions: Collection[TopicPartition]) -> None:
        for each in self._all():
            each.stop_counting(partitions)

    def truncate(self, partition: TopicPartition, end: int) -> None:
        for each in self._all():
            each.truncate(partition, end)

    def unreceived_from(self, partition: TopicPartition, state: PartitionOffsets) -> int | None:
        """
        Return the offset of the first record or value that a call took of a partition, and no caller has received.

        Return None if there is none. A caller may still receive it; otherwise it is delivered again.
        """
        first = (values.unreceived_from(partition, state) for values in self.topics.values())
        return min((offset for offset in first if offset is not None), default=None)

    def _all(self) -> list[InFlight]:
        return [self.batch, *self.topics.values(), *self.bad.values()]

    def works(self) -> list[Work]:
        """Return the record and the values as work of the application. Safe on any thread."""
        works = []
        if (record := self.batch.record) is not None:
            works.append(Work(record, "processing", frozenset({record.topic_partition})))
        works += [Work(bad, "processing", frozenset({partition})) for partition, bad in list(self.bad.items())]
        # A call for another topic is progress, too: programs written for kiel consume several topics in turn.
        busy: defaultdict[object, frozenset[TopicPartition]] = defaultdict(frozenset)
        for values in list(self.topics.values()):
            for call, partitions in values.busy():
                busy[self.last_call if call.ended else call.coroutine.latest] |= partitions
        return works + [Work(token, "processing", partitions) for token, partitions in busy.items()]


class DeliveryProgress:
    """Wakes the waiting drains and resets of one consumer when fewer of its records may be in flight or buffered."""

    def __init__(self) -> None:
        #: The number of callers that wait. A loop asks for each batch whether there is one.
        self.waiting = 0
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Have each waiting caller check its condition again."""
        self._changed.set()

    async def until(self, is_over: Callable[[], bool]) -> None:
        """Wait until ``is_over`` returns True. It is called at once, and after each ``notify``."""
        self.waiting += 1
        try:
            while not is_over():
                self._changed.clear()
                await self._changed.wait()
        finally:
            self.waiting -= 1
