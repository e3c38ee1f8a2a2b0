"""Wait for a condition in a test. Tests wait for conditions, never for a fixed time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

__all__ = ["eventually", "eventually_blocking", "run_ready_tasks"]

#: The interval, in seconds, at which a condition is checked.
_INTERVAL_S = 0.01


async def eventually(condition: Callable[[], T], what: str, timeout_s: float = 30.0) -> T:
    """
    Wait on the event loop until ``condition`` returns a true value, and return it. After ``timeout_s``, fail with
    ``what``.
    """
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        await asyncio.sleep(_INTERVAL_S)
    return value


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
