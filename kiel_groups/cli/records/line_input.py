"""Read the lines of a file, a pipe or a terminal as they arrive, without blocking the event loop."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from kiel_groups.errors import ConfigError

__all__ = ["LineInput", "open_input"]

_CHUNK_BYTES = 1 << 18
#: More than any broker accepts; without a bound, a binary file would fill the memory.
_LONGEST_LINE_BYTES = 64 << 20


class LineInput:
    """
    Reads lines from an open descriptor, without Python's buffers.

    ``size_bytes`` is the size of the input, or None if unknown; ``read_bytes`` is the number of bytes read so far.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.size_bytes = os.fstat(descriptor).st_size or None
        self.is_terminal = os.isatty(descriptor)
        self.read_bytes = 0

    async def lines(self) -> AsyncIterator[list[bytes]]:
        """
        Yield lists of lines, without newlines, as soon as they arrive; the last line need not have a newline.

        Raises:
            ConfigError: The input cannot be read, or has a line of over 64 MiB.
        """
        partial: list[bytes] = []
        count, size = 0, 0
        while data := await self._read():
            first, *rest = data.split(b"\n")
            partial.append(first)
            size += len(first)
            if size > _LONGEST_LINE_BYTES:
                raise ConfigError(f"line {count + 1} is longer than {_LONGEST_LINE_BYTES >> 20} MiB; is that text?")
            if rest:
                whole = [b"".join(partial), *rest[:-1]]
                partial, size, count = [rest[-1]], len(rest[-1]), count + len(whole)
                yield whole
        if last := b"".join(partial):
            yield [last]

    async def _read(self) -> bytes:
        await self._wait()
        try:
            data = os.read(self._descriptor, _CHUNK_BYTES)
        except OSError as error:
            raise ConfigError(f"the input cannot be read: {error.strerror}") from error
        self.read_bytes += len(data)
        return data

    async def _wait(self) -> None:
        """Wait for data. A file is always readable: in that case, only let other tasks run."""
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        try:
            loop.add_reader(self._descriptor, readable.set)
        except PermissionError:
            await asyncio.sleep(0)
            return
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._descriptor)


def open_input(path: Path | None) -> LineInput:
    """
    Open a file, or standard input for None.

    Raises:
        ConfigError: The file cannot be opened, or standard input is closed.
    """
    if path is None:
        if sys.stdin is None:
            raise ConfigError("standard input is closed; name a file, or give the command a pipe")
        return LineInput(sys.stdin.fileno())
    try:
        return LineInput(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
