"""Standard output for consumers: a slow reader does not block the event loop, and a lost reader is noticed."""

from __future__ import annotations

import asyncio
import os
import select
import stat
import sys
from collections.abc import Callable

from kiel_groups.errors import KielGroupsError

__all__ = ["Output", "standard_output"]


class Output:
    """
    Writes bytes to an open file, pipe or terminal at once, without Python's buffers.

    Written bytes have left this process, so they are not lost if it is killed.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    async def write(self, data: bytes) -> None:
        """
        Write all of the data; while the reader is behind, other tasks of the event loop run.

        Raises:
            BrokenPipeError: The reader of the output is gone.
            KielGroupsError: Writing failed for another reason, such as a full disk.
        """
        rest = memoryview(data)
        try:
            while rest:
                if not self._poll.poll(0):
                    await self._wait_until_writable()
                # A writable pipe accepts at least PIPE_BUF bytes; more might block.
                rest = rest[os.write(self._descriptor, rest[: select.PIPE_BUF]) :]
        except BrokenPipeError:
            raise
        except OSError as error:
            raise KielGroupsError(f"standard output cannot be written: {error.strerror}") from error

    async def _wait_until_writable(self) -> None:
        loop, writable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_writer(self._descriptor, writable.set)
        try:
            await writable.wait()
        finally:
            loop.remove_writer(self._descriptor)

    def when_reader_goes(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, on the running loop, when the reader of a pipe is gone; never for other outputs."""
        if not stat.S_ISFIFO(os.fstat(self._descriptor).st_mode):
            return
        loop = asyncio.get_running_loop()

        def on_event() -> None:
            loop.remove_reader(self._descriptor)
            callback()

        # The writing end of a pipe never becomes readable; the loop calls the reader callback for its error.
        loop.add_reader(self._descriptor, on_event)


def standard_output() -> Output:
    """
    Return the standard output of this process.

    Raises:
        KielGroupsError: Standard output was closed at the start of the process, so a connection may use its descriptor.
    """
    if sys.stdout is None:
        raise KielGroupsError("standard output is closed; give the command one, such as a file or a pipe")
    sys.stdout.flush()
    return Output(sys.stdout.fileno())
