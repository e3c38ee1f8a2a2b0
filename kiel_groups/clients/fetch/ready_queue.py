"""Queue the partitions with buffered batches, round-robin, and wake up the callers that wait for a batch."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from kiel_groups.clients.fetch.partition_fetch import PartitionFetch
from kiel_groups.model import TopicPartition

__all__ = ["ANY", "ReadyQueue", "Selection"]


@dataclass(frozen=True, slots=True)
class Selection:
    """The partitions that a caller asks for: those of ``topic``, or ``partitions``, without ``excluded``; or all."""

    topic: str | None = None
    partitions: frozenset[TopicPartition] | None = None
    excluded: frozenset[TopicPartition] = frozenset()

    def has(self, partition: TopicPartition) -> bool:
        """Return whether the caller asks for this partition."""
        if self.partitions is not None and partition not in self.partitions:
            return False
        return (self.topic is None or partition.topic == self.topic) and partition not in self.excluded


#: All partitions.
ANY = Selection()


class ReadyQueue:
    """
    The queue of partitions with buffered batches.

    Callers wait for one topic, for some partitions, or for any partition. Each topic has an event, and any partition
    has one. An event is set when there may be a batch, and cleared by a ``pop`` that finds no batch. A caller that
    waits for some partitions has its own event: the ``pop`` of another caller does not tell whether it finds a batch.
    """

    def __init__(self) -> None:
        self._queue: deque[PartitionFetch] = deque()
        self._any_topic = asyncio.Event()
        #: An event for each topic that a caller has asked for.
        self._by_topic: dict[str, asyncio.Event] = {}
        #: The callers that wait for some partitions.
        self._by_partitions: dict[asyncio.Event, frozenset[TopicPartition]] = {}

    def add(self, state: PartitionFetch) -> None:
        """Put a partition at the end of the queue."""
        self._queue.append(state)
        self._wake(state)

    def add_first(self, state: PartitionFetch) -> None:
        """Put a partition at the front of the queue."""
        self._queue.appendleft(state)
        self._wake(state)

    def _wake(self, state: PartitionFetch) -> None:
        self.notify(state.topic_partition.topic)
        for event, partitions in self._by_partitions.items():
            if state.topic_partition in partitions:
                event.set()

    def remove(self, state: PartitionFetch) -> None:
        """Remove a partition that has no buffered batch any more, or that is paused."""
        self._queue = deque(other for other in self._queue if other is not state)

    def pop(self, selection: Selection = ANY) -> PartitionFetch | None:
        """Remove and return the next selected partition, or None if there is none."""
        is_any = selection == ANY
        for _ in range(len(self._queue)):
            state = self._queue.popleft()
            if state.dropped:
                continue
            if is_any or selection.has(state.topic_partition):
                return state
            self._queue.append(state)
        if selection.partitions is None and (selection.topic is not None or not self._queue):
            self._event_of(selection.topic).clear()
        return None

    async def wait(self, selection: Selection = ANY) -> None:
        """
        Wait until ``pop`` is likely to return a partition. It may still return None, as after an unassign.

        The event loop runs its other tasks in any case: a caller that may not take what is there calls again and again.
        """
        if self._may_pop(selection):
            await asyncio.sleep(0)
        elif selection.partitions is None:
            await self._event_of(selection.topic).wait()
        else:
            event = asyncio.Event()
            self._by_partitions[event] = selection.partitions
            try:
                await event.wait()
            finally:
                del self._by_partitions[event]

    @property
    def waiting(self) -> set[frozenset[TopicPartition]]:
        """The partitions that callers wait for, without the callers that wait for a topic or for any partition."""
        return set(self._by_partitions.values())

    def _may_pop(self, selection: Selection) -> bool:
        if selection.partitions is None:
            return self._event_of(selection.topic).is_set()
        return any(selection.has(state.topic_partition) for state in self._queue if not state.dropped)

    def notify(self, topic: str) -> None:
        """Wake the callers that wait for this topic or for any topic, although there may be no batch."""
        self._any_topic.set()
        if topic in self._by_topic:
            self._by_topic[topic].set()

    def wake_all(self) -> None:
        """Wake every caller that waits, although there may be no batch."""
        for event in (self._any_topic, *self._by_topic.values(), *self._by_partitions):
            event.set()

    def _event_of(self, topic: str | None) -> asyncio.Event:
        if topic is None:
            return self._any_topic
        if topic not in self._by_topic:
            event = self._by_topic[topic] = asyncio.Event()
            if any(state.topic_partition.topic == topic for state in self._queue):
                event.set()
        return self._by_topic[topic]
