"""Track the records of owned partitions from the fetcher until they are finished, and handle bad records."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Collection
from typing import Any, Generic, NamedTuple, TypeVar

from kiel_groups.backoff import Backoff
from kiel_groups.clients.calls.callers import context_without_calls
from kiel_groups.clients.calls.eager_methods import cancels_this_task, spawn
from kiel_groups.clients.delivery.deserializer import Converted, Deserializer
from kiel_groups.clients.delivery.in_flight import BadRecordInFlight, ConsumerInFlight, DeliveryProgress
from kiel_groups.clients.delivery.listener_calls import ListenerCalls, ReadyClaims
from kiel_groups.clients.fetch.fetch_requests import ANY, Selection
from kiel_groups.clients.fetch.fetcher import Fetcher
from kiel_groups.clients.fetch.partition_fetch import FetchedBatch
from kiel_groups.errors import BadRecordError, DamagedRecordError, KielGroupsError
from kiel_groups.group.partition_offsets import PartitionOffsets
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.members.partition_handler import Gate
from kiel_groups.metrics import Metrics
from kiel_groups.model import FencingToken, Record, TopicPartition
from kiel_groups.zookeeper.delivery_gate import GATE_PAUSE_S, DeliveryGate
from kiel_groups.zookeeper.runtime import Runtime

log = logging.getLogger(__name__)

R = TypeVar("R", covariant=True)


class OwnedBatch(NamedTuple, Generic[R]):
    """A batch to deliver now, the state of the claim under which it is delivered, and its records."""

    fetched: FetchedBatch
    state: PartitionOffsets
    #: The records in the form in which they are delivered. Records that the deserializer skipped are left out.
    records: R
    #: The number of records.
    delivered: int


class OwnedRecords:
    """
    The records of the owned partitions, from the fetcher until the application has finished them.

    ``RecordDelivery``, for a loop, and ``ValueDelivery``, for the other methods, share this object. The object owns the
    buffered records and the records in flight, and decides which records may be delivered now. The topic of such a
    record is subscribed. The partition is not paused, and its assigned hook has ended. The *gate* is open, that is, the
    member's session permits delivery.
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
        #: Whether all deliveries have ended, and the error that loops and calls raise in their place.
        self.ended = False
        self._failure: KielGroupsError | None = None

    # ------------------------------------------------------------------ delivery

    def may_deliver(self) -> bool:
        """Return whether records may be delivered at this moment."""
        return not self.ended and self.gate.is_open(self.boot_time_s())

    def _raise_refused(self, topic: str | None) -> None:
        """
        Raise, once, the error of a topic whose start position is unknown. Without such an error, do nothing.

        If ``topic`` is None, raise the error of any such topic.
        """
        if topic is None and self._refused:
            raise self._refused.popitem()[1]
        if topic in self._refused:
            raise self._refused.pop(topic)

    def poll(
        self,
        selection: Selection,
        convert: Callable[[Deserializer, FetchedBatch, FencingToken], Converted[R]],
        most_records: int | None = None,
        *,
        errors: bool = True,
    ) -> OwnedBatch[R] | None:
        """
        Remove and return the next batch of a selected partition that is still owned, or None if there is no such batch.

        The batch ends before a record that cannot be converted, or after ``most_records``. The rest of the batch
        remains the next batch of its partition. A record that fails is handled when it is the first record of a batch.

        Args:
            selection: The partitions.
            convert: Makes the form in which the records are delivered; see ``Converted``.
            most_records: The most records to return; None for no limit.
            errors: If False, errors remain for a later call: a call that has records to return must not raise an error.

        Raises:
            BadRecordError: The next record of a partition cannot be delivered.
            KielGroupsError: A partition cannot be read, or the start position of a topic is unknown.
        """
        while self.may_deliver():
            if errors:
                self._raise_refused(selection.topic)
            fetched = self._next_fetched(selection, most_records, errors)
            if fetched is None:
                break
            state = self._subscription.offsets.of(fetched.topic_partition)
            if state is None:
                continue
            try:
                records, delivered, read, error = convert(self.deserializer, fetched, state.token)
            except BaseException:
                # The deserializer may raise anything, such as SystemExit.
                if self.is_current(fetched):
                    self._fetcher.put_back(fetched, 0)
                raise
            if not self.is_current(fetched):
                # The deserializer has sought, or has closed the consumer.
                continue
            if read < len(fetched):
                self._fetcher.put_back(fetched, read)
                fetched = fetched.part(0, read)
            self._metrics.count("records_handed_out", read)
            if read:
                return OwnedBatch(fetched, state, records, delivered)
            if not errors:
                break
            if error is not None:
                self.bad.handle(error, state)
        return None

    def _next_fetched(self, selection: Selection, most_records: int | None, errors: bool) -> FetchedBatch | None:
        """Remove and return the next batch, or None. Handle damaged records that come before the batch."""
        while True:
            if self._fetcher.passed:
                self._pass_empty_offsets()
            try:
                return self._fetcher.poll(selection, most_records, errors=errors)
            except DamagedRecordError as error:
                damaged = self._subscription.offsets.of(error.topic_partition)
                if damaged is not None:
                    self.bad.handle(error, damaged)

    def _pass_empty_offsets(self) -> None:
        """
        Move positions past offsets without records, if the application has finished all records before these offsets.

        So such offsets do not count as lag, and are committed like finished records. A partition with unfinished or
        buffered records is left for a later call.
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

    def is_current(self, fetched: FetchedBatch) -> bool:
        """
        Return whether a batch may still be delivered: delivery has not ended, and its partition was not reassigned.
        """
        return not self.ended and self._fetcher.epoch(fetched.topic_partition) == fetched.epoch

    async def wait(self, selection: Selection = ANY) -> None:
        """
        Wait until ``poll`` is likely to return a batch. While the gate is shut, wait only ``GATE_PAUSE_S`` seconds.
        """
        if self.gate.is_open(self.boot_time_s()):
            await self._fetcher.ready.wait(selection)
        else:
            await asyncio.sleep(GATE_PAUSE_S)

    def end(self, error: KielGroupsError | None = None) -> None:
        """Stop all deliveries. Records in flight can still be finished."""
        self.ended, self._failure = True, error
        self.batch.clear()
        self.bad.end()
        self.deserializer.close()

    def raise_failure(self) -> None:
        """Raise the error with which the deliveries have ended, if there is an error."""
        if self._failure is not None:
            raise self._failure

    # ------------------------------------------------------------------ fetching

    def fetch(self, partitions: Collection[TopicPartition]) -> None:
        """
        Drop the buffered records of these partitions, and fetch them from their positions.

        A partition is skipped while its assigned hook runs or its topic is not subscribed. A later call fetches the
        partition.
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
        """Return the state of a partition's claim, or None if records of the partition may not be delivered."""
        return None if self.ended or partition not in self.ready else self._subscription.offsets.of(partition)

    def unreceived_from(self, partition: TopicPartition) -> int | None:
        """Return the first offset of an owned partition that a call took, but no caller has received, or None."""
        state = self._subscription.offsets.of(partition)
        return None if state is None else self.in_flight.unreceived_from(partition, state)

    def follow_subscription(self) -> None:
        """Stop delivering unsubscribed topics, and resume delivering topics that are subscribed again."""
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
        Prepare for partitions whose start positions are known now: drop the errors of their topics.

        If other partitions of a topic still lack a start position, the member reports the topic's error again. Also
        forget the log marks of these partitions, because they may be of logs of deleted topics.
        """
        for topic in {partition.topic for partition in partitions}:
            self._refused.pop(topic, None)
        self._fetcher.forget_logs(partitions)

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Stop fetching these partitions, and drop their buffered records."""
        self._fetcher.unassign(partitions)
        self.batch.drop(partitions)
        self.bad.end(partitions)
        self.progress.notify()

    def resume_at(self, partition: TopicPartition, offset: int) -> None:
        """
        Set a partition's position to ``offset``, and fetch from ``offset`` once the assigned hook has ended.

        Drop the partition's buffered records, and stop tracking its records in flight.
        """
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
        Stop fetching and delivering these partitions until ``resume``.

        The caller has marked the partitions as paused in the subscription. A partition keeps its buffered records,
        unless paused partitions already fill their share of the buffer. Then its records are dropped, and fetched again
        after ``resume``.
        """
        self.bad.end_pauses(partitions)
        unfinished = [self.batch.take_rest(partition) for partition in partitions]
        over = self._fetcher.pause(partitions)
        for rest in unfinished:
            if rest is not None:
                self._fetcher.put_back(*rest)
        self.fetch(over)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Fetch and deliver these partitions again, except partitions that ``BadRecords`` has set aside."""
        resumed = [partition for partition in partitions if partition not in self.bad]
        context_without_calls().run(self._fetcher.resume, resumed)

    # ------------------------------------------------------------------ bad records

    def may_deliver_under(self, state: PartitionOffsets, partition: TopicPartition) -> bool:
        """Return whether records of a partition may be delivered at this moment, under the claim of ``state``."""
        is_current = self.claim_of(partition) is state
        return is_current and self.may_deliver() and not self._subscription.is_paused(partition)

    def set_aside(self, partition: TopicPartition) -> None:
        """
        Stop fetching and delivering a partition until ``end_set_aside``. The buffered records of the partition remain.
        """
        self._fetcher.pause([partition])

    def end_set_aside(self, partition: TopicPartition) -> None:
        """Deliver a partition again, unless the application has paused it."""
        if not self._subscription.is_paused(partition):
            self.resume([partition])

    def pass_record(self, partition: TopicPartition, offset: int | None) -> None:
        """
        Pass a bad record of a partition that is set aside.

        Drop the record at ``offset`` if it is the next record to deliver. If ``offset`` is None, drop all buffered
        records and fetch from the position.
        """
        if self.claim_of(partition) is None:
            return
        if offset is None:
            self.fetch([partition])
        else:
            self._fetcher.skip(partition, offset)

    # ------------------------------------------------------------------ the reset of a position

    def while_fetched(self, partition: TopicPartition) -> Callable[[], bool]:
        """Return a function that tells whether the fetcher still has the partition's present assignment."""
        epoch = self._fetcher.epoch(partition)
        return lambda: epoch is not None and self._fetcher.epoch(partition) == epoch

    def truncate(self, partition: TopicPartition, end: int) -> int:
        """
        Drop buffered records, and stop tracking records in flight, at and after the log's ``end``.

        Returns:
            How many buffered records were dropped.
        """
        # Undelivered records are cut off first, since a loop on another thread may deliver some of them meanwhile.
        dropped = self.batch.cut_off(partition, end)
        self.in_flight.truncate(partition, end)
        return dropped + self._fetcher.truncate(partition, end)

    async def wait_until_consumed(self, partition: TopicPartition, is_fetched: Callable[[], bool]) -> None:
        """Wait until a partition has no record buffered or in flight, or until ``is_fetched`` returns False."""
        await self.progress.until(lambda: not (is_fetched() and self._has_records_of(partition)))

    def _has_records_of(self, partition: TopicPartition) -> bool:
        buffered = self.batch.has_records_of(partition) or self._fetcher.is_buffering(partition)
        return buffered or bool(self.in_flight.in_flight_of([partition]))


