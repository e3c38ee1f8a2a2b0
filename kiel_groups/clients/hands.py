"""
What the application has in hand: a record, or the values of one topic.

It is not finished yet, so it is not committed by itself, and a hand-over of its partitions waits for it. Both kinds
end alike: *finished*, which moves the next offset that a commit stores, or put down unfinished, which does not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextvars import ContextVar
from typing import Protocol, TypeAlias

from kiel_groups.group.subscription import PartitionState
from kiel_groups.model import Record, TopicPartition

__all__ = ["Hand", "RecordHand", "TopicHand", "Taker", "taker_of", "takers_here"]


class Hand(Protocol):
    """Something in hand, or an empty hand."""

    def busy_with(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Those of these partitions that something in hand is of."""

    def count(self) -> None:
        """Count what is in hand as finished; it stays in hand."""

    def disown(self, partitions: Collection[TopicPartition]) -> None:
        """Whatever becomes of these in hand counts no more; the application may still be busy with them."""


class RecordHand:
    """The record that a loop was handed, and the state that its end is to be noted in."""

    __slots__ = ("record", "state")

    def __init__(self) -> None:
        self.record: Record | None = None
        self.state: PartitionState | None = None

    def busy_with(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        if self.record is None or self.record.topic_partition not in partitions:
            return frozenset()
        return frozenset({self.record.topic_partition})

    def count(self) -> None:
        if self.record is not None and self.state is not None:
            self.state.finished = self.record.offset + 1

    def disown(self, partitions: Collection[TopicPartition]) -> None:
        if self.record is not None and self.record.topic_partition in partitions:
            self.state = None

    def clear(self) -> None:
        self.record = self.state = None


#: Stands for one call that asked for a topic's values.
Taker: TypeAlias = object


class TopicHand:
    """The values of one topic that were returned last, by the next offset of each partition, and who took them."""

    __slots__ = ("_ends", "takers")

    def __init__(self) -> None:
        self._ends: dict[TopicPartition, tuple[PartitionState | None, int]] = {}
        self.takers: set[Taker] = set()

    def add(self, ends: Mapping[TopicPartition, tuple[PartitionState, int]], taker: Taker) -> None:
        self._ends |= ends
        self.takers.add(taker)

    def busy_with(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        return frozenset(self._ends).intersection(partitions)

    def count(self) -> None:
        for state, end in self._ends.values():
            if state is not None:
                state.finished = end

    def disown(self, partitions: Collection[TopicPartition]) -> None:
        for partition in self.busy_with(partitions):
            self._ends[partition] = (None, 0)


#: What the running coroutine took last, by consumer and topic. A context belongs to one coroutine, be it a task of
#: asyncio or one of Tornado's, which has no task.
_TAKEN: ContextVar[Mapping[tuple[int, str], Taker]] = ContextVar("taken", default={})  # noqa: B039 -- never changed


def taker_of(consumer: object, topic: str) -> Taker:
    """A new taker, remembered as the one by which the running coroutine took from this topic last."""
    taker = object()
    _TAKEN.set({**_TAKEN.get(), (id(consumer), topic): taker})
    return taker


def takers_here(consumer: object) -> frozenset[Taker]:
    """The takers of whatever the running coroutine has of a consumer: nobody but itself can still be busy with it."""
    return frozenset(taker for (owner, _), taker in _TAKEN.get().items() if owner == id(consumer))
