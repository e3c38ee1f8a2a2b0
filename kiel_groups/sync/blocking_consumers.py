"""
The consumers for programs without an event loop, and loops over their records.

The program's thread waits for the event loop's thread only for the next batch. The program's thread takes the batch's
records by itself, from the same cursor as ``async for`` does. Before each record, the program's thread checks the gate,
that is, whether the session permits delivery (decision 0025). A revocation, a seek, a pause or a loss takes back the
remaining records. Then the cursor is empty, and the program waits for the event loop's thread again.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Awaitable, Callable, Iterator
from functools import partial, wraps
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

from kiel_groups import clients
from kiel_groups.clients import BEGINNING, END
from kiel_groups.clients.calls.left_loop import dropped_by_loop_exit
from kiel_groups.clients.consumer import Consumer
from kiel_groups.clients.delivery.in_flight import NO_RECORDS
from kiel_groups.clients.delivery.record_loop import BlockingSteps, RecordDelivery, RecordLoop
from kiel_groups.errors import ClosedError, KielGroupsError
from kiel_groups.model import Record
from kiel_groups.sync.blocking_client import (
    Attribute,
    Blocking,
    C,
    blocking,
    ending,
    immediate,
    in_background,
    open_clients,
    takes_arguments_of,
    takes_hook,
    until_closed,
)

P = ParamSpec("P")
T = TypeVar("T")

#: Whether the steps of a cursor are atomic. Without the interpreter's lock, each record comes from the loop's thread.
_HAS_LOCK: bool = getattr(sys, "_is_gil_enabled", lambda: True)()


class _Asker:
    """
    The part of a loop over records that runs on the event loop's thread.

    This object has no reference to the ``BlockingRecords``: that object must be deleted when the program leaves the
    loop, even if the event loop's thread still uses this object.
    """

    def __init__(self, records: RecordLoop) -> None:
        self._records = records
        self._asking: object = None

    def ask(self, asking: object) -> Awaitable[Record]:
        """Finish the record in flight, and wait for the next record. ``asking`` identifies this call."""
        self._asking = asking
        # The event loop has just run its other tasks, since it runs this one.
        self._records.delivery.begin_quantum()
        return self._records.ask()

    def settle(self, asking: object, *, has_taken: bool) -> None:
        """
        After a Ctrl-C, finish the record in flight. If the program never got the record, deliver the record again
        instead.

        The program never got the record if the Ctrl-C arrived just after the record had left the cursor, or after
        ``ask`` had delivered the record. Otherwise, the program has processed the record, because it has asked for the
        next record.

        Args:
            asking: The object that identifies the interrupted call of ``ask``, or None if ``ask`` was not called.
            has_taken: Whether the program's thread had taken the record in flight from the cursor.
        """
        if has_taken or (asking is not None and self._asking is asking):
            self._records.delivery.put_back()
        else:
            self._records.delivery.finish()


class BlockingRecords(BlockingSteps):
    """One loop over the records. How the program leaves the loop decides whether the last record is finished."""

    def __init__(self, consumer: Blocking[Any]) -> None:
        self._consumer = consumer
        # Only this thread replaces the cursor; any thread may use it up.
        self._cursor = NO_RECORDS
        self._records: RecordLoop = consumer._read_on_loop(consumer._client.__aiter__)
        self._delivery: RecordDelivery = self._records.delivery
        self._boot_time_s = self._delivery.owned.boot_time_s
        self._is_open = self._delivery.owned.gate.is_open
        self._asker = _Asker(self._records)

    def ask(self, asking: object) -> Record:
        """
        Wait until the event loop's thread has finished the record in flight and has the next record. Return that
        record.

        Raises:
            StopIteration: The consumer was closed.
            ClosedError: An exception has ended the event loop.
            KielGroupsError: The member stopped for good, or a partition cannot be read.
        """
        try:
            self.ask_behind()
            asked = self._consumer._wait(self._asker.ask, asking)
            if _HAS_LOCK:
                self._is_open = self._delivery.owned.gate.is_open
                self._cursor = self._delivery.in_flight.cursor
            return asked
        except StopAsyncIteration:
            raise StopIteration from None
        except ClosedError:
            if not self._consumer._was_closed:
                raise
            raise StopIteration from None

    def interrupted(self, error: type[BaseException], asking: object, *, has_taken: bool = False) -> None:
        """
        After an exception such as a Ctrl-C, drop the cursor, and tell the event loop's thread to settle the record in
        flight.

        That thread finishes the record, or delivers it again. A KielGroupsError needs no action.
        """
        if not issubclass(error, KielGroupsError):
            self.ask_behind()
            self._consumer._thread.post(partial(self._asker.settle, asking, has_taken=has_taken))

    def ask_behind(self) -> None:
        """Drop the cursor. So the event loop's thread runs all earlier calls, and then delivers the next record."""
        self._cursor = NO_RECORDS

    def __del__(self) -> None:
        # If ``__init__`` failed, there is no loop to leave.
        if hasattr(self, "_records"):
            self._consumer._thread.post(partial(self._records.end_loop, finished=dropped_by_loop_exit()))


