"""Positions after calls that were given up: ``position()`` names the next record that a caller gets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import pytest

from kiel_groups import GroupedConsumer, SingleConsumer
from tests.helpers.fake_broker import FakeBroker, message_set
from tests.helpers.single_consumers import T0

pytestmark = pytest.mark.unit

Consumer: TypeAlias = GroupedConsumer | SingleConsumer
Ask: TypeAlias = Callable[[Consumer], asyncio.Future[Any]]

BOTH = pytest.mark.parametrize("make", [GroupedConsumer, SingleConsumer])
CALLS = pytest.mark.parametrize(
    "ask",
    [
        lambda consumer: consumer.getmany(timeout_ms=5_000, max_records=2),
        lambda consumer: consumer.consume_batches(timeout_ms=5_000, max_records=2),
        lambda consumer: consumer.getone(),
    ],
    ids=["getmany", "consume_batches", "getone"],
)


@asynccontextmanager
async def reading(make: type[Consumer]) -> AsyncIterator[Consumer]:
    """Run a consumer that reads a partition with the offsets 0 to 3 from offset 1."""
    async with FakeBroker({"t": 1}) as broker, asyncio.timeout(20):
        broker.append(T0, message_set(b"0", b"1", b"2", b"3"))
        zookeeper = ("g", "127.0.0.1:1") if make is GroupedConsumer else ()
        consumer = make(str(broker.address), *zookeeper, max_wait_time=500)
        consumer.assign([T0])
        consumer.seek(T0, 1)
        async with consumer:
            yield consumer


async def cancelled_as_records_arrive(asked: asyncio.Future[Any]) -> None:
    """Wait for a call in a task that is cancelled after the call has ended, and before the task gets its result."""

    async def waits() -> Any:
        return await asked

    waiting = asyncio.ensure_future(waits())
    # Added before the task's own callback, so it runs before that.
    asked.add_done_callback(lambda _: waiting.cancel())
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert asked.done()


async def offsets(consumer: Consumer, count: int) -> list[int]:
    return [(await consumer.getone()).offset for _ in range(count)]


@BOTH
@CALLS
async def test_the_position_after_a_call_that_was_cancelled_as_its_records_arrived(
    make: type[Consumer], ask: Ask
) -> None:
    """The caller has not got the records, which are the next ones of another call. So they count for the lag."""
    async with reading(make) as consumer:
        await cancelled_as_records_arrive(ask(consumer))
        assert (await consumer.position(T0), consumer.lag(T0)) == (1, 3)
        assert await offsets(consumer, 3) == [1, 2, 3]
        assert (await consumer.position(T0), consumer.lag(T0)) == (4, 0)


@BOTH
@CALLS
async def test_the_position_after_a_call_that_was_cancelled_while_it_waited(make: type[Consumer], ask: Ask) -> None:
    async with reading(make) as consumer:
        asked = ask(consumer)
        await asyncio.sleep(0)
        asked.cancel()
        await asyncio.wait({asked})
        assert await consumer.position(T0) == 1
        assert await offsets(consumer, 3) == [1, 2, 3]


@BOTH
@CALLS
async def test_records_of_a_cancelled_call_are_the_next_of_any_coroutine(make: type[Consumer], ask: Ask) -> None:
    """The cancelled task has dropped its call, so other tasks get its records at once, before those behind them."""
    async with reading(make) as consumer:

        async def one() -> int:
            return (await consumer.getone()).offset

        async def asks() -> Any:
            asked = ask(consumer)
            task = asyncio.current_task()
            assert task is not None
            asked.add_done_callback(lambda _: task.cancel())
            # Only the future's own await refers to it meanwhile.
            calls = [asked]
            del asked
            return await calls.pop()

        cancelled = asyncio.create_task(asks())
        await asyncio.wait({cancelled})
        assert cancelled.cancelled()
        assert await consumer.position(T0) == 1
        for offset in (1, 2, 3):
            assert await asyncio.create_task(one()) == offset
            assert await consumer.position(T0) == offset + 1


@BOTH
async def test_a_kept_call_is_not_taken_back(make: type[Consumer]) -> None:
    """A coroutine that keeps the future of a call whose await was cancelled may still receive its records."""
    async with reading(make) as consumer:
        kept = consumer.getmany(timeout_ms=5_000, max_records=1)
        await cancelled_as_records_arrive(kept)

        async def others() -> list[int]:
            return await offsets(consumer, 2)

        assert await asyncio.create_task(others()) == [2, 3]
        assert [record.offset for record in (await kept)[T0]] == [1]


@BOTH
async def test_the_position_counts_what_a_caller_has_received(make: type[Consumer]) -> None:
    """Records of a call whose outcome was not read yet are the next ones that a caller gets."""
    async with reading(make) as consumer:
        first = await consumer.getmany(timeout_ms=5_000, max_records=1)
        assert [record.offset for record in first[T0]] == [1]
        unread = consumer.getmany(timeout_ms=5_000, max_records=1)
        await asyncio.wait({unread})
        assert await consumer.position(T0) == 2
        assert [record.offset for record in unread.result()[T0]] == [2]
        assert await consumer.position(T0) == 3


@BOTH
async def test_a_seek_wins_over_records_that_no_caller_received(make: type[Consumer]) -> None:
    async with reading(make) as consumer:
        await cancelled_as_records_arrive(consumer.getmany(timeout_ms=5_000))
        consumer.seek(T0, 3)
        assert await consumer.position(T0) == 3
        assert await offsets(consumer, 1) == [3]
