"""Advisory locks on files; the kernel releases them when the process that holds them ends."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

__all__ = ["file_lock", "try_lock"]


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold the lock of ``path`` during the block; wait while another process or thread holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def try_lock(path: Path) -> IO[str] | None:
    """Lock ``path`` without waiting; return the file that holds the lock until closed, or None if it is locked."""
    handle = path.open("a")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        return None
    return handle
