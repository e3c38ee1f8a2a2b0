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

from kiel_groups.clients.calls.loop_exit import dropped_by_loop_exit
from kiel_groups.clients.delivery.current_batch import NO_RECORDS
from kiel_groups.clients.delivery.record_delivery import RecordDelivery
from kiel_groups.clients.delivery.record_loop import RecordLoop
from kiel_groups.errors import ClosedError, KielGroupsError
from kiel_groups.model import Record
from kiel_groups.sync.blocking_client import Blocking, C, open_clients

__all__ = ["BlockingConsumer", "BlockingRecords", "asked_behind"]

P = ParamSpec("P")
T = TypeVar("T")

#: Whether the steps of a cursor are atomic. Without the interpreter's lock, each record comes from the loop's thread.
_HAS_LOCK: bool = getattr(sys, "_is_gil_enabled", lambda: True)()

#: Represents the record that the program has when it asks for the next one.
_LAST = object()


class BlockingRecords(Iterator[Record]):
    """One loop over the records. How the program leaves the loop decides whether the last record is finished."""

    def __init__(self, consumer: Blocking[Any]) -> None:
        self._consumer = consumer
        #: The records of a batch that are left. Only this thread replaces it; any thread may use it up.
        self._cursor: Iterator[Record] = NO_RECORDS
        self._records: RecordLoop = consumer._read_on_loop(consumer._client.__aiter__)
        self._delivery: RecordDelivery = self._records.delivery
        self._owned = self._delivery.owned
        self._boot_time_s = self._owned.boot_time_s

    def __next__(self) -> Record:
        record: Record | None = None
        last: object = _LAST
        try:
            if self._owned.gate.is_open(self._boot_time_s()):
                for record in self._cursor:
                    return record
            self.ask_behind()
            last = self._delivery.in_flight.record
            asked = self._consumer._wait(self._ask)
            if _HAS_LOCK:
                self._cursor = self._delivery.cursor
            return asked
        except StopAsyncIteration:
            raise StopIteration from None
        except ClosedError:
            if not self._consumer._thread.stopped:
                raise
            raise StopIteration from None
        except KielGroupsError:
            raise
        except BaseException:
            self._interrupt(last, record)
            raise

    def _ask(self) -> Awaitable[Record]:
        # The event loop has just run its other tasks, since it runs this one.
        self._delivery.begin_quantum()
        return self._records.ask()

    def ask_behind(self) -> None:
        """Have the event loop's thread deliver the next record, after everything that was started there before."""
        self._cursor = NO_RECORDS

    def _interrupt(self, last: object, record: Record | None) -> None:
        """
        Settle what is in flight after a Ctrl-C.

        The program has processed its last record, because it has asked for the next one. A record that arrived together
        with the Ctrl-C is one that the program never saw. If the program continues, it must get that record.
        """
        self.ask_behind()
        if last is _LAST:
            last = self._delivery.in_flight.record if record is None else None
        self._consumer._thread.post(partial(self._settle, last))

    def _settle(self, last: object) -> None:
        if self._delivery.in_flight.record is last:
            self._delivery.finish()
        else:
            self._delivery.put_back()

    def __del__(self) -> None:
        # If ``__init__`` failed, there is no loop to leave.
        if hasattr(self, "_records"):
            self._consumer._thread.post(partial(self._records.end_loop, finished=dropped_by_loop_exit()))


class BlockingConsumer(Blocking[C]):
    """A blocking client with a loop over its records."""

    _loop: weakref.ref[BlockingRecords] | None = None

    def __iter__(self) -> Iterator[Record]:
        """
        Iterate over records until the consumer is closed. Only one loop may run at a time.

        Raises:
            ClosedError: The consumer was not connected, or was closed.
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
    Return a method that counts the record in flight at its call, however late the event loop's thread starts its work.

    Otherwise the program could take further records meanwhile, and a commit would count one that is being processed.
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
