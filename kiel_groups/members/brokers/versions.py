"""Find out which versions of group requests, such as JoinGroup v1, the brokers know."""

from __future__ import annotations

from collections.abc import Mapping

from kiel_groups.clients.net.cluster_metadata import BrokerVersions, ClusterMetadata
from kiel_groups.errors import BrokerConnectionError, ConfigError
from kiel_groups.wire.group_requests import JoinGroupRequestV1, JoinGroupRequestV4, ListGroupsRequest
from kiel_groups.wire.metadata import TopicIdsRequest
from kiel_groups.wire.versions import TOO_NEW, VersionRange, supports_early_requests

#: The releases in which brokers began to coordinate groups, to know a rebalance timeout of a member, to name a member
#: before it waits for the others, to know ids of topics, and to refuse the fetch requests of this package.
_COORDINATING, _REBALANCE_TIMEOUT, _NAMES_FIRST, _TOPIC_IDS, _WITHOUT_FETCH = (0, 9), (0, 10, 1), (2, 2), (2, 8), (4,)


class GroupVersions:
    """
    The versions of group requests that the brokers know.

    ``has_rebalance_timeout`` is true if brokers know JoinGroup v1, ``names_members_first`` if they know JoinGroup v4,
    and ``has_topic_ids`` if they know Metadata v10. Without a given release, the oldest versions are assumed until
    ``probe`` has returned. ``ranges`` has the versions that the asked broker knows, by API key. ``ranges`` is empty if
    no broker was asked. It is also empty for a broker of 0.9, because such a broker does not list its versions.

    Args:
        api_version: The brokers' release, such as ``(0, 9)``, or None to ask the brokers.

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
                raise ConfigError(f"api_version: {api_version} given, whose brokers {TOO_NEW}")
        self._api_version = api_version
        self.has_rebalance_timeout = api_version is not None and api_version >= _REBALANCE_TIMEOUT
        self.names_members_first = api_version is not None and api_version >= _NAMES_FIRST
        self.has_topic_ids = api_version is not None and api_version >= _TOPIC_IDS
        self.ranges: Mapping[int, VersionRange] = {}

    async def probe(self, cluster: ClusterMetadata) -> None:
        """
        Ask a broker for its versions, unless the release is given.

        Raises:
            ConfigError: The brokers are too old or too new.
            NoBrokersError: No broker answered.
        """
        if self._api_version is not None:
            return
        try:
            # Every coordinating broker answers this request. Brokers of 0.8 close the connection.
            found = await cluster.ask_versions(
                lambda: cluster.some_connection().address, "versions", then=ListGroupsRequest()
            )
        except BrokerConnectionError as error:
            raise ConfigError(
                f"coordination: 'brokers' given, and {error}, so it does not know group requests: {_TOO_OLD}"
            ) from error
        self._read(found)

    def _read(self, found: BrokerVersions) -> None:
        self.ranges = found.ranges or {}
        joins = self.ranges.get(JoinGroupRequestV1.API_KEY)
        if found.ranges is not None and not supports_early_requests(found.ranges):
            raise ConfigError(f"brokers: {found.address} and the other brokers of its release {TOO_NEW}")
        self.has_rebalance_timeout = joins is not None and joins.most >= JoinGroupRequestV1.API_VERSION
        self.names_members_first = joins is not None and joins.most >= JoinGroupRequestV4.API_VERSION
        metadata = self.ranges.get(TopicIdsRequest.API_KEY)
        self.has_topic_ids = metadata is not None and metadata.most >= TopicIdsRequest.API_VERSION


_TOO_OLD = "brokers coordinate groups from Kafka 0.9 on; with older ones, use coordination='zookeeper'"
