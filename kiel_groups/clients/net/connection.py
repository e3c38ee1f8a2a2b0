"""Send requests to brokers over pipelined connections, and match the responses to the requests."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Container, Sequence
from copy import copy
from dataclasses import dataclass
from mmap import MAP_PRIVATE, mmap
from typing import Any, TypeVar, cast

from kiel_groups.clients.calls.eager_methods import spawn
from kiel_groups.clients.calls.left_loop import ANOTHER_LOOP
from kiel_groups.clients.net.broker_access import Stream, connection_problem, open_stream
from kiel_groups.config import BrokerConfig, HostPort
from kiel_groups.errors import (
    BrokerConnectionError,
    ClosedError,
    IllegalStateError,
    KielGroupsError,
    ProtocolError,
    RequestTimeoutError,
)
from kiel_groups.metrics import Metrics
from kiel_groups.wire.framing import (
    SIZE_BYTES,
    TLS_PORT,
    Request,
    decode_size,
    encode_request,
    is_tls,
    split_response,
)
from kiel_groups.wording import counted

log = logging.getLogger(__name__)


#: Answers of at least the first size and at most the second size are received into buffers that are used again. The
#: largest ordinary answers of a fetch have 4 MiB.
LEAST_REUSED_BYTES, MOST_REUSED_BYTES = 256 << 10, 8 << 20
#: The most buffers that are kept: two bulk answers may arrive while two others are decoded.
_MOST_BUFFERS = 4
#: The memory for headers and small answers. The part of a large answer that arrives there is copied, so this memory is
#: small.
_CHUNK_BYTES = 64 << 10
#: Buffers that were not used for this time are freed, in seconds.
_IDLE_S = 1.0


class ReceiveBuffers:
    """
    The buffers into which the connections of one client receive responses. The object belongs to one event loop.

    Python and the kernel fill a new buffer of some MiB with zeros before a byte arrives. So a buffer is used again as
    soon as nothing refers to it. Callers need not return a buffer.

    Attributes:
        chunk: Memory for headers and small responses, which are handled before the next bytes are received.
    """

    def __init__(self) -> None:
        self.chunk = memoryview(bytearray(_CHUNK_BYTES))
        self._buffers: list[bytearray] = []
        self._used = False
        self._timer: asyncio.TimerHandle | None = None

    def take(self, size: int) -> memoryview:
        """
        Return memory of this size, with arbitrary content. The memory is used again once nothing refers to the view.
        """
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
            # Buffers that are too small are replaced: the size of answers grows with the speed of the broker.
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
        """Free the buffers. A buffer in use remains until nothing refers to it."""
        self._buffers.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _is_unused(buffer: bytearray) -> bool:
    """Return whether no view refers to a buffer: Python refuses to resize a buffer that has views."""
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True


#: Size and correlation id.
HEADER_BYTES = 8

#: How often a TLS connection is asked whether it has sent all bytes of a request without an answer, in seconds.
_CARRIER_POLL_S = 0.01


class AnswerStream(asyncio.BufferedProtocol, Stream):
    """
    The transport protocol of a connection: passes responses to its owner. No byte is received before ``start``.

    A response is passed on as soon as its last byte is received, without a task or a further step of the event loop.

    Args:
        buffers: The memory into which responses are received.
    """

    def __init__(self, buffers: ReceiveBuffers) -> None:
        self._buffers = buffers
        self._owner: Connection | None = None
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
        #: Why the connection has ended, if the owner has not been told.
        self._error: Exception | None = None

    def start(self, owner: Connection) -> None:
        """Receive responses from now on, and pass them to ``owner``."""
        assert self._transport is not None
        self._owner = owner
        self._transport.resume_reading()
        if self._ended.is_set():
            # TLS notices the end of a connection although nothing is read.
            owner.lost(self._error)

    def write(self, frame: bytes) -> None:
        """Send a request. If the connection is closing, the request is lost, and ``owner.lost`` is called soon."""
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.write(frame)
        if self._transport.is_closing() and not self._ended.is_set():
            # Nothing is left to be sent, and the request is lost all the same: ``connection_lost`` follows.
            self._written.clear()

    async def wait_written(self) -> None:
        """Wait until all requests have been handed to the kernel, or the connection has ended."""
        await self._written.wait()
        # asyncio reports nothing when the transport below TLS has sent its bytes.
        while self.carrier is not None and self.carrier.get_write_buffer_size() and not self._ended.is_set():  # noqa: ASYNC110
            await asyncio.sleep(_CARRIER_POLL_S)

    async def wait_ended(self) -> None:
        """Wait until the connection has ended, and its owner has been notified of the reason."""
        await self._ended.wait()

    def close(self) -> None:
        """Close the connection at once. Bytes that are not sent yet are lost."""
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------------ calls of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # asyncio's TLS pauses at the limit itself, so with a limit of 0 it would wait for the end of no bytes.
        self._transport.set_write_buffer_limits(high=0 if self.carrier is None else 1)
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
        """
        Divide the received bytes in the chunk into responses. Other connections overwrite the chunk after this call.
        """
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
        if exc is None and is_tls(self._head):
            exc = ConnectionResetError(TLS_PORT)
        if self._owner is not None:
            self._owner.lost(exc)
        else:
            self._error = exc
        self._ended.set()
        self._written.set()


# Send requests to one broker over one connection, and match the answers to them.
#
# Requests are pipelined: each is written at once, without waiting for earlier answers. A 0.8 broker works on one
# request of a connection at a time, so a fetch that waits for data delays every request behind it. A fetcher needs a
# connection of its own. Answers are matched to requests by correlation id and not by order, because a proxy may reorder
# them.
#
# A connection opens with its first request, and never opens again. Once it is closed, by a failure or by ``close``,
# every request on it raises, and its owner has to create another connection.


T = TypeVar("T")

#: The largest answer that is accepted, unless its request sets another bound.
MAX_RESPONSE_BYTES = 64 << 20

_CORRELATION_IDS = 1 << 31


@dataclass(slots=True, eq=False)
class _InFlight:
    """A request that is written, or about to be written, and has no response yet."""

    request: Request[Any]
    max_response_bytes: int
    answer: asyncio.Future[Any]
    sent_s: float


class Connection:
    """
    A pipelined connection to the broker at ``address``, on one event loop. The first request opens the connection.

    All connections of a client share the client's ``buffers``; by default, the connection has buffers of its own.
    ``on_lost`` is called if the broker ends the connection while requests are in flight, or after a request without a
    response. Its second argument says whether the connection had a request without a response.
    """

    def __init__(
        self,
        address: HostPort,
        config: BrokerConfig,
        metrics: Metrics,
        buffers: ReceiveBuffers | None = None,
        on_lost: Callable[[HostPort, bool], None] | None = None,
    ) -> None:
        self.address = address
        self._config = config
        self._metrics = metrics
        self._buffers = buffers or ReceiveBuffers()
        self._on_lost = on_lost
        self._opening: asyncio.Task[None] | None = None
        self._stream: AnswerStream | None = None
        #: The requests in flight by correlation id, oldest first.
        self._in_flight: dict[int, _InFlight] = {}
        #: Whether a request without a response was written.
        self._wrote_unanswered = False
        self._next_correlation_id = 0
        #: The correlation id of the answer that is being received, or was last; -1 before the first one.
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
        Send one request and wait for its response.

        Args:
            request: Any request of ``kiel_groups.wire``.
            timeout_ms: The longest time from the write to the response, in milliseconds; by default, the setting
                ``request_timeout_ms``.
            max_response_bytes: The largest response to accept, in bytes. A longer response also closes the connection.

        Returns:
            The decoded response. For a request without a response (produce with acks 0), None once the request is
            written.

        Raises:
            BrokerConnectionError: The connection could not be opened, or ended before the response arrived. In the
                second case, the broker may or may not have executed the request.
            RequestTimeoutError: No response came in time, or a request without a response could not be written in time.
                The connection is closed, because all later responses would be late, too.
            ProtocolError: The response cannot be decoded, or is longer than ``max_response_bytes``.
            ConfigError: A field of the request does not fit its type in the protocol.
        """
        stream = await self.wait_open()
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) % _CORRELATION_IDS
        frame = encode_request(request, correlation_id, self._config.client_id)
        self._metrics.count("requests", api=type(request).__name__)
        if not request.expects_response:
            self._wrote_unanswered = True
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
            # The opening is not awaited itself: other callers may wait for the same opening when one of them is
            # cancelled, and the close of the connection cancels the opening, not its callers.
            await asyncio.wait({self._opening})
            if self._opening.cancelled():
                # By a program that cancels all tasks of its loop, unless by the close of this connection.
                self._fail(self._broken("the connection was not opened: its task was cancelled"))
            else:
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
            stream = await open_stream(
                self.address, lambda: AnswerStream(self._buffers), timeout_ms / 1000, self._config
            )
        except TimeoutError:
            self._fail(self._broken(f"no connection within {timeout_ms} ms"))
            return
        except (OSError, OverflowError, ValueError, ProtocolError) as error:
            # A broker may advertise a name or a port that is not valid. A file with credentials may have a mistake.
            self._fail(self._broken(f"cannot connect: {connection_problem(error)}"))
            return
        if self.closed:
            stream.close()
            return
        self._stream = stream
        self._metrics.count("connections_opened")
        stream.start(self)
        spawn(self._close_with_the_loop(stream), f"connection to {self.address}")

    async def _close_with_the_loop(self, stream: AnswerStream) -> None:
        """Close the connection when the event loop cancels its tasks: the program may not have closed the client."""
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
            # After a stall of this process, the loop reads an answer that came in time just before it ends the wait.
            if isinstance(outcome, asyncio.Future) and outcome.done() and not outcome.cancelled():
                answer: T = outcome.result()
                return answer
            name = type(request).__name__
            done, what = "answered", f"no answer to a {name}"
            if not request.expects_response:
                done, what = "taken", f"the broker has not taken a {name}"
            self._metrics.count("request_timeouts", api=name)
            self._fail(self._broken(f"closed, since a {name} was not {done} in time"))
            raise RequestTimeoutError(f"{self.address}: {what} within {timeout_ms} ms") from None

    # ------------------------------------------------------------------ reading

    def announced(self, header: memoryview) -> memoryview | None:
        """
        Return the buffer for the response that this header announces, or None for an invalid header.

        A header is invalid if no request in flight has its correlation id, or if the response is longer than its
        request allows. Then the connection is closed, and all requests in flight fail. If the response is too long, the
        request of this response fails with a ProtocolError whose text names the length.
        """
        correlation_id, _ = split_response(header[SIZE_BYTES:])
        asked = self._in_flight.get(correlation_id)
        try:
            size = decode_size(header[:SIZE_BYTES], MAX_RESPONSE_BYTES if asked is None else asked.max_response_bytes)
            if asked is None:
                raise ProtocolError(f"an answer (correlation id {correlation_id}) that nothing was asked for")
        except ProtocolError as error:
            if asked is not None and not asked.answer.done():
                asked.answer.set_exception(ProtocolError(f"{self.address}: {error}"))
            # It is unknown where the next answer starts, so the requests in flight cannot be answered.
            if asked is not None or self._arriving_id != -1:
                # Callers report a server that has never answered as a broker does.
                lost = counted(self._in_flight, "request")
                log.warning("%s: %s; closing the connection with %s in flight", self.address, error, lost)
            self._fail(self._broken(f"closed after an answer that makes no sense: {error}"))
            return None
        self._arriving_id = correlation_id
        return self._buffers.take(size - (HEADER_BYTES - SIZE_BYTES))

    def received(self, payload: memoryview) -> None:
        """Decode a payload, and complete the request that the last header named."""
        # A timeout may have failed all requests while the rest of the answer arrived.
        if (asked := self._in_flight.pop(self._arriving_id, None)) is not None:
            self._answer(asked, payload)

    def lost(self, error: Exception | None) -> None:
        """Fail the requests in flight, because the connection has ended."""
        notify = not self.closed and (self._in_flight or self._wrote_unanswered)
        if notify and self._on_lost is not None:
            self._on_lost(self.address, self._wrote_unanswered)
        self._fail(self._broken(f"the connection broke: {connection_problem(error)}"))

    def _answer(self, asked: _InFlight, payload: memoryview) -> None:
        name = type(asked.request).__name__
        self._metrics.observe("request", time.monotonic() - asked.sent_s, api=name)
        if asked.answer.done():
            return  # the caller has been cancelled
        try:
            asked.answer.set_result(asked.request.decode_answer(payload))
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
        """
        Close the connection for this reason, and fail its requests in flight, unless the connection is closed already.
        """
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


