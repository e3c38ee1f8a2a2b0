"""Standard output as a consumer needs it: a slow reader does not stop the event loop, and one that goes is noticed."""

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
    An open file, pipe or terminal that bytes are written to at once, past Python's buffers.

    What was written is out of this process: it stays so, however the process ends.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._room = select.poll()
        self._room.register(descriptor, select.POLLOUT)

    async def write(self, data: bytes) -> None:
        """
        Write all of it; where the reader is behind, others on the event loop go on meanwhile.

        Raises:
            BrokenPipeError: The reader has gone.
            KielGroupsError: It cannot be written for another reason, such as a full disk.
        """
        rest = memoryview(data)
        try:
            while rest:
                if not self._room.poll(0):
                    await self._wait_for_room()
                # So much fits into a pipe that has room at all; more might block.
                rest = rest[os.write(self._descriptor, rest[: select.PIPE_BUF]) :]
        except BrokenPipeError:
            raise
        except OSError as error:
            raise KielGroupsError(f"standard output cannot be written: {error.strerror}") from error

    async def _wait_for_room(self) -> None:
        loop, room = asyncio.get_running_loop(), asyncio.Event()
        loop.add_writer(self._descriptor, room.set)
        try:
            await room.wait()
        finally:
            loop.remove_writer(self._descriptor)

    def when_reader_goes(self, callback: Callable[[], None]) -> None:
        """Have it called, once, on the running loop, when nobody reads the pipe any more; only pipes can tell."""
        if not stat.S_ISFIFO(os.fstat(self._descriptor).st_mode):
            return
        loop = asyncio.get_running_loop()

        def gone() -> None:
            loop.remove_reader(self._descriptor)
            callback()

        # The writing end of a pipe never becomes readable; what is reported for it is its error.
        loop.add_reader(self._descriptor, gone)


def standard_output() -> Output:
    """
    The standard output of this process.

    Raises:
        KielGroupsError: It was closed before the start; its number may by now be that of a connection.
    """
    if sys.stdout is None:
        raise KielGroupsError("standard output is closed; give the command one, such as a file or a pipe")
    sys.stdout.flush()
    return Output(sys.stdout.fileno())
