"""Collect what is left of killed processes at one time, after the run, and without warnings."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kiel_groups.coordination.zookeeper import runtime
from kiel_groups.testing import FakeEnsemble, SimulatedProcess, SimulatedRuntime, Timeline

__all__ = ["deferred_collection"]

#: A coroutine that is closed may wait for something else while it ends: at most so many times in a row.
MOST_WAITS = 10


@contextmanager
def deferred_collection() -> Iterator[list[SimulatedProcess]]:
    """
    Close the coroutines of killed processes when the block ends.

    Until then no garbage is collected, so that no coroutine is closed in the middle of something else. Afterwards only
    the objects of this run are searched. A coroutine that is closed runs its ``finally`` blocks; it does so in a
    process that is dead, so these have no effect. Python's warnings about them are of no use.

    Yields:
        A list for killed processes to which something else may refer: the traceback of a test that failed. They are
        closed, too, since Python may crash if they are collected while that test is reported.
    """
    hook: Callable[[Any], Any] = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    disabled = logging.root.manager.disable
    gc.disable()
    gc.freeze()
    killed: list[SimulatedProcess] = []
    try:
        yield killed
    finally:
        dead = SimulatedProcess(FakeEnsemble(Timeline()))
        dead.kill()
        with runtime.replaced(SimulatedRuntime(dead.timeline)), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            logging.disable(logging.CRITICAL)
            dead.call(_close_all, killed)
            dead.call(gc.collect)
            dead.call(gc.collect)
            logging.disable(disabled)
        gc.unfreeze()
        gc.enable()
        sys.unraisablehook = hook


def _close_all(processes: Iterable[SimulatedProcess]) -> None:
    for process in processes:
        for task in asyncio.all_tasks(process.loop):
            _close(task.get_coro())


def _close(coroutine: Any) -> None:
    for _ in range(MOST_WAITS):
        with suppress(Exception):
            coroutine.close()
            return
