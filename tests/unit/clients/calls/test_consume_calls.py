"""The states of a ``consume()`` call: received, superseded by a later call, or ended with its coroutine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tornado import gen

from kiel_groups.clients.calls.callers import ConsumeCall, consume_calls_here, new_consume_call
from kiel_groups.clients.calls.eager_methods import spawn, start_consume_call
from tests.helpers.waiting import run_ready_tasks

pytestmark = pytest.mark.unit


async def values_soon() -> list[Any]:
    """Return values after a short wait, like a call that waits for a broker."""
    await asyncio.sleep(0.01)
    return [1]


async def test_a_call_is_over_when_its_coroutine_has_ended() -> None:
    """
    A ``consume()`` call is over when the task or the Tornado coroutine that made the call has ended. Tasks that this
    coroutine has started do not keep its call alive.
    """
    consumer = object()

    async def consumes() -> ConsumeCall:
        call = new_consume_call(consumer, "t")
        result = start_consume_call(values_soon(), ConsumeCall(), "a call", list)
        call.received = await asyncio.wait_for(result, 5) == [1]
        assert not call.ended
        return call

    @gen.coroutine
    def tornados() -> Any:
        return (yield consumes())

    async def starts_a_task(ended: asyncio.Event) -> ConsumeCall:
        call = new_consume_call(consumer, "t")
        spawn(ended.wait(), "outlives its coroutine")
        return call

    ended = asyncio.Event()
    for start in (tornados, lambda: asyncio.create_task(consumes()), lambda: asyncio.create_task(starts_a_task(ended))):
        call = await start()
        await run_ready_tasks()
        assert call.ended, start
    here = new_consume_call(consumer, "t")
    await run_ready_tasks()
    assert not here.ended
    ended.set()


async def test_a_coroutine_knows_its_last_call_of_each_topic() -> None:
    """
    A coroutine knows its last call of each topic, but not the calls of other tasks and of other Tornado coroutines.
    """
    consumer, another = object(), object()
    first = new_consume_call(consumer, "t")
    second, third = new_consume_call(consumer, "t"), new_consume_call(consumer, "u")
    new_consume_call(another, "t")
    assert consume_calls_here(consumer) == {second, third}
    assert first not in consume_calls_here(consumer)

    @gen.coroutine
    def tornados() -> Any:
        own = new_consume_call(consumer, "t")
        yield gen.sleep(0)
        assert own in consume_calls_here(consumer)
        return own

    async def task() -> ConsumeCall:
        return new_consume_call(consumer, "t")

    for call in (await tornados(), await asyncio.ensure_future(task())):
        assert call not in consume_calls_here(consumer)


async def test_a_task_shares_the_calls_of_its_starter_until_the_starters_next_call() -> None:
    """
    A task that a coroutine starts to process values shares the coroutine's calls, and so can commit the values, until
    the coroutine requests the topic again.
    """
    consumer = object()
    first = new_consume_call(consumer, "t")
    seen: list[frozenset[ConsumeCall]] = []
    asked_again = asyncio.Event()

    async def processes() -> None:
        seen.append(consume_calls_here(consumer))
        await asked_again.wait()
        seen.append(consume_calls_here(consumer))

    processing = asyncio.ensure_future(processes())
    await run_ready_tasks()
    new_consume_call(consumer, "t")
    asked_again.set()
    await asyncio.wait_for(processing, 5)
    assert seen == [{first}, frozenset()]


async def test_a_call_of_a_task_does_not_supersede_that_of_its_starter() -> None:
    """The starter may still process its values. When it has ended, the task's next call finishes them."""
    consumer = object()
    own: list[ConsumeCall] = []

    async def asks() -> None:
        own.append(new_consume_call(consumer, None))

    async def starts() -> ConsumeCall:
        call = new_consume_call(consumer, None)
        await asyncio.create_task(asks())
        assert not call.superseded
        assert own[0].coroutine is not call.coroutine
        later = new_consume_call(consumer, None)
        assert call.superseded
        assert not own[0].superseded
        return later

    assert not (await asyncio.create_task(starts())).superseded


