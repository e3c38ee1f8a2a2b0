"""Defer garbage collection during a run. After the run, collect the objects of killed processes without warnings."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from tests.fakes import FakeEnsemble, SimulatedProcess, Timeline

__all__ = ["deferred_collection"]

#: The most attempts to close a coroutine. An attempt fails if the coroutine waits again in a ``finally`` block.
MOST_WAITS = 10


@contextmanager
def deferred_collection() -> Iterator[list[SimulatedProcess]]:
    """
    Collect no garbage during the block, and close the coroutines of killed processes at its end.

    Otherwise, Python could close such a coroutine in the middle of another process's step. The final collection
    searches only objects of this run. A closed coroutine runs its ``finally`` blocks, here in a dead process, where
    they have no effect. Python's warnings about such coroutines are suppressed.

    Yields:
        A list for killed processes that may still be referenced, for example by the traceback of a failed test. Their
        coroutines are closed, too: Python may crash if it collects them while the failure is reported.
    """
    hook: Callable[[Any], Any] = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    disabled = logging.root.manager.disable
    stays_frozen = _has_frozen_modules() or not gc.isenabled()
    gc.disable()
    gc.freeze()
    killed: list[SimulatedProcess] = []
    try:
        yield killed
    finally:
        dead = SimulatedProcess(FakeEnsemble(Timeline()))
        dead.kill()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            logging.disable(logging.CRITICAL)
            dead.call(_close_all, killed)
            dead.call(gc.collect)
            dead.call(gc.collect)
            logging.disable(disabled)
        if not stays_frozen:
            gc.unfreeze()
        gc.enable()
        sys.unraisablehook = hook


@cache
def _has_frozen_modules() -> bool:
    """Return whether this process has frozen its modules for good, before its first run. To count them takes long."""
    return gc.get_freeze_count() > 0


def _close_all(processes: Iterable[SimulatedProcess]) -> None:
    for process in processes:
        for task in asyncio.all_tasks(process.loop):
            _close(task.get_coro())


def _close(coroutine: Any) -> None:
    for _ in range(MOST_WAITS):
        with suppress(Exception):
            coroutine.close()
            return
