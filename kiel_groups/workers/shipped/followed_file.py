"""Follow a file by its path over truncations and rotations, as ``tail -F`` does."""

from __future__ import annotations

import logging
import os
import stat
from contextlib import suppress
from pathlib import Path

from kiel_groups.wording import counted, some
from kiel_groups.workers.shipped.file_lines import FileLines, FileReplacedError, Line, LinePosition

__all__ = ["FollowedFile"]

log = logging.getLogger(__name__)

_BEGIN = LinePosition()


class FollowedFile:
    """
    The lines that programs append to the file of a path.

    If another file takes the path, the old one is read to its end first. If the old one is not open then, as after a
    restart, it is searched for in the same folder, under names that begin with the same word: ``app.log.1`` or
    ``app-1.log``.

    Args:
        path: The file. It does not have to exist yet.
        start: The position after the last line that was taken, or None to begin with the first line.
        longest: The most bytes of a line.
    """

    def __init__(self, path: Path, start: LinePosition | None, longest: int) -> None:
        self._path = path
        self._longest = longest
        self._next = start or _BEGIN
        self._lines: FileLines | None = None
        #: Where the old file ended at the last call, if another file has its path; -1 otherwise.
        self._old_end = -1
        self._missing = False

    def take(self, most: int) -> list[Line]:
        """
        Return the next lines, at most ``most``. Without new lines, return nothing.

        An old file ends when two calls in a row have found nothing new in it. Its last line may lack its end.

        Raises:
            LongLineError: The next line is longer than allowed.
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
        if lines or not self._is_old(self._lines):
            self._old_end = -1
            return lines
        end = self._lines.after.position + self._lines.waiting
        if end != self._old_end:
            self._old_end = end
            return []
        return self._finish(self._lines)

    def close(self) -> None:
        """Close the file, if it is open. The next ``take`` opens it again, and continues after the last line."""
        if self._lines is not None:
            self._next = self._lines.after
            self._lines.close()
            self._lines = None

    def _is_old(self, lines: FileLines) -> bool:
        """Return whether another file has taken the path."""
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return False
        return (status.st_dev, status.st_ino) != lines.identity

    def _finish(self, lines: FileLines) -> list[Line]:
        """End an old file, and return its last line if that has no end."""
        rest = lines.take_unfinished()
        without = " (its last line has no line end)" if rest else ""
        log.info(
            "%s was rotated: the old file is read to its end at byte %s%s; continuing with the new one",
            self._path,
            f"{lines.after.position:,}",
            without,
        )
        self.close()
        self._next, self._old_end = _BEGIN, -1
        return rest

    def _restart(self, lines: FileLines) -> None:
        log.warning(
            "%s was truncated or written anew after byte %s; %s of an unfinished line were read before",
            self._path,
            f"{lines.after.position:,}",
            counted(lines.waiting, "byte"),
        )
        self.close()

    def _opened(self) -> FileLines | None:
        """Return the file to continue with, or None if there is none yet."""
        try:
            lines = FileLines(self._path, self._next, self._longest)
        except (FileNotFoundError, FileReplacedError) as error:
            old = self._old_file()
            if old is not None:
                return old
            if isinstance(error, FileNotFoundError):
                if not self._missing:
                    log.info("%s does not exist; waiting for it", self._path)
                self._missing = True
                return None
            log.warning(
                "%s is not the file that was read up to byte %s, and no file beside it is; starting with its first"
                " line: lines between may be lost",
                self._path,
                f"{self._next.position:,}",
            )
            self._next = _BEGIN
            return self._opened()
        self._missing = False
        return lines

    def _old_file(self) -> FileLines | None:
        """Return the file that was read before from its new name in the same folder, or None if it is not there."""
        # Without a position, or without its check sum, every file fits.
        if self._next.position == 0 or self._next.crc is None:
            return None
        newer: list[Path] = []
        for path in self._siblings():
            with suppress(OSError, FileReplacedError):
                lines = FileLines(path, self._next, self._longest)
                log.info(
                    "%s was rotated to %s; reading that from byte %s", self._path, path, f"{self._next.position:,}"
                )
                if newer:
                    log.warning("%s: lines of later files are not read: %s", self._path, some(newer))
                return lines
            newer.append(path)
        return None

    def _siblings(self) -> list[Path]:
        """Return the regular files whose names begin with the path's stem, the last changed one first."""
        found: list[tuple[int, Path]] = []
        with suppress(FileNotFoundError):
            for path in self._path.parent.iterdir():
                if path.name.startswith(self._path.stem) and path.name != self._path.name:
                    with suppress(OSError):
                        status = path.stat()
                        if stat.S_ISREG(status.st_mode):
                            found.append((status.st_mtime_ns, path))
        return [path for _, path in sorted(found, reverse=True)]
