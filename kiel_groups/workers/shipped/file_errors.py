"""Have errors of files name them, and refuse what is no regular file."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kiel_groups.errors import ConfigError

__all__ = ["named_errors", "open_regular"]

#: What a path may name that is no regular file. Its reads and writes may wait without an end, and it has no positions.
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Add the path to each ``OSError`` of the block that names no file: a call with a descriptor does not know it."""
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
        ConfigError: The path names something else, such as a FIFO.
        OSError: The file cannot be opened. The error names it.
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
