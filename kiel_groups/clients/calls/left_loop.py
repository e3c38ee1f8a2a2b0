"""Decide when Ctrl-C raises KeyboardInterrupt, and close clients whose event loop has stopped."""

from __future__ import annotations

import _thread
import asyncio
import concurrent.futures.thread  # noqa: F401 -- its exit hook stops name resolution, and must run after ours
import dis
import logging
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from kiel_groups.clients.calls.eager_methods import (
    AnotherLoopError,
    LoggedTask,
    home_loop,
    keep_alive,
    run_by_close,
    spawn,
)

log = logging.getLogger(__name__)


# Raise KeyboardInterrupt between two callbacks of the event loop, instead of in the middle of one.
#
# Python raises KeyboardInterrupt at whatever instruction the main thread executes. Under ``IOLoop.start()`` this may be
# any instruction of a client or of the loop, and not every instruction can be made safe. Raised after a ``send()`` and
# before the number of sent bytes is noted, KeyboardInterrupt makes the same bytes be sent again. Raised after the loop
# removed a callback from its queue, it loses the callback. In a ``__del__``, Python prints the exception and drops it.
#
# ``asyncio.run`` installs a SIGINT handler that cancels the main task. If SIGINT has Python's default handler,
# ``defer`` installs a handler that makes the loop itself raise KeyboardInterrupt. The exception leaves
# ``IOLoop.start()`` or ``run_until_complete()`` as before. Coroutines stay suspended where they wait, and the loop can
# run again.
#
# If a second Ctrl-C comes before the first one was raised, or a callback blocks the loop for ``BLOCKED_S``,
# KeyboardInterrupt is raised at once, wherever the main thread is.


#: How long a Ctrl-C waits for the running callback to end, in seconds. After that, KeyboardInterrupt is raised at once:
#: the application blocks the loop, or the loop has ended before the scheduled callback.
BLOCKED_S = 1.0


class _Interrupts:
    """
    The SIGINT handler, with its state.

    Only the main thread uses the state, except ``pending``. The thread of ``watch`` reads and clears ``pending``.
    """

    def __init__(self) -> None:
        #: The number of the Ctrl-C that has not been raised yet, or None while there is none.
        self.pending: int | None = None
        self.count = 0
        #: How many times KeyboardInterrupt was raised.
        self.raised = 0
        self.protected = False
        #: The clients that want the handler.
        self.wanted: weakref.WeakSet[object] = weakref.WeakSet()

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGINT: schedule KeyboardInterrupt, or raise it at once."""
        loop = running_loop()
        if self.pending is not None or (loop is None and not self.protected):
            self.throw()
        self.pending = self.count = self.count + 1
        if loop is not None:
            loop.call_soon_threadsafe(self.throw_if_pending, self.pending)
            # threading.Thread acquires locks that the interrupted code may hold.
            _thread.start_new_thread(self.watch, (self.pending,))

    def throw(self) -> NoReturn:
        self.pending = None
        self.raised += 1
        raise KeyboardInterrupt

    def throw_if_pending(self, number: int) -> None:
        if self.pending == number:
            self.throw()

    def watch(self, number: int) -> None:
        """Send SIGINT again if KeyboardInterrupt was not raised in time for the Ctrl-C of this number."""
        time.sleep(BLOCKED_S)
        main = threading.main_thread().ident
        if self.pending != number or main is None:
            return
        if signal.getsignal(signal.SIGINT) != self.handle:
            # The last client was closed meanwhile, so the signal goes to the handler that was restored.
            self.pending = None
        signal.pthread_kill(main, signal.SIGINT)


_interrupts = _Interrupts()


def defer(client: object) -> None:
    """
    Install this module's SIGINT handler until this client is closed.

    Only a call on the main thread has an effect, because signals interrupt no other thread. A handler that
    ``asyncio.run`` or the program has installed is not replaced.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupts.handle)
    _interrupts.wanted.add(client)


def restore(client: object) -> None:
    """
    Record that a client no longer needs this module's SIGINT handler.

    If no client needs the handler any more, restore Python's own handler. A handler that the program has set stays.
    Only a call on the main thread can restore Python's handler.
    """
    _interrupts.wanted.discard(client)
    on_main = threading.current_thread() is threading.main_thread()
    if on_main and not _interrupts.wanted and signal.getsignal(signal.SIGINT) == _interrupts.handle:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def raised() -> int:
    """Return how many times the handler has raised KeyboardInterrupt."""
    return _interrupts.raised


