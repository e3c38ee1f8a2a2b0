"""
Send single requests to a broker over a blocking socket: heartbeats, whose thread needs no event loop.

A heartbeat must not wait for the application, which may block the event loop, nor for a join on another connection.
"""

from __future__ import annotations

import socket
import time
from typing import TypeVar

from kiel_groups.config import HostPort
from kiel_groups.errors import ProtocolError
from kiel_groups.wire.framing import SIZE_BYTES, Request, decode_size, encode_request, split_response

__all__ = ["HeartbeatConnection"]

T = TypeVar("T")

#: The largest answer that is accepted, in bytes: a sync brings the member's assignment, of thousands of partitions.
_MOST_BYTES = 1 << 24


class HeartbeatConnection:
    """
    A connection for one request at a time, used by one thread. A failure closes it; the next request opens it again.

    Args:
        client_id: The name that brokers log.
    """

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._address: HostPort | None = None
        self._socket: socket.socket | None = None
        self._next_id = 0

    def request(self, address: HostPort, request: Request[T], timeout_s: float) -> T:
        """
        Send a request to a broker, and wait for its answer.

        Raises:
            OSError: The broker cannot be reached, or has not answered in time.
            ProtocolError: The answer cannot be read.
        """
        by_s = time.monotonic() + timeout_s
        try:
            if self._socket is None or self._address != address:
                self.close()
                self._socket, self._address = socket.create_connection(address, timeout_s), address
            self._next_id = (self._next_id + 1) & 0x7FFFFFFF
            self._socket.settimeout(_left_s(by_s))
            self._socket.sendall(encode_request(request, self._next_id, self._client_id))
            answer = split_response(self._read(decode_size(self._read(SIZE_BYTES, by_s), _MOST_BYTES), by_s))
            if answer.correlation_id != self._next_id:
                raise ProtocolError(f"{address}: an answer to another request: {answer.correlation_id}")
            return request.decode_response(answer.payload)
        except BaseException:
            # The rest of a late answer would be taken for that to the next request.
            self.close()
            raise

    def _read(self, size: int, by_s: float) -> bytes:
        """Return this many bytes of the answer."""
        assert self._socket is not None
        received = bytearray()
        while len(received) < size:
            self._socket.settimeout(_left_s(by_s))
            part = self._socket.recv(size - len(received))
            if not part:
                raise ConnectionError("closed by the other side")
            received += part
        return bytes(received)

    def close(self) -> None:
        """Close the connection, if it is open."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _left_s(by_s: float) -> float:
    """Return the seconds until then. A socket with a timeout of 0 would not wait at all."""
    left_s = by_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("no answer in time")
    return left_s
