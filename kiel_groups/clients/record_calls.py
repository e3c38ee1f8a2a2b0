"""Start the loops and calls that get records, refuse a second delivery style, and finish the caller's records."""

from __future__ import annotations

import asyncio
import sys
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, NoReturn, TypeAlias, TypeVar

from kiel_groups.clients.calls.arguments import check_close_timeout, partition_of
from kiel_groups.clients.calls.callers import (
    ConsumeCall,
    DeliveryStyle,
    consume_calls_here,
    current_caller,
    new_consume_call,
)
from kiel_groups.clients.calls.eager_methods import failed_future, spawn, start_consume_call, suspended_if_left
from kiel_groups.clients.calls.left_loop import LeftLoop, running_loop
from kiel_groups.clients.connected_consumer import AssignedConsumer, ConnectedConsumer
from kiel_groups.clients.delivery.listener_calls import THREAD_HOOK
from kiel_groups.clients.delivery.record_loop import RecordLoop
from kiel_groups.clients.delivery.record_reader import COLUMNS, RECORDS, VALUES, Form, Lists, RecordReader
from kiel_groups.clients.fetch.fetch_requests import Selection
from kiel_groups.config import check_name, is_number, is_whole
from kiel_groups.errors import ClosedError, ConfigError, IllegalStateError, KielGroupsError
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.model import Batch, Record, TopicPartition
from kiel_groups.zookeeper.tasks import CloseLimit

F = TypeVar("F")
R = TypeVar("R")
T = TypeVar("T")

Connected: TypeAlias = ConnectedConsumer | AssignedConsumer


class Lifecycle:
    """The base class of the consumers' lifecycles: the connection, from the first use or ``connect()`` to the close."""

    def __init__(self, subscription: SubscriptionState, left_loop: LeftLoop) -> None:
        self.subscription = subscription
        self.left_loop = left_loop
        self.connected: Connected | None = None
        #: The outcome of the close that has begun.
        self.closing: asyncio.Future[None] | None = None
        self._limit = CloseLimit()

    def require_connected(self) -> Connected:
        """Return the connected parts. Raise ClosedError if the consumer is not connected, or was closed."""
        raise NotImplementedError

    def require_reader(self) -> RecordReader:
        """Return the reader of a consumer that is connected. Raise ClosedError for any other consumer."""
        return self.require_connected().reader

    def connections(self) -> list[Connected]:
        """Return the present connection, if there is one. A subclass adds former connections that are being closed."""
        return [] if self.connected is None else [self.connected]

    def check_chosen(self, call: str) -> None:
        """Raise IllegalStateError for ``call`` if the application has chosen neither topics nor partitions."""
        self.subscription.check_chosen(call)

    def _check_close(self, timeout_s: float | None) -> bool:
        """
        Check that ``close()`` may be called, and return whether an event loop runs. If so, limit the close's time.

        Raises:
            ConfigError: The time is not valid.
            IllegalStateError: A coroutine hook of the listener makes the call, or a thread without a loop while the
                loop of the client runs.
        """
        check_close_timeout(timeout_s)
        self.left_loop.check_thread()
        running = running_loop() is not None
        if running:
            for connected in self.connections():
                connected.reader.calls.check_outside()
            # Without a running loop, nothing tells when the time begins.
            self._limit.shorten(timeout_s)
        return running


_FOREVER_MS = float("inf")


