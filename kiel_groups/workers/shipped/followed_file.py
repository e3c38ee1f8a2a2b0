"""Follow a file by its path over truncations and rotations, as ``tail -F`` does, and read its lines."""

from __future__ import annotations

import logging
import os
import re
import stat
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from kiel_groups.errors import ConfigError, KielGroupsError
from kiel_groups.wording import counted, some

log = logging.getLogger(__name__)


#: The kinds of files that are not regular. Their reads and writes may wait without an end, and they have no positions.
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Add the path to each ``OSError`` of the block that has no file name, such as an error of a descriptor."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)
        raise


def open_regular(path: Path, flags: int) -> int:
    """
    Open a regular file, and return its descriptor.

    Raises:
        ConfigError: The path is not the path of a regular file, but for example of a FIFO.
        OSError: The file cannot be opened. The error names the file.
    """
    # Without O_NONBLOCK, the open of a FIFO waits until another program opens it, too.
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
    except IsADirectoryError:
        raise ConfigError(f"file: {path} is a folder; expected a regular file") from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = next((kind for is_kind, kind in _KINDS if is_kind(mode)), "no regular file")
        raise ConfigError(f"file: {path} is {kind}; expected a regular file")
    return descriptor


#: How many bytes before a position, and at the start of the file, prove that a file is the one that was read up to
#: there. The last bytes alone do not: they may be a part of a long line that repeats one character.
_WINDOW_BYTES = 256
_CHUNK_BYTES = 1 << 20


class FileReplacedError(KielGroupsError):
    """The file no longer has the bytes that were read from it: it was truncated or rewritten."""


class LongLineError(KielGroupsError):
    """A line is longer than the caller allows."""


class LinePosition(NamedTuple):
    """
    A position after a line, with data to recognize the file.

    ``position`` is the number of bytes before the position. ``crc`` is the CRC-32 of the first and the last 256 of
    these bytes. If ``crc`` is None (unknown), every file that is long enough fits. Other files may begin with the same
    short line, so the position also has the file's ``inode`` and ``modified_ns``, the time of the last change that was
    seen, in nanoseconds since 1970. None means that the value is unknown.
    """

    position: int = 0
    crc: int | None = None
    inode: int | None = None
    modified_ns: int | None = None

    @property
    def is_distinctive(self) -> bool:
        """Whether so many bytes were read that only this file, or a copy of the file, can have the same bytes."""
        return self.position >= _WINDOW_BYTES

    def fits(self, descriptor: int) -> bool:
        """Return whether an open file has the bytes before this position."""
        window = min(self.position, _WINDOW_BYTES)
        before = os.pread(descriptor, window, self.position - window)
        first = os.pread(descriptor, window, 0)
        return len(before) == window and (self.crc is None or _check_sum(first, before) == self.crc)


class Line(NamedTuple):
    """A line without its line end, and the position after the line."""

    value: bytes
    after: LinePosition


