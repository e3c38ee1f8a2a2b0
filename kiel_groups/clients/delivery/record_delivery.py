"""
Deliver records to a loop, one by one, and track which records the application has finished.

A record is *in flight* from its delivery until the loop asks for the next record. After that, it is finished. Automatic
commits store only the offsets of finished records.
"""

from __future__ import annotations

import asyncio

from kiel_groups.clients.delivery.owned_records import OwnedRecords
from kiel_groups.coordination.session.delivery_gate import GATE_PAUSE_S
from kiel_groups.errors import ConfigError, RecordDeserializationError
from kiel_groups.model import Record

__all__ = ["RecordDelivery"]

#: How long records are delivered before the event loop runs its other tasks, in seconds. Otherwise an application that
#: never awaits would delay releases and commits for as long as records are buffered.
QUANTUM_S = 0.01


class RecordDelivery:
    """Delivers the owned records to one loop at a time. It owns the loop's progress through the current batch."""

    def __init__(self, owned: OwnedRecords) -> None:
        self._owned = owned
        self._batch = owned.batch
        self._progress = owned.progress
        self._deserializing = owned.deserializer
        # Bound once, since they are used for each record.
        self._boot_time_s = owned.boot_time_s
        self._keeps_bytes = owned.deserializer.keeps_bytes
        #: The record in flight.
        self.in_flight = owned.in_flight.record
        self._looping = False
        self._pause_at_s = float("inf")

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
        self._pause_at_s = self._boot_time_s() + QUANTUM_S

    def take(self) -> Record | None:
        """
        Finish the record in flight, and return the next record, or None if the caller must call ``wait`` first.

        Raises:
            BadRecordError: The next record of a partition cannot be delivered.
            KielGroupsError: A partition cannot be read, or the start position of a topic is unknown.
        """
        current, batch = self.in_flight, self._batch
        if current.record is not None:
            current.finish()
        while batch.next < len(batch.records) or self._next_batch():
            now_s = self._boot_time_s()
            if now_s >= self._pause_at_s or not self._owned.gate.is_open(now_s):
                return None
            record = batch.records[batch.next]
            batch.next += 1
            state = batch.state
            assert state is not None
            state.position = record.offset + 1
            if not self._keeps_bytes:
                try:
                    record = self._deserializing.read(record)
                except RecordDeserializationError as error:
                    self._handle(error)
                    continue
            current.record, current.state = record, state
            return record
        return None

    def _handle(self, error: RecordDeserializationError) -> None:
        """Skip the record that was taken last, or put it back with the rest of its batch."""
        batch, partition, state = self._batch, error.topic_partition, self._batch.state
        if state is None:
            # The deserializer has sought, or has closed the consumer.
            return
        if self._deserializing.on_bad_record == "skip":
            self._deserializing.skip(error)
            state.finished = state.position
            return
        batch.next -= 1
        state.position = error.offset
        rest = batch.take_rest(partition)
        if rest is not None:
            self._owned.put_back(*rest)
        self._owned.bad.handle(error, state)

    def _next_batch(self) -> bool:
        """Move to the next batch of a partition that is still owned, and return whether there is such a batch."""
        # Once for each batch: retention may overtake a thousand partitions at once, and a thousand waiting resets would
        # wake up after each record. While the batch has more records, none of them can end.
        if self._progress.waiting:
            self._progress.notify()
        self._owned.raise_refused()
        following = self._owned.poll()
        if following is None:
            return False
        self._batch.start(following.fetched, following.state)
        return True

    async def wait(self) -> None:
        """Wait until ``take`` may return a record. While the batch has more records, only yield to the event loop."""
        if self._batch.used_up:
            await self._owned.wait()
        else:
            await asyncio.sleep(0 if self._owned.may_deliver() else GATE_PAUSE_S)
        self._pause_at_s = self._boot_time_s() + QUANTUM_S

    def finish(self) -> None:
        """Finish the record in flight."""
        self.in_flight.finish()
        self._progress.notify()

    def put_back(self) -> None:
        """Deliver the record in flight once more, because the application has not finished it."""
        record, state = self.in_flight.record, self.in_flight.state
        if record is not None and state is not None:
            state.position = record.offset
            if state is self._batch.state:
                self._batch.next -= 1
            else:
                # Its batch was dropped. Fetch the record again if its partition is ready and its topic subscribed.
                self._owned.fetch([record.topic_partition])
        self.in_flight.clear()
        self._progress.notify()

    def end_loop(self, *, finished: bool) -> None:
        """End the loop. Finish its record, or deliver the record again if not ``finished``, as after an exception."""
        self._looping = False
        if finished:
            self.finish()
        else:
            self.put_back()
