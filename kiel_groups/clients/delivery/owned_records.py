"""Keep the records of the owned partitions, from the fetcher until the application has finished them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from kiel_groups.clients.calls.callers import context_without_calls
from kiel_groups.clients.delivery.bad_records import BadRecords
from kiel_groups.clients.delivery.deserializer import Deserializer
from kiel_groups.clients.delivery.in_flight import ConsumerInFlight, DeliveryProgress
from kiel_groups.clients.delivery.listener_calls import ListenerCalls, ReadyClaims
from kiel_groups.clients.fetch.fetcher import ANY, FetchedBatch, Fetcher, Selection
from kiel_groups.clients.net.log_marks import ReadLog
from kiel_groups.errors import DamagedRecordError, KielGroupsError, RecordDeserializationError
from kiel_groups.group.partition_offsets import PartitionOffsets
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.members.partition_handler import Gate
from kiel_groups.metrics import Metrics
from kiel_groups.model import Record, TopicPartition
from kiel_groups.wire.message_sets.record_columns import RecordColumns
from kiel_groups.zookeeper.delivery_gate import GATE_PAUSE_S, DeliveryGate
from kiel_groups.zookeeper.runtime import Runtime

__all__ = ["OwnedBatch", "OwnedColumns", "OwnedRecords", "ReadableBatch"]


class OwnedBatch(NamedTuple):
    """A batch to deliver now, and the state of the claim under which its records are delivered."""

    fetched: FetchedBatch
    state: PartitionOffsets


class ReadableBatch(NamedTuple):
    """A batch to deliver now, and its deserialized records. Those that the deserializer skipped are left out."""

    batch: OwnedBatch
    records: list[Record]


class OwnedColumns(NamedTuple):
    """A batch to deliver now, and its records as columns, with the bytes that were fetched."""

    batch: OwnedBatch
    records: RecordColumns


class OwnedRecords:
    """
    The records of the owned partitions, from the fetcher until the application has finished them.

    Both ways of delivery share this object: ``RecordDelivery`` delivers records to a loop, ``ValueDelivery`` values and
    records to callers of the other methods. It owns what is buffered and what is in flight, and decides what may be
    delivered now: records of subscribed topics, of partitions that are not paused and whose assigned hook has ended,
    while the gate is open.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        subscription: SubscriptionState,
        calls: ListenerCalls,
        deserializer: Deserializer,
        runtime: Runtime,
        metrics: Metrics,
    ) -> None:
        self._fetcher = fetcher
        self._subscription = subscription
        self._metrics = metrics
        self.deserializer = deserializer
        #: The clock of the gate.
        self.boot_time_s = runtime.boot_time_s
        #: The gate of the member's current session; never open before the first session.
        self.gate: Gate = DeliveryGate()
        #: The claims that may be delivered.
        self.ready = ReadyClaims(subscription, calls, self.fetch)
        self.in_flight = ConsumerInFlight()
        #: The batch of a loop.
        self.batch = self.in_flight.batch
        self.progress = DeliveryProgress()
        self.bad = BadRecords(deserializer, self, metrics)
        # Errors of topics whose start position is unknown. Each is raised once; the member's retries add it again.
        self._refused: dict[str, KielGroupsError] = {}
        self._ended = False

    # ------------------------------------------------------------------ delivery

    def may_deliver(self) -> bool:
        """Return whether records may be delivered at this moment."""
        return not self._ended and self.gate.is_open(self.boot_time_s())

    def raise_refused(self, topic: str | None = None) -> None:
        """Raise the error of a topic whose start position is unknown (of ``topic``, or of any topic), if any."""
        if topic is None and self._refused:
            raise self._refused.popitem()[1]
        if topic in self._refused:
            raise self._refused.pop(topic)

    def poll(
        self, selection: Selection = ANY, most_records: int | None = None, *, errors: bool = True
    ) -> OwnedBatch | None:
        """
        Remove and return the next batch of a selected partition that is still owned, if any.

        Of a batch with more than ``most_records``, that many records are returned; the others remain. Without
        ``errors``, errors remain for a later call.

        Raises:
            KielGroupsError: A partition cannot be read.
        """
        while not self._ended:
            if self._fetcher.passed:
                self._pass_empty_offsets()
            try:
                fetched = self._fetcher.poll(selection, most_records, errors=errors)
            except DamagedRecordError as error:
                damaged = self._subscription.offsets.of(error.topic_partition)
                if damaged is not None:
                    self.bad.handle(error, damaged)
                continue
            if fetched is None:
                return None
            state = self._subscription.offsets.of(fetched.topic_partition)
            if state is not None:
                return OwnedBatch(fetched, state)
        return None

    def _pass_empty_offsets(self) -> None:
        """
        Move the position behind offsets without records, if the application has finished all records before them.

        So such offsets do not count as lag, and are committed like finished records. Other partitions wait for the next
        call.
        """
        for partition in list(self._fetcher.passed):
            if self.batch.has_records_of(partition) or self.in_flight.in_flight_of([partition]):
                continue
            if self._fetcher.is_buffering(partition):
                # These records may come before the offsets: they were fetched ahead.
                continue
            self._fetcher.passed.discard(partition)
            state, position = self.claim_of(partition), self._fetcher.position(partition)
            if state is None or position is None or state.reset is not None:
                continue
            if state.position < position:
                state.position = state.finished = position

    def poll_readable(
        self,
        selection: Selection = ANY,
        most_records: int | None = None,
        *,
        errors: bool = True,
        longest_s: float | None = None,
    ) -> ReadableBatch | None:
        """
        Remove and return the next batch as ``poll``, with its records deserialized.

        The batch ends before a record on which the deserializer fails, or after ``longest_s``. The rest remains the
        next batch of its partition. So a record that fails is handled when it is the first one.

        Raises:
            BadRecordError: The next record of a partition cannot be delivered.
            KielGroupsError: A partition cannot be read.
        """
        while (batch := self.poll(selection, most_records, errors=errors)) is not None:
            with self.kept(batch.fetched):
                found = self.deserializer.records(batch.fetched.records, longest_s)
            if not self.is_current(batch.fetched):
                # The deserializer has sought, or has closed the consumer.
                continue
            before = self.before(batch, found.read, found.error, may_handle=errors)
            if before is not None:
                return ReadableBatch(before, found.records)
            if not errors:
                break
        return None

    def poll_columns(
        self, selection: Selection = ANY, most_records: int | None = None, *, errors: bool = True
    ) -> OwnedColumns | None:
        """
        Remove and return the next batch as ``poll``, with its records as columns. No record is made for that.

        Raises:
            KielGroupsError: A partition cannot be read.
        """
        batch = self.poll(selection, most_records, errors=errors)
        if batch is None:
            return None
        fetched, state = batch
        with self.kept(fetched):
            columns = fetched.columns(state.token or None)
        self._metrics.count("records_handed_out", len(columns))
        return OwnedColumns(batch, columns)

    def is_current(self, fetched: FetchedBatch) -> bool:
        """Return whether the assignment of the partition under which a batch was fetched continues."""
        return not self._ended and self._fetcher.epoch(fetched.topic_partition) == fetched.epoch

    @contextmanager
    def kept(self, fetched: FetchedBatch) -> Iterator[None]:
        """Put the last batch of its partition back if the block raises anything, such as SystemExit."""
        try:
            yield
        except BaseException:
            if self.is_current(fetched):
                self._fetcher.put_back(fetched, 0)
            raise

    def before(
        self, batch: OwnedBatch, count: int, error: RecordDeserializationError | None = None, *, may_handle: bool
    ) -> OwnedBatch | None:
        """
        Return the first ``count`` records of a batch, or None if that is none; the rest is put back.

        A call must not raise an error while it has records to return. So the error of the next record is handled only
        if that record is the first one, and only with ``may_handle``.

        Raises:
            BadRecordError: The first record cannot be delivered.
        """
        fetched, state = batch
        if count < len(fetched):
            self._fetcher.put_back(fetched, count)
            fetched = fetched.part(0, count)
        self._metrics.count("records_handed_out", count)
        if count:
            return OwnedBatch(fetched, state)
        if error is not None and may_handle:
            self.bad.handle(error, state)
        return None

    async def wait(self, selection: Selection = ANY) -> None:
        """Wait until ``poll`` is likely to return a batch or, while the gate is shut, for a short time."""
        if self.gate.is_open(self.boot_time_s()):
            await self._fetcher.ready.wait(selection)
        else:
            await asyncio.sleep(GATE_PAUSE_S)

    def end(self) -> None:
        """Stop all deliveries. Records in flight can still be finished."""
        self._ended = True
        self.batch.clear()
        self.bad.end()
        self.deserializer.close()

    # ------------------------------------------------------------------ fetching

    def fetch(self, partitions: Collection[TopicPartition]) -> None:
        """
        Drop the buffered records of these partitions, and fetch them from their positions.

        A partition is skipped while its assigned hook runs or its topic is not subscribed. A later call fetches it.
        """
        self.drop(partitions)
        positions, lost, paused = {}, set(), set()
        for partition in partitions:
            state = self._subscription.offsets.of(partition)
            if state is not None and partition in self.ready and self._subscription.covers(partition):
                positions[partition] = state.position
                if self._subscription.is_paused(partition):
                    paused.add(partition)
                reset = state.reset
                if reset is not None and reset.start <= state.position <= reset.end:
                    # The dropped records are still in the log, so they are fetched again before the reset applies.
                    self._subscription.offsets.withdraw_reset(partition)
                elif reset is not None:
                    # The log may have grown past the lost position, and a fetch from there would skip earlier records.
                    positions[partition] = reset.lost
                    lost.add(partition)
        # The fetcher's tasks must not inherit the caller's context, or they would count as part of its coroutine.
        context_without_calls().run(self._fetcher.assign, positions, lost, paused)

    def claim_of(self, partition: TopicPartition) -> PartitionOffsets | None:
        """Return the state of a partition's claim, or None if the partition is not delivered (any more)."""
        return None if self._ended or partition not in self.ready else self._subscription.offsets.of(partition)

    def unreceived_from(self, partition: TopicPartition) -> int | None:
        """Return the first offset that a call took of an owned partition, and no caller has received; None without."""
        state = self._subscription.offsets.of(partition)
        return None if state is None else self.in_flight.unreceived_from(partition, state)

    def follow_subscription(self) -> None:
        """Stop the delivery of unsubscribed topics, and resume that of topics that are subscribed to again."""
        covers, fetched = self._subscription.covers, self._fetcher.assignment
        self._refused = {
            topic: error for topic, error in self._refused.items() if self._subscription.covers_topic(topic)
        }
        self.fetch([partition for partition in self.ready if covers(partition) != (partition in fetched)])

    def refuse(self, topic: str, error: KielGroupsError) -> None:
        """Raise ``error`` at the application's next request for the topic, whose start position is unknown."""
        if self._subscription.covers_topic(topic):
            self._refused[topic] = error
            self._fetcher.ready.notify(topic)

    def accept(self, partitions: Collection[TopicPartition]) -> None:
        """
        Note that the start positions of these partitions are known now. Errors of their topics are dropped.

        Those still unknown are refused again. What was read earlier may be of the logs of deleted topics.
        """
        for topic in {partition.topic for partition in partitions}:
            self._refused.pop(topic, None)
        self._fetcher.forget_logs(partitions)

    def read_logs(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, ReadLog]:
        """Return what is known of the logs of partitions with these positions."""
        return self._fetcher.read_logs(positions)

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Stop fetching these partitions, and drop their buffered records."""
        self._fetcher.unassign(partitions)
        self.batch.drop(partitions)
        self.bad.end(partitions)
        self.progress.notify()

    def resume_at(self, partition: TopicPartition, offset: int) -> None:
        """Fetch a partition from ``offset`` once its assigned hook has ended. Stop counting its records in flight."""
        self.in_flight.stop_counting([partition])
        # The application may have chosen the start position that was unknown.
        self._refused.pop(partition.topic, None)
        if (state := self._subscription.offsets.of(partition)) is not None:
            state.position = offset
        self.fetch([partition])
        # The topic may have been created again: until a record is read, nothing is known of its log.
        self._fetcher.forget_logs([partition])

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """
        Neither fetch nor deliver these partitions until ``resume``; the subscription has them as paused.

        Buffered records remain, as far as the buffer may hold them for paused partitions. The others are fetched again.
        """
        self.bad.end_pauses(partitions)
        unfinished = [self.batch.take_rest(partition) for partition in partitions]
        over = self._fetcher.pause(partitions)
        for rest in unfinished:
            if rest is not None:
                self._fetcher.put_back(*rest)
        self.fetch(over)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """End the pause of these partitions. Those with a bad record remain set aside."""
        resumed = [partition for partition in partitions if partition not in self.bad]
        context_without_calls().run(self._fetcher.resume, resumed)

    # ------------------------------------------------------------------ bad records

    def may_deliver_under(self, state: PartitionOffsets, partition: TopicPartition) -> bool:
        """Return whether records of a partition may be delivered at this moment, under the claim of ``state``."""
        is_current = self.claim_of(partition) is state
        return is_current and self.may_deliver() and not self._subscription.is_paused(partition)

    def set_aside(self, partition: TopicPartition) -> None:
        """Neither fetch nor deliver a partition until ``end_set_aside``. Its buffered records remain."""
        self._fetcher.pause([partition])

    def end_set_aside(self, partition: TopicPartition) -> None:
        """Deliver a partition again, unless the application has paused it."""
        if not self._subscription.is_paused(partition):
            self.resume([partition])

    def pass_record(self, partition: TopicPartition, offset: int | None) -> None:
        """Drop the next record of a partition set aside, at ``offset``; or, if None, fetch from the position."""
        if self.claim_of(partition) is None:
            return
        if offset is None:
            self.fetch([partition])
        else:
            self._fetcher.skip(partition, offset)

    # ------------------------------------------------------------------ the reset of a position

    def while_fetched(self, partition: TopicPartition) -> Callable[[], bool]:
        """Return a function that returns whether the fetcher still has the partition's present assignment."""
        epoch = self._fetcher.epoch(partition)
        return lambda: epoch is not None and self._fetcher.epoch(partition) == epoch

    def truncate(self, partition: TopicPartition, end: int) -> int:
        """
        Drop buffered records and stop counting records in flight, at and after ``end``, the end of the partition's log.

        Returns:
            How many buffered records were dropped.
        """
        # First what is not delivered, since a loop on another thread may take records meanwhile.
        dropped = self.batch.cut_off(partition, end)
        self.in_flight.truncate(partition, end)
        return dropped + self._fetcher.truncate(partition, end)

    async def wait_until_consumed(self, partition: TopicPartition, is_fetched: Callable[[], bool]) -> None:
        """Wait until a partition has no record buffered or in flight, or until ``is_fetched`` returns False."""
        await self.progress.until(lambda: not (is_fetched() and self._has_records_of(partition)))

    def _has_records_of(self, partition: TopicPartition) -> bool:
        buffered = self.batch.has_records_of(partition) or self._fetcher.is_buffering(partition)
        return buffered or bool(self.in_flight.in_flight_of([partition]))
