"""The real runtime's clock."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import pytest

from kiel_groups.zookeeper.runtime import Runtime

pytestmark = pytest.mark.unit


def test_leases_are_measured_by_the_clock_that_counts_suspension() -> None:
    """
    Leases are measured by a clock that also counts the time in which the computer is suspended. With another clock, a
    lease would outlast its session. No computer is suspended for a test, so it looks at the function itself.
    """
    clock = Runtime().boot_time_s
    assert isinstance(clock, partial)
    assert (clock.func, clock.args) == (time.clock_gettime, (time.CLOCK_BOOTTIME,))
    assert clock() <= Runtime().boot_time_s()


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), StopIteration(1)])
async def test_any_error_of_a_thread_reaches_its_caller(error: BaseException) -> None:
    """The caller does not wait for ever, its event loop runs on, and it does not look cancelled."""

    def fail() -> None:
        raise error

    async with asyncio.timeout(5):
        with pytest.raises(RuntimeError, match=rf"the thread 'test' raised {type(error).__name__}") as raised:
            await Runtime().in_thread(fail, "test")
    assert raised.value.__cause__ is error
