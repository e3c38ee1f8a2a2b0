"""The loop over a grouped consumer's records, and the way in which it was left."""

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

    A loop that is left drops this object, and says by the way it was left whether the record in hand is finished.
    """

    __slots__ = ("__weakref__", "_consuming", "_left", "_take", "caller")

    def __init__(self, consuming: ConnectedConsumer) -> None:
        self._consuming = consuming
        self._take = consuming.handing_out.take
        self._left = False
        self.caller = current_caller()

    def __aiter__(self) -> RecordLoop:
        return self

    async def __anext__(self) -> Record:
        try:
            record = self._take()
        except KielGroupsError:
            # A partition that cannot be read raises at each of its turns: who goes on must not starve the others.
            await asyncio.sleep(0)
            raise
        if record is None:
            record = await self._consuming.next_record()
            if record is None:
                raise StopAsyncIteration
        return record

    def put_back(self) -> None:
        """Whoever asked for a record did not get it: it is the next one again."""
        self._consuming.handing_out.put_back()

    def leave(self, *, finished: bool) -> None:
        """The loop is over; ``finished`` says whether the record in hand is."""
        if not self._left:
            self._left = True
            self._consuming.handing_out.leave(finished=finished)

    def __del__(self) -> None:
        self.leave(finished=dropped_by_loop_exit())
