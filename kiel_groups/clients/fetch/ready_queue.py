"""Queue the partitions with buffered batches, round-robin, and wake up the callers that wait for a batch."""

from __future__ import annotations

import asyncio
from collections import deque

from kiel_groups.clients.fetch.partition_fetch import PartitionFetch

__all__ = ["ReadyQueue"]


class ReadyQueue:
    """
    The queue of partitions with buffered batches.

    Callers wait for one topic or for any topic. Each topic has an event, and any topic has one. An event is set when
    there may be a batch, and cleared by a ``pop`` that finds no batch.
    """

    def __init__(self) -> None:
        self._queue: deque[PartitionFetch] = deque()
        self._any_topic = asyncio.Event()
        #: An event for each topic that a caller has asked for.
        self._by_topic: dict[str, asyncio.Event] = {}

    def add(self, state: PartitionFetch) -> None:
        """Put a partition at the end of the queue."""
        self._queue.append(state)
        self.notify(state.topic_partition.topic)

    def remove(self, state: PartitionFetch) -> None:
        """Remove a partition that has no buffered batch any more."""
        self._queue = deque(other for other in self._queue if other is not state)

    def pop(self, topic: str | None) -> PartitionFetch | None:
        """Remove and return the next partition (of ``topic``, or of any topic), or None if there is none."""
        for _ in range(len(self._queue)):
            state = self._queue.popleft()
            if state.dropped:
                continue
            if topic is None or state.topic_partition.topic == topic:
                return state
            self._queue.append(state)
        self._event_of(topic).clear()
        return None

    async def wait(self, topic: str | None = None) -> None:
        """Wait until ``pop`` is likely to return a partition. It may still return None, as after an unassign."""
        await self._event_of(topic).wait()

    def notify(self, topic: str) -> None:
        """Wake the callers that wait for this topic or for any topic, although there may be no batch."""
        self._any_topic.set()
        if topic in self._by_topic:
            self._by_topic[topic].set()

    def wake_all(self) -> None:
        """Wake every caller that waits, although there may be no batch."""
        for event in (self._any_topic, *self._by_topic.values()):
            event.set()

    def _event_of(self, topic: str | None) -> asyncio.Event:
        if topic is None:
            return self._any_topic
        if topic not in self._by_topic:
            event = self._by_topic[topic] = asyncio.Event()
            if any(state.topic_partition.topic == topic for state in self._queue):
                event.set()
        return self._by_topic[topic]
