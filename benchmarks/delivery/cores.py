"""Divide the cores of this machine between the servers and a client."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

__all__ = ["CLIENT_CORE", "FEEDER_CORE", "SERVER_CORE", "on_core", "running_on"]

_CORES = sorted(os.sched_getaffinity(0))

#: The servers have the first core, a client the last core. On a single core they share it.
SERVER_CORE, CLIENT_CORE = _CORES[0], _CORES[-1]
#: A process that produces during a measurement has a core of its own if there are three; otherwise that of the servers.
FEEDER_CORE = _CORES[1] if len(_CORES) > 2 else SERVER_CORE


@contextmanager
def running_on(core: int) -> Iterator[None]:
    """Run the block, and all processes and threads that it starts, on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def on_core(core: int) -> Callable[[], None]:
    """Return a function that pins the process that calls it, for ``preexec_fn``."""
    return partial(os.sched_setaffinity, 0, {core})
