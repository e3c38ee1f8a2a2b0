"""
What the application has in hand: a record, or the values of one topic.

It is not finished yet, so it is not committed by itself, and a hand-over of its partitions waits for it. Both kinds
end alike: *finished*, which moves the next offset that a commit stores, or put down unfinished, which does not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kiel_groups.group.subscription import PartitionState
from kiel_groups.model import Record, TopicPartition

__all__ = ["Hand", "RecordHand", "TopicHand", "Span", "Taker", "UNCLAIMED_S", "taker_of", "takers_here"]

#: Values that nobody has got for so long, in seconds, are given up; a program that gathers several calls may take some.
UNCLAIMED_S = 1.0


class Hand(Protocol):
    """Something in hand, or an empty hand."""

    def busy_with(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Those of these partitions that something in hand is of."""

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
        """Count what is in hand as finished; it stays in hand."""
        if self.record is not None and self.state is not None:
            self.state.finished = self.record.offset + 1

    def disown(self, partitions: Collection[TopicPartition]) -> None:
        if self.record is not None and self.record.topic_partition in partitions:
            self.state = None

    def clear(self) -> None:
        self.record = self.state = None


class Taker:
    """One call that asked for a topic's values, and what is known of whoever made it."""

    __slots__ = ("got", "passed")

    def __init__(self) -> None:
        #: Somebody was given what the call returned.
        self.got = False
        #: The coroutine that made the call waits for it no longer: it has asked for the topic again, or closed.
        self.passed = False


class Span(NamedTuple):
    """
    Values of one partition that one call returned: from the offset ``start`` to the next offset ``end``.

    ``state`` is where their end is to be noted, None where that counts no more.
    """

    state: PartitionState | None
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Taken:
    """What one call returned, and when."""

    taker: Taker
    spans: dict[TopicPartition, Span]
    at_s: float

    def fate(self, now_s: float) -> bool | None:
        """True: somebody got it. False: nobody did, and nobody will. None: that will be seen."""
        if self.taker.got:
            return True
        return False if self.taker.passed or now_s - self.at_s > UNCLAIMED_S else None


class TopicHand:
    """The values of one topic that were returned last, call by call, in the order in which they were taken."""

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        self._taken: list[_Taken] = []

    @property
    def takers(self) -> set[Taker]:
        """The calls that returned them."""
        return {taken.taker for taken in self._taken}

    def add(self, spans: dict[TopicPartition, Span], taker: Taker, now_s: float) -> None:
        """A call returns these."""
        self._taken.append(_Taken(taker, spans, now_s))

    def busy_with(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        return frozenset(tp for taken in self._taken for tp in taken.spans).intersection(partitions)

    def is_awaited(self, now_s: float) -> bool:
        """Whether something may be about to be got."""
        return any(taken.fate(now_s) is None for taken in self._taken)

    def settle(self, now_s: float, *, finish: bool) -> dict[TopicPartition, int]:
        """
        Finish what somebody got, or leave it in hand; what may be about to be got stays, with what came after it.

        Returns:
            Where to hand out again from, by partition: what nobody got, and never will.
        """
        back: dict[TopicPartition, int] = {}
        open_ones: set[TopicPartition] = set()
        left: list[_Taken] = []
        for taken in self._taken:
            fate = taken.fate(now_s)
            stays: dict[TopicPartition, Span] = {}
            for tp, span in taken.spans.items():
                if span.state is None or tp in back:
                    # It counts no more, or comes again together with what was before it.
                    continue
                if fate is None or tp in open_ones:
                    stays[tp] = span
                    open_ones.add(tp)
                elif not fate:
                    back[tp] = span.start
                elif finish:
                    span.state.finished = span.end
                else:
                    stays[tp] = span
            if stays:
                left.append(_Taken(taken.taker, stays, taken.at_s))
        self._taken = left
        return back

    def disown(self, partitions: Collection[TopicPartition]) -> None:
        for taken in self._taken:
            for partition in taken.spans.keys() & set(partitions):
                taken.spans[partition] = taken.spans[partition]._replace(state=None)


#: What the running coroutine took last, by consumer and topic. A context belongs to one coroutine, be it a task of
#: asyncio or one of Tornado's, which has no task.
_TAKEN: ContextVar[Mapping[tuple[int, str], Taker]] = ContextVar("taken", default={})  # noqa: B039 -- never changed


def taker_of(consumer: object, topic: str) -> Taker:
    """A new taker, remembered as the one by which the running coroutine took from this topic last."""
    key, taken = (id(consumer), topic), _TAKEN.get()
    if key in taken:
        taken[key].passed = True
    taker = Taker()
    _TAKEN.set({**taken, key: taker})
    return taker


def takers_here(consumer: object) -> frozenset[Taker]:
    """The takers of whatever the running coroutine has of a consumer: nobody but itself can still be busy with it."""
    return frozenset(taker for (owner, _), taker in _TAKEN.get().items() if owner == id(consumer))
