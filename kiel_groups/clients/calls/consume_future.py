"""
The future of one call of ``consume()`` and the like, which records whether a caller received its outcome.

What this relies on
  - ``await`` of a task calls the task's own ``__await__``, also that of a subclass. If the caller is cancelled as the
    values arrive, ``CancelledError`` is raised at the ``yield from`` in it.
  - All other ways to read the values call ``result()`` of the subclass: ``gather``, a ``yield`` in a Tornado coroutine,
    ``chain_future``. asyncio's loop also calls it for each awaiting task, even if it then cancels that task.
  - When the future is not referred to any more, as after the caller was cancelled, CPython's reference counts delete it
    at once. That is how ``ConsumeCall.is_dropped`` finds values that no caller can receive.
  - When the time of ``gen.with_timeout`` is up, it adds a callback that calls ``result()`` and drops the outcome. Its
    code object is a constant of ``with_timeout``, named ``error_callback``. The frame below ``result()``, which
    ``sys._getframe`` finds, has this code.

If Tornado renames that function, moves it, or calls ``result()`` from a function within it, values that arrive after
the timeout count as received although no caller has them. The coroutine's next call finishes them, and the next commit
skips them: they are lost. If asyncio reads the outcome of a task without calling ``result()`` and ``__await__`` of a
subclass, as it does for plain tasks, received values are delivered again. If a future outlives its last caller, values
that no caller received are delivered again after ``UNCLAIMED_S``, and later ones may come before them. Checked with
CPython 3.11.7, 3.12.1 and 3.13.0, and Tornado 6.5, 6.5.10 and 6.6.1.
``tests/unit/clients/calls/test_runtime_assumptions.py`` fails if this changes.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Generator
from types import CodeType, FrameType
from typing import Any, TypeAlias, TypeVar

from tornado import gen

from kiel_groups.clients.calls.callers import ConsumeCall, context_without_calls
from kiel_groups.clients.calls.eager_methods import LoggedTask, home_loop, keep_alive
from kiel_groups.model import Batch

__all__ = ["give_back", "start_consume_call", "Values"]

#: What ``consume()`` of a grouped consumer returns: values, or None once the consumer is closed.
Values: TypeAlias = Batch | None

T = TypeVar("T")

#: The callback that ``gen.with_timeout`` adds to a future whose time is up; it reads the outcome and drops it.
_DROPS_OUTCOME = [
    code
    for code in gen.with_timeout.__code__.co_consts
    if isinstance(code, CodeType) and code.co_name == "error_callback"
]


class _ConsumeTask(LoggedTask[T]):
    """
    A task whose values count as received once a caller has awaited it to the end, or has called ``result()``.

    The values do not count as received if the caller is cancelled just when they arrive, or if ``gen.with_timeout``
    reads them after its time was up.
    """

    def __init__(self, work: Coroutine[Any, Any, T], call: ConsumeCall, name: str, late: Callable[[], T]) -> None:
        super().__init__(work, loop=home_loop(), name=name, context=context_without_calls())
        self._call = call
        self._late = late
        #: Whether a caller had received the values before the latest ``result()``.
        self._received_before = False
        call.returns(self)

    def __await__(self) -> Generator[Any, None, T]:
        try:
            values = yield from super().__await__()
        except asyncio.CancelledError:
            # The event loop called result() before it cancelled the caller. Another caller may have the values.
            self._call.received = self._received_before
            # The traceback keeps this frame, and would keep the future, for as long as the caller's task is kept.
            del self
            raise
        self._call.received = self._received_before = True
        return self._unless_given_up(values)

    def result(self) -> T:
        values = super().result()
        self._received_before = self._call.received
        self._call.received = self._call.received or not _only_drops_outcome(sys._getframe(1))
        return self._unless_given_up(values)

    def give_back(self) -> None:
        """Declare that no caller has the values, although the call was awaited to its end."""
        self._call.received, self._call.superseded = False, True

    def _unless_given_up(self, values: T) -> T:
        """Return the values, unless they are delivered again because no caller received them in time."""
        return self._late() if self._call.redelivered and values else values


def _only_drops_outcome(frame: FrameType) -> bool:
    return frame.f_code in _DROPS_OUTCOME


def give_back(call: object) -> None:
    """
    Have the values of a call delivered again, if the object is what ``start_consume_call`` returned.

    A thread that waited for the call was interrupted, so the values that the event loop received for it are lost.
    """
    if isinstance(call, _ConsumeTask):
        call.give_back()


def start_consume_call(
    work: Coroutine[Any, Any, T], call: ConsumeCall, name: str, late: Callable[[], T]
) -> asyncio.Task[T]:
    """
    Start a call of ``consume()`` and the like; ``call`` records whether a caller received its values.

    A caller that comes after its values are delivered again gets the outcome of ``late``.
    """
    return keep_alive(_ConsumeTask(work, call, name, late))
