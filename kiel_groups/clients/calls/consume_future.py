"""The future of one call of ``consume()``, which records whether a caller received its values."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Generator
from types import CodeType, FrameType
from typing import Any, TypeAlias

from tornado import gen

from kiel_groups.clients.calls.callers import ConsumeCall, context_without_calls
from kiel_groups.clients.calls.eager_methods import LoggedTask, home_loop, keep_alive
from kiel_groups.model import Batch

__all__ = ["start_consume_call", "Values"]

#: What ``consume()`` of a grouped consumer returns: values, or None once the consumer is closed.
Values: TypeAlias = Batch | None

#: The callback that ``gen.with_timeout`` adds to a future whose time is up; it reads the outcome and drops it.
_DROPS_OUTCOME = [
    code
    for code in gen.with_timeout.__code__.co_consts
    if isinstance(code, CodeType) and code.co_name == "error_callback"
]


class _ConsumeTask(LoggedTask[Values]):
    """
    A task whose values count as received once a caller has awaited it to the end, or has called ``result()``.

    The values do not count as received if the caller is cancelled just when they arrive, or if ``gen.with_timeout``
    reads them after its time was up.
    """

    def __init__(self, work: Coroutine[Any, Any, Values], call: ConsumeCall, name: str) -> None:
        super().__init__(work, loop=home_loop(), name=name, context=context_without_calls())
        self._call = call

    def __await__(self) -> Generator[Any, None, Values]:
        try:
            values = yield from super().__await__()
        except asyncio.CancelledError:
            # The event loop called result() before it cancelled the caller.
            self._call.received = False
            raise
        self._call.received = True
        return self._unless_given_up(values)

    def result(self) -> Values:
        values = super().result()
        self._call.received = self._call.received or not _only_drops_outcome(sys._getframe(1))
        return self._unless_given_up(values)

    def _unless_given_up(self, values: Values) -> Values:
        """Return the values, or [] if they are delivered again because no caller received them in time."""
        return Batch() if self._call.redelivered and values else values


def _only_drops_outcome(frame: FrameType) -> bool:
    return frame.f_code in _DROPS_OUTCOME


def start_consume_call(work: Coroutine[Any, Any, Values], call: ConsumeCall, name: str) -> asyncio.Task[Values]:
    """Start a call of ``consume()``; ``call`` records whether a caller received its values."""
    return keep_alive(_ConsumeTask(work, call, name))
