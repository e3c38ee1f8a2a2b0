"""
Find out which group requests the brokers know, without waiting for a time-out.

Brokers of 0.9 do not say their versions, and the question costs their other clients requests. So they are recognised by
another one first: see ``FetchProbeRequest``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from kiel_groups.backoff import Backoff
from kiel_groups.clients.net.connection import Connection
from kiel_groups.config import BrokerConfig, HostPort
from kiel_groups.errors import BrokerConnectionError, ConfigError, KielGroupsError, NoBrokersError
from kiel_groups.wire.api.fetch_v0 import FetchRequest
from kiel_groups.wire.api.topic_ids_v10 import TopicIdsRequest
from kiel_groups.wire.groups.api_versions_v0 import ApiVersionsRequest, ApiVersionsResponse, VersionRange
from kiel_groups.wire.groups.fetch_probe_v3 import FetchProbeRequest
from kiel_groups.wire.groups.join_group import JoinGroupRequestV1
from kiel_groups.wire.groups.list_groups_v0 import ListGroupsRequest

__all__ = ["GroupVersions"]

#: How often brokers are asked, and the first pause before they are asked again, in seconds. A broker that starts or
#: stops may close a connection, as one does that is too old; it does not do so each time.
_TRIES, _FIRST_PAUSE_S, _LONGEST_PAUSE_S = 3, 0.1, 1.0

#: How often a broker has to close the connection on the probe before it is asked for its versions at once. It is of
#: 0.10.0, or of 4.0 or later, then; one of 0.9 that is starting or stopping does not do so each time.
_REFUSED = 2

#: The releases in which brokers began to coordinate groups, to know a rebalance timeout of a member and ids of topics,
#: and to refuse the fetch requests of this package.
_COORDINATING, _REBALANCE_TIMEOUT, _TOPIC_IDS, _WITHOUT_FETCH = (0, 9), (0, 10, 1), (2, 8), (4,)


class _Brokers(Protocol):
    """The connections of a client; see ``ClusterMetadata``."""

    @property
    def config(self) -> BrokerConfig: ...
    def some_connection(self) -> Connection: ...
    def connection_to(self, address: HostPort, purpose: str) -> Connection: ...
    def note_failure(self, connection: Connection) -> None: ...


class GroupVersions:
    """
    What the brokers know of the group protocol.

    ``has_rebalance_timeout``: they know JoinGroup v1. ``has_topic_ids``: they know Metadata v10. Until ``probe`` has
    returned, the oldest version is assumed. ``ranges``: what the asked broker knows, by API key; empty if it is of 0.9,
    which does not say.

    Args:
        api_version: The brokers' release, such as ``(0, 9)``; None to ask them.

    Raises:
        ConfigError: The release is not a tuple of numbers, or its brokers are too old or too new.
    """

    def __init__(self, api_version: tuple[int, ...] | None = None) -> None:
        if api_version is not None:
            if not isinstance(api_version, tuple) or not all(type(number) is int for number in api_version):
                raise ConfigError(f"api_version: {api_version!r} given; expected a release as a tuple, such as (0, 9)")
            if api_version < _COORDINATING:
                raise ConfigError(f"api_version: {api_version} given; {_TOO_OLD}")
            if api_version >= _WITHOUT_FETCH:
                raise ConfigError(f"api_version: {api_version} given, whose brokers {_TOO_NEW}")
        self._api_version = api_version
        self.has_rebalance_timeout = api_version is not None and api_version >= _REBALANCE_TIMEOUT
        self.has_topic_ids = api_version is not None and api_version >= _TOPIC_IDS
        self.ranges: Mapping[int, VersionRange] = {}

    async def probe(self, brokers: _Brokers) -> None:
        """
        Ask a broker for its versions, unless the release is given.

        Raises:
            ConfigError: The brokers are too old or too new.
            NoBrokersError: No broker answered.
        """
        if self._api_version is not None:
            return
        backoff, closed, refused = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S), 0, 0
        timeout_ms = brokers.config.connect_timeout_ms
        failure: KielGroupsError = NoBrokersError()
        for attempt in range(_TRIES):
            await asyncio.sleep(backoff.delay_s(attempt))
            address = brokers.some_connection().address
            connection = brokers.connection_to(address, "versions")
            is_open = is_probed = False
            try:
                await connection.wait_open()
                is_open = True
                # Brokers answer these requests from memory: one that takes longer than a handshake is stuck.
                is_later = refused >= _REFUSED or bool(await connection.request(FetchProbeRequest(), timeout_ms))
                is_probed = True
                found = await _ask(connection, timeout_ms, is_later=is_later)
            except KielGroupsError as error:
                failure = error
                # Brokers of 0.8 close the connection on a request that they do not know.
                is_closed = is_open and isinstance(error, BrokerConnectionError)
                closed += is_closed
                refused += is_closed and not is_probed
                brokers.note_failure(connection)
            else:
                self._read(found, address)
                return
            finally:
                connection.close()
        if closed == _TRIES:
            raise ConfigError(
                f"coordination: 'brokers' given, and {address} does not know group requests: {_TOO_OLD}"
            ) from failure
        raise NoBrokersError(f"{address} does not say which requests it knows: {failure}") from failure

    def _read(self, found: ApiVersionsResponse | None, address: HostPort) -> None:
        if found is None:
            self.has_rebalance_timeout = self.has_topic_ids = False
            return
        self.ranges = found.versions
        fetches, joins = found.versions.get(FetchRequest.API_KEY), found.versions.get(JoinGroupRequestV1.API_KEY)
        if fetches is None or fetches.least > FetchRequest.API_VERSION:
            raise ConfigError(f"brokers: {address} and the other brokers of its release {_TOO_NEW}")
        self.has_rebalance_timeout = joins is not None and joins.most >= JoinGroupRequestV1.API_VERSION
        metadata = found.versions.get(TopicIdsRequest.API_KEY)
        self.has_topic_ids = metadata is not None and metadata.most >= TopicIdsRequest.API_VERSION


async def _ask(connection: Connection, timeout_ms: int, *, is_later: bool) -> ApiVersionsResponse | None:
    """Ask a broker for its versions; None if it is not of a later release than 0.9, and so has no such question."""
    if is_later:
        return await connection.request(ApiVersionsRequest(), timeout_ms)
    # Every coordinating broker answers this request. Brokers of 0.8 close the connection.
    await connection.request(ListGroupsRequest(), timeout_ms)
    return None


_TOO_OLD = "brokers coordinate groups from Kafka 0.9 on; with older ones, use coordination='zookeeper'"
_TOO_NEW = (
    "do not know the fetch requests of Kafka 0.8 any more, as those of Kafka 4; this version of kiel-groups reads from"
    " Kafka 0.8 to 3.9"
)