class BlockingConsumer(Blocking[C]):
    """The base class of the blocking consumers: a loop over records, and the methods of ``Consumer``."""

    _loop: weakref.ref[BlockingRecords] | None = None

    getone = blocking(Consumer.getone)
    getmany = blocking(Consumer.getmany)
    consume_batches = blocking(Consumer.consume_batches)
    position = blocking(Consumer.position)
    seek_to_beginning = blocking(Consumer.seek_to_beginning)
    seek_to_end = blocking(Consumer.seek_to_end)
    beginning_offsets = blocking(Consumer.beginning_offsets)
    end_offsets = blocking(Consumer.end_offsets)
    offsets_for_times = blocking(Consumer.offsets_for_times)
    topics = blocking(Consumer.topics)

    subscription = immediate(Consumer.subscription)
    assignment = immediate(Consumer.assignment)
    seek = immediate(Consumer.seek)
    highwater = immediate(Consumer.highwater)
    lag = immediate(Consumer.lag)
    pause = immediate(Consumer.pause)
    resume = immediate(Consumer.resume)
    paused = immediate(Consumer.paused)
    partitions_for_topic = immediate(Consumer.partitions_for_topic)

    metrics = Attribute(Consumer, lambda consumer: consumer.metrics)
    allocation = Attribute(Consumer, lambda consumer: consumer.allocation)
    deserializer = Attribute(Consumer, lambda consumer: consumer.deserializer)
    max_wait_time = Attribute(Consumer, lambda consumer: consumer.max_wait_time)
    min_bytes = Attribute(Consumer, lambda consumer: consumer.min_bytes)
    max_bytes = Attribute(Consumer, lambda consumer: consumer.max_bytes)

    def __iter__(self) -> Iterator[Record]:
        """
        Iterate over records until the consumer is closed. Only one loop may run at a time.

        Raises:
            ClosedError: The consumer was not connected, or was closed, or an exception has ended its event loop.
            ConfigError: Another loop is running, or the consumer is used in another style, such as ``consume()``.
        """
        records = BlockingRecords(self)
        self._loop = weakref.ref(records)
        return records

    def _ask_behind(self) -> None:
        """
        Drop the loop's cursor. So the event loop's thread runs all earlier calls, and then delivers the next record.
        """
        if self._loop is not None and (records := self._loop()) is not None:
            records.ask_behind()


