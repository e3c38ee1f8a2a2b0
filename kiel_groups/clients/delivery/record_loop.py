"""Deliver records to an ``async for`` or blocking loop, one by one, and detect how the loop was left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from kiel_groups.clients.calls.callers import current_caller
from kiel_groups.clients.calls.left_loop import dropped_by_loop_exit
from kiel_groups.clients.delivery.deserializer import Deserializer
from kiel_groups.clients.delivery.in_flight import NO_RECORDS
from kiel_groups.clients.delivery.owned_records import OwnedRecords
from kiel_groups.clients.fetch.fetch_requests import ANY
from kiel_groups.errors import ConfigError, KielGroupsError
from kiel_groups.model import Record
from kiel_groups.zookeeper.delivery_gate import GATE_PAUSE_S

# Take the next record of a batch, with one question to the gate: the step that a loop makes for each record.
#
# Where a compiler was found, the loops use the same two classes in C (``_steps.c``), which take half the time. Whatever
# a step cannot do at once, it leaves to the method ``ask`` of the loop: the end of a batch, a pause, a gate that is
# shut.


class PythonLoopSteps:
    """
    Steps of a loop that is awaited: ``async for``, or ``anext``.

    A subclass sets all the attributes before the first step.
    """

    __slots__ = ("_boot_time_s", "_cursor", "_is_open", "_pause_at_s")

    #: The records of a batch that are left. They are taken back by using up this cursor, an iterator of a list.
    _cursor: Iterator[Record]
    _boot_time_s: Callable[[], float]
    #: Returns whether these records may be delivered at a boot time in seconds.
    _is_open: Callable[[float], bool]
    #: When the event loop is to run its other tasks.
    _pause_at_s: float

    async def __anext__(self) -> Record:
        now_s = self._boot_time_s()
        if now_s < self._pause_at_s and self._is_open(now_s):
            for record in self._cursor:
                return record
        return await self.ask()

    async def ask(self) -> Record:
        """Finish the record in flight, and wait for the next record. The C version awaits this method's coroutine."""
        raise NotImplementedError


class PythonBlockingSteps:
    """Steps of a loop that blocks its thread. A subclass sets all the attributes before the first step."""

    _cursor: Iterator[Record]
    _boot_time_s: Callable[[], float]
    _is_open: Callable[[float], bool]

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        record: Record | None = None
        asking: object = None
        try:
            if self._is_open(self._boot_time_s()):
                for record in self._cursor:
                    return record
            asking = object()
            return self.ask(asking)
        except StopIteration:
            raise
        except BaseException as error:
            self.interrupted(type(error), asking, has_taken=record is not None)
            raise

    def ask(self, asking: object) -> Record:
        """
        Finish the record in flight, and wait for the next record. ``asking`` identifies the call.

        Raises:
            StopIteration: There are no more records.
        """
        raise NotImplementedError

    def interrupted(self, error: type[BaseException], asking: object, *, has_taken: bool = False) -> None:
        """
        Handle an exception within a step, such as a Ctrl-C.

        Args:
            error: The type of the exception.
            asking: The object that identifies the interrupted call of ``ask``; None if ``ask`` was not called.
            has_taken: Whether a record had left the cursor. In the C version, no exception can come after a record has
                left.
        """
        raise NotImplementedError


if TYPE_CHECKING:
    COMPILED: bool
    LoopSteps = PythonLoopSteps
    BlockingSteps = PythonBlockingSteps
else:
    try:
        from kiel_groups.clients.delivery._steps import BlockingSteps, LoopSteps
    except ImportError:
        COMPILED, LoopSteps, BlockingSteps = False, PythonLoopSteps, PythonBlockingSteps
    else:
        COMPILED = True


# Deliver records to a loop, one by one, and track which records the application has finished.
#
# A record is *in flight* from its delivery until the loop asks for the next record. After that, it is finished.
# Automatic commits store only the offsets of finished records.


#: How long records are delivered before the event loop runs its other tasks, in seconds. Otherwise an application that
#: never awaits would delay releases and commits for as long as records are buffered.
QUANTUM_S = 0.01

#: How many records are deserialized ahead at most, and for how long, in seconds: if a loop is left or a partition is
#: revoked, that work is discarded, and the work blocks the event loop.
MOST_AHEAD = 500
LONGEST_AHEAD_S = 0.001


