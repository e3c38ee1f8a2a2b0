"""Identify the coroutine that calls a consumer, and track whether it has received the values of its calls."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping
from contextvars import Context, ContextVar, copy_context
from enum import Enum
from typing import Any

# Identify the caller of a consumer's methods: the coroutine, or the thread behind it.
#
# A record or a value is finished when the coroutine that received it asks again. Therefore context variables attribute
# each call to a coroutine. Context variables work for asyncio's tasks and for Tornado's coroutines without a task
# alike.
#
# What this relies on - asyncio runs each task in a context of its own: a copy of the starting task's context, or the
# argument ``context``. - ``gen.coroutine`` of Tornado copies the context once, and runs all steps of the coroutine in
# that copy. - When a coroutine has ended and its task is dropped, nothing refers to its context, and CPython's
# reference counts delete the context and its values at once. That is how ``ConsumeCall.ended`` finds the end of a
# coroutine. - ``asyncio.current_task()`` is None in a callback of the loop, and so in the later steps of a Tornado
# coroutine.
#
# If asyncio or Tornado shared contexts between coroutines, a call would finish the values of another coroutine, and
# commits would store offsets of values that are still being processed. If contexts outlived their coroutines (in a
# cache, in a reference cycle, in an interpreter without reference counts), values of ended coroutines would stay in
# flight, and the release of their partitions would wait for them. Checked with CPython 3.11.7, 3.12.1 and 3.13.0, and
# Tornado 6.5, 6.5.10 and 6.6.1. ``tests/unit/clients/calls/test_runtime_assumptions.py`` fails if this changes.


class _Coroutine:
    """Identifies a coroutine that calls ``consume()``. Each call of the coroutine sets another object as ``latest``."""

    __slots__ = ("latest",)

    def __init__(self) -> None:
        self.latest = object()


class ConsumeCall:
    """
    One call of ``consume()``, ``getone()``, ``getmany()`` or ``consume_batches()``.

    The call records whether its values were received or redelivered, and whether the call was superseded.
    """

    __slots__ = ("_known_there", "_outcome", "_task", "coroutine", "received", "redelivered", "superseded")

    def __init__(self, coroutine: _Coroutine | None = None) -> None:
        self.coroutine = coroutine or _Coroutine()
        self.coroutine.latest = object()
        #: Whether a caller has received the returned values.
        self.received = False
        #: Whether the coroutine has asked for the topic again, or closed the consumer.
        self.superseded = False
        #: Whether the values are delivered again, by this member or the next owner; a late caller receives [].
        self.redelivered = False
        self._known_there: weakref.ref[_Known] | None = None
        self._outcome: weakref.ref[asyncio.Future[Any]] | None = None
        task = _running_task()
        self._task = None if task is None else weakref.ref(task)

    def is_of_another_task(self) -> bool:
        """
        Return whether this call was made by a task that is not the running task and has not ended.

        A task inherits the calls of the task that started it. The starting task may still process the values of these
        calls.
        """
        made_by, running = None if self._task is None else self._task(), _running_task()
        return made_by is not None and running is not None and made_by is not running and not made_by.done()

    @property
    def ended(self) -> bool:
        """Whether the coroutine has asked for the topic again, closed the consumer, or ended."""
        return self.superseded or (self._known_there is not None and self._known_there() is None)

    @property
    def is_dropped(self) -> bool:
        """
        Whether the call's future was deleted, because nothing refers to it.

        The future of a call in progress is kept alive.
        """
        return self._outcome is not None and self._outcome() is None

    def returns(self, outcome: asyncio.Future[Any]) -> None:
        """Remember the future from which callers get the values, without keeping the future alive."""
        self._outcome = weakref.ref(outcome)

    def known(self) -> _Known:
        """Return an object to store in the coroutine's context. The call has ended once this object is deleted."""
        known = _Known(self)
        self._known_there = weakref.ref(known)
        return known


class _Known:
    """A reference to a call, kept by the contexts of its coroutine and of the tasks that the coroutine started."""

    __slots__ = ("__weakref__", "call")

    def __init__(self, call: ConsumeCall) -> None:
        self.call = call


#: The latest calls of the running coroutine, by consumer and topic. A context belongs to one coroutine, be it a task of
#: asyncio or a coroutine of Tornado's, which has no task.
_LATEST: ContextVar[Mapping[tuple[int, str | None], _Known]] = ContextVar("latest", default={})  # noqa: B039 -- never changed


def new_consume_call(consumer: object, topic: str | None) -> ConsumeCall:
    """
    Create a call of the running coroutine, and remember it as the coroutine's latest call for this topic.

    ``topic`` is None for ``getone()``, ``getmany()`` and ``consume_batches()``, which ask for any topic.
    """
    key = (id(consumer), topic)
    latest = {each: known for each, known in _LATEST.get().items() if not known.call.is_of_another_task()}
    if key in latest:
        latest[key].call.superseded = True
    coroutines = [known.call.coroutine for (owner, _), known in latest.items() if owner == id(consumer)]
    call = ConsumeCall(*coroutines[:1])
    _LATEST.set({**latest, key: call.known()})
    return call


def consume_calls_here(consumer: object) -> frozenset[ConsumeCall]:
    """Return the running coroutine's latest calls of a consumer, one for each topic, without superseded calls."""
    latest = _LATEST.get().items()
    return frozenset(known.call for (owner, _), known in latest if owner == id(consumer) and not known.call.superseded)


def context_without_calls() -> Context:
    """Return a copy of the running context without the coroutine's calls, for tasks that the client starts."""
    context = copy_context()
    context.run(_LATEST.set, {})
    return context


def _running_task() -> asyncio.Task[Any] | None:
    """Return the running task, or None, as in a Tornado coroutine or before a loop runs."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


#: The caller in this context, if it is not a coroutine.
_CALLER: ContextVar[object] = ContextVar("caller", default=None)


def set_caller(caller: object) -> None:
    """Attribute all calls in the running context to this caller, such as a thread that waits for each call."""
    _CALLER.set(caller)


def current_caller() -> object:
    """
    Return the caller that ``set_caller`` set, or the current task, or None for a coroutine without a task.

    ``close()`` finishes the record in flight of a loop only if the caller of ``close()`` also started the loop.
    """
    return _CALLER.get() or asyncio.current_task()


class DeliveryStyle(Enum):
    """A way to get records from a consumer. Error messages show the values."""

    ITERATION = "iteration ('async for record in consumer')"
    VALUES = "consume(topic)"
    RECORDS = "getone(), getmany() and consume_batches()"
