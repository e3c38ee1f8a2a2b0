"""Wait for a condition in a test. Tests wait for what they need and never for a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

__all__ = ["eventually", "eventually_blocking", "run_ready_tasks"]

#: How often a condition is checked, in seconds.
_INTERVAL_S = 0.01


async def eventually(condition: Callable[[], T], what: str, timeout_s: float = 30.0) -> T:
    """Wait on the event loop until ``condition`` returns a true value, and return it; fail with ``what`` otherwise."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        await asyncio.sleep(_INTERVAL_S)
    return value


def eventually_blocking(condition: Callable[[], T], what: str, timeout_s: float = 30.0) -> T:
    """Do what :func:`eventually` does, in a test without an event loop."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        time.sleep(_INTERVAL_S)
    return value


async def run_ready_tasks(passes: int = 20) -> None:
    """Let the event loop run what is ready, and what that makes ready, without waiting for a clock."""
    for _ in range(passes):
        await asyncio.sleep(0)
