"""The topics of a cluster for commands: read and changed through ZooKeeper, or by requests to brokers."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from kiel_groups.cli.parameters.options import SERVER_WAIT_S, ClusterAddress

if TYPE_CHECKING:
    from kiel_groups.config import HostPort
    from kiel_groups.ops.broker_reader import BrokerSession
    from kiel_groups.ops.cluster_admin import TopicState

__all__ = ["DescribedTopics", "TopicSize", "TopicSource", "topic_source"]

T = TypeVar("T")

_POLL_S = 0.1


class TopicSize(NamedTuple):
    """The number of a topic's partitions, and of the replicas of each."""

    partitions: int
    replication: int


class DescribedTopics(NamedTuple):
    """Topics, and the live brokers: their addresses and ids."""

    states: Sequence[TopicState]
    brokers: Sequence[HostPort]
    alive: frozenset[int]


class TopicSource(Protocol):
    """The topics of a cluster. Each method connects on its own, and raises a KielGroupsError if that fails."""

    def sizes(self) -> Mapping[str, TopicSize]:
        """Return all topics, by name, in alphabetical order."""

    def describe(self, names: Sequence[str]) -> DescribedTopics:
        """Return topics, in the order given. Raise UnknownTopicError if one does not exist."""

    def check_absent(self, names: Collection[str]) -> None:
        """Check that no topic has one of these names. Raise ConfigError if one does."""

    def check_present(self, names: Collection[str]) -> None:
        """Check that a topic of each of these names exists. Raise UnknownTopicError if one does not."""

    def await_brokers(self, count: int, timeout_s: float) -> None:
        """Wait until ``count`` brokers are alive, at most ``timeout_s`` seconds; a timeout raises no error."""

    def create(self, name: str, partitions: int, replication: int) -> None:
        """Create a topic, and wait for the leaders of its partitions."""

    def grow(self, name: str, partitions: int) -> None:
        """Increase the number of a topic's partitions, and wait for their leaders."""

    def delete(self, name: str) -> None:
        """Delete a topic, and wait until it is gone."""


def topic_source(cluster: ClusterAddress) -> TopicSource:
    """Return the topics of a cluster."""
    return _BrokerTopics(cluster.hosts) if cluster.is_of_brokers else _ZooKeeperTopics(cluster.hosts)


class _ZooKeeperTopics:
    """Topics in ZooKeeper; see ``TopicSource``."""

    def __init__(self, zookeeper: str) -> None:
        self._zookeeper = zookeeper

    def sizes(self) -> Mapping[str, TopicSize]:
        from kiel_groups.ops import cluster_admin

        with cluster_admin.zookeeper(self._zookeeper, timeout_s=SERVER_WAIT_S) as client:
            found = {topic: cluster_admin.partitions_of(client, topic) for topic in cluster_admin.topics(client)}
        return {topic: TopicSize(len(numbers), _most(numbers.values())) for topic, numbers in found.items()}

    def describe(self, names: Sequence[str]) -> DescribedTopics:
        from kiel_groups.ops import cluster_admin
        from kiel_groups.ops.cluster_admin import read_topics
        from kiel_groups.ops.group_inspection import broker_addresses, read_brokers

        with cluster_admin.zookeeper(self._zookeeper, timeout_s=SERVER_WAIT_S) as client:
            states = read_topics(client, names)
            alive = frozenset(cluster_admin.broker_ids(client))
            return DescribedTopics(states, broker_addresses(read_brokers(client)), alive)

    def check_absent(self, names: Collection[str]) -> None:
        from kiel_groups.ops import cluster_admin

        with cluster_admin.zookeeper(self._zookeeper, timeout_s=SERVER_WAIT_S) as client:
            cluster_admin.check_absent(client, names)

    def check_present(self, names: Collection[str]) -> None:
        from kiel_groups.ops import cluster_admin

        with cluster_admin.zookeeper(self._zookeeper, timeout_s=SERVER_WAIT_S) as client:
            cluster_admin.check_present(client, names)

    def await_brokers(self, count: int, timeout_s: float) -> None:
        from kiel_groups.ops import cluster_admin

        cluster_admin.await_brokers(self._zookeeper, count, timeout_s=timeout_s)

    def create(self, name: str, partitions: int, replication: int) -> None:
        from kiel_groups.ops import cluster_admin

        cluster_admin.create_topic(self._zookeeper, name, partitions, replication)

    def grow(self, name: str, partitions: int) -> None:
        from kiel_groups.ops import cluster_admin

        cluster_admin.grow_topic(self._zookeeper, name, partitions)

    def delete(self, name: str) -> None:
        from kiel_groups.ops import cluster_admin

        cluster_admin.delete_topic(self._zookeeper, name)


class _BrokerTopics:
    """Topics by requests to brokers; see ``TopicSource``."""

    def __init__(self, brokers: str) -> None:
        self._brokers = brokers

    def sizes(self) -> Mapping[str, TopicSize]:
        async def read(session: BrokerSession) -> Mapping[str, TopicSize]:
            return {
                name: TopicSize(len(topic.partitions), _most(each.replicas for each in topic.partitions))
                for name, topic in sorted(session.topics.items())
            }

        return self._with(read)

    def describe(self, names: Sequence[str]) -> DescribedTopics:
        from kiel_groups.ops.broker_reader import read_topics

        async def read(session: BrokerSession) -> DescribedTopics:
            states = read_topics(session, names)
            return DescribedTopics(states, list(session.brokers.values()), frozenset(session.brokers))

        return self._with(read)

    def check_absent(self, names: Collection[str]) -> None:
        from kiel_groups.ops import broker_reader as topic_states

        async def check(session: BrokerSession) -> None:
            topic_states.check_absent(session, names)

        self._with(check)

    def check_present(self, names: Collection[str]) -> None:
        from kiel_groups.ops import broker_reader as topic_states

        async def check(session: BrokerSession) -> None:
            topic_states.check_present(session, names)

        self._with(check)

    def await_brokers(self, count: int, timeout_s: float) -> None:
        from kiel_groups.errors import NoBrokersError

        async def alive(session: BrokerSession) -> int:
            return len(session.brokers)

        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                if self._with(alive) >= count:
                    return
            except NoBrokersError:
                pass  # None has started yet.
            time.sleep(_POLL_S)

    def create(self, name: str, partitions: int, replication: int) -> None:
        from kiel_groups.ops.broker_topics import create_topic

        self._with(lambda session: create_topic(session, name, partitions, replication))

    def grow(self, name: str, partitions: int) -> None:
        from kiel_groups.ops.broker_topics import grow_topic

        self._with(lambda session: grow_topic(session, name, partitions))

    def delete(self, name: str) -> None:
        from kiel_groups.ops.broker_topics import delete_topic

        self._with(lambda session: delete_topic(session, name))

    def _with(self, work: Callable[[BrokerSession], Awaitable[T]]) -> T:
        from kiel_groups.ops.broker_reader import in_session

        return in_session(self._brokers, SERVER_WAIT_S, work)


def _most(replicas: Iterable[Sequence[int]]) -> int:
    return max(map(len, replicas), default=0)
