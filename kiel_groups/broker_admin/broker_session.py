"""Connect a tool to the brokers of a cluster, for as long as one call of the tool takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Self, TypeVar

from kiel_groups.clients.coordinator.group_versions import GroupVersions
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.config import KAFKA_PORT, BrokerConfig, HostPort, parse_hosts
from kiel_groups.errors import BrokerError
from kiel_groups.metrics import Metrics
from kiel_groups.wire.api.metadata_v0 import MetadataResponse, TopicMetadata
from kiel_groups.wire.framing import Request
from kiel_groups.wire.groups.coordinator_offsets import OFFSETS_TOPIC
from kiel_groups.wording import counted

__all__ = ["BrokerSession", "in_session"]

T = TypeVar("T")

_CONNECT_MS = 2_000
_POLL_S = 0.05


class BrokerSession:
    """
    The connections of a tool to the brokers of a cluster, open during an ``async with`` block.

    Entering the block finds a broker that answers, and checks that brokers coordinate groups. ``ranges`` then has the
    requests that brokers know, by API key; it is empty for brokers of 0.9, which do not say.

    Args:
        brokers: ``host:port`` of some brokers, separated by commas.
        timeout_s: How long a broker may take for an answer, in seconds.

    Raises:
        ConfigError: An address is not legal. On entering: the brokers are too old, or too new.
        NoBrokersError: On entering: no broker answers.
    """

    def __init__(self, brokers: str, *, timeout_s: float) -> None:
        hosts = parse_hosts(brokers, KAFKA_PORT, "brokers")
        limit_ms = max(1, round(timeout_s * 1000))
        config = BrokerConfig(hosts=hosts, connect_timeout_ms=min(_CONNECT_MS, limit_ms), request_timeout_ms=limit_ms)
        self.cluster = ClusterMetadata(config, Metrics())
        self.place = f"at brokers {', '.join(map(str, hosts))}"
        self.timeout_s = timeout_s
        self.metadata = MetadataResponse((), ())
        self._versions = GroupVersions()

    @property
    def ranges(self) -> frozenset[int]:
        """The API keys of the requests that the brokers know; empty for those of 0.9, which do not say."""
        return frozenset(self._versions.ranges)

    @property
    def is_of_0_9(self) -> bool:
        """Whether the brokers are of 0.9, which does not list groups without members."""
        return not self.ranges

    @property
    def topics(self) -> dict[str, TopicMetadata]:
        """All topics, as last read."""
        return {topic.topic: topic for topic in self.metadata.topics}

    @property
    def has_coordinators(self) -> bool:
        """Whether a coordinator has ever been asked for. To ask for one would create the topic of the offsets."""
        return OFFSETS_TOPIC in self.topics

    @property
    def brokers(self) -> dict[int, HostPort]:
        """The live brokers by node id, as last read."""
        return self.cluster.brokers

    def name_of(self, node_id: int) -> str:
        """Return a broker's node id and address, as users read it."""
        address = self.brokers.get(node_id)
        return f"broker {node_id}" if address is None else f"broker {node_id} at {address}"

    async def refresh(self) -> None:
        """Read the live brokers and all topics. Raise NoBrokersError if no broker answers."""
        self.metadata = await self.cluster.all_metadata()

    async def await_brokers(self, count: int, limit_s: float) -> None:
        """Wait until ``count`` brokers are alive. Raise BrokerError if there are fewer after ``limit_s`` seconds."""
        until_s = asyncio.get_running_loop().time() + limit_s
        while len(self.brokers) < count:
            if asyncio.get_running_loop().time() > until_s:
                alive = counted(self.brokers, "broker is", "brokers are")
                names = ", ".join(map(self.name_of, sorted(self.brokers))) or "none"
                raise BrokerError(f"{alive} alive {self.place} after {limit_s:g} s, expected {count}; alive: {names}")
            await asyncio.sleep(_POLL_S)
            await self.refresh()

    async def ask(self, node_id: int, request: Request[T], timeout_ms: int | None = None) -> T:
        """
        Send a request to one broker, once.

        Raises:
            KielGroupsError: The broker cannot be reached, or its answer cannot be read.
        """
        return await self.cluster.send(node_id, request, timeout_ms=timeout_ms)

    async def __aenter__(self) -> Self:
        try:
            await self.refresh()
            await self._versions.probe(self.cluster)
        except BaseException:
            self.cluster.close()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.cluster.close()


def in_session(brokers: str, timeout_s: float, work: Callable[[BrokerSession], Awaitable[T]]) -> T:
    """
    Open a session, call ``work`` with it, and return its result. The call blocks; its thread runs no event loop.

    Raises:
        KielGroupsError: As for ``BrokerSession``, which has these arguments, and the errors of ``work``.
    """

    async def run() -> T:
        async with BrokerSession(brokers, timeout_s=timeout_s) as session:
            return await work(session)

    return asyncio.run(run())
