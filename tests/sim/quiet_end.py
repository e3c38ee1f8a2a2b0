"""What is left of killed processes is thrown away in one place, at one time, and without a word."""

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

__all__ = ["quiet_end"]

#: What is closed may wait for something else while it ends: at most so many times in a row.
MOST_WAITS = 10


@contextmanager
def quiet_end() -> Iterator[list[SimulatedProcess]]:
    """
    Coroutines of killed processes are thrown away where they stand; what Python says about that is of no use.

    Not before the end, lest it happen in the middle of something; and only what this run has made is looked through.
    What they do about it, as if they were cancelled, happens in a process that is dead, and comes to nothing.

    Yields:
        A list for killed processes of which something else may remember more: the traceback of a test that failed.
        Python may not survive that they are collected while that is reported.
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
        nowhere = SimulatedProcess(FakeEnsemble(Timeline()))
        nowhere.kill()
        with runtime.replaced(SimulatedRuntime(nowhere.timeline)), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            logging.disable(logging.CRITICAL)
            nowhere.call(_close_all, killed)
            nowhere.call(gc.collect)
            nowhere.call(gc.collect)
            logging.disable(disabled)
        gc.unfreeze()
        gc.enable()
        sys.unraisablehook = hook


def _close_all(processes: Iterable[SimulatedProcess]) -> None:
    for process in processes:
        for task in asyncio.all_tasks(process.loop):
            _close(task.get_coro())


def _close(work: Any) -> None:
    for _ in range(MOST_WAITS):
        with suppress(Exception):
            work.close()
            return
