"""What a closed client may have left behind: asyncio tasks, threads, and sockets."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from contextlib import suppress
from pathlib import Path

from tests.helpers.waiting import within

__all__ = ["Leftovers"]

#: Threads of the event loop's own pool, which resolves host names.
_POOL = "asyncio_"


class Leftovers:
    """Compares the tasks of this event loop, and the threads and sockets of this process, with those of before."""

    def __init__(self) -> None:
        self._tasks = _tasks()
        self._threads = set(threading.enumerate())
        self._sockets = _sockets()

    async def check(self, tasks_s: float, others_s: float) -> None:
        """
        Fail if tasks are left after ``tasks_s`` seconds, or threads or sockets after ``others_s`` seconds.

        Threads close a session that its client could not close, and end with the session timeout.
        """
        tasks = await within(lambda: not _tasks() - self._tasks, tasks_s)
        assert tasks, f"tasks are left: {_tasks() - self._tasks}"
        await within(lambda: not self.found(), others_s)
        found = self.found()
        assert not found, f"threads and sockets are left: {found}"

    def found(self) -> list[str]:
        """Return the threads and sockets that were not there before."""
        threads = [thread.name for thread in set(threading.enumerate()) - self._threads if thread.is_alive()]
        sockets = [_ends(name) for name in sorted(_sockets() - self._sockets)]
        return [name for name in threads if not name.startswith(_POOL)] + sockets


def _tasks() -> set[asyncio.Task[object]]:
    try:
        return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]
    except RuntimeError:
        return set()


def _sockets() -> set[str]:
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            name = os.readlink(descriptor)
        except OSError:
            # The descriptor of this very listing is closed by now.
            continue
        if name.startswith("socket:"):
            found.add(name)
    return found


def _ends(name: str) -> str:
    """Return a socket's name with its local and remote addresses, which tell whose it is."""
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if os.readlink(descriptor) == name:
                with socket.fromfd(int(descriptor.name), socket.AF_INET, socket.SOCK_STREAM) as copy:
                    local = copy.getsockname()
                    with suppress(OSError):
                        return f"{name} {local} to {copy.getpeername()}"
                    return f"{name} {local}"
    return name
