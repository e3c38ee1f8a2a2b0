"""Poisoned records: those that a simulated application cannot read, and what it does at them."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from kiel_groups.clients.delivery.deserializer import Deserializer
from kiel_groups.clients.delivery.in_flight import ConsumerInFlight, DeliveryProgress
from kiel_groups.clients.delivery.owned_records import BadRecords
from kiel_groups.errors import BadRecordError, RecordDeserializationError
from kiel_groups.group.partition_offsets import PartitionOffsets
from kiel_groups.model import Record, TopicPartition

if TYPE_CHECKING:
    from tests.sim.consumer import Consumer

__all__ = ["Poison", "PoisonedRecords"]

#: How often an application meets the same error before it seeks past the record, the longest duration of a hook, and
#: the share of the hooks that raise.
PATIENCE, LONGEST_HOOK_S, FAILING_SHARE = 3, 3.0, 0.4


@dataclass(frozen=True, slots=True)
class Poison:
    """Which records of a run are poisoned: about one of ``every``, or none if that is 0."""

    seed: int
    every: int

    def first(self, partition: TopicPartition, start: int, until: int) -> int | None:
        """Return the offset of the first poisoned record from ``start`` up to, not including, ``until``, or None."""
        return next((offset for offset in range(start, until) if self._has(partition, offset)), None)

    def _has(self, partition: TopicPartition, offset: int) -> bool:
        return bool(self.every) and zlib.crc32(f"{self.seed} {partition} {offset}".encode()) % self.every == 0


@dataclass(slots=True)
class _Hook:
    """A running hook. ``counts`` is False if the application has sought, or the record was cut off the log."""

    state: PartitionOffsets
    epoch: int
    offset: int
    counts: bool = True


class PoisonedRecords:
    """
    What one consumer does at poisoned records: clients/delivery/owned_records.py runs here unchanged.

    Half of the applications get the error, and seek past the record when they have met it several times. The others
    have a hook, which takes a while, and sometimes raises.
    """

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._random = Random(f"bad records of {consumer.name}")
        self.in_flight = ConsumerInFlight()
        self.progress = DeliveryProgress()
        deserializer = Deserializer(
            None,
            consumer.metrics,
            lambda: consumer.process.timeline.now_s,
            on_bad_record=self._hook if self._random.random() < 0.5 else "raise",
        )
        self.bad = BadRecords(deserializer, self, consumer.metrics)
        #: Partitions of which nothing is delivered, while an error pauses or a hook runs.
        self.aside: set[TopicPartition] = set()
        self.hooks: dict[TopicPartition, _Hook] = {}
        self._met: dict[tuple[TopicPartition, int], int] = {}

    async def meet(self, partition: TopicPartition, offset: int) -> None:
        """Have the application meet the poisoned record at ``offset``, unless it is elsewhere by now."""
        consumer = self._consumer
        state = consumer.state_of(partition)
        if state is None or state.position != offset or partition not in consumer._idle():
            return
        error = RecordDeserializationError(
            f"{partition} at offset {offset}: poisoned",
            field="value",
            topic_partition=partition,
            offset=offset,
            next_offset=offset + 1,
        )
        try:
            self.bad.handle(error, state)
        except BadRecordError:
            met = self._met[partition, offset] = self._met.get((partition, offset), 0) + 1
            may_seek = consumer.is_assigned(partition) and consumer.world.history.may_seek(consumer, partition)
            if met >= PATIENCE and may_seek:
                consumer._seek(partition, error.next_offset)

    async def _hook(self, record: Record, error: BadRecordError) -> None:
        consumer, partition = self._consumer, record.topic_partition
        state = consumer.state_of(partition)
        assert state is not None
        consumer.world.checker.delivered(consumer, partition, record.offset)
        hook = self.hooks[partition] = _Hook(state, consumer.opened[partition], record.offset)
        try:
            await asyncio.sleep(self._random.uniform(0.05, LONGEST_HOOK_S))
            if self._random.random() < FAILING_SHARE:
                raise RuntimeError("no dead-letter topic")
            if hook.counts and self.hooks.get(partition) is hook and state.position == hook.offset:
                consumer.world.checker.processed(partition, hook.epoch, error.next_offset)
        finally:
            if self.hooks.get(partition) is hook:
                del self.hooks[partition]

    def continue_in_epoch(self, partition: TopicPartition, epoch: int) -> None:
        """Assign the running hook of a partition to another epoch."""
        if partition in self.hooks:
            self.hooks[partition].epoch = epoch

    def disown(self, partition: TopicPartition) -> None:
        """Do not count the running hook of a partition: the application has sought."""
        self.in_flight.stop_counting([partition])
        if partition in self.hooks:
            self.hooks[partition].counts = False

    def lose(self, partition: TopicPartition) -> None:
        """Forget the running hook of a partition: its claim is lost, or another writer has set its offset."""
        self.in_flight.stop_counting([partition])
        self.hooks.pop(partition, None)

    def truncate(self, partition: TopicPartition, end: int) -> None:
        """Do not count the running hook of a record at or after ``end``, where the log ends."""
        self.in_flight.truncate(partition, end)
        if partition in self.hooks and self.hooks[partition].offset >= end:
            self.hooks[partition].counts = False

    def drop(self, partition: TopicPartition) -> None:
        """End the pause of a partition, whose buffered records are dropped."""
        self.bad.end([partition])
        self.aside.discard(partition)
        self.progress.notify()

    async def finished(self, partitions: Collection[TopicPartition]) -> None:
        """Wait until no hook of these partitions runs."""
        await self.progress.until(lambda: not self.in_flight.in_flight_of(partitions))

    # Called by BadRecords

    def may_deliver_under(self, state: PartitionOffsets, partition: TopicPartition) -> bool:
        consumer = self._consumer
        is_current = partition in consumer.opened and consumer.state_of(partition) is state
        return is_current and consumer.gate_is_open and not consumer.is_paused(partition)

    def while_fetched(self, partition: TopicPartition) -> Callable[[], bool]:
        return self._consumer.while_fetched(partition)

    def set_aside(self, partition: TopicPartition) -> None:
        self.aside.add(partition)

    def end_set_aside(self, partition: TopicPartition) -> None:
        self.aside.discard(partition)

    def pass_record(self, partition: TopicPartition, offset: int | None) -> None:
        """Do nothing: simulated records are not buffered."""
