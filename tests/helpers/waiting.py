"""
Wait for a condition in a test. Tests wait for conditions, never for a fixed time.

The one exception is a time in which something must not happen: :func:`throughout` checks that it does not.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

T = TypeVar("T")

__all__ = ["eventually", "eventually_blocking", "run_ready_tasks", "throughout", "within"]

#: The interval, in seconds, at which a condition is checked.
_INTERVAL_S = 0.01


async def eventually(condition: Callable[[], T | Awaitable[T]], what: str, timeout_s: float = 30.0) -> T:
    """Wait on the event loop until ``condition`` returns a true value, and return it; fail with ``what`` if late."""
    if not (value := await within(condition, timeout_s)):
        raise AssertionError(f"not within {timeout_s:g} s: {what}")
    return value


async def within(condition: Callable[[], T | Awaitable[T]], timeout_s: float, interval_s: float = _INTERVAL_S) -> T:
    """Wait as :func:`eventually` does, but return the last value of ``condition``, a false one, if late."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = await _checked(condition)
        if value or time.monotonic() > deadline:
            return value
        await asyncio.sleep(interval_s)


async def throughout(condition: Callable[[], T | Awaitable[T]], what: str, duration_s: float) -> None:
    """Check for a time that ``condition`` stays true; fail with ``what`` as soon as it is false."""
    deadline = time.monotonic() + duration_s
    while True:
        # The check after the whole time counts, too.
        is_last = time.monotonic() > deadline
        if not await _checked(condition):
            raise AssertionError(f"not throughout {duration_s:g} s: {what}")
        if is_last:
            return
        await asyncio.sleep(_INTERVAL_S)


def eventually_blocking(condition: Callable[[], T], what: str, timeout_s: float = 30.0) -> T:
    """Wait as :func:`eventually` does, in a test without an event loop."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        time.sleep(_INTERVAL_S)
    return value


async def run_ready_tasks(passes: int = 20) -> None:
    """Run callbacks that are ready on the event loop, and callbacks that they make ready, without waiting for time."""
    for _ in range(passes):
        await asyncio.sleep(0)


async def _checked(condition: Callable[[], T | Awaitable[T]]) -> T:
    value = condition()
    return await value if inspect.isawaitable(value) else cast(T, value)
