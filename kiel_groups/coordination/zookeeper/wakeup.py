"""What wakes the thread that speaks to ZooKeeper, once for each request: never full, so nobody waits to wake it."""

from __future__ import annotations

import errno
import os

__all__ = ["Wakeup"]


class Wakeup:
    """
    Both ends of what kazoo takes for a pair of sockets: a count in the kernel, readable while it is not 0.

    kazoo takes one byte from its pair for each request that it sends, and none while there is no connection. A real
    pair holds 278 of them: whoever asks for more then, such as the event loop, would stand still until a server
    answers, and for ever where the client is stopped before one does.
    """

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closed = False

    def __del__(self) -> None:
        # Not at the close: another thread may be about to write to it, and the number may be another file's by then.
        os.close(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def send(self, wakes: bytes) -> int:
        """
        Wake once for each byte; never blocks.

        Raises:
            OSError: It is closed.
        """
        self._check_open()
        os.eventfd_write(self._descriptor, len(wakes))
        return len(wakes)

    def recv(self, _count: int) -> bytes:
        """
        Take one wake.

        Raises:
            OSError: There is none, or it is closed.
        """
        self._check_open()
        os.eventfd_read(self._descriptor)
        return b"\0"

    def close(self) -> None:
        """Refuse whatever comes from now on; may be called again."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
