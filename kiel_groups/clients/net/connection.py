"""
Send requests to one broker over one connection, and match the answers to them.

Requests are pipelined: each is written at once, without waiting for earlier answers. A 0.8 broker works on one request
of a connection at a time, so a fetch that waits for data delays every request behind it. A fetcher needs a connection
of its own. Answers are matched to requests by correlation id and not by order, because a proxy may reorder them.

A connection opens with its first request, and never opens again. Once it is closed, by a failure or by ``close``, every
request on it raises, and its owner has to create another connection.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Awaitable
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeVar

from kiel_groups.clients.calls.eager_methods import spawn
from kiel_groups.clients.net.answer_stream import HEADER_BYTES, AnswerStream
from kiel_groups.clients.net.broker_stream import open_stream
from kiel_groups.clients.net.receive_buffers import ReceiveBuffers
from kiel_groups.config import BrokerConfig, HostPort
from kiel_groups.errors import BrokerConnectionError, KielGroupsError, ProtocolError, RequestTimeoutError
from kiel_groups.metrics import Metrics
from kiel_groups.wire.framing import SIZE_BYTES, Request, decode_size, encode_request, split_response
from kiel_groups.wording import counted

__all__ = ["Connection", "MAX_RESPONSE_BYTES"]

log = logging.getLogger(__name__)

T = TypeVar("T")

#: The largest answer that is accepted, unless its request sets another bound.
MAX_RESPONSE_BYTES = 64 << 20

_CORRELATION_IDS = 1 << 31


@dataclass(slots=True, eq=False)
class _InFlight:
    """A request that was written and is not answered yet."""

    request: Request[Any]
    max_response_bytes: int
    answer: asyncio.Future[Any]
    sent_s: float


class Connection:
    """
    A pipelined connection to the broker at ``address``, on one event loop. The first request opens it.

    ``buffers`` are those of all connections of a client; by default, the connection has its own.
    """

    def __init__(
        self, address: HostPort, config: BrokerConfig, metrics: Metrics, buffers: ReceiveBuffers | None = None
    ) -> None:
        self.address = address
        self._config = config
        self._metrics = metrics
        self._buffers = buffers or ReceiveBuffers()
        self._opening: asyncio.Task[None] | None = None
        self._stream: AnswerStream | None = None
        #: By correlation id, oldest first.
        self._in_flight: dict[int, _InFlight] = {}
        self._next_correlation_id = 0
        #: The correlation id of the answer that is being received.
        self._arriving_id = -1
        self._closed_by: KielGroupsError | None = None

    @property
    def closed(self) -> bool:
        """Whether the connection was closed, by a failure or by ``close``."""
        return self._closed_by is not None

    async def request(
        self, request: Request[T], timeout_ms: int | None = None, *, max_response_bytes: int = MAX_RESPONSE_BYTES
    ) -> T | None:
        """
        Send one request and wait for its answer.

        Args:
            request: Any request of ``kiel_groups.wire.api`` or ``kiel_groups.wire.groups``.
            timeout_ms: Time from the write to the answer; ``request_timeout_ms`` of the configuration if left out.
            max_response_bytes: The largest answer to accept. A longer answer also closes the connection.

        Returns:
            The decoded answer, or None for a request without an answer (produce with acks 0), once it is written.

        Raises:
            BrokerConnectionError: The connection could not be opened, or ended before the answer arrived. In the second
                case, the broker may or may not have executed the request.
            RequestTimeoutError: No answer came in time, or the broker did not take a request without an answer. The
                connection is closed, since a broker that is late with one answer is late with all that follow.
            ProtocolError: The answer cannot be decoded, or is longer than ``max_response_bytes``.
            ConfigError: A field of the request does not fit its type in the protocol.
        """
        stream = await self.wait_open()
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) % _CORRELATION_IDS
        frame = encode_request(request, correlation_id, self._config.client_id)
        self._metrics.count("requests", api=type(request).__name__)
        if not request.expects_response:
            stream.write(frame)
            await self._wait(request, stream.wait_written(), timeout_ms)
            self._check_alive()
            return None
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._in_flight[correlation_id] = _InFlight(request, max_response_bytes, answer, time.monotonic())
        stream.write(frame)
        return await self._wait(request, answer, timeout_ms)

    async def wait_open(self) -> AnswerStream:
        """
        Wait until the connection is open.

        If the caller then calls ``request`` without another wait, the request is written, unless the connection breaks.

        Raises:
            KielGroupsError: The connection could not be opened, or is closed. Every later request raises this error.
        """
        if self._stream is None and not self.closed:
            if self._opening is None:
                self._opening = spawn(self._connect(), f"connect to {self.address}")
            # Not awaited itself: other callers may wait for the same opening when one of them is cancelled, and the
            # close of the connection cancels the opening, not its callers.
            await asyncio.wait({self._opening})
            if not self._opening.cancelled():
                self._opening.result()
        self._check_alive()
        assert self._stream is not None
        return self._stream

    def close(self) -> None:
        """Close the connection. Requests in flight fail with BrokerConnectionError. Further calls do nothing."""
        self._fail(self._broken("the connection was closed by this client"))
        if self._opening is not None:
            # A host that drops packets would keep the task until the connect timeout.
            self._opening.cancel()

    # ------------------------------------------------------------------ opening

    async def _connect(self) -> None:
        timeout_ms = self._config.connect_timeout_ms
        try:
            stream = await open_stream(self.address, self._buffers, timeout_ms / 1000)
        except TimeoutError:
            self._fail(self._broken(f"no connection within {timeout_ms} ms"))
            return
        except (OSError, OverflowError, ValueError) as error:
            # A broker may advertise a name or a port that is none.
            self._fail(self._broken(f"cannot connect: {_reason(error)}"))
            return
        if self.closed:
            stream.close()
            return
        self._stream = stream
        self._metrics.count("connections_opened")
        stream.start(self)
        spawn(self._close_with_the_loop(stream), f"connection to {self.address}")

    async def _close_with_the_loop(self, stream: AnswerStream) -> None:
        """Close the connection when the loop's tasks are cancelled: its client may have been left without a close."""
        try:
            await stream.wait_ended()
        finally:
            self._fail(self._broken("its event loop has ended"))

    async def _wait(self, request: Request[Any], outcome: Awaitable[T], timeout_ms: int | None) -> T:
        timeout_ms = timeout_ms or self._config.request_timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await outcome
        except TimeoutError:
            name = type(request).__name__
            done, what = "answered", f"no answer to a {name}"
            if not request.expects_response:
                done, what = "taken", f"the broker has not taken a {name}"
            self._metrics.count("request_timeouts", api=name)
            self._fail(self._broken(f"closed, since a {name} was not {done} in time"))
            raise RequestTimeoutError(f"{self.address}: {what} within {timeout_ms} ms") from None

    # ------------------------------------------------------------------ reading

    def announced(self, header: memoryview) -> memoryview | None:
        """Return memory for the answer that follows. After a header that makes no sense, close the connection."""
        try:
            self._arriving_id, size = self._announced(header)
        except ProtocolError as error:
            # It is unknown where the next answer starts, so the requests in flight cannot be answered.
            lost = counted(self._in_flight, "request")
            log.warning("%s: %s; closing the connection with %s in flight", self.address, error, lost)
            self._fail(self._broken(f"closed after an answer that makes no sense: {error}"))
            return None
        return self._buffers.take(size)

    def received(self, payload: memoryview) -> None:
        """Answer the request of the last header."""
        # A timeout may have failed all requests while the rest of the answer arrived.
        if (asked := self._in_flight.pop(self._arriving_id, None)) is not None:
            self._answer(asked, payload)

    def lost(self, error: Exception | None) -> None:
        """Fail the requests in flight: no more answers will come."""
        self._fail(self._broken(f"the connection broke: {_reason(error)}"))

    def _announced(self, header: memoryview) -> tuple[int, int]:
        """
        Return the correlation id of the answer that follows, and the size of its payload in bytes.

        Raises:
            ProtocolError: The answer belongs to no request in flight, or is longer than its request allows. In the
                second case, the request fails with this error, too.
        """
        correlation_id = split_response(header[SIZE_BYTES:]).correlation_id
        asked = self._in_flight.get(correlation_id)
        try:
            size = decode_size(header[:SIZE_BYTES], MAX_RESPONSE_BYTES if asked is None else asked.max_response_bytes)
            if asked is None:
                raise ProtocolError(f"an answer (correlation id {correlation_id}) that nothing was asked for")
        except ProtocolError as error:
            if asked is not None and not asked.answer.done():
                asked.answer.set_exception(ProtocolError(f"{self.address}: {error}"))
            raise
        return correlation_id, size - (HEADER_BYTES - SIZE_BYTES)

    def _answer(self, asked: _InFlight, payload: memoryview) -> None:
        name = type(asked.request).__name__
        self._metrics.observe("request", time.monotonic() - asked.sent_s, api=name)
        if asked.answer.done():
            return  # the caller has been cancelled
        try:
            asked.answer.set_result(asked.request.decode_response(payload))
        except Exception as error:  # garbage may fail a decoder in any way
            # The frame was complete, so later answers can be read: only this request has failed.
            why = str(error) if isinstance(error, ProtocolError) else repr(error)
            asked.answer.set_exception(ProtocolError(f"{self.address}: answer to a {name}: {why}"))

    # ------------------------------------------------------------------ the end

    def _check_alive(self) -> None:
        if self._closed_by is not None:
            # A copy: an error that is raised in several places would collect the tracebacks of all.
            raise copy(self._closed_by)

    def _broken(self, why: str) -> BrokerConnectionError:
        host, port = self.address
        return BrokerConnectionError(f"{self.address}: {why}", host=host, port=port)

    def _fail(self, error: KielGroupsError) -> None:
        """Close the connection for this reason, and fail its requests in flight, unless it is closed already."""
        if self._closed_by is not None:
            return
        self._closed_by = error
        log.debug("%s", error)
        if self._stream is not None:
            self._stream.close()
        in_flight, self._in_flight = self._in_flight, {}
        for asked in in_flight.values():
            if not asked.answer.done():
                asked.answer.set_exception(copy(error))


def _reason(error: Exception | None) -> str:
    """Return the reason of an error, in the operating system's words if it has any."""
    if error is None:
        return "closed by the other side"
    if isinstance(error, OSError) and error.errno and not isinstance(error, socket.gaierror):
        # asyncio puts its own words in place of those.
        return os.strerror(error.errno)
    return str(getattr(error, "strerror", None) or error)
