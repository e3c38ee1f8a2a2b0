"""A step of a loop behaves as a coroutine does, in C as in Python: nothing is taken before it is awaited."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from datetime import timedelta
from functools import partial
from types import FrameType
from typing import Any

import pytest
from tornado import gen

from kiel_groups.clients.delivery.record_loop import RecordLoop
from kiel_groups.model import Record
from tests.helpers.delivery_bench import P0, DeliveryBench, loop_over
from tests.helpers.waiting import run_ready_tasks

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("steps")]


@pytest.fixture(autouse=True)
def without_garbage_collection() -> Iterator[None]:
    """Switch off the collection of reference cycles, so that only reference counts delete objects."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def bench() -> DeliveryBench:
    bench = DeliveryBench()
    bench.fetcher.add(P0, *range(10, 20))
    return bench


async def begun(bench: DeliveryBench) -> RecordLoop:
    """Return a loop that has delivered the first record of a batch, so that it takes the next ones by itself."""
    loop = loop_over(bench)
    assert (await anext(loop)).offset == 10
    return loop


def in_loop(step: Any) -> Awaitable[Record]:
    return asyncio.wait_for(step, 5)


def in_tornado(step: Any) -> Awaitable[Record]:
    @gen.coroutine
    def yields() -> Generator[Any, Any, Record]:
        record: Record = yield step
        return record

    return yields()


async def in_another_thread(step: Any) -> Record:
    """Have another thread start the step on this event loop."""
    here, found = asyncio.get_running_loop(), []
    thread = threading.Thread(target=lambda: found.append(asyncio.run_coroutine_threadsafe(step, here)))
    thread.start()
    await asyncio.to_thread(thread.join)
    return await asyncio.wrap_future(found[0])


async def in_a_gather(step: Any) -> Record:
    (record,) = await asyncio.gather(step)
    return record


WAYS: list[Callable[[Any], Awaitable[Record]]] = [
    lambda step: step,
    asyncio.ensure_future,
    asyncio.create_task,
    in_loop,
    in_a_gather,
    in_another_thread,
    in_tornado,
    lambda step: gen.with_timeout(timedelta(seconds=5), step),
]


@pytest.mark.parametrize("by_hand", [False, True], ids=["anext", "__anext__"])
@pytest.mark.parametrize("way", WAYS)
async def test_a_step_is_awaited_in_each_way(
    bench: DeliveryBench, way: Callable[[Any], Awaitable[Record]], by_hand: bool
) -> None:
    """Whatever awaits a step gets the next record, from a batch as well as after a wait."""
    loop = loop_over(bench)
    for offset in (10, 11, 12):
        step = loop.__anext__() if by_hand else anext(loop)
        assert isinstance(step, Coroutine)
        assert (await way(step)).offset == offset
    assert bench.finished == {P0: 12}


async def test_a_step_that_is_not_awaited_takes_nothing(bench: DeliveryBench) -> None:
    """A program that forgets an ``await`` is warned and loses no record; neither does the step keep the loop alive."""
    loop = await begun(bench)
    step = anext(loop)
    with pytest.warns(RuntimeWarning, match=r"^coroutine '\w+.__anext__' was never awaited$"):
        del step
    assert (await anext(loop)).offset == 11
    dropped = weakref.ref(loop)
    step = anext(loop)
    del loop
    assert dropped() is not None
    with pytest.warns(RuntimeWarning, match="never awaited"):
        del step
    assert dropped() is None
    assert (await anext(loop_over(bench))).offset == 11, "the loop was dropped, not left: its record comes again"


async def test_a_step_is_awaited_once(bench: DeliveryBench) -> None:
    """A step that is over is over, although the loop may use the object of one that no program has."""
    loop = await begun(bench)
    step = anext(loop)
    assert (await step).offset == 11
    with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
        await step
    following = anext(loop)
    with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
        await step
    assert (await following).offset == 12


async def test_a_step_that_waits_is_not_awaited_again() -> None:
    """Two tasks do not share a step. The first one gets the record."""
    bench = DeliveryBench()
    step = anext(loop_over(bench))
    first = asyncio.ensure_future(step)
    await run_ready_tasks()
    with pytest.raises(RuntimeError, match="being awaited already"):
        await step
    bench.fetcher.add(P0, 10)
    assert (await first).offset == 10


async def test_a_step_within_itself_is_refused(bench: DeliveryBench) -> None:
    """A step that is asked to run while it runs raises an error, and continues."""
    loop = await begun(bench)
    step = anext(loop)
    raised = []

    def is_open(now_s: float) -> bool:
        for again in (lambda: step.send(None), lambda: step.throw(ZeroDivisionError), lambda: step.close()):
            try:
                again()
            except ValueError as error:
                raised.append(str(error))
        return True

    loop._is_open = is_open
    assert (await step).offset == 11
    assert raised == ["coroutine already executing"] * 3


async def test_a_step_by_hand(bench: DeliveryBench) -> None:
    """``send`` ends with the record as the value of StopIteration; ``close`` and ``throw`` take none."""
    loop = await begun(bench)
    step: Any = anext(loop)
    with pytest.raises(TypeError, match="non-None value"):
        step.send(1)
    with pytest.raises(StopIteration) as stopped:
        step.send(None)
    assert stopped.value.value == Record("t", 0, 11, None, b"11")
    step = anext(loop)
    step.close()
    step.close()
    with pytest.raises(RuntimeError, match="cannot reuse"):
        step.send(None)
    step = anext(loop)
    with pytest.raises(ZeroDivisionError):
        step.throw(ZeroDivisionError())
    with pytest.raises(RuntimeError, match="cannot reuse"):
        step.throw(ZeroDivisionError())
    assert (await anext(loop)).offset == 12


