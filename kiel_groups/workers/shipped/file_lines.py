"""Read the lines of a file that other programs write to, and recognise the file again by the bytes that were read."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import NamedTuple

from kiel_groups.errors import KielGroupsError
from kiel_groups.workers.shipped.file_errors import named_errors, open_regular

__all__ = ["FileReplacedError", "FileLines", "Line", "LinePosition", "LongLineError"]

#: How many bytes before a position, and at the start of the file, prove that a file is the one that was read up to
#: there. The last bytes alone do not: they may be a part of a long line that repeats one character.
_WINDOW_BYTES = 256
_CHUNK_BYTES = 1 << 20


class FileReplacedError(KielGroupsError):
    """The file does not have the bytes any more that were read from it: it was truncated or written anew."""


class LongLineError(KielGroupsError):
    """A line is longer than the caller allows."""


class LinePosition(NamedTuple):
    """
    A position after a line: the number of bytes before it, and the CRC-32 of the first 256 and the last 256 of these.

    ``crc`` is None if it is unknown; then any file that is long enough fits. A short first line may begin other files,
    too: these are told apart by the inode of the file, and by the time of its last change, in nanoseconds since 1970,
    when it was read. Both are None if they are unknown.
    """

    position: int = 0
    crc: int | None = None
    inode: int | None = None
    modified_ns: int | None = None

    @property
    def is_distinctive(self) -> bool:
        """Whether so much was read that a file with the same bytes is the same file, or a copy of it."""
        return self.position >= _WINDOW_BYTES

    def fits(self, descriptor: int) -> bool:
        """Return whether an open file has the bytes before this position."""
        window = min(self.position, _WINDOW_BYTES)
        before = os.pread(descriptor, window, self.position - window)
        first = os.pread(descriptor, window, 0)
        return len(before) == window and (self.crc is None or _check_sum(first, before) == self.crc)


class Line(NamedTuple):
    """A line without its end, and the position after it."""

    value: bytes
    after: LinePosition


class FileLines:
    r"""
    The lines of one open file, from a position on. A line ends with ``\n`` or ``\r\n``.

    A last line without an end is kept until it has one. The file is read again only after all lines that were read
    before have been taken.

    Args:
        path: The file.
        start: Where to begin.
        longest: The most bytes of a line.

    Raises:
        FileReplacedError: The file does not have the bytes before ``start``.
        ConfigError: It is no regular file.
        OSError: The file cannot be opened or read. The error names it.
    """

    def __init__(self, path: Path, start: LinePosition, longest: int) -> None:
        self.path = path
        self._longest = longest
        self._descriptor = open_regular(path, os.O_RDONLY)
        try:
            with named_errors(path):
                status = os.fstat(self._descriptor)
                #: Device and inode, which differ for another file of the same name.
                self.identity = (status.st_dev, status.st_ino)
                #: When the file was changed last before it was read last, in nanoseconds since 1970.
                self.modified_ns = status.st_mtime_ns
                if not start.fits(self._descriptor):
                    raise FileReplacedError(f"{path} does not have the {start.position:,} bytes that were read")
                window = min(start.position, _WINDOW_BYTES)
                self._first = os.pread(self._descriptor, window, 0)
                #: The bytes right before the buffer, the buffer, and the number of its bytes that were taken as lines.
                self._before = os.pread(self._descriptor, window, start.position - window)
        except BaseException:
            self.close()
            raise
        self._start = start.position
        self._buffer = b""
        self._taken = 0
        #: Up to here the buffer has no line end, apart from those of taken lines.
        self._searched = 0

    @property
    def after(self) -> LinePosition:
        """The position after the last line that was taken."""
        position = self._start + self._taken
        crc = _check_sum(self._first[:position], self._window(self._taken))
        return LinePosition(position, crc, self.identity[1], self.modified_ns)

    @property
    def waiting(self) -> int:
        """The number of bytes that were read and are not taken, such as those of an unfinished line."""
        return len(self._buffer) - self._taken

    @property
    def is_deleted(self) -> bool:
        """Whether the file has no name any more."""
        return os.fstat(self._descriptor).st_nlink == 0

    def take(self, most: int) -> list[Line]:
        """
        Return the next lines, at most ``most``; nothing if there is no whole line.

        Raises:
            FileReplacedError: The file was truncated or written anew.
            LongLineError: The next line is longer than allowed.
            OSError: The file cannot be read. The error names it.
        """
        with named_errors(self.path):
            lines = self._lines(most)
            while not lines and self._fill():
                lines = self._lines(most)
            return lines

    def take_unfinished(self) -> list[Line]:
        """Return the last line, which has no end yet. If there is nothing after the last line end, return nothing."""
        if not self.waiting:
            return []
        value = self._buffer[self._taken :]
        self._taken = self._searched = len(self._buffer)
        return [Line(value.removesuffix(b"\r"), self.after)]

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _lines(self, most: int) -> list[Line]:
        lines: list[Line] = []
        while len(lines) < most:
            end = self._buffer.find(b"\n", self._searched)
            if end - self._taken > self._longest or (end < 0 and self.waiting > self._longest):
                if lines:
                    break
                raise LongLineError(
                    f"{self.path}: the line at byte {self.after.position:,} has more than {self._longest:,} bytes"
                )
            if end < 0:
                self._searched = len(self._buffer)
                break
            value = self._buffer[self._taken : end]
            self._taken = self._searched = end + 1
            lines.append(Line(value.removesuffix(b"\r"), self.after))
        return lines

    def _fill(self) -> bool:
        """Read more of the file, and return whether there was more."""
        self._before = self._window(self._taken)
        self._start += self._taken
        self._buffer = self._buffer[self._taken :]
        self._searched -= self._taken
        self._taken = 0
        modified_ns = os.fstat(self._descriptor).st_mtime_ns
        # One read gets the bytes before the new ones, too, so that no write comes between comparison and reading.
        window = self._window(len(self._buffer))
        end = self._start + len(self._buffer)
        read = os.pread(self._descriptor, len(window) + _CHUNK_BYTES, end - len(window))
        # The first bytes are read afterwards: if they are still the same, so was the file a moment ago.
        first = os.pread(self._descriptor, _WINDOW_BYTES, 0)
        if read[: len(window)] != window or not first.startswith(self._first):
            raise FileReplacedError(f"{self.path} does not have the {end:,} bytes any more that were read")
        self.modified_ns = modified_ns
        self._buffer += read[len(window) :]
        if len(self._first) < _WINDOW_BYTES:
            # Then the file was read up to here at most, and the bytes before the buffer are all that precede it.
            self._first = (self._before + self._buffer)[:_WINDOW_BYTES]
        return len(read) > len(window)

    def _window(self, end: int) -> bytes:
        """Return the last bytes before an index of the buffer."""
        start = end - _WINDOW_BYTES
        return self._buffer[start:end] if start >= 0 else (self._before + self._buffer[:end])[-_WINDOW_BYTES:]


def _check_sum(first: bytes, before: bytes) -> int:
    return zlib.crc32(before, zlib.crc32(first))