#: The purpose of short requests that a broker answers at once.
CONTROL = "control"

#: How long a broker is avoided after a failed request, by requests that any broker can answer, in seconds.
BLAMED_S = 30.0


class ConnectionPool:
    """
    Keeps one connection for each address and purpose. A closed connection is replaced at the next use.

    Requests with different purposes do not wait for each other, for example metadata requests and long fetches.
    ``on_lost`` is that of each ``Connection``.
    """

    def __init__(
        self, config: BrokerConfig, metrics: Metrics, on_lost: Callable[[HostPort, bool], None] | None = None
    ) -> None:
        self._config = config
        self._metrics = metrics
        self._on_lost = on_lost
        self._connections: dict[tuple[HostPort, str], Connection] = {}
        self._blamed_at_s: dict[HostPort, float] = {}
        self._buffers = ReceiveBuffers()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def get(self, address: HostPort, purpose: str) -> Connection:
        """
        Return the connection to this address for one purpose. A new connection opens with its first request.

        Raises:
            ClosedError: The client was closed.
            IllegalStateError: Another event loop runs the client.
        """
        self.check_open()
        if (loop := asyncio.get_running_loop()) is not self._loop:
            if self._loop is not None and self._loop.is_running():
                raise IllegalStateError(ANOTHER_LOOP)
            self._loop = loop
        key = (address, purpose)
        connection = self._connections.get(key)
        if connection is None or connection.closed:
            connection = Connection(address, self._config, self._metrics, self._buffers, self._on_lost)
            self._connections[key] = connection
        return connection

    def note_failure(self, address: HostPort) -> None:
        """
        Record that a request to this broker failed, so that ``best`` prefers other brokers for ``BLAMED_S`` seconds.
        """
        self._blamed_at_s[address] = time.monotonic()

    def best(self, addresses: Sequence[HostPort]) -> HostPort:
        """Return the first address without a recent failure, or else the address that failed the longest ago."""
        since_s = time.monotonic() - BLAMED_S
        return min(addresses, key=lambda address: max(since_s, self._blamed_at_s.get(address, since_s)))

    def keep_only(self, addresses: Container[HostPort]) -> None:
        """Close the connections to all other addresses."""
        for key in [key for key in self._connections if key[0] not in addresses]:
            self._connections.pop(key).close()

    def check_open(self) -> None:
        """Raise ClosedError once the client was closed."""
        if self._closed:
            raise ClosedError("the client was closed")

    def close(self) -> None:
        """Close all connections, and open no more."""
        self._closed = True
        self.keep_only(())
        self._buffers.close()
