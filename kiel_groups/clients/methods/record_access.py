"""The ways in which an application gets records of both consumers: a loop, or records of partitions."""

from __future__ import annotations

import asyncio
import sys
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, TypeVar

from kiel_groups.clients.calls.arguments import partition_of
from kiel_groups.clients.calls.callers import (
    ConsumeCall,
    DeliveryStyle,
    StyleChoice,
    consume_calls_here,
    current_caller,
    new_consume_call,
)
from kiel_groups.clients.calls.consume_future import start_consume_call
from kiel_groups.clients.calls.eager_methods import failed_future
from kiel_groups.clients.calls.left_loop import LeftLoop
from kiel_groups.clients.connected.record_reader import RecordReader
from kiel_groups.clients.delivery.record_loop import RecordLoop
from kiel_groups.errors import ClosedError, ConfigError, IllegalStateError, KielGroupsError
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.model import Record, TopicPartition
from kiel_groups.wire.message_sets.record_columns import RecordColumns

__all__ = ["RecordAccess"]

T = TypeVar("T")


class RecordAccess:
    """
    Delivers records of both consumers: ``async for``; ``getone()``, ``getmany()`` and ``consume_batches()``; or
    ``consume()`` of a subclass.

    The first use decides on one of the three for the lifetime of the consumer (decision 0006).
    """

    _records: weakref.ref[RecordLoop] | None = None
    _left_loop: LeftLoop
    _subscription: SubscriptionState

    def __init__(self) -> None:
        self._style = StyleChoice()
        #: Calls in progress; for each, the latest calls of its coroutine, one for each topic.
        self._waiting_calls: dict[asyncio.Future[Any], frozenset[ConsumeCall]] = {}

    def _require_reader(self) -> RecordReader:
        """Return the reader of a consumer that is connected. Raise ClosedError for any other consumer."""
        raise NotImplementedError

    def _connected_readers(self) -> list[RecordReader]:
        """Return the reader of a consumer that is connected, and those that are being closed."""
        raise NotImplementedError

    def _check_subscribed(self, call: str) -> None:
        """Raise IllegalStateError if no record can ever come: the consumer has neither topics nor partitions."""
        self._subscription.check_chosen(call)

    def __aiter__(self) -> RecordLoop:
        """
        Iterate over records until the consumer is closed. Only one loop may be active at a time.

        A caller that takes single records with ``anext`` must keep the iterator. If the iterator is dropped other than
        by ``break``, ``return`` or its end, the last record is not finished and is delivered again.

        Raises:
            ClosedError: The consumer was not connected, or was closed.
            ConfigError: Another loop is active, or the consumer is used in another style, such as ``consume()``.
            IllegalStateError: Neither ``subscribe()`` nor ``assign()`` has been called.
        """
        reader = self._require_reader()
        self._check_subscribed("a loop over records")
        self._style.choose(DeliveryStyle.ITERATION)
        reader.records.begin_loop()
        records = RecordLoop(reader.records, reader.next_record)
        self._records = weakref.ref(records)
        return records

    def getone(self, *partitions: TopicPartition) -> asyncio.Future[Record]:
        """
        Return the next record, however long that takes.

        The record is finished when the coroutine that received it calls ``getone()`` again, or ``getmany()`` or
        ``consume_batches()``. A record that arrives after its caller has given up (``asyncio.wait_for``,
        ``gen.with_timeout``) is delivered again.

        Args:
            partitions: The partitions from which to return a record; by default any. Those that are not assigned have
                no records until they are.

        Raises:
            ConfigError: An argument is not a TopicPartition, or the consumer is used in another style.
            IllegalStateError: Neither ``subscribe()`` nor ``assign()`` has been called. Or the same coroutine has
                called again meanwhile, or the result was read so late that the record is delivered again.
            ClosedError: The consumer is not connected, or was closed.
            BadRecordError: The next record of a partition cannot be delivered; see ``on_bad_record``. It is raised
                again, with pauses between, until it is passed. The next call may return a record of another partition.
            KielGroupsError: A partition cannot be read. The next call may return a record of another one.
        """
        return self._start("getone()", partitions, self._getone, _raise_late)

    async def _getone(self, call: ConsumeCall, partitions: frozenset[TopicPartition] | None) -> Record:
        found = await self._unless_closed(self._require_reader().next_records(call, partitions, 1, None))
        for records in found.values():
            return records[0]
        raise IllegalStateError(
            "getone(): the same coroutine has called for records again before this call returned; await it first, or"
            " use a task for each"
        )

    def getmany(
        self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None
    ) -> asyncio.Future[dict[TopicPartition, list[Record]]]:
        """
        Return buffered records by partition, in the order of the log.

        The records are finished when the coroutine that received them calls ``getmany()`` again, or ``getone()`` or
        ``consume_batches()``, even if that call returns none, or when another one calls and the coroutine's task has
        ended. Their partitions are not released before that. Records that arrive after their caller has given up are
        delivered again.

        Args:
            partitions: The partitions from which to return records; by default all.
            timeout_ms: How long to wait if no records are buffered; 0 returns at once.
            max_records: The most records to return; by default all that are buffered.

        Returns:
            The records, without partitions that have none. {} if none came in time, or if the same coroutine has called
            again meanwhile.

        Raises:
            ConfigError: An argument is invalid, or the consumer is used in another style.
            IllegalStateError: Neither ``subscribe()`` nor ``assign()`` has been called.
            NoBrokersError: No records came, and 8 metadata requests in a row were not answered.
            ClosedError: The consumer is not connected, or was closed.
            BadRecordError: As ``getone``. The records before it are returned by an earlier call.
            KielGroupsError: A partition cannot be read. The next call may return records of others.
        """

        async def get(
            call: ConsumeCall, wanted: frozenset[TopicPartition] | None
        ) -> dict[TopicPartition, list[Record]]:
            reader = self._require_reader()
            return await self._unless_closed(reader.next_records(call, wanted, max_records, timeout_ms / 1000))

        try:
            _check_limits("getmany()", timeout_ms, max_records)
        except ConfigError as error:
            return failed_future(error, self._label("getmany"))
        return self._start("getmany()", partitions, get, dict)

    def consume_batches(
        self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None
    ) -> asyncio.Future[dict[TopicPartition, list[RecordColumns]]]:
        """
        Return buffered records by partition, as columns: offsets, keys and values, without an object for each record.

        Apart from their form, the records are delivered and finished as those of ``getmany()``, and the three methods
        that return records may be used by turns. Each item of a list has the records of one run of the log, about 512
        KiB: joining them would copy them. Keys and values are bytes.

        Args:
            partitions: The partitions from which to return records; by default all.
            timeout_ms: How long to wait if no records are buffered; 0 returns at once.
            max_records: The most records to return; by default all that are buffered.

        Returns:
            The records, without partitions that have none. {} if none came in time, or if the same coroutine has called
            again meanwhile.

        Raises:
            ConfigError: As ``getmany``. Or the consumer has a deserializer, which would be called for each record.
            IllegalStateError: As ``getmany``.
            NoBrokersError: As ``getmany``.
            ClosedError: The consumer is not connected, or was closed.
            DamagedRecordError: The next record of a partition is damaged; see ``on_bad_record``. The records before it
                are returned by an earlier call.
            KielGroupsError: A partition cannot be read. The next call may return records of others.
        """

        async def get(
            call: ConsumeCall, wanted: frozenset[TopicPartition] | None
        ) -> dict[TopicPartition, list[RecordColumns]]:
            reader = self._require_reader()
            return await self._unless_closed(reader.next_columns(call, wanted, max_records, timeout_ms / 1000))

        try:
            _check_limits("consume_batches()", timeout_ms, max_records)
            if not self._require_reader().owned.deserializer.keeps_bytes:
                raise ConfigError(
                    "consume_batches() returns bytes, and this consumer has a deserializer or key_deserializer, which"
                    " takes one record at a time: leave it out, or use getmany()"
                )
        except KielGroupsError as error:
            return failed_future(error, self._label("consume_batches"))
        return self._start("consume_batches()", partitions, get, dict)

    def _start(
        self,
        name: str,
        partitions: tuple[TopicPartition, ...],
        get: Callable[[ConsumeCall, frozenset[TopicPartition] | None], Coroutine[Any, Any, T]],
        late: Callable[[], T],
    ) -> asyncio.Future[T]:
        """Start a call that returns records, and finish what the caller's earlier calls returned."""
        label = self._label(name.rstrip("()"))
        try:
            wanted = frozenset(partition_of(each, name) for each in partitions) or None
            reader = self._require_reader()
            self._check_subscribed(name)
            self._style.choose(DeliveryStyle.RECORDS)
        except KielGroupsError as error:
            return failed_future(error, label)
        call = new_consume_call(self, None)
        reader.finish_records()
        return self._start_waiting(get(call, wanted), call, label, late)

    def _label(self, method: str) -> str:
        return f"{type(self).__name__}.{method}"

    def _start_waiting(
        self, work: Coroutine[Any, Any, T], call: ConsumeCall, label: str, late: Callable[[], T]
    ) -> asyncio.Task[T]:
        """Start a call, as ``start_consume_call`` does. The caller waits in it until it is done."""
        started = start_consume_call(work, call, label, late)
        self._waiting_calls[started] = consume_calls_here(self)
        # Not removed by the coroutine: a task that is cancelled before its first step does not run it.
        started.add_done_callback(self._waiting_calls.pop)
        return started

    async def _unless_closed(self, asked: Coroutine[Any, Any, T | None]) -> T:
        """Return what the reader returns. If that is None, the consumer is closed: raise ClosedError after that."""
        found = await asked
        if found is None:
            await self._left_loop.closed.wait()
            raise ClosedError("the consumer was closed; a new one may join in its place")
        return found

    def _end_in_flight(self, *, running: bool) -> None:
        """At a close, finish what the caller has in flight, unless an exception is being handled or no loop runs."""
        finished = running and sys.exc_info()[0] is None
        records = self._records() if self._records is not None else None
        if records is None or not running or records.caller is current_caller():
            self._end_record(finished=finished)
        here = consume_calls_here(self)
        for call in here if finished else ():
            call.superseded = True
        waiting = [calls for started, calls in self._waiting_calls.items() if not started.done()]
        for reader in self._connected_readers():
            # A coroutine that waits in a call has finished what its earlier calls returned.
            reader.values.finish(calls=frozenset().union(*waiting))
            if finished:
                reader.values.finish(calls=here)
            else:
                reader.values.drop(here if running else None)

    def _count_record(self) -> None:
        """Count the record in flight of a loop as finished by a commit, if the caller runs that loop."""
        loop = self._records() if self._records is not None else None
        if loop is not None and loop.caller is current_caller():
            for reader in self._connected_readers():
                reader.records.in_flight.count()

    def _end_record(self, *, finished: bool) -> None:
        """Finish the record in flight of a loop, or deliver it again."""
        for reader in self._connected_readers():
            if finished:
                reader.records.finish()
            else:
                reader.records.put_back()


def _check_limits(name: str, timeout_ms: int, max_records: int | None) -> None:
    """Raise ConfigError unless these are arguments of a call that returns records."""
    if isinstance(timeout_ms, bool) or not isinstance(timeout_ms, int | float) or not timeout_ms >= 0:
        raise ConfigError(f"{name}: timeout_ms is {timeout_ms!r}; expected milliseconds, at least 0")
    most = max_records
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise ConfigError(f"{name}: max_records is {most!r}; expected a whole number of at least 1, or None")


def _raise_late() -> NoReturn:
    raise IllegalStateError(
        "getone(): its result was read so late that the record is delivered again; await the call at once"
    )
