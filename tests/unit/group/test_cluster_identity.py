"""Brokers of another cluster than ZooKeeper's: what proves that, and what does not."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from kiel_groups.config import HostPort
from kiel_groups.group.cluster_identity import ClusterIdentity

pytestmark = pytest.mark.unit

Topics = Mapping[str, Mapping[int, tuple[int, ...]]]
ORDERS: Topics = {"orders": {0: (1, 2), 1: (2, 1)}, "clicks": {0: (2, 1)}}


def cluster(host: str, *ids: int, topics: Topics = ORDERS, cluster_id: str | None = None) -> ClusterIdentity:
    return ClusterIdentity({each: frozenset({HostPort(host, 9000 + each)}) for each in ids}, topics, cluster_id)


OURS = cluster("ours", 1, 2)


@pytest.mark.parametrize(
    "named",
    [
        cluster("ours", 1, 2),
        cluster("ours", 2, 9, topics={"other": {0: (9,)}}),
        cluster("proxy", 1, 2),
        cluster("proxy", 1, topics={"orders": {0: (1,), 1: (1,)}, "clicks": {0: (1,)}}),
        cluster("proxy", 1, 2, topics={**ORDERS, "deleted": {0: (1,)}}),
        cluster("proxy", 1, 2, topics={"orders": ORDERS["orders"], "__consumer_offsets": {0: (2,)}}),
        cluster("proxy", 3, topics={"orders": {0: (), 1: ()}, "clicks": {0: ()}}),
        cluster("proxy", 1, 2, topics={"orders": {0: (), 1: ()}, "clicks": {}}),
        cluster("other", topics={}),
        cluster("other", 1, topics={}),
        cluster("other", 1, topics={"__consumer_offsets": {0: (1,)}}),
    ],
    ids=[
        "the same",
        "one address in common",
        "behind a proxy",
        "behind a proxy, a broker is down",
        "behind a proxy, a topic is deleted",
        "behind a proxy, a topic is new",
        "behind a proxy, all replicas are dead",
        "behind a proxy, no topic has a leader",
        "a broker that starts",
        "no topics yet",
        "topics that every cluster has",
    ],
)
def test_what_is_no_proof(named: ClusterIdentity) -> None:
    """A false alarm would stop a healthy consumer."""
    assert OURS.difference(named) == ""


@pytest.mark.parametrize(
    ("named", "why"),
    [
        (
            cluster("other", 1, 2, topics={"bids": {0: (1,)}}),
            "topics clicks, orders, and the brokers have bids",
        ),
        (cluster("other", 5, 6, topics={"orders": {0: (5, 6), 1: (6, 5)}}), "0 topics are the same, of 2 that"),
        (cluster("other", 1, 2, topics={"orders": {0: (2, 1), 1: (1, 2)}, "clicks": {0: (1, 2)}}), "0 topics are"),
        (cluster("other", 1, 2, topics={"clicks": ORDERS["clicks"], "a": {0: (1,)}, "b": {0: (1,)}}), ""),
    ],
    ids=["no topic in common", "other ids", "other replicas", "one topic looks the same"],
)
def test_another_cluster_is_recognised_by_its_topics(named: ClusterIdentity, why: str) -> None:
    """Addresses and most topics differ."""
    ours = cluster("ours", 1, 2, topics={**ORDERS, "x": {0: (1,)}, "y": {0: (2,)}}) if not why else OURS
    assert (why or "1 topic is the same, of 4 that ZooKeeper has, and 3 that the brokers have") in ours.difference(
        named
    )


SILENT = ClusterIdentity({}, asked=frozenset({HostPort("other", 9001)}))


@pytest.mark.parametrize(
    ("ours", "named", "why"),
    [
        (OURS, SILENT, "and has 2 topics, and the brokers name no broker and 0 topics"),
        (OURS, cluster("other", 7, topics={}), "and the brokers name broker 7 at other:9007 and 0 topics"),
        (OURS, cluster("other", 1, topics={"orders": {0: ()}}), "name broker 1 at other:9001 and 1 topic"),
        (OURS, SILENT._replace(asked=frozenset({HostPort("ours", 9001)})), ""),
        (OURS, cluster("proxy", 1, 2), ""),
        (OURS, cluster("other", 5, topics={"bids": {0: (5,)}, "asks": {0: (5,)}}), ""),
        (OURS._replace(cluster_id="A"), cluster("proxy", 1, topics={}, cluster_id="A"), ""),
        (OURS._replace(cluster_id="A"), SILENT, "and has 2 topics, and the brokers name no broker"),
        (OURS._replace(topics={}), SILENT, ""),
        (ClusterIdentity({}), SILENT, ""),
    ],
    ids=[
        "no topic, no broker named",
        "no topic",
        "a topic without replicas",
        "a registered address was asked",
        "behind a proxy",
        "certainly another cluster",
        "the same id",
        "brokers without an id",
        "nothing to consume",
        "no broker is registered",
    ],
)
def test_a_doubt_is_reported_unless_the_cluster_is_known(
    ours: ClusterIdentity, named: ClusterIdentity, why: str
) -> None:
    """A cluster without topics cannot be compared, so a member warns, and ``doctor`` has a finding."""
    doubt = ours.doubt(named)
    assert (why in doubt) if why else (doubt == "")


def test_the_ids_of_clusters_decide() -> None:
    """A mirror has the same topics, and a proxy other addresses."""
    ours = OURS._replace(cluster_id="A")
    assert ours.difference(cluster("mirror", 1, 2, cluster_id="B")) == (
        "ZooKeeper has the cluster id A, and the brokers have B"
    )
    assert ours.difference(cluster("proxy", 1, 2, topics={"bids": {0: (1,)}}, cluster_id="A")) == ""
    early = ClusterIdentity.registered({1: b'{"version":1,"host":"ours","port":9001}'}, has_no_id=True)
    assert early.difference(cluster("later", 1, cluster_id="B")) == (
        "ZooKeeper has no cluster id, and the brokers have B"
    )
    assert early.difference(cluster("proxy", 1)) == ""


def test_registrations_are_read_as_brokers_write_them() -> None:
    """All listeners count; what cannot be read is left out."""
    early = {"host": "a", "port": 9092, "version": 1}
    later = {"host": None, "port": -1, "version": 4, "endpoints": ["SSL://b:9093", "IN://[::1]:9094", "?"]}
    brokers = {0: json.dumps(early).encode(), 1: json.dumps(later).encode(), 2: b"garbage", 3: None}
    found = ClusterIdentity.registered(
        brokers, {"t": b'{"version":1,"partitions":{"0":[1,2],"1":[]}}', "u": None, "v": b"?"}, b'{"id":"X"}'
    )
    assert found.brokers == {
        0: frozenset({HostPort("a", 9092)}),
        1: frozenset({HostPort("b", 9093), HostPort("::1", 9094)}),
    }
    assert found.topics == {"t": {0: (1, 2)}, "u": {}, "v": {}}
    assert found.cluster_id == "X"
    for unreadable in (b"[]", b'{"id":7}', b'{"id":""}', None):
        assert ClusterIdentity.registered({}, {}, unreadable).cluster_id is None