@contextmanager
def uninterrupted() -> Iterator[None]:
    """
    Delay a Ctrl-C that comes in the block while no event loop runs: raise KeyboardInterrupt at the end of the block.

    A second Ctrl-C is raised at once. An event loop that runs in the block is interrupted as usual.
    """
    _interrupts.protected = True
    try:
        yield
    finally:
        _interrupts.protected = False
        if _interrupts.pending is not None:
            _interrupts.throw()


# Detect whether a loop was left by ``break`` or ``return``, or by an exception.
#
# In both cases Python drops the iterator without telling it why. But when the iterator is dropped, the frame of the
# loop shows the current instruction. After ``break`` or ``return``, this instruction pops the iterator from the stack.
# After an exception, it is the instruction that raised.
#
# What this relies on
#   - CPython drops the iterator with its last reference, and calls its ``__del__`` at once, from the frame of the loop:
#     ``sys._getframe`` finds that frame directly below ``__del__``.
#   - ``f_lasti`` is the offset in bytes of the current instruction in ``co_code``, and ``co_code`` has no specialized
#     or instrumented instructions. This is so under ``sys.settrace`` and ``sys.monitoring``, too.
#   - ``break`` and ``return`` drop the iterator by ``POP_TOP``, and the end of the loop drops it by ``END_ASYNC_FOR``.
#     An exception in the body drops it at the instruction that raised or re-raised, which is none of these.
#
# A new instruction for the exit of a loop (3.14 has got ``POP_ITER`` for the end of loops without ``async``) would make
# a ``break`` look like an exception: the record in flight would be delivered again. If one of the known instructions
# raised an exception, this would look like a ``break``: a record on which the application failed would be committed. A
# compiler at run time that does not maintain ``f_lasti`` could do either. Checked with CPython 3.11.7, 3.12.1 and
# 3.13.0, but not with 3.14. ``tests/unit/clients/calls/test_runtime_assumptions.py`` fails if this changes.


#: Instructions that only remove objects from the stack. ``POP_ITER`` exists from CPython 3.14 on.
_DROPS = frozenset({"POP_TOP", "POP_ITER", "END_ASYNC_FOR"})


def dropped_by_loop_exit() -> bool:
    """
    Return whether a loop was left by ``break`` or ``return``. Only the ``__del__`` of the loop's iterator may call this
    function.

    If the way the loop was left cannot be detected (another interpreter, an iterator with other references), the result
    is False. Then the record in flight is not finished, and is delivered again.
    """
    try:
        frame = sys._getframe(2)
        return dis.opname[frame.f_code.co_code[frame.f_lasti]] in _DROPS
    except (AttributeError, IndexError, ValueError):
        return False


# Close a client whose event loop no longer runs, for programs that catch Ctrl-C around their loop.
#
# If the loop can run again, it is run for a bounded time: at ``close()``, or when the interpreter exits and a close was
# not awaited. If the loop is closed (``asyncio.run`` has ended), the client does what it can without a loop.


#: How long a close may run the loop again, in seconds, since a program that was asked to exit must exit.
LONGEST_S = 5.0


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, if any."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


#: Why a call on one thread cannot use a client whose event loop runs on another thread.
ANOTHER_LOOP = (
    "another event loop runs this client, on another thread; create a client for each loop, or use those of"
    " kiel_groups.sync, which threads may share"
)