# Decide what to do at a record that cannot be delivered: raise its error, skip it, or call the application's hook.


#: The pauses between two errors of one record: short enough for a program that seeks, long enough for one that waits.
_PAUSES = Backoff(first_s=0.1, longest_s=10.0)


class _Raised(NamedTuple):
    """The last error that was raised for a partition: its claim and offset, and how often it was raised in a row."""

    state: PartitionOffsets
    offset: int
    times: int


class BadRecords:
    """
    Handles a bad record when it is the next record of its partition.

    The record stays in the fetcher. The partition of the record is *set aside*, that is, neither fetched nor delivered:
    for a pause after the error is raised, or while the hook ``on_bad_record`` runs. Other partitions are delivered. A
    seek, a pause by the application, or the end of the claim ends this state early.

    Args:
        deserializer: Has the application's ``on_bad_record``, and counts its own failures.
        records: The owned records.
        metrics: Counts ``bad_records_raised``, ``bad_records_passed`` and ``bad_record_hooks_failed``.
    """

    def __init__(self, deserializer: Deserializer, records: OwnedRecords, metrics: Metrics) -> None:
        self._deserializer = deserializer
        self._on_bad_record = deserializer.on_bad_record
        self._records = records
        self._metrics = metrics
        self._raised: dict[TopicPartition, _Raised] = {}
        #: Partitions that are set aside, and the end of the pause, or None while a hook runs.
        self._aside: dict[TopicPartition, asyncio.TimerHandle | None] = {}
        #: Errors of hooks, which are raised when the record is reached again.
        self._failed: dict[TopicPartition, BadRecordError] = {}
        self._hooks: dict[TopicPartition, asyncio.Task[None]] = {}

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._aside

    def handle(self, error: BadRecordError, state: PartitionOffsets) -> None:
        """
        Raise the error, or start to skip the record or to call the hook, as ``on_bad_record`` says.

        If this method returns, the partition is set aside until the skip or the hook has ended.

        Raises:
            BadRecordError: The application has chosen "raise", or the hook has failed on this record. The partition is
                set aside for a pause.
        """
        partition = error.topic_partition
        failed = self._failed.pop(partition, None)
        if failed is not None and failed.offset == error.offset:
            self._raise(failed, state)
        if partition not in self._hooks and isinstance(error, DamagedRecordError):
            self._metrics.count("records_damaged")
        elif partition not in self._hooks:
            self._deserializer.failed()
        if self._on_bad_record == "raise":
            self._raise(error, state)
        self._set_aside(partition, None)
        if partition not in self._hooks:
            running = self._run(error, state, self._records.while_fetched(partition))
            self._hooks[partition] = spawn(running, f"on_bad_record of {partition}")

    def _raise(self, error: BadRecordError, state: PartitionOffsets) -> None:
        partition, offset = error.topic_partition, error.offset
        before = self._raised.get(partition)
        is_again = before is not None and before.state is state and before.offset == offset
        times = before.times + 1 if before is not None and is_again else 1
        self._raised[partition] = _Raised(state, offset, times)
        self._metrics.count("bad_records_raised")
        if not isinstance(error, DamagedRecordError):
            # The fetcher logs damage, and fetches the partition again after a pause.
            if not is_again:
                log.error("%s; raising this to the application, again and again until it is passed", error)
            self._set_aside(partition, _PAUSES.delay_s(times))
        raise error

    def _set_aside(self, partition: TopicPartition, pause_s: float | None) -> None:
        self._records.set_aside(partition)
        timer = self._aside.pop(partition, None)
        if timer is not None:
            timer.cancel()
        if pause_s is None:
            self._aside[partition] = None
        else:
            loop, context = asyncio.get_running_loop(), context_without_calls()
            self._aside[partition] = loop.call_later(pause_s, self._end_pause, partition, context=context)

    def _end_pause(self, partition: TopicPartition) -> None:
        del self._aside[partition]
        self._records.end_set_aside(partition)

    async def _run(self, error: BadRecordError, state: PartitionOffsets, is_fetched: Callable[[], bool]) -> None:
        """Wait until earlier records are finished, then run the hook and pass the record. Keep an error of the hook."""
        partition, in_flight = error.topic_partition, self._records.in_flight
        try:
            # What is finished must not get past records that the application still processes.
            await self._records.progress.until(lambda: not is_fetched() or not in_flight.in_flight_of([partition]))
            if is_fetched() and self._records.may_deliver_under(state, partition):
                await self._call(error, state, is_fetched)
        finally:
            self._hooks.pop(partition, None)
            if self._aside.get(partition, 0) is None:
                self._end_pause(partition)

    async def _call(self, error: BadRecordError, state: PartitionOffsets, is_fetched: Callable[[], bool]) -> None:
        partition = error.topic_partition
        in_flight = BadRecordInFlight(error, state)
        self._records.in_flight.bad[partition] = in_flight
        try:
            await self._call_hook(error)
        except (Exception, asyncio.CancelledError) as hook_error:
            if cancels_this_task(hook_error):
                raise
            self._keep_failure(error, hook_error)
        else:
            self._metrics.count("bad_records_passed")
            if in_flight.finish():
                is_buffered = is_fetched() and not isinstance(error, DamagedRecordError)
                self._records.pass_record(partition, error.offset if is_buffered else None)
        finally:
            del self._records.in_flight.bad[partition]
            self._records.progress.notify()

    async def _call_hook(self, error: BadRecordError) -> None:
        if not callable(self._on_bad_record):
            last = error.next_offset - 1
            place = f"offset {last}" if last == error.offset else f"offsets {error.offset} to {last}"
            log.error("%s: skipping %s: %s", error.topic_partition, place, error)
            return
        topic, partition = error.topic_partition
        called: Any = self._on_bad_record(Record(topic, partition, error.offset, error.key, error.value), error)
        if inspect.isawaitable(called):
            await called

    def _keep_failure(self, error: BadRecordError, hook_error: BaseException) -> None:
        self._metrics.count("bad_record_hooks_failed")
        log.error("%s: on_bad_record failed, so the record is kept", error.topic_partition, exc_info=hook_error)
        kept = error.with_traceback(None)
        kept.args = (f"{error}; on_bad_record failed: {hook_error!r}",)
        if kept.__cause__ is not None and hook_error.__context__ is None:
            hook_error.__context__ = kept.__cause__
        kept.__cause__ = hook_error
        self._failed[error.topic_partition] = kept

    def end_pauses(self, partitions: Collection[TopicPartition]) -> None:
        """End the pauses after errors, because the application has paused the partitions. Hooks continue."""
        for partition in partitions:
            if (timer := self._aside.get(partition)) is not None:
                timer.cancel()
                del self._aside[partition]

    def end(self, partitions: Collection[TopicPartition] | None = None) -> None:
        """
        Stop setting these partitions aside, because the caller drops them. None means all partitions. Running hooks
        continue.
        """
        for partition in list(self._aside) if partitions is None else partitions:
            self._failed.pop(partition, None)
            timer = self._aside.pop(partition, None)
            if timer is not None:
                timer.cancel()

    def close(self) -> None:
        """Cancel the hooks that still run after the consumer has left its group."""
        for hook in self._hooks.values():
            hook.cancel()
