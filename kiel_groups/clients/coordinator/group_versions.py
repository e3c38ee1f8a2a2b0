"""Find out which group requests the brokers know, without waiting for a time-out: 0.9 does not say its versions."""

from __future__ import annotations

from typing import Protocol

from kiel_groups.clients.calls.eager_methods import spawn
from kiel_groups.clients.net.connection import Connection
from kiel_groups.config import HostPort
from kiel_groups.errors import BrokerConnectionError, BrokerError, ConfigError, NoBrokersError
from kiel_groups.wire.api.fetch_v0 import FetchRequest
from kiel_groups.wire.groups.api_versions_v0 import ApiVersionsRequest, ApiVersionsResponse
from kiel_groups.wire.groups.join_group import JoinGroupRequestV1
from kiel_groups.wire.groups.list_groups_v0 import ListGroupsRequest

__all__ = ["GroupVersions"]

#: How often brokers are asked before they count as too old; one that is starting may close a connection.
_TRIES = 3

#: The releases in which brokers began to coordinate groups, and to know a rebalance timeout of a member.
_COORDINATING, _REBALANCE_TIMEOUT = (0, 9), (0, 10, 1)


class _Brokers(Protocol):
    """The connections of a client; see ``ClusterMetadata``."""

    def some_connection(self) -> Connection: ...
    def connection_to(self, address: HostPort, purpose: str) -> Connection: ...


class GroupVersions:
    """
    What the brokers know of the group protocol.

    ``has_rebalance_timeout``: they know JoinGroup v1. Until ``probe`` has returned, the oldest version is assumed.

    Args:
        api_version: The brokers' release, such as ``(0, 9)``; None to ask them.

    Raises:
        ConfigError: The release is not a tuple of numbers, or its brokers coordinate no groups.
    """

    def __init__(self, api_version: tuple[int, ...] | None = None) -> None:
        if api_version is not None:
            if not isinstance(api_version, tuple) or not all(type(number) is int for number in api_version):
                raise ConfigError(f"api_version: {api_version!r} given; expected a release as a tuple, such as (0, 9)")
            if api_version < _COORDINATING:
                raise ConfigError(f"api_version: {api_version} given; {_TOO_OLD}")
        self._api_version = api_version
        self.has_rebalance_timeout = api_version is not None and api_version >= _REBALANCE_TIMEOUT

    async def probe(self, brokers: _Brokers) -> None:
        """
        Ask a broker for its versions, unless the release is given.

        The question is followed by a request that every coordinating broker answers. Brokers answer in order, so when
        that answer comes without one to the question, the broker is of 0.9, which has no such question.

        Raises:
            ConfigError: The brokers are too old or too new.
            NoBrokersError: No broker answered.
        """
        if self._api_version is not None:
            return
        for attempt in range(1, _TRIES + 1):
            address = brokers.some_connection().address
            connection = brokers.connection_to(address, "versions")
            asking = spawn(connection.request(ApiVersionsRequest()), "question for API versions")
            try:
                await connection.wait_open()
                await connection.request(ListGroupsRequest())
                found = asking.result() if asking.done() else None
            except BrokerConnectionError as error:
                # Brokers of 0.8 close the connection on a request that they do not know.
                if attempt == _TRIES:
                    raise ConfigError(
                        f"coordination: 'brokers' given, and {address} does not know group requests: {_TOO_OLD}"
                    ) from error
            except BrokerError as error:
                if attempt == _TRIES:
                    raise NoBrokersError(f"{address} does not say which requests it knows: {error}") from error
            else:
                self._read(found, address)
                return
            finally:
                connection.close()
                asking.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _read(self, found: ApiVersionsResponse | None, address: HostPort) -> None:
        if found is None:
            return
        fetches, joins = found.versions.get(FetchRequest.API_KEY), found.versions.get(JoinGroupRequestV1.API_KEY)
        if fetches is None or fetches.least > FetchRequest.API_VERSION:
            raise ConfigError(
                f"brokers: {address} does not know the fetch requests of Kafka 0.8 any more, as those of Kafka 4; this"
                " version of kiel-groups reads from Kafka 0.8 to 3.9"
            )
        self.has_rebalance_timeout = joins is not None and joins.most >= JoinGroupRequestV1.API_VERSION


_TOO_OLD = "brokers coordinate groups from Kafka 0.9 on; with older ones, use coordination='zookeeper'"
