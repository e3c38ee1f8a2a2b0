"""Ctrl-C while a client's loop runs: it never lands within a callback, and none is lost."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest

from kiel_groups.clients.calls import interrupts
from kiel_groups.clients.calls.left_loop import LeftLoop

pytestmark = pytest.mark.unit


class Client:
    """Something that wants the handler."""


@pytest.fixture(autouse=True)
def python_s_own_handler() -> Iterator[None]:
    """As in a program at a terminal, whatever runs the tests has installed."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def client() -> Iterator[Client]:
    client = Client()
    interrupts.defer(client)
    yield client
    interrupts.restore(client)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def test_it_comes_between_two_callbacks(client: Client, loop: asyncio.AbstractEventLoop) -> None:
    """The coroutine that runs at that moment gets to its next wait, and ends when the loop runs again."""
    steps: list[str] = []

    async def work() -> str:
        ctrl_c()
        steps.append("right after it")
        await asyncio.sleep(0.01)
        return "done"

    task = loop.create_task(work())
    with pytest.raises(KeyboardInterrupt):
        loop.run_forever()
    assert steps == ["right after it"]
    assert loop.run_until_complete(task) == "done"


def test_it_is_not_swallowed_by_a_finalizer(client: Client, loop: asyncio.AbstractEventLoop) -> None:
    """Python prints what a ``__del__`` raises, and goes on."""

    class Dropped:
        def __del__(self) -> None:
            ctrl_c()

    loop.call_soon(Dropped)
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(asyncio.sleep(5))


def test_it_outlives_a_loop_that_stops_at_that_moment(
    client: Client, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop ends without having looked at what was scheduled: the program is interrupted after it."""
    monkeypatch.setattr(interrupts, "BLOCKED_S", 0.05)

    def end() -> None:
        loop.stop()
        ctrl_c()

    loop.call_soon(end)
    loop.run_forever()
    with pytest.raises(KeyboardInterrupt):
        time.sleep(5)
    loop.run_until_complete(asyncio.sleep(0))


def test_it_outlives_the_close_of_the_last_client_at_that_moment(
    client: Client, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's own handler is back by then, and gets it."""
    monkeypatch.setattr(interrupts, "BLOCKED_S", 0.05)

    def end() -> None:
        loop.stop()
        ctrl_c()
        interrupts.restore(client)

    loop.call_soon(end)
    loop.run_forever()
    with pytest.raises(KeyboardInterrupt):
        time.sleep(5)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_it_waits_for_the_end_of_what_must_not_be_interrupted(client: Client) -> None:
    """No loop runs there that could be interrupted instead."""
    steps: list[str] = []

    def closing() -> None:
        with interrupts.uninterrupted():
            ctrl_c()
            steps.append("right after it")

    with pytest.raises(KeyboardInterrupt):
        closing()
    assert steps == ["right after it"]


def test_it_ends_a_callback_that_blocks_the_loop(
    client: Client, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that computes for a minute is not deaf to it."""
    monkeypatch.setattr(interrupts, "BLOCKED_S", 0.05)

    def block() -> None:
        ctrl_c()
        time.sleep(5)

    loop.call_soon(block)
    began_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        loop.run_forever()
    assert time.monotonic() - began_s < 2


def test_the_second_one_is_raised_on_the_spot(client: Client, loop: asyncio.AbstractEventLoop) -> None:
    """Before the first one has come out."""
    steps: list[str] = []

    def impatient() -> None:
        ctrl_c()
        steps.append("first")
        ctrl_c()
        steps.append("second")

    loop.call_soon(impatient)
    with pytest.raises(KeyboardInterrupt):
        loop.run_forever()
    assert steps == ["first"]
    loop.run_until_complete(asyncio.sleep(0))


def test_without_a_running_loop_it_is_python_s() -> None:
    """With a client, and after its close; two clients restore Python's own handler when both are closed."""
    one, two = Client(), Client()
    interrupts.defer(one)
    interrupts.defer(two)
    with pytest.raises(KeyboardInterrupt):
        ctrl_c()
    interrupts.restore(one)
    assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    interrupts.restore(two)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_another_handler_is_left_alone() -> None:
    """That of asyncio.run, or of the program, set before or after the first client."""

    def programs(*_: object) -> None: ...

    signal.signal(signal.SIGINT, programs)
    client = Client()
    interrupts.defer(client)
    assert signal.getsignal(signal.SIGINT) is programs
    signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupts.defer(client)
    signal.signal(signal.SIGINT, programs)
    interrupts.restore(client)
    assert signal.getsignal(signal.SIGINT) is programs


def left(loop: asyncio.AbstractEventLoop, abandon: Callable[[], None]) -> LeftLoop:
    """A client's loop that does not run any more."""
    left = LeftLoop(abandon=abandon)

    async def use() -> None:
        left.remember()

    loop.run_until_complete(use())
    return left


def test_one_during_a_close_outside_of_the_loop_ends_the_close(loop: asyncio.AbstractEventLoop) -> None:
    """It is raised by ``close()``, and what can be told without the loop is told."""
    told: list[str] = []
    client = left(loop, lambda: told.append("abandoned"))

    async def hang() -> None:
        asyncio.get_running_loop().call_later(0.01, ctrl_c)
        await asyncio.sleep(60)

    began_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        client.close(None, hang, "close")
    assert time.monotonic() - began_s < 2
    assert told == ["abandoned"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_close_outside_of_the_loop_outlives_a_stop_that_was_left_behind(loop: asyncio.AbstractEventLoop) -> None:
    """``run_sync`` stops the loop when its function ends, also when that is during the close."""
    ended: list[str] = []
    client = left(loop, lambda: None)

    async def close() -> None:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0.01)
        ended.append("closed")

    closing: Awaitable[None] = client.close(None, close, "close")
    assert isinstance(closing, asyncio.Future)
    assert closing.done()
    assert ended == ["closed"]
