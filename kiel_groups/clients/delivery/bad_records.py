"""Decide what to do at a record that cannot be delivered: raise its error, skip it, or call the application's hook."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Collection
from typing import Any, NamedTuple, Protocol

from kiel_groups.backoff import Backoff
from kiel_groups.clients.calls.callers import context_without_calls
from kiel_groups.clients.calls.eager_methods import cancels_this_task, spawn
from kiel_groups.clients.delivery.deserializer import Deserializer
from kiel_groups.clients.delivery.in_flight import BadRecordInFlight, ConsumerInFlight, DeliveryProgress
from kiel_groups.errors import BadRecordError, DamagedRecordError
from kiel_groups.group.partition_offsets import PartitionOffsets
from kiel_groups.metrics import Metrics
from kiel_groups.model import Record, TopicPartition

__all__ = ["BadRecords"]

log = logging.getLogger(__name__)

#: The pauses between two errors of one record: short enough for a program that seeks, long enough for one that waits.
_PAUSES = Backoff(first_s=0.1, longest_s=10.0)


class _Records(Protocol):
    """The owned records; see ``OwnedRecords``."""

    in_flight: ConsumerInFlight
    progress: DeliveryProgress

    def may_deliver_under(self, state: PartitionOffsets, partition: TopicPartition) -> bool:
        """Return whether records of a partition may be delivered at this moment, under the claim of ``state``."""

    def while_fetched(self, partition: TopicPartition) -> Callable[[], bool]:
        """Return a function that returns whether the partition's present assignment continues."""

    def set_aside(self, partition: TopicPartition) -> None:
        """Neither fetch nor deliver a partition until ``end_set_aside``."""

    def end_set_aside(self, partition: TopicPartition) -> None:
        """Deliver a partition again, unless the application has paused it."""

    def pass_record(self, partition: TopicPartition, offset: int | None) -> None:
        """Continue behind the buffered record at ``offset``, or fetch from the position if that is None."""


class _Raised(NamedTuple):
    """The last error that was raised of a partition, and how often in a row."""

    state: PartitionOffsets
    offset: int
    times: int


class BadRecords:
    """
    What a consumer does at bad records that are the next ones of their partitions.

    The record stays where it is, in the fetcher. While its error pauses, or its hook runs, the partition is set aside;
    others are delivered. A seek, a pause by the application and the end of the claim end that.

    Args:
        deserializer: Has the application's ``on_bad_record``, and counts its own failures.
        records: Where the records are.
        metrics: Counts ``bad_records_raised``, ``bad_records_passed`` and ``bad_record_hooks_failed``.
    """

    def __init__(self, deserializer: Deserializer, records: _Records, metrics: Metrics) -> None:
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
        Do what the application has chosen. If this returns, the partition is set aside until its record is passed.

        Raises:
            BadRecordError: It is to be raised to the application; the partition is set aside for a while.
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
        """Pass a record once the hook has returned; if the hook raises, keep its error."""
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
        """End the pauses after errors, because the application has paused the partitions itself. Hooks continue."""
        for partition in partitions:
            if (timer := self._aside.get(partition)) is not None:
                timer.cancel()
                del self._aside[partition]

    def end(self, partitions: Collection[TopicPartition] | None = None) -> None:
        """Stop setting these partitions aside (None: all), because they are dropped. Hooks continue."""
        for partition in list(self._aside) if partitions is None else partitions:
            self._failed.pop(partition, None)
            timer = self._aside.pop(partition, None)
            if timer is not None:
                timer.cancel()

    def close(self) -> None:
        """Cancel the hooks that still run when the consumer has left its group."""
        for hook in self._hooks.values():
            hook.cancel()
