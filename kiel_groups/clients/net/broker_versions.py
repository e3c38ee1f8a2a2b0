"""
Ask a broker which versions of each request it knows, without waiting for a time-out.

Brokers of 0.9 do not say their versions, and the question costs their other clients requests. So they are recognised by
another one first: see ``FetchProbeRequest``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from kiel_groups.backoff import Backoff
from kiel_groups.clients.net.connection import Connection
from kiel_groups.config import BrokerConfig, HostPort
from kiel_groups.errors import BrokerConnectionError, KielGroupsError, NoBrokersError
from kiel_groups.wire.framing import Request
from kiel_groups.wire.versions import ApiVersionsRequest, FetchProbeRequest, VersionRange

__all__ = ["BrokerVersions", "Brokers", "ask_versions"]

#: How often brokers are asked, and the first pause before they are asked again, in seconds. A broker that starts or
#: stops may close a connection, as one does that is too old; it does not do so each time.
_TRIES, _FIRST_PAUSE_S, _LONGEST_PAUSE_S = 3, 0.1, 1.0

#: How often a broker has to close the connection on the probe before it is asked for its versions at once. It is of
#: 0.10.0, or of 4.0 or later, then; one of 0.9 that is starting or stopping does not do so each time.
_REFUSED = 2


class Brokers(Protocol):
    """The connections of a client; see ``ClusterMetadata``."""

    @property
    def config(self) -> BrokerConfig: ...
    def connection_to(self, address: HostPort, purpose: str) -> Connection: ...
    def note_failure(self, connection: Connection) -> None: ...


class BrokerVersions(NamedTuple):
    """What the broker at an address knows, by API key; None if it is of 0.8 or 0.9, which do not say."""

    address: HostPort
    ranges: Mapping[int, VersionRange] | None


async def ask_versions(
    brokers: Brokers, address_of: Callable[[], HostPort], purpose: str, *, then: Request[Any] | None = None
) -> BrokerVersions:
    """
    Ask a broker for its versions, on a connection of its own, in a few tries.

    Args:
        brokers: The connections.
        address_of: Chooses the broker of each try.
        purpose: Of the connection, which no other call uses at the same time.
        then: A request for brokers of 0.8 and 0.9, whose answer is not read; those that do not know it close the
            connection.

    Raises:
        BrokerConnectionError: The broker has closed the connection on a request in each try.
        NoBrokersError: No broker has answered.
    """
    backoff, closed, refused = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S), 0, 0
    timeout_ms = brokers.config.connect_timeout_ms
    failure: KielGroupsError = NoBrokersError()
    for attempt in range(_TRIES):
        await asyncio.sleep(backoff.delay_s(attempt))
        address = address_of()
        connection = brokers.connection_to(address, purpose)
        is_open = is_probed = False
        try:
            await connection.wait_open()
            is_open = True
            # Brokers answer these requests from memory: one that takes longer than a handshake is stuck.
            is_later = refused >= _REFUSED or bool(await connection.request(FetchProbeRequest(), timeout_ms))
            is_probed = True
            if is_later:
                found = await connection.request(ApiVersionsRequest(), timeout_ms)
                assert found is not None, "the request has an answer"
                return BrokerVersions(address, found.versions)
            if then is not None:
                await connection.request(then, timeout_ms)
            return BrokerVersions(address, None)
        except KielGroupsError as error:
            failure = error
            is_closed = is_open and isinstance(error, BrokerConnectionError)
            closed += is_closed
            refused += is_closed and not is_probed
            brokers.note_failure(connection)
        finally:
            connection.close()
    if closed == _TRIES:
        raise BrokerConnectionError(f"{address} closes the connection on being asked") from failure
    raise NoBrokersError(f"{address} does not say which requests it knows: {failure}") from failure
