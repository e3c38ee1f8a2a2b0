"""
Raise KeyboardInterrupt between two callbacks of the event loop, instead of in the middle of one.

Python raises KeyboardInterrupt at whatever instruction the main thread executes. Under ``IOLoop.start()`` this may be
any instruction of a client or of the loop, and not every instruction can be made safe. Raised after a ``send()`` and
before the number of sent bytes is noted, KeyboardInterrupt makes the same bytes be sent again. Raised after the loop
removed a callback from its queue, it loses the callback. In a ``__del__``, Python prints the exception and drops it.

``asyncio.run`` installs a SIGINT handler that cancels the main task. If SIGINT has Python's default handler, this
module installs a handler that makes the loop itself raise KeyboardInterrupt. The exception leaves ``IOLoop.start()``
or ``run_until_complete()`` as before. Coroutines stay suspended where they wait, and the loop can run again.

If a second Ctrl-C comes before the first one was raised, or a callback blocks the loop for ``BLOCKED_S``,
KeyboardInterrupt is raised at once, wherever the main thread is.
"""

from __future__ import annotations

import _thread
import asyncio
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

__all__ = ["defer", "restore", "raised", "uninterrupted"]

#: How long a Ctrl-C waits for the running callback to end, in seconds. After that, KeyboardInterrupt is raised at once:
#: the application blocks the loop, or the loop has ended before the scheduled callback.
BLOCKED_S = 1.0


class _Interrupts:
    """The state of the handler. Only the main thread uses it, but the watching thread reads and clears ``pending``."""

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
        try:
            loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
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
    Install the handler until this client is closed.

    Do nothing on any thread but the main thread, because signals interrupt no other thread. Do not replace a handler
    that ``asyncio.run`` or the program has installed.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupts.handle)
    _interrupts.wanted.add(client)


def restore(client: object) -> None:
    """
    Restore Python's own handler when no client needs this module's handler any more.

    Do not replace a handler that the program has set. Only a call on the main thread can restore the handler.
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
    Delay a Ctrl-C that comes in the block while no loop runs: raise it at the end of the block.

    A loop that runs in the block is interrupted as usual.
    """
    _interrupts.protected = True
    try:
        yield
    finally:
        _interrupts.protected = False
        if _interrupts.pending is not None:
            _interrupts.throw()
