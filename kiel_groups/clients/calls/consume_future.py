"""The future of one call of ``consume()``, which notes whether anybody got what it returns."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Generator
from types import CodeType, FrameType
from typing import Any, TypeAlias

from tornado import gen

from kiel_groups.clients.calls.callers import ConsumeCall, context_without_calls
from kiel_groups.clients.calls.eager_methods import LoggedTask, home_loop, kept
from kiel_groups.model import Batch

__all__ = ["asking", "Values"]

#: What ``consume()`` of a grouped consumer returns: values, or None once the consumer is closed.
Values: TypeAlias = Batch | None

#: ``gen.with_timeout`` leaves this behind in a future that it has given up, to look at its outcome and drop it.
_LEFT_BEHIND = [
    code
    for code in gen.with_timeout.__code__.co_consts
    if isinstance(code, CodeType) and code.co_name == "error_callback"
]


class _Asking(LoggedTask[Values]):
    """
    A task whose outcome is got by who awaits it to the end, or looks at its ``result()``.

    Not by who is cancelled at the moment in which it comes, and not by a ``gen.with_timeout`` whose time was up.
    """

    def __init__(self, work: Coroutine[Any, Any, Values], taker: ConsumeCall, name: str) -> None:
        super().__init__(work, loop=home_loop(), name=name, context=context_without_calls())
        self._taker = taker

    def __await__(self) -> Generator[Any, None, Values]:
        try:
            values = yield from super().__await__()
        except asyncio.CancelledError:
            # The event loop has looked at the result before it cancelled whoever awaits it.
            self._taker.got = False
            raise
        self._taker.got = True
        return self._unless_given_up(values)

    def result(self) -> Values:
        values = super().result()
        self._taker.got = self._taker.got or not _only_drops_it(sys._getframe(1))
        return self._unless_given_up(values)

    def _unless_given_up(self, values: Values) -> Values:
        """Nothing in the place of values that are delivered again: nobody got them in time."""
        return Batch() if self._taker.given_up and values else values


def _only_drops_it(frame: FrameType) -> bool:
    return frame.f_code in _LEFT_BEHIND


def asking(work: Coroutine[Any, Any, Values], taker: ConsumeCall, name: str) -> asyncio.Task[Values]:
    """Start a call of ``consume()``; ``taker`` learns whether anybody got its values."""
    return kept(_Asking(work, taker, name))
