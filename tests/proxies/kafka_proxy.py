"""
A fault proxy for brokers, which decodes the frames of Kafka's protocol and can change a broker's answers.

The caller's function gets every answer of the broker with its request, and decides what the client receives: the answer
as it is, a rewritten answer, a part of it, or nothing.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from kiel_groups.config import HostPort, parse_hosts
from kiel_groups.errors import ProtocolError
from kiel_groups.wire.fetch import FetchRequest
from kiel_groups.wire.framing import SIZE_BYTES, decode_size, split_response
from tests.proxies.fault_proxy import Direction, FaultProxy, Link, Side
from tests.proxies.faulty_answers import refusal, understands, with_addresses, with_error

__all__ = [
    "KafkaProxy",
    "Exchange",
    "Partial",
    "Reply",
    "Answer",
    "damaging",
    "NextFailures",
    "NextRefusals",
    "failing",
]

_REQUEST_HEAD = struct.Struct(">hhi")
_RESPONSE_HEAD = struct.Struct(">ii")
_LARGEST_FRAME_BYTES = 100 << 20
_MOST_UNANSWERED = 10_000


@dataclass(frozen=True, slots=True)
class Exchange:
    """
    A request and the broker's answer to it.

    ``request`` is the part of the request after the correlation id (client id and body). ``response`` is the part of
    the answer after the correlation id. ``number`` counts the answers to requests of this kind through this proxy, from
    1.
    """

    api_key: int
    api_version: int
    number: int
    request: bytes
    response: bytes


@dataclass(frozen=True, slots=True)
class Partial:
    """
    An answer of which only the first ``sent_bytes`` are sent, after the size of the whole answer. Then the proxy resets
    the connection, or stalls it if ``then_reset`` is False.
    """

    response: bytes
    sent_bytes: int
    then_reset: bool = True


#: What the client receives: an answer (after its correlation id), a part of an answer, or None for no answer at all.
Reply: TypeAlias = bytes | Partial | None

#: Called on the proxy's thread for every answer.
Answer: TypeAlias = Callable[[Exchange], Reply]


#: Called on the proxy's thread for the API key and version of every request. It returns the proxy's answer, or None if
#: the broker is to answer.
Refusal: TypeAlias = Callable[[int, int], bytes | None]


@dataclass(slots=True)
class _Pending:
    """
    The requests of one connection that are not answered yet: their API key, version and content, by correlation id.

    ``refused`` are the proxy's own answers to some of them, which wait for the answers to earlier requests.
    ``answering`` keeps the answers in this order.
    """

    unanswered: dict[int, tuple[int, int, bytes]] = field(default_factory=dict)
    refused: dict[int, bytes] = field(default_factory=dict)
    answering: asyncio.Lock = field(default_factory=asyncio.Lock)


def failing(api_key: int, code: int, *, times: int | None = None) -> Answer:
    """
    Return a function that puts an error code into the answers to the first ``times`` requests of one kind.

    Every partition of such an answer gets the code, although the broker has performed the request. If ``times`` is
    None, all requests of this kind fail. Other answers, and those of versions that this package does not request, stay
    as they are.
    """

    def answer(exchange: Exchange) -> Reply:
        if times is not None and exchange.number > times:
            return exchange.response
        return _failed(exchange, api_key, code)

    return answer


def damaging(*marks: bytes) -> Answer:
    """Damage each message that contains one of these bytes, in every answer, as a failing disk does."""

    def answer(exchange: Exchange) -> Reply:
        response = exchange.response
        if exchange.api_key == FetchRequest.API_KEY:
            for mark in marks:
                response = response.replace(mark, mark[:-1] + bytes([mark[-1] ^ 1]))
        return response

    return answer


class NextFailures:
    """
    Puts an error code into the next ``times`` answers to one kind of request, as ``failing`` does.

    Unlike ``failing``, it counts from its creation, so a test can set it as the ``answer`` of a proxy that is in use,
    or of all proxies of a cluster.
    """

    def __init__(self, api_key: int, code: int, times: int = 1) -> None:
        self._api_key = api_key
        self._code = code
        self._left = times
        self._lock = threading.Lock()
        self.made = 0
        """The number of answers that have got the code so far."""

    def __call__(self, exchange: Exchange) -> Reply:
        with self._lock:
            if exchange.api_key != self._api_key or not self._left:
                return exchange.response
            reply = _failed(exchange, self._api_key, self._code)
            if reply is not exchange.response:
                self._left -= 1
                self.made += 1
            return reply


class NextRefusals:
    """
    Has a proxy refuse the next ``times`` requests of one kind, as its ``refusal``: the broker does not get them.

    Unlike after ``NextFailures``, a JoinGroup that is refused leaves no member at the broker, for which others wait.
    """

    def __init__(self, api_key: int, code: int, times: int = 1) -> None:
        refusal(api_key, code)  # Raises an error for a request that cannot be refused.
        self._api_key = api_key
        self._code = code
        self._left = times
        self._lock = threading.Lock()
        self.made = 0
        """The number of requests that have been refused so far."""

    def __call__(self, api_key: int, api_version: int) -> bytes | None:
        with self._lock:
            if api_key != self._api_key or not self._left or not understands(api_key, api_version):
                return None
            self._left -= 1
            self.made += 1
            return refusal(api_key, self._code, api_version)


def _failed(exchange: Exchange, api_key: int, code: int) -> bytes:
    if exchange.api_key != api_key or not understands(api_key, exchange.api_version):
        return exchange.response
    return with_error(api_key, exchange.response, code, exchange.api_version)


class KafkaProxy(FaultProxy):
    """
    Proxies one broker, as FaultProxy does, and can change its answers.

    In Metadata and FindCoordinator answers of version 0, the proxy replaces the broker's address by its own, so that
    clients stay connected to the proxy. Clients that look up brokers in ZooKeeper or request later versions bypass the
    proxy, unless the broker advertises the proxy's address (``Cluster(advertised=…)``).

    Args:
        upstream: The broker, ``host:port``, or a function that returns it.
        answer: Decides what clients receive. None forwards the broker's answers.
        addresses: Maps a broker's address to its proxy's. The proxies of a cluster share one dict, so that each knows
            all addresses.
        most_connections: The largest number of open connections. Further connections are reset at once.
    """

    def __init__(
        self,
        upstream: str | Callable[[], str],
        answer: Answer | None = None,
        *,
        addresses: dict[HostPort, HostPort] | None = None,
        most_connections: int = 1_000,
    ) -> None:
        super().__init__(upstream, most_connections=most_connections)
        self.answer: Answer | None = answer
        """The function that decides what clients receive; it may be replaced at any time."""
        self.refusal: Refusal | None = None
        """Decides which requests the proxy answers in place of the broker; it may be replaced at any time."""
        self._addresses = {} if addresses is None else addresses
        self._numbers: Counter[int] = Counter()
        self._pending: dict[Link, _Pending] = {}

    def _start(self) -> None:
        super()._start()
        if isinstance(self._upstream, str):
            self._replace_address(self._upstream)

    def _replace_address(self, upstream: str) -> None:
        self._addresses[parse_hosts(upstream, 0, "upstream")[0]] = HostPort("127.0.0.1", self.port)

    async def _forward(self, link: Link) -> None:
        if not isinstance(self._upstream, str):
            self._replace_address(self._upstream())
        self._pending[link] = _Pending()
        try:
            await super()._forward(link)
        finally:
            del self._pending[link]

    async def _pump(
        self, link: Link, direction: Direction, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        try:
            while True:
                head = await source.readexactly(SIZE_BYTES)
                frame = await source.readexactly(decode_size(head, _LARGEST_FRAME_BYTES))
                if direction is Direction.REQUESTS:
                    self._remember(link, frame)
                    await self._admit(link)
                    if not await self._refuse(link, frame):
                        await self._pass_on(direction, head + frame, sink)
                else:
                    async with self._pending[link].answering:
                        await self._reply(link, frame, sink)
                    await self._send_refusals(link)
        except asyncio.IncompleteReadError:
            # End of file. An incomplete frame is dropped, as its receiver could not use it.
            await self._admit(link)
            await self._flows[direction].wait()
            sink.write_eof()

    async def _admit(self, link: Link) -> None:
        """Wait until the bytes of this connection may pass; for subclasses."""

    def _remember(self, link: Link, frame: bytes) -> None:
        if len(frame) < _REQUEST_HEAD.size:
            raise ProtocolError(f"a request of {len(frame)} bytes has no room for its header")
        api_key, api_version, correlation_id = _REQUEST_HEAD.unpack_from(frame)
        unanswered = self._pending[link].unanswered
        unanswered[correlation_id] = (api_key, api_version, frame[_REQUEST_HEAD.size :])
        if len(unanswered) > _MOST_UNANSWERED:
            # Produce requests with acks=0 get no answer, so they would accumulate.
            del unanswered[next(iter(unanswered))]

    async def _refuse(self, link: Link, frame: bytes) -> bool:
        """Return whether the proxy answers a request itself, once the broker has answered all earlier ones."""
        api_key, api_version, correlation_id = _REQUEST_HEAD.unpack_from(frame)
        answer = self.refusal(api_key, api_version) if self.refusal is not None else None
        if answer is None:
            return False
        self._pending[link].refused[correlation_id] = answer
        await self._send_refusals(link)
        return True

    async def _send_refusals(self, link: Link) -> None:
        pending = self._pending[link]
        async with pending.answering:
            while (correlation_id := next(iter(pending.unanswered), None)) in pending.refused:
                assert correlation_id is not None
                del pending.unanswered[correlation_id]
                answer = _framed(correlation_id, pending.refused.pop(correlation_id))
                await self._pass_on(Direction.RESPONSES, answer, link.streams[Side.CLIENT][1])

    async def _reply(self, link: Link, frame: bytes, sink: asyncio.StreamWriter) -> None:
        correlation_id, payload = split_response(frame)
        api_key, api_version, request = self._pending[link].unanswered.pop(correlation_id)
        self._numbers[api_key] += 1
        response = bytes(payload)
        if understands(api_key, api_version):
            response = with_addresses(api_key, response, self._addresses)
        reply: Reply = response
        if self.answer is not None:
            reply = self.answer(Exchange(api_key, api_version, self._numbers[api_key], request, response))
        if reply is None:
            return
        await self._admit(link)
        whole = reply.response if isinstance(reply, Partial) else reply
        answer = _framed(correlation_id, whole)
        if not isinstance(reply, Partial):
            await self._pass_on(Direction.RESPONSES, answer, sink)
            return
        await self._pass_on(Direction.RESPONSES, answer[: _RESPONSE_HEAD.size + reply.sent_bytes], sink)
        if reply.then_reset:
            raise ConnectionResetError("the rule asked for it")
        await asyncio.Event().wait()


def _framed(correlation_id: int, response: bytes) -> bytes:
    return _RESPONSE_HEAD.pack(len(response) + SIZE_BYTES, correlation_id) + response