def asked_behind(method: Callable[Concatenate[Blocking[Any], P], T]) -> Callable[Concatenate[Blocking[Any], P], T]:
    """
    Wrap a method, so that the program's loop takes no more records from the cursor before the method has run.

    Otherwise, the program could take records until the event loop's thread runs a commit, and the commit would include
    a record that the program still processes.
    """

    @wraps(method)
    def call(self: Blocking[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        assert isinstance(self, BlockingConsumer)
        self._ask_behind()
        return method(self, *args, **kwargs)

    return call


def _stop_in_fork() -> None:
    """In a fork of the process, drop the cursors of all loops: their records belong to the parent process."""
    for client in open_clients():
        if isinstance(client, BlockingConsumer):
            client._ask_behind()


os.register_at_fork(after_in_child=_stop_in_fork)


class GroupedConsumer(BlockingConsumer[clients.GroupedConsumer]):
    """
    A member of a consumer group, for programs without an event loop.

    The arguments are those of ``kiel_groups.GroupedConsumer``.

    ``with GroupedConsumer(...) as consumer`` joins the group, and leaves it at the end of the block, also after Ctrl-C.
    ``for record in consumer`` returns records until the consumer is closed. While the program is busy, heartbeats,
    commits and releases continue in the background. Hooks of a listener, ``on_bad_record`` and callbacks of commits are
    called on a thread of their own, and may call methods of this object. But ``async`` functions, deserializers and the
    allocator run on the event loop's thread, in the background, and must not call methods of this object.
    """

    @takes_arguments_of(clients.GroupedConsumer)
    def __init__(self) -> None: ...

    connect = blocking(clients.GroupedConsumer.connect)
    subscribe = takes_hook("listener", blocking(clients.GroupedConsumer.subscribe))
    unsubscribe = blocking(clients.GroupedConsumer.unsubscribe)
    consume = until_closed(clients.GroupedConsumer.consume)
    commit = asked_behind(blocking(clients.GroupedConsumer.commit))
    commit_async = asked_behind(takes_hook("callback", in_background(clients.GroupedConsumer.commit_async)))
    committed = blocking(clients.GroupedConsumer.committed)
    fetch_committed_offsets = blocking(clients.GroupedConsumer.fetch_committed_offsets)
    commit_offsets = asked_behind(blocking(clients.GroupedConsumer.commit_offsets))
    close = ending(clients.GroupedConsumer.close)
    wind_down = ending(clients.GroupedConsumer.wind_down)

    fencing_token = immediate(clients.GroupedConsumer.fencing_token)
    assign = immediate(clients.GroupedConsumer.assign)
    kafka_metrics = immediate(clients.GroupedConsumer.kafka_metrics)

    member_id = Attribute(clients.GroupedConsumer, lambda consumer: consumer.member_id)
    name = Attribute(clients.GroupedConsumer, lambda consumer: consumer.name)
    group_name = Attribute(clients.GroupedConsumer, lambda consumer: consumer.group_name)
    coordinator_id = Attribute(clients.GroupedConsumer, lambda consumer: consumer.coordinator_id)
    autocommit = Attribute(clients.GroupedConsumer, lambda consumer: consumer.autocommit)
    closing = Attribute(clients.GroupedConsumer, lambda consumer: consumer.closing)
    is_leader = Attribute(clients.GroupedConsumer, lambda consumer: consumer.is_leader)
    is_member = Attribute(clients.GroupedConsumer, lambda consumer: consumer.is_member)
    settled = Attribute(clients.GroupedConsumer, lambda consumer: consumer.settled)


class SingleConsumer(BlockingConsumer[clients.SingleConsumer]):
    """
    Reads every partition of its topics, for programs without an event loop.

    The arguments are those of ``kiel_groups.SingleConsumer``. ``with SingleConsumer([...]) as consumer`` connects.
    ``for record in consumer`` returns records until the consumer is closed. Hooks of a listener and ``on_bad_record``
    are called on a thread of their own, and may call methods of this object. But ``async`` functions and deserializers
    run on the loop's thread, and must not call methods of this object.
    """

    BEGINNING: ClassVar[int] = BEGINNING
    END: ClassVar[int] = END

    @takes_arguments_of(clients.SingleConsumer)
    def __init__(self) -> None: ...

    connect = blocking(clients.SingleConsumer.connect)
    subscribe = takes_hook("listener", blocking(clients.SingleConsumer.subscribe))
    unsubscribe = blocking(clients.SingleConsumer.unsubscribe)
    commit = blocking(clients.SingleConsumer.commit)
    commit_async = blocking(clients.SingleConsumer.commit_async)
    committed = blocking(clients.SingleConsumer.committed)
    fetch_committed_offsets = blocking(clients.SingleConsumer.fetch_committed_offsets)
    consume = until_closed(clients.SingleConsumer.consume)
    wind_down = blocking(clients.SingleConsumer.wind_down)
    close = ending(clients.SingleConsumer.close)

    assign = immediate(clients.SingleConsumer.assign)

    name = Attribute(clients.SingleConsumer, lambda consumer: consumer.name)
    closing = Attribute(clients.SingleConsumer, lambda consumer: consumer.closing)

    _next = until_closed(clients.SingleConsumer.__anext__)

    def __next__(self) -> Record:
        """
        Wait for the next record and return it, outside of a loop.

        Raises:
            StopIteration: The consumer was closed.
            MessageTooLargeError, ProtocolError, BrokerError: A partition cannot be read, as in the asynchronous client.
            ConfigError: A loop is running, or the consumer is used in another style.
        """
        try:
            record = self._next()
        except StopAsyncIteration:
            record = None
        if record is None:
            raise StopIteration
        return record
