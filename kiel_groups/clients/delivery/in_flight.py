"""
What the application has in hand: a record, or the values of one topic.

It is not finished yet, so it is not committed by itself, and a hand-over of its partitions waits for it. Both kinds
end alike: *finished*, which moves the next offset that a commit stores, or put down unfinished, which does not.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kiel_groups.clients.calls.callers import ConsumeCall
from kiel_groups.group.member.subscription import PartitionState
from kiel_groups.model import Record, TopicPartition

__all__ = ["InFlight", "RecordInFlight", "ValuesInFlight", "Span", "UNCLAIMED_S"]

#: Values that nobody has got for so long, in seconds, are given up; a program that gathers several calls may take some.
UNCLAIMED_S = 1.0


class InFlight(Protocol):
    """Something in hand, or an empty hand."""

    def busy_with(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Those of these partitions that something in hand is of."""

    def disown(self, partitions: Collection[TopicPartition]) -> None:
        """Whatever becomes of these in hand counts no more; the application may still be busy with them."""

    def cut(self, partition: TopicPartition, end: int) -> None:
        """As ``disown``, for what is in flight of a partition from the offset ``end`` on."""


class RecordInFlight:
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

    def token_of(self, record: Record) -> int | None:
        """The fencing token under which a record was handed out; None where it is not in hand, or counts no more."""
        # Its place would not do: the same one may be in hand again, under a later claim.
        return self.state.token if record is self.record and self.state is not None else None

    def disown(self, partitions: Collection[TopicPartition]) -> None:
        if self.record is not None and self.record.topic_partition in partitions:
            self.state = None

    def cut(self, partition: TopicPartition, end: int) -> None:
        if self.record is not None and self.record.topic_partition == partition and self.record.offset >= end:
            self.state = None

    def clear(self) -> None:
        self.record = self.state = None


class Span(NamedTuple):
    """
    Values of one partition that one call returned: from the offset ``start`` to the next offset ``end``.

    ``state`` is where their end is to be noted, None where that counts no more.
    """

    state: PartitionState | None
    start: int
    end: int


@dataclass(slots=True)
class _Taken:
    """What one call returned, and when; ``done``: whoever got it said so, and did not ask again for that."""

    taker: ConsumeCall
    spans: dict[TopicPartition, Span]
    at_s: float
    done: bool = False

    def fate(self, now_s: float) -> bool | None:
        """True: somebody got it. False: nobody did, and nobody will. None: that will be seen."""
        if self.taker.got:
            return True
        return False if self.taker.passed or now_s - self.at_s > UNCLAIMED_S else None


class ValuesInFlight:
    """
    The values of one topic that are in hand, call by call, in the order in which they were taken.

    What one coroutine got ends when that one asks again, whatever others do. A partition is finished up to the first
    of its values that somebody is still busy with.
    """

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        self._taken: list[_Taken] = []

    @property
    def takers(self) -> set[ConsumeCall]:
        """The calls that returned them."""
        return {taken.taker for taken in self._taken}

    def add(self, spans: dict[TopicPartition, Span], taker: ConsumeCall, now_s: float) -> None:
        """A call returns these."""
        self._taken.append(_Taken(taker, spans, now_s))

    def busy_with(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        return frozenset(tp for taken in self._taken for tp in taken.spans).intersection(partitions)

    def busy(self) -> list[tuple[ConsumeCall, frozenset[TopicPartition]]]:
        """Who has what in hand; for any thread."""
        return [(taken.taker, frozenset(taken.spans)) for taken in self._taken]

    def is_awaited(self, now_s: float) -> bool:
        """Whether something may be about to be got."""
        return any(taken.fate(now_s) is None for taken in self._taken)

    def finish(self, takers: Collection[ConsumeCall] | None) -> None:
        """Whoever got something by these calls, or by any, is done with it."""
        for taken in self._taken:
            taken.done = taken.done or (taken.taker.got and (takers is None or taken.taker in takers))

    def settle(self, now_s: float, *, finishes: bool = True) -> dict[TopicPartition, int]:
        """
        Let go of what has ended; what somebody is busy with stays, and what may be about to be got.

        Without ``finishes``, keep what a caller has got and not declared finished, also of a coroutine that has ended:
        another coroutine may be processing what it returned.

        Returns:
            Where to hand out again from, by partition: what nobody got, and never will.
        """
        back: dict[TopicPartition, int] = {}
        undecided: set[TopicPartition] = set()
        busy: set[TopicPartition] = set()
        for taken in self._taken:
            fate, done = taken.fate(now_s), taken.done or (finishes and taken.taker.over)
            stays: dict[TopicPartition, Span] = {}
            for tp, span in taken.spans.items():
                if tp in back and span.state is not None:
                    # It comes again, together with what was before it. That ends the accounting and not the work:
                    # a drain must still wait for the coroutine that processes these values.
                    span = span._replace(state=None)
                if fate is None or tp in undecided:
                    before = undecided
                elif fate and (not done or tp in busy):
                    before = busy
                else:
                    if span.state is not None and fate:
                        span.state.finished = span.end
                    elif span.state is not None:
                        back[tp] = span.start
                        taken.taker.given_up = True
                    continue
                stays[tp] = span
                if span.state is not None:
                    before.add(tp)
            taken.spans = stays
        self._taken = [taken for taken in self._taken if taken.spans]
        return back

    def disown(self, partitions: Collection[TopicPartition]) -> None:
        for taken in self._taken:
            for partition in taken.spans.keys() & set(partitions):
                taken.spans[partition] = taken.spans[partition]._replace(state=None)

    def cut(self, partition: TopicPartition, end: int) -> None:
        for taken in self._taken:
            span = taken.spans.get(partition)
            if span is not None and span.start >= end:
                taken.spans[partition] = span._replace(state=None)
            elif span is not None and span.end > end:
                taken.spans[partition] = span._replace(end=end)