class FileLines:
    r"""
    Reads the lines of one open file, from a position on. A line ends with ``\n`` or ``\r\n``.

    A last line without a line end is kept until it is complete. The file is read again only when all lines that were
    read before have been taken.

    Args:
        path: The file.
        start: The position to begin at.
        longest: The most bytes of a line.

    Raises:
        FileReplacedError: The file does not have the bytes before ``start``.
        ConfigError: The path is not the path of a regular file.
        OSError: The file cannot be opened or read. The error names the file.
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
        """The number of bytes that were read but not taken, such as the bytes of an unfinished line."""
        return len(self._buffer) - self._taken

    @property
    def is_deleted(self) -> bool:
        """Whether the file was deleted, so that it has no name any more."""
        return os.fstat(self._descriptor).st_nlink == 0

    def take(self, most: int) -> list[Line]:
        """
        Return the next lines, at most ``most``. If no complete line is left, return an empty list.

        Raises:
            FileReplacedError: The file was truncated or written anew.
            LongLineError: The next line is longer than allowed.
            OSError: The file cannot be read. The error names the file.
        """
        with named_errors(self.path):
            lines = self._lines(most)
            while not lines and self._fill():
                lines = self._lines(most)
            return lines

    def take_unfinished(self) -> list[Line]:
        """
        Take the unfinished last line, which has no line end, and return a list with this line.

        Return an empty list if no bytes are left. Call this method only after ``take`` has returned no line.
        """
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
        """
        Read the next part of the file, and return whether the file had further bytes.

        Raises:
            FileReplacedError: The file was truncated or written anew.
        """
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
        # The first bytes are read afterwards: if they are unchanged, the file is still the same.
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
        """
        Return the bytes before an index of the buffer that a check sum needs: 256 bytes, or all bytes if there are
        fewer.
        """
        start = end - _WINDOW_BYTES
        return self._buffer[start:end] if start >= 0 else (self._before + self._buffer[:end])[-_WINDOW_BYTES:]


def _check_sum(first: bytes, before: bytes) -> int:
    return zlib.crc32(before, zlib.crc32(first))


_BEGIN = LinePosition()

#: What the name of a rotated file adds to the name of the file: numbers, dates, or one of these words.
_ROTATED = re.compile(r"~|[._-]+(?:[0-9][0-9TZ:+._-]*|old|bak|backup|copy|orig|prev|save)")


class FollowedFile:
    """
    Reads the lines that programs append to the file at a path, also after the file is renamed and replaced.

    If another file takes the path, the old file is first read to its end: until nothing was written to the old file for
    ``quiet_s``. Lines that a program still writes to the old file later are read between the lines of the new file,
    until the old file is deleted or the path has another file again. If the old file is not open at that time, as after
    a restart, the old file is searched for in the same folder, under names such as ``app.log.1`` or ``app-1.log``.

    Args:
        path: The path of the file, which need not exist yet.
        start: The position after the last line that was taken, or None to begin with the first line.
        longest: The most bytes of a line.
        quiet_s: How long an old file must be without new bytes, in seconds, before the new file is read.
    """

    def __init__(self, path: Path, start: LinePosition | None, longest: int, quiet_s: float = 0.0) -> None:
        self.path = path
        self._longest = longest
        self._quiet_s = quiet_s
        self._next = start or _BEGIN
        self._lines: FileLines | None = None
        #: The file that has the path while the present one is old: it may lose the path before it is read.
        self._successor: FileLines | None = None
        #: The file before the present one.
        self._former: FileLines | None = None
        #: Where the old file ended at the last call, if another file has its path, and since when; -1 otherwise.
        self._old_end, self._old_end_s = -1, 0.0
        #: Whether the file does not exist, and nothing of an earlier one is left to read.
        self.is_missing = False

    def take(self, most: int) -> list[Line]:
        """
        Return the next lines, at most ``most``. Without new lines, return nothing.

        An old file ends when two calls, ``quiet_s`` or more apart, have found nothing new in it. Then the last line of
        the old file is returned even without a line end.

        Raises:
            LongLineError: The next line is longer than allowed.
            ConfigError: The path is not the path of a regular file.
            OSError: The file cannot be read.
        """
        if self._lines is None:
            self._lines = self._opened()
            if self._lines is None:
                return []
        try:
            lines = self._lines.take(most)
        except FileReplacedError:
            self._restart(self._lines)
            return []
        if not lines and self._has_ended(self._lines):
            return self._finish(self._lines)
        return lines + self._late_lines(self._lines, most - len(lines))

    def close(self) -> None:
        """Close all open files. The next ``take`` opens the file again, and continues after the last taken line."""
        if self._lines is not None:
            self._next = self._lines.after
        for file in (self._lines, self._successor, self._former):
            if file is not None:
                file.close()
        self._lines = self._successor = self._former = None
        self._old_end = -1

    def _has_ended(self, lines: FileLines) -> bool:
        """Return whether another file has the path now, and no program writes to the file of ``lines`` any more."""
        identity = self._identity()
        if identity in (None, lines.identity):
            self._old_end = -1
            return False
        if self._successor is None:
            # From now on this file is read after the old one, also if it loses the path before that.
            with suppress(FileNotFoundError):
                self._successor = FileLines(self.path, _BEGIN, self._longest)
        elif identity != self._successor.identity:
            # The path has the second file after this one: a program that keeps to the path has left this one.
            return True
        end, now_s = lines.after.position + lines.waiting, time.monotonic()
        if end != self._old_end:
            self._old_end, self._old_end_s = end, now_s
            return False
        return now_s - self._old_end_s >= self._quiet_s

    def _identity(self) -> tuple[int, int] | None:
        """Return the device and the inode of the file at the path, or None if no file is there."""
        with suppress(FileNotFoundError):
            status = os.stat(self.path)
            return status.st_dev, status.st_ino
        return None

    def _finish(self, lines: FileLines) -> list[Line]:
        """Continue with the next file, and return the old file's last line if it has no line end."""
        rest = lines.take_unfinished()
        without = " (its last line has no line end)" if rest else ""
        log.info(
            "%s was rotated: the old file is read to its end at byte %s%s; continuing with the new one, and reading"
            " what a program still writes to the old one until that is deleted",
            self.path,
            f"{lines.after.position:,}",
            without,
        )
        if self._former is not None:
            self._former.close()
        self._former, self._lines, self._successor = lines, self._successor, None
        self._next, self._old_end = _BEGIN, -1
        return rest

    def _late_lines(self, lines: FileLines, most: int) -> list[Line]:
        """
        Return lines that a program has written to the previous file after its end was read.

        These lines get the position in the present file, because a restart continues at this position.
        """
        former = self._former
        if former is None or most <= 0:
            return []
        late: list[Line] = []
        is_over = former.is_deleted
        try:
            late = former.take(most)
        except FileReplacedError:
            is_over = True
        if late:
            log.info("%s: %s more in the old file, after its end was read", self.path, counted(late, "line"))
        elif is_over:
            former.close()
            self._former = None
        return [Line(line.value, lines.after) for line in late]

    def _restart(self, lines: FileLines) -> None:
        log.warning(
            "%s was truncated or written anew after byte %s; %s of an unfinished line were read before",
            self.path,
            f"{lines.after.position:,}",
            counted(lines.waiting, "byte"),
        )
        self.close()

    def _opened(self) -> FileLines | None:
        """
        Open the file to continue with, and return it, or None if no file exists yet.

        If the file that was read before is not found, log a warning, and begin with the first line of the file at the
        path.
        """
        lines = self._file_of_path()
        if lines is None or self._next.inode not in (None, lines.identity[1]):
            old = self._old_file()
            # A new file often begins with the same short line. To read that again loses nothing.
            if lines is not None and (old is not None or not self._next.is_distinctive):
                lines.close()
                lines = None
            lines = old or lines
        if lines is None and self._identity() is None:
            if not self.is_missing:
                log.info("%s does not exist; waiting for it", self.path)
            self.is_missing = True
            return None
        if lines is None:
            log.warning(
                "%s is not the file that was read up to byte %s, and no file beside it is; starting with its first"
                " line: lines between may be lost",
                self.path,
                f"{self._next.position:,}",
            )
            self._next = _BEGIN
            return self._opened()
        self.is_missing = False
        return lines

    def _file_of_path(self) -> FileLines | None:
        """Open the file at the path. Return None if no file is there, or the file lacks the bytes that were read."""
        with suppress(FileNotFoundError, FileReplacedError):
            return FileLines(self.path, self._next, self._longest)
        return None

    def _old_file(self) -> FileLines | None:
        """Return the previously read file, opened under its new name in the same folder, or None."""
        siblings = self._siblings()
        # The renamed file before its copies, and of these the last changed one.
        for path, status in sorted(siblings, key=lambda each: each[1].st_ino != self._next.inode):
            if not self._may_be_old_file(path, status):
                continue
            with suppress(OSError, FileReplacedError, ConfigError):
                lines = FileLines(path, self._next, self._longest)
                log.info("%s was rotated to %s; reading that from byte %s", self.path, path, f"{self._next.position:,}")
                later = [each for each, other in siblings if self._is_rotated(each) and _changed(other, status)]
                if later:
                    log.warning("%s: lines of later files are not read: %s", self.path, some(later))
                return lines
        return None

    def _may_be_old_file(self, path: Path, status: os.stat_result) -> bool:
        """
        Return whether a file may be the file that was read, or a copy of that file. The caller then compares the file's
        bytes.

        A renamed file keeps its inode. A copy has the name of a rotated file, and was written after the file was last
        read. These conditions exclude other logs in the folder that begin with the same short line.
        """
        known = self._next
        if known.inode == status.st_ino:
            return True
        # Without a position, or without its check sum, every file fits.
        if known.position == 0 or known.crc is None or not self._is_rotated(path):
            return False
        return known.modified_ns is None or status.st_mtime_ns >= known.modified_ns

    def _is_rotated(self, path: Path) -> bool:
        """Return whether a path has the name of a rotated file, such as ``app.log.1``."""
        name = path.name
        if name.startswith(self.path.name):
            return bool(_ROTATED.fullmatch(name.removeprefix(self.path.name)))
        middle = name.removeprefix(self.path.stem).removesuffix(self.path.suffix)
        return name.endswith(self.path.suffix) and bool(_ROTATED.fullmatch(middle))

    def _siblings(self) -> list[tuple[Path, os.stat_result]]:
        """Return the regular files beside the path whose names begin with its stem, the latest changed file first."""
        found: list[tuple[Path, os.stat_result]] = []
        with suppress(FileNotFoundError):
            for path in self.path.parent.iterdir():
                if path.name.startswith(self.path.stem) and path.name != self.path.name:
                    with suppress(OSError):
                        status = path.stat()
                        if stat.S_ISREG(status.st_mode):
                            found.append((path, status))
        return sorted(found, key=lambda each: each[1].st_mtime_ns, reverse=True)


def _changed(later: os.stat_result, earlier: os.stat_result) -> bool:
    return later.st_mtime_ns > earlier.st_mtime_ns