async def test_a_caller_that_awaits_a_call_receives_its_values() -> None:
    """
    A caller receives the values of a call if it awaits the call, yields the call in a coroutine of Tornado, passes the
    call to ``gather``, or reads its result.
    """

    @gen.coroutine
    def yields(result: Any) -> Any:
        return (yield result)

    async def reads(result: Any) -> Any:
        await asyncio.wait({result})
        return result.result()

    async def awaits(result: Any) -> Any:
        return await result

    for way in (awaits, yields, reads, asyncio.gather, lambda result: asyncio.wait_for(result, 5)):
        call = ConsumeCall()
        found = await way(start_consume_call(values_soon(), call, "a call", list))  # type: ignore[no-untyped-call]
        assert found in ([1], [[1]])
        assert call.received, way


async def test_a_caller_that_gave_up_does_not_receive_the_values() -> None:
    """
    Values do not count as received if the caller's ``gen.with_timeout`` has expired, or if no caller awaits the call.
    """
    loop = asyncio.get_running_loop()
    given_up, unseen = ConsumeCall(), ConsumeCall()
    result = start_consume_call(values_soon(), given_up, "a call", list)
    with pytest.raises(TimeoutError):
        await gen.with_timeout(loop.time() + 0.001, result)
    other = start_consume_call(values_soon(), unseen, "a call", list)
    await asyncio.wait({result, other})
    await run_ready_tasks()
    assert (given_up.received, unseen.received) == (False, False)


async def test_a_caller_that_is_cancelled_as_values_arrive_does_not_receive_them() -> None:
    """
    Values do not count as received if the caller is cancelled in the iteration of the event loop in which they arrive.
    """
    call = ConsumeCall()
    result = start_consume_call(values_soon(), call, "a call", list)

    async def awaits() -> Any:
        return await result

    waiting = asyncio.ensure_future(awaits())
    result.add_done_callback(lambda _: waiting.cancel())
    await run_ready_tasks()
    # The callback above was added first, so it runs before the one that wakes the waiting task.
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert result.done()
    assert not call.received


@pytest.mark.parametrize("cancelled_first", [True, False])
async def test_a_cancelled_caller_does_not_take_the_values_from_another_one(cancelled_first: bool) -> None:
    """Of two callers that await one call, one is cancelled as values arrive. The other one has received them."""
    call = ConsumeCall()
    result = start_consume_call(values_soon(), call, "a call", list)

    async def awaits() -> Any:
        return await result

    callers = [asyncio.ensure_future(awaits()) for _ in range(2)]
    cancelled, other = callers if cancelled_first else callers[::-1]
    result.add_done_callback(lambda _: cancelled.cancel())
    assert await other == [1]
    await asyncio.wait({cancelled})
    assert cancelled.cancelled()
    assert call.received


async def test_a_call_is_dropped_when_its_future_is_not_referred_to() -> None:
    """No caller can receive the values of a dropped call. A call in progress, or shielded, is not dropped."""
    call = ConsumeCall()
    waiting = asyncio.shield(start_consume_call(values_soon(), call, "a call", list))
    await asyncio.sleep(0)
    assert not call.is_dropped
    waiting.cancel()
    del waiting
    assert not call.is_dropped
    await asyncio.sleep(0.05)
    await run_ready_tasks()
    assert (call.received, call.is_dropped) == (False, True)
    assert not ConsumeCall().is_dropped


async def test_a_later_call_of_the_same_topic_supersedes_the_former_one() -> None:
    """
    A later call of the same coroutine for the same topic supersedes its former call. Other coroutines have their own
    calls.
    """
    consumer = object()

    async def another() -> ConsumeCall:
        return new_consume_call(consumer, "t")

    other_task = asyncio.ensure_future(another())
    first = new_consume_call(consumer, "t")
    new_consume_call(consumer, "u")
    others = await other_task
    assert (first.superseded, others.superseded) == (False, False)
    new_consume_call(consumer, "t")
    assert (first.superseded, others.superseded) == (True, False)
