"""Reuse the memory of large answers: new memory costs more time than the bytes that are received into it."""

from __future__ import annotations

import asyncio
from mmap import MAP_PRIVATE, mmap

__all__ = ["LEAST_REUSED_BYTES", "MOST_REUSED_BYTES", "ReceiveBuffers"]

#: Answers from this size on, and up to the other one, are received into memory that is used again. The largest ordinary
#: answers of a fetch have 4 MiB.
LEAST_REUSED_BYTES, MOST_REUSED_BYTES = 256 << 10, 8 << 20
#: The most buffers that are kept: two bulk answers may arrive while two others are decoded.
_MOST_BUFFERS = 4
#: The memory for headers and small answers. What a large answer has there is copied, so this is not much.
_CHUNK_BYTES = 64 << 10
#: Buffers that were not used for this time are freed, in seconds.
_IDLE_S = 1.0


class ReceiveBuffers:
    """
    The buffers that the connections of one client receive their answers into. The object belongs to one event loop.

    A new buffer of some MiB is filled with zeros by Python, and each of its pages by the kernel, before a byte arrives.
    So buffers are used again, as soon as nothing refers to them any more; no caller returns one.

    Attributes:
        chunk: Memory for what is handled before the next bytes are received.
    """

    def __init__(self) -> None:
        self.chunk = memoryview(bytearray(_CHUNK_BYTES))
        self._buffers: list[bytearray] = []
        self._used = False
        self._timer: asyncio.TimerHandle | None = None

    def take(self, size: int) -> memoryview:
        """Return memory of this size with any content. It belongs to the caller as long as it is referred to."""
        if size < LEAST_REUSED_BYTES:
            return memoryview(bytearray(size))
        if size > MOST_REUSED_BYTES:
            # The event loop would fill a bytearray with zeros at once. The pages of a mapping come as bytes arrive.
            return memoryview(mmap(-1, size, flags=MAP_PRIVATE))
        self._used = True
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_IDLE_S, self._free_unused)
        return memoryview(self._fitting(size))[:size]

    def _fitting(self, size: int) -> bytearray:
        unused = [buffer for buffer in self._buffers if _is_unused(buffer)]
        found = next((buffer for buffer in unused if len(buffer) >= size), None)
        if found is None:
            found = bytearray(size)
            # glibc returns the end of its heap to the system once more of it is free than twice the largest mapping
            # that was freed so far. Records and runs of a few MiB would come and go there, and each of their pages
            # would be cleared again by the kernel. This maps some MiB, and frees them untouched.
            bytes(MOST_REUSED_BYTES)
            # Those that are too small are replaced: the size of answers grows with the speed of the broker.
            used = [buffer for buffer in self._buffers if not any(buffer is each for each in unused)]
            self._buffers = [*used[1 - _MOST_BUFFERS :], found]
        return found

    def _free_unused(self) -> None:
        self._timer = None
        if self._used:
            self._used = False
            self._timer = asyncio.get_running_loop().call_later(_IDLE_S, self._free_unused)
        else:
            self._buffers.clear()

    def close(self) -> None:
        """Free the buffers. Those that are referred to remain until they are not."""
        self._buffers.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _is_unused(buffer: bytearray) -> bool:
    """Return whether no view refers to a buffer: Python refuses to change the size of one that has views."""
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True
