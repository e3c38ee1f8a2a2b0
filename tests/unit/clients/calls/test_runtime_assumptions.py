"""
The behaviour of CPython, asyncio and Tornado that the modules of ``clients/calls`` rely on.

These tests use the real interpreter and the real Tornado, and only the constants of the modules. If one fails after an
upgrade, its message names the module whose docstring says what breaks.
"""

from __future__ import annotations

import asyncio
import dis
import gc
import platform
import sys
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from datetime import timedelta
from operator import length_hint
from types import CodeType, FrameType
from typing import Any

import pytest
import tornado
from tornado import gen

from kiel_groups.clients.calls.eager_methods import _DROPS_OUTCOME
from kiel_groups.clients.calls.left_loop import _DROPS
from tests.helpers.waiting import run_ready_tasks

pytestmark = pytest.mark.unit

VERSIONS = f"CPython {platform.python_version()}, Tornado {tornado.version}"
CALLERS = f"{VERSIONS}: see the docstring of clients/calls/callers.py"
LOOP_EXIT = f"{VERSIONS}: see the docstring of clients/calls/left_loop.py"
CONSUME_FUTURE = f"{VERSIONS}: see the docstring of clients/calls/eager_methods.py"


# ---------------------------------------------------------------------------- clients/calls/callers.py


class Value:
    """A value of the context variable, which can be referenced weakly."""


VARIABLE: ContextVar[Value | None] = ContextVar("variable", default=None)


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Switch off the collection of reference cycles, so that only reference counts delete objects."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def steps_of_a_task(value: Value) -> list[Value | None]:
    """Set the variable between two steps of a native coroutine. Return its value before and after."""
    before = VARIABLE.get()
    VARIABLE.set(value)
    await asyncio.sleep(0.001)
    return [before, VARIABLE.get()]


@gen.coroutine
def steps_of_a_tornado_coroutine(value: Value) -> Generator[Any, Any, list[Value | None]]:
    """Set the variable between two steps of a Tornado coroutine. Return its value before and after."""
    before = VARIABLE.get()
    VARIABLE.set(value)
    yield gen.sleep(0.001)
    return [before, VARIABLE.get()]


COROUTINES = [lambda value: asyncio.ensure_future(steps_of_a_task(value)), steps_of_a_tornado_coroutine]


@pytest.mark.parametrize("start", COROUTINES, ids=["asyncio", "Tornado"])
async def test_a_coroutine_runs_in_one_copy_of_its_starters_context(
    start: Callable[[Value], Awaitable[list[Value | None]]],
) -> None:
    """
    A task or Tornado coroutine starts with its starter's values, keeps its own, and changes no other coroutine's.
    """
    starters, first, second = Value(), Value(), Value()
    VARIABLE.set(starters)
    seen = await asyncio.gather(start(first), start(second))
    assert seen == [[starters, first], [starters, second]], f"coroutines do not have a context each; {CALLERS}"
    assert VARIABLE.get() is starters, f"a coroutine shares its starter's context; {CALLERS}"


async def test_a_task_runs_in_the_context_that_it_is_given() -> None:
    """A task runs in the context passed as ``context``, so that a client's own tasks do not inherit a caller's."""
    VARIABLE.set(Value())
    context, value = Context(), Value()
    seen = await asyncio.Task(steps_of_a_task(value), loop=asyncio.get_running_loop(), context=context)
    assert (seen, context[VARIABLE]) == ([None, value], value), f"a task does not run in its context; {CALLERS}"


@pytest.mark.parametrize("start", COROUTINES, ids=["asyncio", "Tornado"])
async def test_a_context_is_deleted_with_its_coroutine(
    start: Callable[[Value], Awaitable[list[Value | None]]],
) -> None:
    """When a coroutine has ended, reference counts alone delete the values in its context."""
    value = Value()
    deleted = weakref.ref(value)
    with without_garbage_collection():
        assert await start(value)
        del value
        await run_ready_tasks()
        assert deleted() is None, f"a context outlives its coroutine; {CALLERS}"


async def test_a_replaced_value_is_deleted() -> None:
    """When a context gets another value of a variable, the former value is deleted at once."""
    former = Value()
    deleted = weakref.ref(former)
    context = copy_context()
    context.run(VARIABLE.set, former)
    del former
    with without_garbage_collection():
        context.run(VARIABLE.set, Value())
        assert deleted() is None, f"a context keeps a value that was replaced; {CALLERS}"


