"""The time limit of a close: its parts share it, and waits that have begun follow a shorter one."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress

import pytest

from kiel_groups.zookeeper.tasks import CloseLimit

pytestmark = pytest.mark.unit


async def waited_s(limit: CloseLimit, most_s: float = math.inf, *, reserves: bool = False) -> float:
    """Wait for ever under the limit, and return how long that took."""
    now_s = asyncio.get_running_loop().time
    began_s = now_s()
    with suppress(TimeoutError):
        async with limit.timeout(most_s, reserves=reserves):
            await asyncio.Event().wait()
    return now_s() - began_s


@pytest.mark.parametrize(
    ("first_s", "then_s", "expected_s"),
    [(0.1, None, 0.1), (None, 0.1, 0.1), (20.0, 0.1, 0.1), (0.1, 20.0, 0.1), (20.0, 0.0, 0.0), (0.0, None, 0.0)],
)
async def test_the_earliest_end_counts(first_s: float | None, then_s: float | None, expected_s: float) -> None:
    """Also for a wait that has begun, and for one that leaves half of the time to what follows."""
    limit = CloseLimit(first_s)
    waiting = [asyncio.ensure_future(waited_s(limit, reserves=reserves)) for reserves in (False, True)]
    await asyncio.sleep(0)
    limit.shorten(then_s)
    async with asyncio.timeout(5.0):
        whole_s, half_s = await asyncio.gather(*waiting)
    assert expected_s <= whole_s < expected_s + 1.0
    assert expected_s / 2 - 0.01 <= half_s < expected_s + 1.0
    assert half_s <= whole_s or not expected_s, "without time left there is nothing to reserve: both end at once"
    assert await waited_s(limit) < 1.0, "the next wait begins after the limit"


@pytest.mark.parametrize("timeout_s", [None, 20.0])
async def test_a_wait_has_a_limit_of_its_own(timeout_s: float | None) -> None:
    async with asyncio.timeout(5.0):
        assert 0.05 <= await waited_s(CloseLimit(timeout_s), 0.05, reserves=True) < 1.0


async def test_at_most_half_a_second_is_reserved() -> None:
    async with asyncio.timeout(5.0):
        assert 0.65 <= await waited_s(CloseLimit(1.2), reserves=True) < 1.2


async def test_a_wait_that_has_ended_is_not_rescheduled() -> None:
    limit = CloseLimit()
    async with limit.timeout():
        pass
    waiting = asyncio.ensure_future(waited_s(limit))
    await asyncio.sleep(0)
    limit.shorten(0.0)
    await asyncio.sleep(0)
    limit.shorten(0.0)
    async with asyncio.timeout(5.0):
        await waiting