async def test_a_cancelled_step_loses_no_record(bench: DeliveryBench) -> None:
    """A cancellation reaches the wait of the loop, and ends the step."""
    loop = await begun(bench)
    bench.gate.suspended = True
    step = anext(loop)
    waiting = asyncio.ensure_future(step)
    await run_ready_tasks()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with pytest.raises(RuntimeError, match="cannot reuse"):
        await step
    bench.gate.suspended = False
    assert (await anext(loop)).offset == 11


async def test_a_step_that_waits_can_be_closed(bench: DeliveryBench) -> None:
    """``close`` ends the wait of the loop."""
    loop = await begun(bench)
    bench.gate.suspended = True
    step: Any = anext(loop)
    assert step.send(None) is not None
    step.close()
    with pytest.raises(RuntimeError, match="cannot reuse"):
        step.send(None)
    bench.gate.suspended = False
    assert (await anext(loop)).offset == 11


@pytest.mark.parametrize("place", ["_boot_time_s", "_is_open"])
async def test_an_exception_within_a_step_takes_nothing(bench: DeliveryBench, place: str) -> None:
    """An exception of the clock or of the gate is raised in the loop, and the next step gets the record."""
    loop = await begun(bench)
    former = getattr(loop, place)
    setattr(loop, place, lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        await anext(loop)
    setattr(loop, place, former)
    assert (await anext(loop)).offset == 11


async def test_a_cursor_that_is_replaced_while_the_gate_answers_gives_nothing(bench: DeliveryBench) -> None:
    """The gate is asked first, and the cursor is that of the moment after the answer."""
    loop = await begun(bench)

    def is_open(now_s: float) -> bool:
        bench.handler.lost([P0])
        loop._cursor = iter([Record("t", 0, 99, None, b"99")])
        return True

    loop._is_open = is_open
    assert (await anext(loop)).offset == 99


async def test_the_gate_is_asked_with_the_time_of_each_record(bench: DeliveryBench) -> None:
    """Each record needs an answer of the gate, for a moment that was read for it."""
    times, asked = iter(range(100)), []
    loop = await begun(bench)
    loop._boot_time_s = lambda: next(times) * 1.5

    def is_open(now_s: float) -> bool:
        asked.append(now_s)
        return True

    loop._is_open, loop._pause_at_s = is_open, 1e9
    assert [(await anext(loop)).offset for _ in range(3)] == [11, 12, 13]
    assert asked == [0.0, 1.5, 3.0]


def tracer(frame: FrameType, event: str, argument: object) -> Any:
    return tracer


async def test_a_traced_loop_gets_the_same_records(bench: DeliveryBench) -> None:
    """Under a debugger the interpreter awaits in another way."""
    offsets = []
    former = sys.gettrace()
    sys.settrace(tracer)
    try:
        async for record in loop_over(bench):
            offsets.append(record.offset)
            if len(offsets) == 10:
                break
    finally:
        sys.settrace(former)
    assert offsets == list(range(10, 20))
    assert bench.finished == {P0: 20}, "the break has finished the last record"


@pytest.mark.parametrize("error", [None, ZeroDivisionError])
async def test_a_loop_is_dropped_when_it_is_left(bench: DeliveryBench, error: type[Exception] | None) -> None:
    """No step keeps a loop alive that was left, so it is known at once how it was left."""
    try:
        async for record in loop_over(bench):
            if record.offset == 15:
                if error is not None:
                    raise error
                break
    except ZeroDivisionError:
        assert bench.state().position == 15
    else:
        assert bench.finished == {P0: 16}
    assert bench.handler.in_progress() == []


async def test_a_wait_that_nothing_refers_to_is_collected(bench: DeliveryBench) -> None:
    """If what a step waits for refers to the step, and nothing else does, the loop does not stay."""
    loop = await begun(bench)
    loop.delivery.next_record, loop._take, loop._is_open = never, lambda: None, lambda _: False  # type: ignore[method-assign]
    step: Any = anext(loop)
    future = step.send(None)
    future.add_done_callback(partial(lambda *_: None, step))
    dropped = weakref.ref(loop)
    del loop, step, future
    assert dropped() is not None
    gc.collect()
    assert dropped() is None


async def never() -> Record:
    await asyncio.get_running_loop().create_future()
    raise AssertionError("the future is never done")


async def test_steps_leak_nothing(bench: DeliveryBench) -> None:
    """Steps of each kind leave no objects behind."""
    loop = await begun(bench)
    record = Record("t", 0, 11, None, b"11")

    async def make(count: int) -> None:
        for _ in range(count):
            loop._cursor = iter([record])
            await anext(loop)
            loop._cursor = iter([record])
            held = anext(loop)
            await held
            kept: Any = anext(loop)
            kept.close()
            with pytest.raises(ZeroDivisionError):
                anext(loop).throw(ZeroDivisionError())

    await make(10)
    gc.collect()
    before = sys.getrefcount(record), sys.getrefcount(loop), len(gc.get_objects())
    await make(1_000)
    gc.collect()
    after = sys.getrefcount(record), sys.getrefcount(loop), len(gc.get_objects())
    assert after[:2] == before[:2]
    assert after[2] < before[2] + 100
