"""
A broker that answers wrongly on demand: the fault proxy, with an eye for the frames of Kafka's protocol.

Every answer of the broker is shown to a function, together with the request that it answers, and goes on as the
function says: as it is, rewritten, in part, or not at all.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from kiel_groups.config import HostPort, parse_hosts
from kiel_groups.embedded.faults.fault_proxy import Direction, FaultProxy, Link
from kiel_groups.embedded.faults.faulty_answers import with_addresses, with_error
from kiel_groups.errors import ProtocolError
from kiel_groups.wire.api.metadata_v0 import MetadataRequest
from kiel_groups.wire.framing import SIZE_BYTES, decode_size, split_response

__all__ = ["KafkaProxy", "Exchange", "Partial", "Reply", "Answer", "failing"]

_REQUEST_HEAD = struct.Struct(">hhi")
_RESPONSE_HEAD = struct.Struct(">ii")
_LARGEST_FRAME_BYTES = 100 << 20
_MOST_UNANSWERED = 10_000


@dataclass(frozen=True, slots=True)
class Exchange:
    """
    One request and the broker's answer to it.

    ``request`` is what follows the correlation id (client id and body), ``response`` what follows it in the answer.
    ``number`` counts the answers to requests of this kind through this proxy, from 1.
    """

    api_key: int
    api_version: int
    number: int
    request: bytes
    response: bytes


@dataclass(frozen=True, slots=True)
class Partial:
    """Announce the whole answer, send only its first ``sent_bytes``, and then reset the connection, or go silent."""

    response: bytes
    sent_bytes: int
    then_reset: bool = True


#: What goes to the client: an answer (after its correlation id), a part of one, or None for no answer ever.
Reply: TypeAlias = bytes | Partial | None

#: Called on the proxy's thread for every answer.
Answer: TypeAlias = Callable[[Exchange], Reply]


def failing(api_key: int, code: int, *, times: int | None = None) -> Answer:
    """
    Answer the first ``times`` requests of one kind (all of them if None) with an error code, the others as they are.

    The codes go to every partition of the answer; what the broker did for the request is done all the same.
    """

    def answer(exchange: Exchange) -> Reply:
        if exchange.api_key != api_key or (times is not None and exchange.number > times):
            return exchange.response
        return with_error(api_key, exchange.response, code)

    return answer


class KafkaProxy(FaultProxy):
    """
    Stands before one broker, as FaultProxy does, and gives clients the answers that it is told to.

    In Metadata it puts its own address in the place of the broker's, so that clients stay with it. Brokers that clients
    look up in ZooKeeper are not behind it, unless they advertise it (``advertised.port``).

    Args:
        upstream: The broker, ``host:port``, or a function that tells it.
        answer: What to reply; the broker's own answers if None.
        addresses: The broker's address → the proxy's; share one dict among the proxies of a cluster, so that each knows
            them all.
        most_connections: Further ones are reset at once.
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
        """May be set to another one at any time."""
        self._addresses = {} if addresses is None else addresses
        self._numbers: Counter[int] = Counter()
        self._unanswered: dict[Link, dict[int, tuple[int, int, bytes]]] = {}

    def _start(self) -> None:
        super()._start()
        if isinstance(self._upstream, str):
            self._stand_for(self._upstream)

    def _stand_for(self, upstream: str) -> None:
        self._addresses[parse_hosts(upstream, 0, "upstream")[0]] = HostPort("127.0.0.1", self.port)

    async def _carry(self, link: Link) -> None:
        if not isinstance(self._upstream, str):
            self._stand_for(self._upstream())
        self._unanswered[link] = {}
        try:
            await super()._carry(link)
        finally:
            del self._unanswered[link]

    async def _pump(
        self, link: Link, direction: Direction, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        try:
            while True:
                head = await source.readexactly(SIZE_BYTES)
                frame = await source.readexactly(decode_size(head, _LARGEST_FRAME_BYTES))
                if direction is Direction.REQUESTS:
                    self._remember(link, frame)
                    await self._pass_on(direction, head + frame, sink)
                else:
                    await self._reply(link, frame, sink)
        except asyncio.IncompleteReadError:
            # The end; a frame that was begun is worth nothing to the other side.
            await self._flows[direction].wait()
            sink.write_eof()

    def _remember(self, link: Link, frame: bytes) -> None:
        if len(frame) < _REQUEST_HEAD.size:
            raise ProtocolError(f"a request of {len(frame)} bytes has no room for its header")
        api_key, api_version, correlation_id = _REQUEST_HEAD.unpack_from(frame)
        unanswered = self._unanswered[link]
        unanswered[correlation_id] = (api_key, api_version, frame[_REQUEST_HEAD.size :])
        if len(unanswered) > _MOST_UNANSWERED:
            # Produced with acks 0: those get no answer.
            del unanswered[next(iter(unanswered))]

    async def _reply(self, link: Link, frame: bytes, sink: asyncio.StreamWriter) -> None:
        correlation_id, payload = split_response(frame)
        api_key, api_version, request = self._unanswered[link].pop(correlation_id)
        self._numbers[api_key] += 1
        response = bytes(payload)
        if api_key == MetadataRequest.API_KEY:
            response = with_addresses(response, self._addresses)
        reply: Reply = response
        if self.answer is not None:
            reply = self.answer(Exchange(api_key, api_version, self._numbers[api_key], request, response))
        if reply is None:
            return
        whole = reply.response if isinstance(reply, Partial) else reply
        answer = _RESPONSE_HEAD.pack(len(whole) + SIZE_BYTES, correlation_id) + whole
        if not isinstance(reply, Partial):
            await self._pass_on(Direction.RESPONSES, answer, sink)
            return
        await self._pass_on(Direction.RESPONSES, answer[: _RESPONSE_HEAD.size + reply.sent_bytes], sink)
        if reply.then_reset:
            raise ConnectionResetError("as told")
        await asyncio.Event().wait()
