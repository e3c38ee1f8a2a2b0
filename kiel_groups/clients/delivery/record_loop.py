"""The iterator of a loop over a grouped consumer's records, which detects how the loop was left."""

from __future__ import annotations

import asyncio

from kiel_groups.clients.calls.callers import current_caller
from kiel_groups.clients.calls.loop_exit import dropped_by_loop_exit
from kiel_groups.clients.delivery.connected_consumer import ConnectedConsumer
from kiel_groups.errors import KielGroupsError
from kiel_groups.model import Record

__all__ = ["RecordLoop"]


class RecordLoop:
    """
    One loop over the records of a consumer.

    When the loop is left, Python drops this object. How the loop was left decides whether its record is finished.
    """

    __slots__ = ("__weakref__", "_connected", "_left", "_take", "caller")

    def __init__(self, connected: ConnectedConsumer) -> None:
        self._connected = connected
        self._take = connected.delivery.take
        self._left = False
        self.caller = current_caller()

    def __aiter__(self) -> RecordLoop:
        return self

    async def __anext__(self) -> Record:
        try:
            record = self._take()
        except KielGroupsError:
            # An unreadable partition raises again and again. A loop that continues must not starve the event loop.
            await asyncio.sleep(0)
            raise
        if record is None:
            record = await self._connected.next_record()
            if record is None:
                raise StopAsyncIteration
        return record

    def put_back(self) -> None:
        """Deliver the record in flight once more, because its caller did not receive it."""
        self._connected.delivery.put_back()

    def end_loop(self, *, finished: bool) -> None:
        """End the loop. Finish its record, or deliver the record again if not ``finished``. Later calls do nothing."""
        if not self._left:
            self._left = True
            self._connected.delivery.end_loop(finished=finished)

    def __del__(self) -> None:
        self.end_loop(finished=dropped_by_loop_exit())
