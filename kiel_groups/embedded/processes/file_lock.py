"""Advisory locks on files. The kernel releases a lock when the process that holds it ends."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

__all__ = ["file_lock", "try_lock"]


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold the lock of ``path`` during the block. Wait while another process or thread holds the lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def try_lock(path: Path) -> IO[str] | None:
    """
    Lock ``path`` without waiting. Return the open file, which holds the lock until it is closed, or None if ``path`` is
    locked.
    """
    handle = path.open("a")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        return None
    return handle
