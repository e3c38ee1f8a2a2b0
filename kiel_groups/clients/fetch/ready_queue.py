"""Whose turn it is to be handed out: partitions in a circle, for all topics or for one, and a bell for who waits."""

from __future__ import annotations

import asyncio
from collections import deque

from kiel_groups.clients.fetch.partition_fetch import PartitionFetch

__all__ = ["ReadyQueue"]


class ReadyQueue:
    """
    Partitions with something to hand out, next one first.

    Who waits, waits for any topic or for one; a bell rings when there may be something, and is silenced by who finds
    nothing.
    """

    def __init__(self) -> None:
        self._circle: deque[PartitionFetch] = deque()
        self._bell = asyncio.Event()
        #: One for each topic that somebody has ever asked for by itself.
        self._bells: dict[str, asyncio.Event] = {}

    def add(self, state: PartitionFetch) -> None:
        """Put a partition at the end of the circle."""
        self._circle.append(state)
        self.ring(state.topic_partition.topic)

    def remove(self, state: PartitionFetch) -> None:
        """Take a partition out that has nothing to hand out any more."""
        self._circle = deque(other for other in self._circle if other is not state)

    def pop(self, topic: str | None) -> PartitionFetch | None:
        """Take out the next partition, of one topic or of any; None where there is none."""
        for _ in range(len(self._circle)):
            state = self._circle.popleft()
            if state.dropped:
                continue
            if topic is None or state.topic_partition.topic == topic:
                return state
            self._circle.append(state)
        self._bell_of(topic).clear()
        return None

    async def wait(self, topic: str | None) -> None:
        """Wait until ``pop`` is likely to find something."""
        await self._bell_of(topic).wait()

    def ring(self, topic: str) -> None:
        """There is something new of a topic."""
        self._bell.set()
        if topic in self._bells:
            self._bells[topic].set()

    def wake_all(self) -> None:
        """Wake everybody who waits, although there may be nothing."""
        for bell in (self._bell, *self._bells.values()):
            bell.set()

    def _bell_of(self, topic: str | None) -> asyncio.Event:
        if topic is None:
            return self._bell
        if topic not in self._bells:
            bell = self._bells[topic] = asyncio.Event()
            if any(state.topic_partition.topic == topic for state in self._circle):
                bell.set()
        return self._bells[topic]