class RecordDelivery:
    """
    Delivers the owned records to one loop at a time.

    A loop takes most records directly from the ``cursor`` of the current batch, while the gate is open (the session
    permits delivery) and, on the event loop, until ``pause_at_s``. The loop must check the gate before each step. If
    the cursor has no record, the loop calls ``take``.
    """

    def __init__(self, owned: OwnedRecords) -> None:
        self.owned = owned
        self._progress = owned.progress
        #: The current batch, which has the record in flight.
        self.in_flight = owned.batch
        self._most = None if owned.deserializer.keeps_bytes else MOST_AHEAD
        self._looping = False
        #: When the event loop is to run its other tasks.
        self.pause_at_s = float("inf")

    def begin_loop(self) -> None:
        """
        Start a loop over the records.

        Raises:
            ConfigError: Another loop is active.
        """
        if self._looping:
            raise ConfigError(
                "another loop over this consumer is active: the consumer could not know which of its records are"
                " finished; leave that one first, or use a consumer for each"
            )
        self._looping = True
        self.begin_quantum()

    def begin_quantum(self) -> None:
        """
        Permit delivery for ``QUANTUM_S`` seconds from now on. Call this after the event loop has run its other tasks.
        """
        self.pause_at_s = self.owned.boot_time_s() + QUANTUM_S

    def take(self) -> Record | None:
        """
        Finish the record in flight, and return the next record. If None is returned, call ``wait`` before the next try.

        Raises:
            BadRecordError: The next record of a partition cannot be delivered.
            KielGroupsError: A partition cannot be read, or the start position of a topic is unknown.
        """
        batch = self.in_flight
        batch.finish()
        while not batch.used_up or self._next_batch():
            now_s = self.owned.boot_time_s()
            if now_s >= self.pause_at_s or not self.owned.gate.is_open(now_s):
                return None
            for record in batch.cursor:
                return record
        return None

    def _next_batch(self) -> bool:
        """Start to deliver the next batch of an owned partition. Return False if there is no batch."""
        # Once for each batch: retention may overtake a thousand partitions at once, and a thousand waiting resets would
        # wake up after each record. While the batch has more records, none of them can end.
        if self._progress.waiting:
            self._progress.notify()
        convert = partial(Deserializer.records, longest_s=LONGEST_AHEAD_S)
        following = self.owned.poll(ANY, convert, self._most)
        if following is None:
            return False
        self.in_flight.start(following.fetched, following.state, following.records)
        return True

    async def next_record(self) -> Record | None:
        """
        Finish the record in flight, and wait for the next record, without a time limit.

        Return None once the consumer is closed.

        Raises:
            KielGroupsError: The member stopped for good, or a partition cannot be read.
        """
        while not self.owned.ended:
            if (record := self.take()) is not None:
                return record
            await self.wait()
        self.owned.raise_failure()
        return None

    async def wait(self) -> None:
        """
        Wait until ``take`` may return a record.

        If the batch has more records, yield to the event loop, or pause for ``GATE_PAUSE_S`` seconds if delivery is not
        permitted.
        """
        if self.in_flight.used_up:
            await self.owned.wait()
        else:
            await asyncio.sleep(0 if self.owned.may_deliver() else GATE_PAUSE_S)
        self.begin_quantum()

    def finish(self) -> None:
        """Finish the record in flight."""
        self.in_flight.finish()
        self._progress.notify()

    def put_back(self) -> None:
        """Deliver the record in flight again, because the application has not finished the record."""
        dropped = self.in_flight.put_back()
        if dropped is not None:
            # Fetch the record again if its partition is ready and its topic subscribed.
            self.owned.fetch([dropped])
        self._progress.notify()

    def end_loop(self, *, finished: bool) -> None:
        """
        End the loop. If ``finished``, finish the loop's record. If not, as after an exception, the record is delivered
        again.
        """
        self._looping = False
        if finished:
            self.finish()
        else:
            self.put_back()


class RecordLoop(LoopSteps):
    """
    One loop over the records of a consumer.

    When the loop is left, Python drops this object. How the loop was left decides whether its record is finished.

    Args:
        delivery: Delivers the records. The caller has called ``begin_loop``.
    """

    __slots__ = ("__weakref__", "_left", "_take", "caller", "delivery")

    def __init__(self, delivery: RecordDelivery) -> None:
        self.delivery = delivery
        self._boot_time_s = delivery.owned.boot_time_s
        self._take = delivery.take
        self._left = False
        self._cursor, self._pause_at_s, self._is_open = NO_RECORDS, delivery.pause_at_s, delivery.owned.gate.is_open
        self.caller = current_caller()

    def __aiter__(self) -> RecordLoop:
        return self

    async def ask(self) -> Record:
        """
        Finish the record in flight, and wait for the next record.

        Raises:
            StopAsyncIteration: The consumer was closed.
            KielGroupsError: The member stopped for good, or a partition cannot be read.
        """
        self._cursor = NO_RECORDS
        try:
            record = self._take()
        except KielGroupsError:
            self._interrupt()
            # An unreadable partition raises again and again. A loop that continues must not starve the event loop.
            await asyncio.sleep(0)
            raise
        if record is None:
            try:
                record = await self.delivery.next_record()
            except KielGroupsError:
                self._interrupt()
                raise
            if record is None:
                raise StopAsyncIteration
        # Records go with the gate of their session. The next session gets its gate after the gate of this session was
        # shut for good.
        self._pause_at_s, self._is_open = self.delivery.pause_at_s, self.delivery.owned.gate.is_open
        self._cursor = self.delivery.in_flight.cursor
        return record

    def _interrupt(self) -> None:
        """
        End the loop, because it raises an error. The next request for a record begins the loop again.

        The error's traceback keeps this object alive. So an error that the application keeps must not block a new loop.
        """
        self.end_loop(finished=True)
        self._take = self._continue

    def _continue(self) -> Record | None:
        """Restart a loop that an error ended. Return the loop's next record, or None if the caller must wait."""
        self.delivery.begin_loop()
        self._left, self._take = False, self.delivery.take
        return self._take()

    def end_loop(self, *, finished: bool) -> None:
        """
        End the loop. If ``finished``, finish the loop's record. If not, the record is delivered again. Later calls do
        nothing.
        """
        if not self._left:
            self._left, self._cursor = True, NO_RECORDS
            self.delivery.end_loop(finished=finished)

    def __del__(self) -> None:
        self.end_loop(finished=dropped_by_loop_exit())
