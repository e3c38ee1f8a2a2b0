"""
Deliver records to a loop, one by one, and track which records the application has finished.

A record is *in flight* from its delivery until the loop asks for the next record. After that, it is finished. Automatic
commits store only the offsets of finished records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from kiel_groups.clients.delivery.owned_records import OwnedRecords
from kiel_groups.coordination.session.delivery_gate import GATE_PAUSE_S
from kiel_groups.errors import ConfigError
from kiel_groups.model import Record

__all__ = ["RecordDelivery"]

#: How long records are delivered before the event loop runs its other tasks, in seconds. Otherwise an application that
#: never awaits would delay releases and commits for as long as records are buffered.
QUANTUM_S = 0.01

#: How many records are deserialized ahead at most, and for how long, in seconds: a loop that was left, or a revocation,
#: makes that work void, and the event loop waits for it.
MOST_AHEAD = 500
LONGEST_AHEAD_S = 0.001


class RecordDelivery:
    """
    Delivers the owned records to one loop at a time. It owns the loop's progress through the current batch.

    A loop takes most records from the ``cursor`` by itself, while the gate is open, and on the event loop not after
    ``pause_at_s``. If it gets none, it calls ``take``.
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
        """Deliver for ``QUANTUM_S`` from now on: the event loop has just run its other tasks."""
        self.pause_at_s = self.owned.boot_time_s() + QUANTUM_S

    @property
    def cursor(self) -> Iterator[Record]:
        """
        The records of the current batch that are left. A step finishes the record in flight, and delivers the next one.

        The gate must be asked before each step.
        """
        return self.in_flight.cursor

    def take(self) -> Record | None:
        """
        Finish the record in flight, and return the next record, or None if the caller must call ``wait`` first.

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
        """Move to the next batch of a partition that is still owned, and return whether there is such a batch."""
        # Once for each batch: retention may overtake a thousand partitions at once, and a thousand waiting resets would
        # wake up after each record. While the batch has more records, none of them can end.
        if self._progress.waiting:
            self._progress.notify()
        self.owned.raise_refused()
        following = self.owned.poll_readable(most_records=self._most, longest_s=LONGEST_AHEAD_S)
        if following is None:
            return False
        self.in_flight.start(*following.batch, following.records)
        return True

    async def wait(self) -> None:
        """Wait until ``take`` may return a record. While the batch has more records, only yield to the event loop."""
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
        """Deliver the record in flight once more, because the application has not finished it."""
        dropped = self.in_flight.put_back()
        if dropped is not None:
            # Fetch the record again if its partition is ready and its topic subscribed.
            self.owned.fetch([dropped])
        self._progress.notify()

    def end_loop(self, *, finished: bool) -> None:
        """End the loop. Finish its record, or deliver the record again if not ``finished``, as after an exception."""
        self._looping = False
        if finished:
            self.finish()
        else:
            self.put_back()
