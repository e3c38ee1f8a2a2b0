"""
What the application has in hand: a record, or the values of one topic.

It is not finished yet, so it is not committed by itself, and a hand-over of its partitions waits for it. Both kinds
end alike: *finished*, which moves the next offset that a commit stores, or put down unfinished, which does not.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Collection, Mapping
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kiel_groups.group.subscription import PartitionState
from kiel_groups.model import Record, TopicPartition

__all__ = [
    "Hand",
    "RecordHand",
    "TopicHand",
    "Span",
    "Taker",
    "UNCLAIMED_S",
    "taker_of",
    "takers_here",
    "caller_here",
    "call_as",
    "empty_handed",
]

#: Values that nobody has got for so long, in seconds, are given up; a program that gathers several calls may take some.
UNCLAIMED_S = 1.0


class Hand(Protocol):
    """Something in hand, or an empty hand."""

    def busy_with(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Those of these partitions that something in hand is of."""

    def disown(self, partitions: Collection[TopicPartition]) -> None:
        """Whatever becomes of these in hand counts no more; the application may still be busy with them."""

    def cut(self, partition: TopicPartition, end: int) -> None:
        """As ``disown``, for what is in flight of a partition from the offset ``end`` on."""


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


class _Coroutine:
    """Who makes calls, and whatever it started; ``latest`` is another object for each of them."""

    __slots__ = ("latest",)

    def __init__(self) -> None:
        self.latest = object()


class Taker:
    """One call that asked for a topic's values, and what is known of the coroutine that made it."""

    __slots__ = ("_known_there", "coroutine", "given_up", "got", "passed")

    def __init__(self, coroutine: _Coroutine | None = None) -> None:
        self.coroutine = coroutine or _Coroutine()
        self.coroutine.latest = object()
        #: Somebody was given what the call returned.
        self.got = False
        #: The coroutine waits for it no longer: it has asked for the topic again, or closed.
        self.passed = False
        #: Its values are delivered again, here or to the next owner: who gets the outcome now, gets nothing.
        self.given_up = False
        self._known_there: weakref.ref[_Known] | None = None

    @property
    def over(self) -> bool:
        """The coroutine has asked for the topic again or closed, or there is no such coroutine any more."""
        return self.passed or (self._known_there is not None and self._known_there() is None)

    def known(self) -> _Known:
        """What the context of the coroutine is to keep, and nothing else."""
        known = _Known(self)
        self._known_there = weakref.ref(known)
        return known


class _Known:
    """A taker as the contexts know it that its coroutine has, and whatever it started; it goes with the last one."""

    __slots__ = ("__weakref__", "taker")

    def __init__(self, taker: Taker) -> None:
        self.taker = taker


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

    taker: Taker
    spans: dict[TopicPartition, Span]
    at_s: float
    done: bool = False

    def fate(self, now_s: float) -> bool | None:
        """True: somebody got it. False: nobody did, and nobody will. None: that will be seen."""
        if self.taker.got:
            return True
        return False if self.taker.passed or now_s - self.at_s > UNCLAIMED_S else None


class TopicHand:
    """
    The values of one topic that are in hand, call by call, in the order in which they were taken.

    What one coroutine got ends when that one asks again, whatever others do. A partition is finished up to the first
    of its values that somebody is still busy with.
    """

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

    def busy(self) -> list[tuple[Taker, frozenset[TopicPartition]]]:
        """Who has what in hand; for any thread."""
        return [(taken.taker, frozenset(taken.spans)) for taken in self._taken]

    def is_awaited(self, now_s: float) -> bool:
        """Whether something may be about to be got."""
        return any(taken.fate(now_s) is None for taken in self._taken)

    def finish(self, takers: Collection[Taker] | None) -> None:
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


#: What the running coroutine took last, by consumer and topic. A context belongs to one coroutine, be it a task of
#: asyncio or one of Tornado's, which has no task.
_TAKEN: ContextVar[Mapping[tuple[int, str], _Known]] = ContextVar("taken", default={})  # noqa: B039 -- never changed


def taker_of(consumer: object, topic: str) -> Taker:
    """A new taker, remembered as the one by which the running coroutine took from this topic last."""
    key, taken = (id(consumer), topic), _TAKEN.get()
    if key in taken:
        taken[key].taker.passed = True
    coroutines = [known.taker.coroutine for (owner, _), known in taken.items() if owner == id(consumer)]
    taker = Taker(*coroutines[:1])
    _TAKEN.set({**taken, key: taker.known()})
    return taker


def takers_here(consumer: object) -> frozenset[Taker]:
    """The takers of whatever the running coroutine has of a consumer: nobody but itself can still be busy with it."""
    taken = _TAKEN.get().items()
    return frozenset(known.taker for (owner, _), known in taken if owner == id(consumer) and not known.taker.passed)


def empty_handed() -> Context:
    """The running context for a task of the client's own, which may outlive the coroutine: it has taken nothing."""
    context = copy_context()
    context.run(_TAKEN.set, {})
    return context


#: Who makes the calls of this context, where that is no coroutine.
_CALLER: ContextVar[object] = ContextVar("caller", default=None)


def call_as(caller: object) -> None:
    """Calls in the running context are this one's, by whatever task they come: a thread's that waits for each."""
    _CALLER.set(caller)


def caller_here() -> object:
    """Who is calling: nobody but itself can know that it is done with what it has in hand."""
    return _CALLER.get() or asyncio.current_task()
