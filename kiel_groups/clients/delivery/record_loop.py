"""The iterator of a loop over a grouped consumer's records, which detects how the loop was left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from kiel_groups.clients.calls.callers import current_caller
from kiel_groups.clients.calls.loop_exit import dropped_by_loop_exit
from kiel_groups.clients.delivery.current_batch import NO_RECORDS
from kiel_groups.clients.delivery.record_delivery import RecordDelivery
from kiel_groups.clients.delivery.record_steps import LoopSteps
from kiel_groups.errors import KielGroupsError
from kiel_groups.model import Record

__all__ = ["RecordLoop"]


class RecordLoop(LoopSteps):
    """
    One loop over the records of a consumer.

    When the loop is left, Python drops this object. How the loop was left decides whether its record is finished.

    Args:
        delivery: Delivers the records; the loop has begun.
        next_record: Waits for the next record, or returns None once the consumer is closed.
    """

    __slots__ = (
        "__weakref__",
        "_left",
        "_next_record",
        "_take",
        "caller",
        "delivery",
    )

    def __init__(self, delivery: RecordDelivery, next_record: Callable[[], Awaitable[Record | None]]) -> None:
        self.delivery = delivery
        self._boot_time_s = delivery.owned.boot_time_s
        self._take = delivery.take
        self._next_record = next_record
        self._left = False
        self._cursor, self._pause_at_s, self._is_open = NO_RECORDS, delivery.pause_at_s, delivery.owned.gate.is_open
        self.caller = current_caller()

    def __aiter__(self) -> RecordLoop:
        return self

    async def ask(self) -> Record:
        """
        Finish the record in flight, and wait for the next one.

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
                record = await self._next_record()
            except KielGroupsError:
                self._interrupt()
                raise
            if record is None:
                raise StopAsyncIteration
        # Records go with the gate of their session. The next session gets its gate after this one was shut for good.
        self._pause_at_s, self._is_open = self.delivery.pause_at_s, self.delivery.owned.gate.is_open
        self._cursor = self.delivery.cursor
        return record

    def _interrupt(self) -> None:
        """
        End the loop until it is asked for another record, because an error is raised.

        The error's traceback refers to this object. If the application keeps the error, it must not block a new loop.
        """
        self.end_loop(finished=True)
        self._take = self._continue

    def _continue(self) -> Record | None:
        """Begin the loop again, and take a record."""
        self.delivery.begin_loop()
        self._left, self._take = False, self.delivery.take
        return self._take()

    def end_loop(self, *, finished: bool) -> None:
        """End the loop. Finish its record, or deliver the record again if not ``finished``. Later calls do nothing."""
        if not self._left:
            self._left, self._cursor = True, NO_RECORDS
            self.delivery.end_loop(finished=finished)

    def __del__(self) -> None:
        self.end_loop(finished=dropped_by_loop_exit())