class LeftLoop:
    """
    Remembers the event loop of a client. If the program has left that loop, the client's close runs the loop again.

    Args:
        at_exit: Closes the client if necessary. Called when the interpreter exits, unless the loop is closed or
            running.
        abandon: Ends the client without its loop, as far as possible. Called at most once: when the interpreter exits,
            when ``close`` finds that the loop is closed, or when ``close`` is interrupted.
    """

    def __init__(self, at_exit: Callable[[], None] | None = None, abandon: Callable[[], None] | None = None) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._at_exit = at_exit
        self._abandon = abandon
        self._pid = 0
        #: Set once the client was closed on a running loop. Not set by a close on a loop that was left, since the
        #: coroutines of a program that exits must stay suspended.
        self.closed = asyncio.Event()

    def remember(self) -> None:
        """
        Remember the loop that runs now or will run. Until the close, defer a Ctrl-C to the end of a callback.

        Raises:
            AnotherLoopError: No loop runs in this thread, and the loop of the client runs in another thread.
        """
        self.check_thread()
        self._loop = home_loop()
        defer(self)
        self._pid = os.getpid()
        _left.add(self)

    def check_thread(self) -> None:
        """
        Check that a call can use the loop of the client.

        Raises:
            AnotherLoopError: No loop runs in this thread, and the loop of the client runs in another thread.
        """
        if running_loop() is None and self._loop is not None and self._loop.is_running():
            raise AnotherLoopError(ANOTHER_LOOP)

    def abandon(self) -> None:
        """End the client without its loop, as far as possible. Further calls do nothing."""
        work, self._abandon = self._abandon, None
        if work is not None:
            work()

    def exit(self) -> None:
        """
        Close or abandon the client when the interpreter exits.

        Do nothing if the loop is running, or in a fork of the process that used the client.
        """
        if self._loop is None or self._loop.is_running() or self._pid != os.getpid():
            return
        if self._at_exit is not None and not self._loop.is_closed():
            self._at_exit()
        self.abandon()

    def close(
        self, closing: asyncio.Future[None] | None, work: Callable[[], Coroutine[Any, Any, None]], name: str
    ) -> asyncio.Future[None]:
        """
        Close a client, once: on the running loop, or on the loop that was left, for ``LONGEST_S`` seconds at most.

        If the loop that was left is closed, the client is abandoned instead.

        Args:
            closing: The future that an earlier call returned, or None for the first call. If the future was cancelled,
                the client is closed again.
            work: The client's close.
            name: The name of the close in the log.

        Returns:
            A future. If no loop was running, the future is done, unless the close takes longer than ``LONGEST_S``
            seconds.

        Raises:
            KeyboardInterrupt: Another Ctrl-C came while this method ran the loop, so the close was given up.
        """
        if running_loop() is not None:
            if closing is None or closing.cancelled():
                closing = spawn(work(), name)
            closing.add_done_callback(self._was_closed)
            return closing
        if closing is not None and closing.done() and not closing.cancelled():
            return closing
        if self._loop is None:
            # The client was closed before it was used: later calls, on any loop, need not wait for a close.
            self.closed.set()
            return _nothing_to_do()
        if self._loop.is_closed():
            log.warning("%s: the event loop is closed already; work that was not finished is not completed", name)
            self.abandon()
            return _nothing_to_do()
        try:
            run_by_close.add(self._loop)
            with uninterrupted():
                return _run_on(self._loop, closing, work, name)
        except KeyboardInterrupt:
            self._at_exit = None
            self.abandon()
            raise
        finally:
            run_by_close.discard(self._loop)
            restore(self)

    def _was_closed(self, _: asyncio.Future[None]) -> None:
        self.closed.set()
        restore(self)


_left: weakref.WeakSet[LeftLoop] = weakref.WeakSet()


def _exit() -> None:
    ends_s = time.monotonic() + LONGEST_S
    for left in list(_left):
        if time.monotonic() > ends_s:
            log.error("not all clients were closed: %.0f s have passed since the interpreter's exit began", LONGEST_S)
            return
        try:
            left.exit()
        except Exception:
            log.exception("a client was not closed at the end of the interpreter")


# atexit is too late: its functions can neither start a thread nor resolve a host name. The thread pools of
# concurrent.futures end by the same hook.
threading._register_atexit(_exit)  # type: ignore[attr-defined]


def _nothing_to_do() -> asyncio.Future[None]:
    # A callback that is added to the future needs a loop, even if the loop never runs again.
    done: asyncio.Future[None] = asyncio.Future(loop=home_loop())
    done.set_result(None)
    return done


def _run_on(
    loop: asyncio.AbstractEventLoop,
    closing: asyncio.Future[None] | None,
    work: Callable[[], Coroutine[Any, Any, None]],
    name: str,
) -> asyncio.Future[None]:
    async def bounded() -> asyncio.Future[None]:
        nonlocal closing
        closing = closing or spawn(work(), name)
        _, late = await asyncio.wait({closing}, timeout=LONGEST_S)
        if late:
            log.error("%s: not done after %.0f s; given up", name, LONGEST_S)
        return closing

    waiting = keep_alive(LoggedTask(bounded(), loop=loop, name=f"wait for {name}"))
    waiting.add_done_callback(lambda _: loop.stop())
    before, again = raised(), False
    while not waiting.done():
        # Run the loop repeatedly: callbacks that the program left may stop it, as at the end of run_sync's function.
        try:
            loop.run_forever()
        except KeyboardInterrupt:
            # If the program has its own handler, the Ctrl-C that ended the loop may have been raised in a coroutine.
            # It is raised a second time with that coroutine's outcome, which is ignored.
            if again or raised() > before:
                raise
            again = True
    return waiting.result()