class RecordCalls:
    """
    Delivers the records of one consumer to its callers: to a loop, to methods that return records, or to ``consume()``.

    The first use chooses one of these three styles for the lifetime of the consumer (decision 0006).

    Args:
        lifecycle: The consumer's connection.
        owner: The name of the consumer's class, for logs.
        max_bytes: The approximate most bytes that one ``consume()`` returns.
    """

    def __init__(self, lifecycle: Lifecycle, owner: str, max_bytes: int) -> None:
        self._lifecycle = lifecycle
        self._owner = owner
        self._max_bytes = max_bytes
        self._style: DeliveryStyle | None = None
        self._loop: weakref.ref[RecordLoop] | None = None
        #: Calls in progress; for each, the latest calls of its coroutine, one for each topic.
        self._waiting: dict[asyncio.Future[Any], frozenset[ConsumeCall]] = {}

    def loop(self) -> RecordLoop:
        """Begin a loop over the records. Raise the errors of ``Consumer.__aiter__``."""
        reader = self._lifecycle.require_reader()
        self._lifecycle.check_chosen("a loop over records")
        self._choose(DeliveryStyle.ITERATION)
        reader.records.begin_loop()
        records = RecordLoop(reader.records)
        self._loop = weakref.ref(records)
        return records

    def _choose(self, style: DeliveryStyle) -> None:
        """
        Choose a delivery style for the consumer. Raise ConfigError if the consumer uses another style.

        A partition's finished offset is one number. If two styles delivered the partition, each with its own record in
        flight, the consumer could not tell which records before that offset are finished (decision 0006).
        """
        self._style = self._style or style
        if self._style is not style:
            raise ConfigError(
                f"this consumer delivers by {self._style.value}, and {style.value} was called: one consumer delivers in"
                " one way, or it could not know which records are finished; use one of the two, or a second consumer"
            )

    def getone(self, partitions: tuple[TopicPartition, ...]) -> asyncio.Future[Record]:
        """Start a call that waits for the next record, without a time limit."""

        def first(found: Lists[Record]) -> Record:
            for records in found.values():
                return records[0]
            raise IllegalStateError(
                "getone(): the same coroutine has called for records again before this call returned; await it first,"
                " or use a task for each"
            )

        def late() -> NoReturn:
            raise IllegalStateError(
                "getone(): its result was read so late that the record is delivered again; await the call at once"
            )

        return self._get("getone", RECORDS, partitions, _FOREVER_MS, 1, first, late)

    def getmany(
        self,
        form: Form[R, dict[TopicPartition, T]],
        partitions: tuple[TopicPartition, ...],
        timeout_ms: float,
        most: int | None,
    ) -> asyncio.Future[dict[TopicPartition, T]]:
        """Start a call that returns records by partition: ``getmany()``, or ``consume_batches()`` for columns."""
        name = "consume_batches" if form is COLUMNS else "getmany"
        return self._get(name, form, partitions, timeout_ms, most, lambda found: found, dict)

    def _get(
        self,
        method: str,
        form: Form[R, F],
        partitions: tuple[TopicPartition, ...],
        timeout_ms: float,
        max_records: int | None,
        result: Callable[[F], T],
        late: Callable[[], T],
    ) -> asyncio.Future[T]:
        """
        Start a call that returns records, and finish the records of the caller's earlier calls.

        If the records are delivered again before a caller reads the result, the result is what ``late`` returns or
        raises.
        """
        name, label = f"{method}()", f"{self._owner}.{method}"
        try:
            _check_limits(name, timeout_ms, max_records)
            wanted = frozenset(partition_of(each, name) for each in partitions) or None
            reader = self._lifecycle.require_reader()
            if form is COLUMNS and not reader.owned.deserializer.keeps_bytes:
                raise ConfigError(
                    "consume_batches() returns bytes, and this consumer has a deserializer or key_deserializer, which"
                    " takes one record at a time: leave it out, or use getmany()"
                )
            self._lifecycle.check_chosen(name)
            self._choose(DeliveryStyle.RECORDS)
        except KielGroupsError as error:
            if isinstance(error, ClosedError) and self._lifecycle.connected is not None:
                # As in ``consume()``: the caller has finished what it got before, and the close waits for that.
                new_consume_call(self, None)
                self._lifecycle.connected.reader.values.finish([None], ())
            return failed_future(error, label)
        timeout_s = None if timeout_ms == _FOREVER_MS else timeout_ms / 1000
        call, in_hook = new_consume_call(self, None), self._is_in_hook()
        reader.values.finish([None], ())

        async def get() -> T:
            reader = self._lifecycle.require_reader()
            found = await reader.next(Selection(None, wanted), form, call, timeout_s, max_records)
            if found is None:
                if not in_hook:
                    await self._lifecycle.left_loop.closed.wait()
                raise ClosedError("the consumer was closed; a new one may join in its place")
            return result(found)

        return self._start(get(), call, label, late)

    def consume(
        self,
        topic: str,
        read_topic: Callable[[], Awaitable[tuple[RecordReader, float] | None]],
        check: Callable[[], None] = lambda: None,
    ) -> asyncio.Future[Batch | None]:
        """
        Start a call that returns values of a topic, and finish the topic's values that the caller got before.

        Args:
            topic: The topic's name.
            read_topic: Makes the consumer read the topic. Returns the topic's reader, and how long to wait for values,
                in seconds. Returns None once the consumer was closed.
            check: Checks that the consumer may read the topic.
        """
        label = f"{self._owner}.consume"
        if running_loop() is None:
            return spawn(suspended_if_left(partial(self.consume, topic, read_topic, check)), label)
        try:
            check_name(topic, "topic")
            check()
            self._choose(DeliveryStyle.VALUES)
        except KielGroupsError as error:
            return failed_future(error, label)
        call = new_consume_call(self, topic)
        in_hook = self._is_in_hook()
        if self._lifecycle.connected is not None:
            self._lifecycle.connected.finish_topic(topic)

        async def consume() -> Batch | None:
            values, reading = None, await read_topic()
            if reading is not None:
                reader, timeout_s = reading
                values = await reader.next(Selection(topic), VALUES, call, timeout_s, most_bytes=self._max_bytes)
            if values is None and not in_hook:
                await self._lifecycle.left_loop.closed.wait()
            return values

        return self._start(consume(), call, label, Batch)

    def _is_in_hook(self) -> bool:
        """Return whether a hook makes this call. A close waits for hooks, which therefore must not wait for a close."""
        if THREAD_HOOK.get() is not None:
            return True
        return any(each.reader.calls.calling_hook() is not None for each in self._lifecycle.connections())

    def _start(
        self, work: Coroutine[Any, Any, T], call: ConsumeCall, label: str, late: Callable[[], T]
    ) -> asyncio.Task[T]:
        """Start a call with ``start_consume_call``. Until the call is done, remember the caller's latest calls."""
        started = start_consume_call(work, call, label, late)
        self._waiting[started] = self.calls_here()
        # A callback removes the call, not the coroutine: a task that is cancelled before its first step does not run
        # its coroutine.
        started.add_done_callback(self._waiting.pop)
        return started

    def calls_here(self) -> frozenset[ConsumeCall]:
        """Return the running coroutine's latest calls, one for each topic, without superseded calls."""
        return consume_calls_here(self)

    def end_in_flight(self, running: bool) -> None:
        """
        Finish the caller's records and values in flight, for a close.

        If an exception is being handled, or no event loop runs, drop the records and values, so that they are delivered
        again.
        """
        finished = running and sys.exc_info()[0] is None
        loop = None if self._loop is None else self._loop()
        if loop is None or not running or loop.caller is current_caller():
            self.end_record(finished=finished)
        here = self.calls_here()
        for call in here if finished else ():
            call.superseded = True
        waiting = [calls for started, calls in self._waiting.items() if not started.done()]
        for connected in self._lifecycle.connections():
            values = connected.reader.values
            # A coroutine that waits in a call has finished what its earlier calls returned.
            values.finish(calls=frozenset().union(*waiting))
            if finished:
                values.finish(calls=here)
            else:
                values.drop(here if running else None)

    def count_record(self) -> None:
        """Let the next commit include the record in flight of a loop, if the caller runs this loop."""
        loop = None if self._loop is None else self._loop()
        if loop is not None and loop.caller is current_caller():
            for connected in self._lifecycle.connections():
                connected.reader.records.in_flight.count()

    def end_record(self, *, finished: bool) -> None:
        """
        End the record in flight of a loop. If ``finished``, finish the record. If not, the record is delivered again.
        """
        for connected in self._lifecycle.connections():
            if finished:
                connected.reader.records.finish()
            else:
                connected.reader.records.put_back()


def _check_limits(name: str, timeout_ms: float, max_records: int | None) -> None:
    """Raise ConfigError if an argument of a call that returns records is not valid."""
    if not is_number(timeout_ms) or timeout_ms < 0:
        raise ConfigError(f"{name}: timeout_ms is {timeout_ms!r}; expected milliseconds, at least 0")
    if max_records is not None and (not is_whole(max_records) or max_records < 1):
        raise ConfigError(f"{name}: max_records is {max_records!r}; expected a whole number of at least 1, or None")
