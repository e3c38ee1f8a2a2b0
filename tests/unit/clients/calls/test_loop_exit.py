"""Whether an ``async for`` loop was left regularly or by an exception."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext

import pytest

from kiel_groups.clients.calls.left_loop import dropped_by_loop_exit

pytestmark = pytest.mark.unit

Numbers = Callable[[], "Loop"]


class Loop:
    """An asynchronous iterator that counts to three, and records whether its loop was left regularly."""

    def __init__(self, seen: list[bool]) -> None:
        self._seen = seen
        self._next = 0

    def __aiter__(self) -> Loop:
        return self

    async def __anext__(self) -> int:
        self._next += 1
        if self._next > 3:
            raise StopAsyncIteration
        return self._next

    def __del__(self) -> None:
        self._seen.append(dropped_by_loop_exit())


async def to_the_end(numbers: Numbers) -> None:
    async for _ in numbers():
        pass


async def broken(numbers: Numbers) -> None:
    async for number in numbers():
        if number == 2:
            break


async def broken_within_blocks(numbers: Numbers) -> None:
    async for _ in numbers():
        with nullcontext():
            try:
                break
            finally:
                await asyncio.sleep(0)


async def returned(numbers: Numbers) -> int | None:
    async for number in numbers():
        return number
    return None


async def returned_within_blocks(numbers: Numbers) -> str | None:
    async for number in numbers():
        async with asyncio.timeout(5):
            await asyncio.sleep(0)
            return str(number)
    return None


async def broken_after_a_caught_error(numbers: Numbers) -> None:
    async for number in numbers():
        try:
            _ = number / 0
        except ZeroDivisionError:
            break


async def raised(numbers: Numbers) -> None:
    async for _ in numbers():
        raise ZeroDivisionError


async def raised_and_caught_outside(numbers: Numbers) -> None:
    try:
        async for number in numbers():
            _ = number / 0
    except ZeroDivisionError:
        pass


async def raised_in_a_call(numbers: Numbers) -> None:
    async for _ in numbers():
        int("x")


async def raised_in_a_call_whose_result_is_dropped(numbers: Numbers) -> None:
    async for _ in numbers():
        await raised(lambda: Loop([]))


async def raised_by_an_assertion(numbers: Numbers) -> None:
    async for number in numbers():
        assert number is None


async def raised_within_blocks(numbers: Numbers) -> None:
    async for number in numbers():
        with nullcontext():
            try:
                _ = number / 0
            finally:
                await asyncio.sleep(0)


async def cancelled(numbers: Numbers) -> None:
    async for _ in numbers():
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)


async def kept_elsewhere(numbers: Numbers) -> None:
    kept = numbers()
    async for _ in kept:
        break
    await asyncio.sleep(0)
    kept = None  # type: ignore[assignment]


IN_ORDER = [
    to_the_end,
    broken,
    broken_within_blocks,
    returned,
    returned_within_blocks,
    broken_after_a_caught_error,
]
BY_EXCEPTION = [
    raised,
    raised_and_caught_outside,
    raised_in_a_call,
    raised_in_a_call_whose_result_is_dropped,
    raised_by_an_assertion,
    raised_within_blocks,
    cancelled,
    kept_elsewhere,
]


async def exits_of(loop: Callable[[Numbers], Awaitable[object]]) -> list[bool]:
    """Run a function that contains a loop in its own task. Return for each loop whether it was left regularly."""
    seen: list[bool] = []
    await asyncio.gather(asyncio.ensure_future(loop(lambda: Loop(seen))), return_exceptions=True)
    return seen


@pytest.mark.parametrize("loop", IN_ORDER)
async def test_a_loop_that_is_left_regularly(loop: Callable[[Numbers], Awaitable[object]]) -> None:
    """A loop is left regularly at its end, or by ``break`` or ``return``, also from within other blocks."""
    assert await exits_of(loop) == [True]


@pytest.mark.parametrize("loop", BY_EXCEPTION)
async def test_a_loop_that_is_not_left_regularly(loop: Callable[[Numbers], Awaitable[object]]) -> None:
    """
    A loop is not left regularly if an exception ends it, wherever it is raised or caught, or if the cause is unknown.
    """
    assert await exits_of(loop) == [False]
