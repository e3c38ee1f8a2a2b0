"""
Loops over the records of blocking consumers.

The program's thread waits for the event loop's thread only for the next batch. It takes the records of the batch by
itself, from the same cursor as ``async for`` does, and asks the gate before each of them (decision 0025). A revocation,
a seek, a pause or a loss takes back the records that are left. The program then gets none from the cursor, and waits
for the event loop's thread again.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Awaitable, Callable, Iterator
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from kiel_groups.clients.calls.left_loop import dropped_by_loop_exit
from kiel_groups.clients.consumer import Consumer
from kiel_groups.clients.delivery.in_flight import NO_RECORDS
from kiel_groups.clients.delivery.record_loop import BlockingSteps, RecordDelivery, RecordLoop
from kiel_groups.errors import ClosedError, KielGroupsError
from kiel_groups.model import Record
from kiel_groups.sync.blocking_client import Attributes, Blocking, C, blocking, immediate, open_clients

P = ParamSpec("P")
T = TypeVar("T")

#: Whether the steps of a cursor are atomic. Without the interpreter's lock, each record comes from the loop's thread.
_HAS_LOCK: bool = getattr(sys, "_is_gil_enabled", lambda: True)()


class _Asker:
    """
    The part of a loop over records that runs on the event loop's thread.

    It has no reference to the ``BlockingRecords``, which must be dropped when the program leaves the loop, even if work
    is left here.
    """

    def __init__(self, records: RecordLoop) -> None:
        self._records = records
        self._asking: object = None

    def ask(self, asking: object) -> Awaitable[Record]:
        """Finish the record in flight, and wait for the next one. ``asking`` identifies this call."""
        self._asking = asking
        # The event loop has just run its other tasks, since it runs this one.
        self._records.delivery.begin_quantum()
        return self._records.ask()

    def settle(self, asking: object, *, has_taken: bool) -> None:
        """
        Settle the record in flight after a Ctrl-C: put it back if the program never got it; otherwise, finish it.

        The program has not got the record if it had just left the cursor, or ``ask`` had just delivered it, when the
        Ctrl-C arrived. Then the program must get it if it continues. Otherwise, the program got the record before, and
        has processed it, because it has asked for the next one.

        Args:
            asking: The call of ``ask`` that was interrupted; None if there was none.
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
        Have the event loop's thread finish the record in flight, and wait for the next one.

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
        """After a Ctrl-C, drop the cursor, and have the event loop's thread settle the record in flight."""
        if not issubclass(error, KielGroupsError):
            self.ask_behind()
            self._consumer._thread.post(partial(self._asker.settle, asking, has_taken=has_taken))

    def ask_behind(self) -> None:
        """Have the event loop's thread deliver the next record, after everything that was started there before."""
        self._cursor = NO_RECORDS

    def __del__(self) -> None:
        # If ``__init__`` failed, there is no loop to leave.
        if hasattr(self, "_records"):
            self._consumer._thread.post(partial(self._records.end_loop, finished=dropped_by_loop_exit()))


_of = Attributes(Consumer)


class BlockingConsumer(Blocking[C]):
    """A blocking consumer: a loop over its records, and the methods that both consumers offer."""

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

    metrics = _of(lambda consumer: consumer.metrics)
    allocation = _of(lambda consumer: consumer.allocation)
    deserializer = _of(lambda consumer: consumer.deserializer)
    max_wait_time = _of(lambda consumer: consumer.max_wait_time)
    min_bytes = _of(lambda consumer: consumer.min_bytes)
    max_bytes = _of(lambda consumer: consumer.max_bytes)

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
        """Have the event loop's thread deliver the next record, after everything that was started there before."""
        if self._loop is not None and (records := self._loop()) is not None:
            records.ask_behind()


def asked_behind(
    method: Callable[Concatenate[Blocking[Any], P], T],
) -> Callable[Concatenate[Blocking[Any], P], T]:
    """
    Return a method that uses the record in flight at its call, even if the event loop's thread runs it late.

    Otherwise, the program could take further records meanwhile, and a commit would include one that it still processes.
    """

    @wraps(method)
    def call(self: Blocking[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        assert isinstance(self, BlockingConsumer)
        self._ask_behind()
        return method(self, *args, **kwargs)

    return call


def _stop_in_fork() -> None:
    """Deliver nothing in a fork of the process: the records that are left belong to the parent."""
    for client in open_clients():
        if isinstance(client, BlockingConsumer):
            client._ask_behind()


os.register_at_fork(after_in_child=_stop_in_fork)
