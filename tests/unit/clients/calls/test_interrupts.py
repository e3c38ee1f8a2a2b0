"""Ctrl-C while a client's event loop runs: it never interrupts a callback, and is never lost."""

from __future__ import annotations

import asyncio
import signal
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator

import pytest

from kiel_groups.clients.calls import left_loop as interrupts
from kiel_groups.clients.calls.left_loop import LeftLoop
from tests.helpers.running_time import running_s

pytestmark = pytest.mark.unit


class Client:
    """A client for which Ctrl-C is deferred."""


@pytest.fixture(autouse=True)
def default_handler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install Python's default handler, as in a program at a terminal where no other client is open."""
    monkeypatch.setattr(interrupts._interrupts, "wanted", weakref.WeakSet())
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


def test_ctrl_c_is_raised_between_two_callbacks(client: Client, loop: asyncio.AbstractEventLoop) -> None:
    """
    Ctrl-C is raised between two callbacks. The running coroutine continues to its next ``await``, and ends when the
    loop runs again.
    """
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


def test_ctrl_c_is_not_swallowed_by_a_finalizer(client: Client, loop: asyncio.AbstractEventLoop) -> None:
    """
    Ctrl-C during ``__del__`` is raised afterwards. Python would only print an exception that is raised in ``__del__``.
    """

    class Dropped:
        def __del__(self) -> None:
            ctrl_c()

    loop.call_soon(Dropped)
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(asyncio.sleep(5))


def test_ctrl_c_is_raised_after_a_loop_that_stops_at_that_moment(
    client: Client, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    If the loop is stopping when Ctrl-C arrives, KeyboardInterrupt is raised in the program after the loop, because the
    stopping loop runs no further callbacks.
    """
    monkeypatch.setattr(interrupts, "BLOCKED_S", 0.05)

    def end() -> None:
        loop.stop()
        ctrl_c()

    loop.call_soon(end)
    loop.run_forever()
    with pytest.raises(KeyboardInterrupt):
        time.sleep(5)
    loop.run_until_complete(asyncio.sleep(0))


def test_ctrl_c_is_raised_after_the_close_of_the_last_client(
    client: Client, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    If Ctrl-C is pending when the last client is closed, KeyboardInterrupt is raised after the close. The close restores
    Python's default handler.
    """
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


def test_ctrl_c_waits_for_the_end_of_an_uninterrupted_block(client: Client) -> None:
    """Ctrl-C during an ``uninterrupted()`` block is raised at the end of the block, even if no event loop runs."""
    steps: list[str] = []

    def closing() -> None:
        with interrupts.uninterrupted():
            ctrl_c()
            steps.append("right after it")

    with pytest.raises(KeyboardInterrupt):
        closing()
    assert steps == ["right after it"]


def test_ctrl_c_ends_a_callback_that_blocks_the_loop(
    client: Client, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    If a callback blocks the loop, KeyboardInterrupt is raised inside the callback after a moment. So a long computation
    can be interrupted.
    """
    monkeypatch.setattr(interrupts, "BLOCKED_S", 0.05)

    def block() -> None:
        ctrl_c()
        time.sleep(5)

    loop.call_soon(block)
    began_s = running_s()
    with pytest.raises(KeyboardInterrupt):
        loop.run_forever()
    assert running_s() - began_s < 4


def test_a_second_ctrl_c_is_raised_at_once(client: Client, loop: asyncio.AbstractEventLoop) -> None:
    """A second Ctrl-C interrupts the running callback at once if the first one is still pending."""
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


def test_without_a_running_loop_python_raises_ctrl_c() -> None:
    """
    Without a running loop, Ctrl-C is raised at once. Python's default handler is restored when the last client is
    closed.
    """
    one, two = Client(), Client()
    interrupts.defer(one)
    interrupts.defer(two)
    with pytest.raises(KeyboardInterrupt):
        ctrl_c()
    interrupts.restore(one)
    assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    interrupts.restore(two)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_another_handler_is_not_replaced() -> None:
    """
    A SIGINT handler of ``asyncio.run`` or of the program is kept, whether it was installed before or after the first
    client.
    """

    def program_handler(*_: object) -> None: ...

    signal.signal(signal.SIGINT, program_handler)
    client = Client()
    interrupts.defer(client)
    assert signal.getsignal(signal.SIGINT) is program_handler
    signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupts.defer(client)
    signal.signal(signal.SIGINT, program_handler)
    interrupts.restore(client)
    assert signal.getsignal(signal.SIGINT) is program_handler


def left_loop(loop: asyncio.AbstractEventLoop, abandon: Callable[[], None]) -> LeftLoop:
    """Return the ``LeftLoop`` of a client whose loop no longer runs."""
    left = LeftLoop(abandon=abandon)

    async def use() -> None:
        left.remember()

    loop.run_until_complete(use())
    return left


def test_ctrl_c_during_a_close_outside_of_the_loop_ends_the_close(loop: asyncio.AbstractEventLoop) -> None:
    """Ctrl-C during a ``close()`` outside of the event loop abandons the client, and raises KeyboardInterrupt."""
    calls: list[str] = []
    client = left_loop(loop, lambda: calls.append("abandoned"))

    async def hang() -> None:
        asyncio.get_running_loop().call_later(0.01, ctrl_c)
        await asyncio.sleep(60)

    began_s = running_s()
    with pytest.raises(KeyboardInterrupt):
        client.close(None, hang, "close")
    assert running_s() - began_s < 20
    assert calls == ["abandoned"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_close_outside_of_the_loop_survives_a_stop_of_the_loop(loop: asyncio.AbstractEventLoop) -> None:
    """A ``close()`` outside of the event loop ends even if the loop is stopped meanwhile, as by ``run_sync``."""
    ended: list[str] = []
    client = left_loop(loop, lambda: None)

    async def close() -> None:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0.01)
        ended.append("closed")

    closing: Awaitable[None] = client.close(None, close, "close")
    assert isinstance(closing, asyncio.Future)
    assert closing.done()
    assert ended == ["closed"]
