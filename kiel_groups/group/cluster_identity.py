"""Decide whether a client's brokers belong to another cluster than the brokers that are registered in ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, TypeVar

from kiel_groups.config import HostPort
from kiel_groups.errors import ProtocolError
from kiel_groups.group.znodes.contents import parse_endpoints, parse_object, parse_replicas
from kiel_groups.model import INTERNAL_TOPICS
from kiel_groups.wording import counted, some

_Value = TypeVar("_Value")

#: The most topics that are compared.
MOST_TOPICS = 1_000


class ClusterIdentity(NamedTuple):
    """
    The identity of a cluster, as ZooKeeper or a broker reports it.

    ``brokers`` has the addresses of each live broker, by its id. ZooKeeper names all listeners of a broker, and a
    broker names one listener. ``topics`` has the replicas of each topic's partitions. A topic whose replicas were not
    read has an empty mapping. Only clusters of Kafka 0.10.1 and later have a ``cluster_id``. The id is "" if ZooKeeper
    certainly has no id, and None if it is not known.
    ``asked`` has the broker addresses that the client knew before the brokers answered.
    """

    brokers: Mapping[int, frozenset[HostPort]]
    topics: Mapping[str, Mapping[int, tuple[int, ...]]] = {}
    cluster_id: str | None = None
    asked: frozenset[HostPort] = frozenset()

    @classmethod
    def registered(
        cls,
        brokers: Mapping[int, bytes | None],
        topics: Mapping[str, bytes | None] = {},
        cluster_id: bytes | None = None,
        *,
        has_no_id: bool = False,
    ) -> ClusterIdentity:
        """
        Return the identity of the cluster that ZooKeeper registers.

        Args:
            brokers: The data of brokers' znodes, by id, or None for a znode that is gone, or cannot be read.
            topics: The data of topics' znodes, or None for a znode that was not read.
            cluster_id: The data of ``/cluster/id``.
            has_no_id: Whether that znode certainly does not exist.
        """
        addresses = {each: _parsed(parse_endpoints, its) for each, its in brokers.items()}
        replicas = {topic: _parsed(parse_replicas, its) or {} for topic, its in topics.items()}
        found = (_parsed(parse_object, cluster_id) or {}).get("id")
        known = found if isinstance(found, str) and found else None
        return cls({each: its for each, its in addresses.items() if its}, replicas, "" if has_no_id else known)

    @property
    def addresses(self) -> frozenset[HostPort]:
        """All addresses of all brokers."""
        return frozenset[HostPort]().union(*self.brokers.values())

    def may_differ(self, named: ClusterIdentity) -> bool:
        """
        Return whether the two sides may be different clusters: both have addresses, and no address in common.

        Such a difference is rare, because brokers answer with the registered addresses. Possible causes are another
        cluster, a broker that is cut off from ZooKeeper and knows only itself, or a proxy that changes the addresses in
        answers. Brokers of 0.8 name no broker while their cluster has no topic. Then the addresses in ``named.asked``
        count.
        """
        theirs = named.addresses or named.asked
        return bool(self.addresses and theirs and not self.addresses & theirs)

    def to_compare(self, topics: Collection[str]) -> list[str]:
        """
        Return the topics whose replicas must be compared, in order.

        The result has at most ``MOST_TOPICS`` of the topics that both sides have, without internal topics.
        """
        return sorted(self.topics.keys() & set(topics) - INTERNAL_TOPICS)[:MOST_TOPICS]

    def difference(self, named: ClusterIdentity) -> str:
        """
        Return why ``named``, from a broker, is certainly another cluster than ``self``, or "" if that is not certain.

        If both clusters' ids are known, the ids decide. Before brokers with a cluster id register, they write this id
        to their ZooKeeper. So a ZooKeeper without a cluster id is not the ZooKeeper of such brokers.

        Otherwise, the topics decide. A proxy changes neither the names nor the replicas of topics, and a broker that is
        cut off remembers most topics. The clusters are different if more topics differ than agree. A topic of only one
        side may have been created or deleted just now. So two such topics, one of each side, count as one difference.
        """
        if not self.may_differ(named):
            return ""
        if self.cluster_id is not None and named.cluster_id:
            if self.cluster_id == named.cluster_id:
                return ""
            its = f"the cluster id {self.cluster_id}" if self.cluster_id else "no cluster id"
            return f"ZooKeeper has {its}, and the brokers have {named.cluster_id}"
        ours, theirs = (side.topics.keys() - INTERNAL_TOPICS for side in (self, named))
        agreement = [self._agrees(topic, named) for topic in ours & theirs]
        same, other = agreement.count(True), agreement.count(False)
        if other + min(len(ours - theirs), len(theirs - ours)) <= same:
            return ""
        if not ours & theirs:
            return f"ZooKeeper has the topics {some(sorted(ours))}, and the brokers have {some(sorted(theirs))}"
        alike = counted(same, "topic is", "topics are")
        return f"{alike} the same, of {len(ours):,} that ZooKeeper has, and {len(theirs):,} that the brokers have"

    def doubt(self, named: ClusterIdentity) -> str:
        """
        Return why it is not known whether ``named`` is from this cluster, or "" if there is no doubt.

        While this cluster has no topic, the result is "", because members have nothing to consume.
        """
        if not self.may_differ(named) or (self.cluster_id is not None and named.cluster_id) or self.difference(named):
            return ""
        ours, theirs = (side.topics.keys() - INTERNAL_TOPICS for side in (self, named))
        if not ours or any(self._agrees(topic, named) for topic in ours & theirs):
            return ""
        registered, others = (
            some(f"broker {each} at {some(sorted(its))}" for each, its in sorted(side.brokers.items())) or "no broker"
            for side in (self, named)
        )
        return (
            f"ZooKeeper registers {registered} and has {counted(ours, 'topic')}, and the brokers name {others} and"
            f" {counted(theirs, 'topic')}"
        )

    def _agrees(self, topic: str, named: ClusterIdentity) -> bool | None:
        """Return whether both sides have the same replicas of a topic, or None if ``named`` has no replicas of it."""
        verdicts = set()
        for partition, replicas in self.topics[topic].items():
            # Brokers of 0.8 leave dead replicas out of their answers, and answer none together with an error.
            live = tuple(each for each in replicas if each in named.brokers)
            answered = tuple(each for each in named.topics[topic].get(partition, ()) if each in named.brokers)
            if answered:
                verdicts.add(live == answered)
        return all(verdicts) if verdicts else None


def _parsed(parse: Callable[[bytes, str], _Value], data: bytes | None) -> _Value | None:
    """Return the parsed data of a znode, or None if the znode was not read or is unreadable."""
    try:
        # The path would be part of the error only.
        return parse(data or b"", "")
    except ProtocolError:
        return None