async def test_only_a_task_is_a_current_task() -> None:
    """``current_task`` returns the task in a task, and None in a callback, in which Tornado's coroutines resume."""
    task = asyncio.current_task()
    assert task is not None
    seen: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(lambda: seen.set_result(asyncio.current_task()))

    @gen.coroutine
    def resumes() -> Generator[Any, Any, object]:
        yield gen.sleep(0.001)
        return asyncio.current_task()

    assert [await seen, await resumes()] == [None, None], f"a callback has a current task; {CALLERS}"
    assert asyncio.current_task() is task


# ---------------------------------------------------------------------------- clients/calls/left_loop.py


class DroppedAt:
    """An asynchronous iterator that notes the function and the instruction at which it is dropped."""

    def __init__(self, seen: list[tuple[str, str]]) -> None:
        self._seen = seen
        self._next = 0

    def __aiter__(self) -> DroppedAt:
        return self

    async def __anext__(self) -> int:
        self._next += 1
        if self._next > 2:
            raise StopAsyncIteration
        return self._next

    def __del__(self) -> None:
        frame = sys._getframe(1)
        self._seen.append((frame.f_code.co_name, dis.opname[frame.f_code.co_code[frame.f_lasti]]))


async def ends(seen: list[tuple[str, str]]) -> None:
    async for _ in DroppedAt(seen):
        pass


async def breaks(seen: list[tuple[str, str]]) -> None:
    async for number in DroppedAt(seen):
        if number == 2:
            break


async def returns(seen: list[tuple[str, str]]) -> int:
    async for number in DroppedAt(seen):
        return number
    return 0


async def raises(seen: list[tuple[str, str]]) -> None:
    async for _ in DroppedAt(seen):
        raise ZeroDivisionError


async def divides(seen: list[tuple[str, str]]) -> None:
    async for number in DroppedAt(seen):
        _ = number / 0


async def calls(seen: list[tuple[str, str]]) -> None:
    async for _ in DroppedAt(seen):
        int("x")


async def indexes(seen: list[tuple[str, str]]) -> None:
    async for number in DroppedAt(seen):
        [].pop(number)


async def unpacks(seen: list[tuple[str, str]]) -> None:
    async for number in DroppedAt(seen):
        _, _ = [number]


async def is_cancelled(seen: list[tuple[str, str]]) -> None:
    async for _ in DroppedAt(seen):
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)


async def instruction_that_drops(loop: Callable[[list[tuple[str, str]]], Coroutine[Any, Any, object]]) -> str:
    """Run a function with a loop as a task. Return the instruction that drops the loop's iterator."""
    seen: list[tuple[str, str]] = []
    with without_garbage_collection():
        await asyncio.gather(asyncio.create_task(loop(seen)), return_exceptions=True)
    assert len(seen) == 1, f"the iterator of a loop is not dropped when the loop is left; {LOOP_EXIT}"
    function, instruction = seen[0]
    assert function == loop.__name__, f"the iterator is dropped by {function}, not by its loop; {LOOP_EXIT}"
    return instruction


def tracer(frame: FrameType, event: str, argument: object) -> Any:
    """Trace each instruction, as a debugger may do."""
    frame.f_trace_opcodes = True
    return tracer


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("loop", [ends, breaks, returns])
async def test_a_loop_that_is_left_drops_its_iterator_by_a_known_instruction(
    loop: Callable[[list[tuple[str, str]]], Coroutine[Any, Any, object]], traced: bool
) -> None:
    """The end of a loop, ``break`` and ``return`` drop the iterator by an instruction of ``_DROPS``."""
    former = sys.gettrace()
    sys.settrace(tracer if traced else former)
    try:
        found = await instruction_that_drops(loop)
    finally:
        sys.settrace(former)
    assert found in _DROPS, f"a loop that {loop.__name__} drops its iterator by {found}; {LOOP_EXIT}"


@pytest.mark.parametrize("loop", [raises, divides, calls, indexes, unpacks, is_cancelled])
async def test_an_exception_drops_the_iterator_by_another_instruction(
    loop: Callable[[list[tuple[str, str]]], Coroutine[Any, Any, object]],
) -> None:
    """An exception in the body of a loop drops the iterator by an instruction that is not in ``_DROPS``."""
    found = await instruction_that_drops(loop)
    assert found not in _DROPS, f"an exception ({loop.__name__}) drops the iterator by {found}; {LOOP_EXIT}"


