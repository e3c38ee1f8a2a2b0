"""
A Kafka proxy that distinguishes brokers from clients, and can stall the traffic of some brokers while all others pass.

Brokers send their requests to the same address as clients. A request's sender is found in its client id or, before
0.10, in the first field of a fetch.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable, Iterable

from kiel_groups.errors import ProtocolError
from kiel_groups.wire.fetch import FetchRequest
from kiel_groups.wire.primitives import Reader
from tests.proxies.fault_proxy import Link
from tests.proxies.kafka_proxy import KafkaProxy

__all__ = ["SenderProxy", "sender_of"]

#: The client ids of a broker: a replica fetcher, a follower of the controller's log, a broker as a controller's client
#: or, in ZooKeeper mode, the controller itself.
_BROKERS_CLIENT = re.compile(r"broker-(\d+)-.*|raft-client-(\d+)|(\d+)")
#: Later versions of Fetch have other first fields, and come from releases whose fetchers have client ids.
_LAST_FETCH_WITH_REPLICA = 14


def sender_of(request: bytes) -> int | None:
    """Return the number of the broker that sent a request (without its size), or None if a client sent it."""
    reader = Reader(request, "a request")
    try:
        api_key, api_version, _ = reader.int16(), reader.int16(), reader.int32()
        found = _BROKERS_CLIENT.fullmatch(reader.optional_string())
        if found is not None:
            return int(next(filter(None, found.groups())))
        if api_key == FetchRequest.API_KEY and api_version <= _LAST_FETCH_WITH_REPLICA:
            replica = reader.int32()
            return replica if replica >= 0 else None
    except ProtocolError:
        return None  # A request without a client id, which only brokers of 0.8 send.
    return None


class SenderProxy(KafkaProxy):
    """
    Proxies one broker or controller, as KafkaProxy does, and can stall the connections of some brokers.

    Args:
        upstream: The broker or controller, ``host:port``, or a function that returns it.
    """

    def __init__(self, upstream: str | Callable[[], str]) -> None:
        super().__init__(upstream)
        self._senders: dict[Link, int | None] = {}
        self._open: defaultdict[int | None, asyncio.Event] = defaultdict(_set_event)

    def stall_brokers(self, numbers: Iterable[int]) -> None:
        """Stop forwarding the bytes of connections from these brokers, in both directions. ``heal`` ends that, too."""

        def stall() -> None:
            for number in numbers:
                self._open[number].clear()

        self._on_thread(stall)

    def heal(self) -> None:
        """End all faults. Connections that were cut stay closed."""
        super().heal()

        def heal() -> None:
            for event in self._open.values():
                event.set()

        self._on_thread(heal)

    async def _forward(self, link: Link) -> None:
        try:
            await super()._forward(link)
        finally:
            self._senders.pop(link, None)

    def _remember(self, link: Link, frame: bytes) -> None:
        super()._remember(link, frame)
        if link not in self._senders:
            self._senders[link] = sender_of(frame)

    async def _admit(self, link: Link) -> None:
        await self._open[self._senders.get(link)].wait()


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event
