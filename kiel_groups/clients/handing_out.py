"""
Between what was fetched and what the application has finished.

A record is *in hand* from the moment it is handed out until the next one is asked for; only then it is finished, and
only what is finished is ever committed by itself. One record is in hand at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Any, Protocol

from kiel_groups.clients.fetcher import Fetcher
from kiel_groups.clients.listening import ListenerCalls
from kiel_groups.coordination.gate import Gate, boot_time_s
from kiel_groups.group.subscription import PartitionState, SubscriptionState
from kiel_groups.metrics import Metrics
from kiel_groups.model import Record, TopicPartition

__all__ = ["HandingOut"]

log = logging.getLogger(__name__)

#: How long records are handed out without a pause for the event loop's other work, in seconds: an application that
#: never awaits must not hold up hand-overs and commits for as long as there are records.
QUANTUM_S = 0.01

#: How often a shut gate is looked at, in seconds. It opens from another thread, and seldom.
GATE_PAUSE_S = 0.02


class HasGate(Protocol):
    """Whose present gate is asked before every record; another session has another gate."""

    gate: Gate


class HandingOut:
    """Hands out records of the partitions that are held, and knows which of them are finished."""

    def __init__(
        self,
        fetcher: Fetcher,
        subscription: SubscriptionState,
        calls: ListenerCalls,
        member: HasGate,
        deserializer: Callable[[bytes], Any] | None,
        metrics: Metrics,
    ) -> None:
        self._fetcher = fetcher
        self._subscription = subscription
        self._calls = calls
        self._member = member
        self._deserializer = deserializer
        self._metrics = metrics
        # The batch that is being handed out: its partition's state (None once that is lost or revoked) and records.
        self._batch_of: TopicPartition | None = None
        self._state: PartitionState | None = None
        self._records: list[Record] = []
        self._next = 0
        # The record in hand, and the state that its end is to be noted in.
        self._hand: Record | None = None
        self._hand_state: PartitionState | None = None
        self._stopped: set[TopicPartition] = set()
        # The newest loop: only that one can have a record in hand.
        self._loop = 0
        # Drains that wait for the record in hand: without any, its end is nothing to be told of.
        self._drains = 0
        self._let_go = asyncio.Event()
        self._pause_at_s = float("inf")
        self._ended = False

    # ------------------------------------------------------------------ the application's side

    def take(self) -> Record | None:
        """
        Finish the record in hand, and hand out the next one; None where none is there, or the gate is shut.

        Raises:
            KielGroupsError: What the fetcher cannot get past.
        """
        if self._hand is not None:
            self.finish()
        while self._next < len(self._records) or self._turn_over():
            now_s = boot_time_s()
            if now_s >= self._pause_at_s or not self._member.gate.is_open(now_s):
                return None
            record = self._records[self._next]
            self._next += 1
            state = self._state
            assert state is not None
            state.position = record.offset + 1
            if self._deserializer is not None:
                deserialized = self._deserialize(record)
                if deserialized is None:
                    state.finished = state.position
                    continue
                record = deserialized
            self._hand, self._hand_state = record, state
            return record
        return None

    def _turn_over(self) -> bool:
        """Go to the next batch of a partition that is still held; whether there is one."""
        while not self._ended and (batch := self._fetcher.poll()) is not None:
            state = self._subscription.state(batch.topic_partition)
            if state is None:
                continue
            self._metrics.count("records_handed_out", len(self._records))
            self._batch_of, self._state = batch.topic_partition, state
            self._records, self._next = batch.records, 0
            return True
        return False

    def _deserialize(self, record: Record) -> Record | None:
        assert self._deserializer is not None
        if record.value is None:
            return record
        try:
            return record._replace(value=self._deserializer(record.value))
        except Exception:
            # The application's own function: one bad message must not stop the partition for ever.
            log.exception("%s offset %d: the deserializer failed; passed over", record.topic_partition, record.offset)
            self._metrics.count("deserializer_failures")
            return None

    async def wait(self) -> None:
        """Wait until ``take`` may have something."""
        now_s = boot_time_s()
        if not self._member.gate.is_open(now_s):
            await asyncio.sleep(GATE_PAUSE_S)
        elif self._next < len(self._records):
            await asyncio.sleep(0)
        else:
            await self._fetcher.wait_for_batch()
        self._pause_at_s = boot_time_s() + QUANTUM_S

    def count_hand(self) -> None:
        """Count the record in hand as finished, although the application may go on with it."""
        if self._hand is not None and self._hand_state is not None:
            self._hand_state.finished = self._hand.offset + 1

    def finish(self) -> None:
        """The application is done with the record in hand."""
        hand, state = self._hand, self._hand_state
        if hand is not None and state is not None:
            state.finished = hand.offset + 1
        self._hand = self._hand_state = None
        if self._drains:
            self._let_go.set()

    def put_back(self) -> None:
        """The record in hand was not finished, and nobody processes it any more: it is the next one again."""
        hand, state = self._hand, self._hand_state
        if hand is not None and state is not None and state is self._state:
            self._next -= 1
            state.position = hand.offset
        self._hand = self._hand_state = None
        self._let_go.set()

    def end(self) -> None:
        """Hand out nothing more; the record in hand may still be finished."""
        self._ended = True
        self._batch_of = self._state = None
        self._records, self._next = [], 0

    def enter(self) -> int:
        """A loop begins; returns its number."""
        self._loop += 1
        self._pause_at_s = boot_time_s() + QUANTUM_S
        return self._loop

    def leave(self, loop: int, *, finished: bool) -> None:
        """
        A loop was left, in order or by an exception: then its record is handed out again to whoever asks next.

        A loop that a later one has followed has nothing in hand any more.
        """
        if loop != self._loop:
            return
        if finished:
            self.finish()
        else:
            self.put_back()

    def _busy_with(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        if self._hand is None or self._hand.topic_partition not in partitions:
            return frozenset()
        return frozenset({self._hand.topic_partition})

    # ------------------------------------------------------------------ the group's side

    async def assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Hand these out, once the listener has been told."""
        self._stopped.difference_update(partitions)
        await self._calls.assigned(partitions)
        states = {partition: self._subscription.state(partition) for partition in partitions}
        self._fetcher.assign(
            {
                partition: state.position
                for partition, state in states.items()
                if state is not None and partition not in self._stopped
            }
        )

    def stop(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Fetch and hand out no more of these; returns those with a record in hand."""
        self._stopped.update(partitions)
        self._drop(partitions)
        return self._busy_with(partitions)

    async def drained(self, partitions: Collection[TopicPartition]) -> None:
        """Ends when nobody processes a record of these, and the listener was told."""
        self._drains += 1
        try:
            while self._busy_with(partitions):
                self._let_go.clear()
                await self._let_go.wait()
        finally:
            self._drains -= 1
        await self._calls.revoked(partitions)

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Drop everything of these; what is in hand of them does not count any more."""
        self._drop(partitions)
        if self._hand is not None and self._hand.topic_partition in partitions:
            self._hand_state = None
        self._calls.lost(partitions)

    def moved(self, partition: TopicPartition, offset: int) -> None:
        """Hand out from ``offset`` on: what is in hand does not count any more."""
        self._drop([partition])
        if self._hand is not None and self._hand.topic_partition == partition:
            self._hand_state = None
        if partition not in self._stopped:
            self._fetcher.assign({partition: offset})

    def _drop(self, partitions: Collection[TopicPartition]) -> None:
        self._fetcher.unassign(partitions)
        if self._batch_of in partitions:
            self._batch_of = self._state = None
            self._records, self._next = [], 0