# ---------------------------------------------------------------------------- clients/calls/eager_methods.py


class ReadTask(asyncio.Task[int]):
    """A task that notes how its outcome is read: ``await``, ``cancelled``, or the code that calls ``result()``."""

    def __init__(self, work: Coroutine[Any, Any, int]) -> None:
        super().__init__(work, loop=asyncio.get_running_loop())
        self.read: list[str | CodeType] = []

    def __await__(self) -> Generator[Any, None, int]:
        try:
            value = yield from super().__await__()
        except asyncio.CancelledError:
            self.read.append("cancelled")
            raise
        self.read.append("await")
        return value

    def result(self) -> int:
        self.read.append(sys._getframe(1).f_code)
        return super().result()


async def one_soon() -> int:
    await asyncio.sleep(0.001)
    return 1


def test_with_timeout_has_one_callback_that_drops_an_outcome() -> None:
    """Tornado's ``with_timeout`` has a function named ``error_callback``."""
    assert len(_DROPS_OUTCOME) == 1, f"gen.with_timeout has {len(_DROPS_OUTCOME)} error_callbacks; {CONSUME_FUTURE}"


async def test_only_the_callback_of_with_timeout_reads_an_outcome_that_comes_too_late() -> None:
    """After its time is up, ``with_timeout`` reads the outcome once, directly from ``error_callback``."""
    task = ReadTask(one_soon())
    with pytest.raises(TimeoutError):
        await gen.with_timeout(timedelta(), task)
    await asyncio.wait({task})
    await run_ready_tasks()
    assert task.read == _DROPS_OUTCOME, f"gen.with_timeout reads a late outcome from {task.read}; {CONSUME_FUTURE}"


async def test_other_code_of_tornado_reads_an_outcome_that_comes_in_time() -> None:
    """An outcome that ``with_timeout`` passes on in time is not read by ``error_callback``."""
    task = ReadTask(one_soon())
    assert await gen.with_timeout(timedelta(seconds=5), task) == 1
    assert task.read, f"gen.with_timeout does not call result(); {CONSUME_FUTURE}"
    assert not set(task.read) & set(_DROPS_OUTCOME), f"error_callback reads an outcome in time; {CONSUME_FUTURE}"


async def test_each_way_to_read_an_outcome_calls_a_method_of_the_task() -> None:
    """``await`` calls ``__await__`` of a subclass of a task; ``gather`` and Tornado's ``yield`` call ``result()``."""

    @gen.coroutine
    def yields(task: ReadTask) -> Any:
        return (yield task)

    async def awaits(task: ReadTask) -> int:
        return await task

    async def awaits_in_a_task(task: ReadTask) -> int:
        return await asyncio.ensure_future(awaits(task))

    for way in (awaits, awaits_in_a_task):
        task = ReadTask(one_soon())
        await way(task)
        assert "await" in task.read, f"await does not call __await__ of a subclass of Task; {CONSUME_FUTURE}"
    for reader in (yields, asyncio.gather):
        task = ReadTask(one_soon())
        await reader(task)
        assert task.read, f"{reader.__name__} does not call result() of a subclass of Task; {CONSUME_FUTURE}"


async def test_a_caller_that_is_cancelled_as_the_outcome_arrives_is_cancelled_in_await() -> None:
    """If a caller is cancelled before it resumes with the outcome, ``__await__`` raises ``CancelledError``."""
    task = ReadTask(one_soon())

    async def awaits() -> int:
        return await task

    waiting = asyncio.create_task(awaits())
    task.add_done_callback(lambda _: waiting.cancel())
    await run_ready_tasks()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert task.read[-1:] == ["cancelled"], f"__await__ is not cancelled but ends with {task.read}; {CONSUME_FUTURE}"


def test_a_lists_iterator_counts_what_is_left_and_stays_used_up() -> None:
    """The cursor of a loop is such an iterator: see ``clients/delivery/in_flight.py``."""
    items = [1, 2, 3]
    cursor = iter(items)
    assert (length_hint(cursor), next(cursor), length_hint(cursor)) == (3, 1, 2)
    assert list(cursor) == [2, 3]
    items.append(4)
    assert (length_hint(cursor), list(cursor)) == (0, [])
