"""Wake kazoo's connection thread once for each request, without ever blocking the caller."""

from __future__ import annotations

import errno
import os

__all__ = ["Wakeup"]


class Wakeup:
    """
    Replaces both ends of kazoo's pair of sockets by a counter in the kernel, which is readable while it is not 0.

    For each request, the caller writes a byte to the pair, and kazoo's thread reads a byte when it sends the request.
    Without a connection the thread reads none, and a pair of sockets has room for 278 bytes. A caller that makes more
    requests then, such as the event loop, would block until a server answers, or forever if the client is stopped
    before that.
    """

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closed = False

    def __del__(self) -> None:
        # Not in close(): another thread may be about to write, and the number might belong to another file by then.
        os.close(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def send(self, wakes: bytes) -> int:
        """
        Add one wake-up for each byte, without blocking.

        Raises:
            OSError: The pair is closed.
        """
        self._check_open()
        os.eventfd_write(self._descriptor, len(wakes))
        return len(wakes)

    def recv(self, _count: int) -> bytes:
        """
        Remove one wake-up.

        Raises:
            OSError: There is no wake-up, or the pair is closed.
        """
        self._check_open()
        os.eventfd_read(self._descriptor)
        return b"\0"

    def close(self) -> None:
        """Make every later ``send`` and ``recv`` fail. Further calls do nothing."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
