"""Receive from one broker: divide the bytes of a connection into headers and payloads."""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from kiel_groups.clients.net.receive_buffers import ReceiveBuffers

__all__ = ["HEADER_BYTES", "AnswerOwner", "AnswerStream"]

#: Size and correlation id.
HEADER_BYTES = 8


class AnswerOwner(Protocol):
    """The object that a stream reports to."""

    def announced(self, header: memoryview) -> memoryview | None:
        """Take the header of an answer. Return memory for its payload, or None if nothing more is wanted."""

    def received(self, payload: memoryview) -> None:
        """Take the payload of the answer that was announced last, in the memory for it."""

    def lost(self, error: Exception | None) -> None:
        """Take the reason why the connection has ended; None if a side has closed it."""


class AnswerStream(asyncio.BufferedProtocol):
    """
    A connection whose answers go to an owner. Nothing is received before ``start``.

    An answer is complete as soon as its last byte is received: it needs no task, and no further step of the loop.

    Args:
        buffers: The memory that headers and small answers are received into.
    """

    def __init__(self, buffers: ReceiveBuffers) -> None:
        self._buffers = buffers
        self._owner: AnswerOwner | None = None
        self._transport: asyncio.Transport | None = None
        #: The first bytes of a header, whose other bytes are not received yet.
        self._head = b""
        #: The memory for the payload that is being received, and how much of it was received.
        self._payload: memoryview | None = None
        self._filled = 0
        #: Whether all that was written has been handed to the kernel, or is lost with the connection.
        self._written = asyncio.Event()
        self._written.set()
        self._ended = asyncio.Event()

    def start(self, owner: AnswerOwner) -> None:
        """Receive answers from now on."""
        assert self._transport is not None
        self._owner = owner
        self._transport.resume_reading()

    def write(self, frame: bytes) -> None:
        """Send a request. If that is impossible, the connection ends, and its owner learns of it a moment later."""
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.write(frame)
        if self._transport.is_closing() and not self._ended.is_set():
            # Nothing is left to be sent, and the request is lost all the same: ``connection_lost`` follows.
            self._written.clear()

    async def wait_written(self) -> None:
        """Wait until all requests have been handed to the kernel, or the connection has ended."""
        await self._written.wait()

    async def wait_ended(self) -> None:
        """Wait until the connection has ended, and its owner knows why."""
        await self._ended.wait()

    def close(self) -> None:
        """Close the connection at once. What is not sent yet is lost."""
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------------ calls of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)
        # The owner is set when its connection is known to be the fastest one.
        self._transport.pause_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._payload is not None:
            return self._payload[self._filled :]
        return self._buffers.chunk[len(self._head) :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._payload is None:
            self._divide(nbytes)
            return
        self._filled += nbytes
        if self._filled == len(self._payload):
            self._finish()

    def _divide(self, count: int) -> None:
        """Divide what was received into the chunk. Other connections receive into it after this."""
        assert self._owner is not None
        head = self._head
        received = self._buffers.chunk[: len(head) + count]
        received[: len(head)] = head
        while len(received) >= HEADER_BYTES:
            payload = self._owner.announced(received[:HEADER_BYTES])
            if payload is None:
                return
            size = min(len(payload), len(received) - HEADER_BYTES)
            payload[:size] = received[HEADER_BYTES : HEADER_BYTES + size]
            received = received[HEADER_BYTES + size :]
            self._payload, self._filled = payload, size
            if size < len(payload):
                break
            self._finish()
        self._head = bytes(received)

    def _finish(self) -> None:
        # Nothing here refers to the payload any more, so its memory is free once its answer was handled.
        payload, self._payload = self._payload, None
        assert self._owner is not None
        assert payload is not None
        self._owner.received(payload)

    def pause_writing(self) -> None:
        self._written.clear()

    def resume_writing(self) -> None:
        self._written.set()

    def eof_received(self) -> bool:
        # A broker that sends no more takes no more, either. By default, the transport would wait until all is sent.
        self.close()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        # The owner may keep this object for a while.
        self._payload = None
        if self._owner is not None:
            self._owner.lost(exc)
        self._ended.set()
        self._written.set()
