"""
Identify the caller of a consumer's methods: the coroutine, or the thread behind it.

A record or a value is finished when the coroutine that received it asks again. Only that coroutine can tell, so each
call is attributed to one by context variables, which hold for tasks of asyncio and for coroutines without a task alike.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping
from contextvars import Context, ContextVar, copy_context

__all__ = [
    "ConsumeCall",
    "call_as",
    "current_caller",
    "context_without_calls",
    "new_consume_call",
    "consume_calls_here",
]


class _Coroutine:
    """Who makes calls, and whatever it started; ``latest`` is another object for each of them."""

    __slots__ = ("latest",)

    def __init__(self) -> None:
        self.latest = object()


class ConsumeCall:
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

    def __init__(self, taker: ConsumeCall) -> None:
        self.taker = taker


#: What the running coroutine took last, by consumer and topic. A context belongs to one coroutine, be it a task of
#: asyncio or one of Tornado's, which has no task.
_TAKEN: ContextVar[Mapping[tuple[int, str], _Known]] = ContextVar("taken", default={})  # noqa: B039 -- never changed


def new_consume_call(consumer: object, topic: str) -> ConsumeCall:
    """A new taker, remembered as the one by which the running coroutine took from this topic last."""
    key, taken = (id(consumer), topic), _TAKEN.get()
    if key in taken:
        taken[key].taker.passed = True
    coroutines = [known.taker.coroutine for (owner, _), known in taken.items() if owner == id(consumer)]
    taker = ConsumeCall(*coroutines[:1])
    _TAKEN.set({**taken, key: taker.known()})
    return taker


def consume_calls_here(consumer: object) -> frozenset[ConsumeCall]:
    """The takers of whatever the running coroutine has of a consumer: nobody but itself can still be busy with it."""
    taken = _TAKEN.get().items()
    return frozenset(known.taker for (owner, _), known in taken if owner == id(consumer) and not known.taker.passed)


def context_without_calls() -> Context:
    """The running context for a task of the client's own, which may outlive the coroutine: it has taken nothing."""
    context = copy_context()
    context.run(_TAKEN.set, {})
    return context


#: Who makes the calls of this context, where that is no coroutine.
_CALLER: ContextVar[object] = ContextVar("caller", default=None)


def call_as(caller: object) -> None:
    """Calls in the running context are this one's, by whatever task they come: a thread's that waits for each."""
    _CALLER.set(caller)


def current_caller() -> object:
    """Who is calling: nobody but itself can know that it is done with what it has in hand."""
    return _CALLER.get() or asyncio.current_task()
