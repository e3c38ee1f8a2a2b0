"""Brokers that are cut off from their cluster while clients still reach them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kiel_groups.embedded import Cluster
from kiel_groups.model import TopicPartition
from kiel_groups.wire.error_codes import NO_ERROR, ErrorCode
from kiel_groups.wire.message_sets.encoder import encode_message_set
from kiel_groups.wire.metadata import MetadataRequest
from kiel_groups.wire.produce import ProduceRequest
from tests.helpers.raw_requests import ask_at
from tests.helpers.waiting import eventually
from tests.proxies.cuttable_servers import ClusterOfCuttableBrokers

pytestmark = [pytest.mark.integration, pytest.mark.slow]

#: For each partition: its leader, and the replicas that are in sync.
View = dict[int, tuple[int, frozenset[int]]]

#: A leader of 0.9 that removes replicas from those in sync waits for ZooKeeper. Until then, it answers no producer.
PATIENT_LEADER = {"replica.lag.time.max.ms": 60_000}

ALL = frozenset((0, 1, 2))
CUT, OTHERS = 1, (0, 2)


async def view_of(cluster: ClusterOfCuttableBrokers, broker: int) -> View:
    """Return what a broker tells clients of topic ``t``."""
    (topic,) = (await ask_at(cluster.links.advertised[broker], MetadataRequest(("t",)))).topics
    return {one.partition: (one.leader, frozenset(one.isr)) for one in topic.partitions}


async def produced(cluster: ClusterOfCuttableBrokers, broker: int, partition: int) -> ErrorCode:
    """Produce a record that all replicas in sync have to store, and return the broker's error code."""
    target = TopicPartition("t", partition)
    request = ProduceRequest(-1, 1_000, {target: encode_message_set([None], [b"value"])})
    return (await ask_at(cluster.links.advertised[broker], request))[target].error


async def all_in_sync(cluster: ClusterOfCuttableBrokers) -> View | None:
    """Return the view of all brokers if it is the same, and every replica is in sync."""
    first, *rest = [await view_of(cluster, broker) for broker in range(3)]
    whole = len(first) == 3 and all(in_sync == ALL and leader >= 0 for leader, in_sync in first.values())
    return first if whole and all(view == first for view in rest) else None


async def test_a_broker_that_is_cut_off_serves_clients_alone(
    start_cluster: Callable[..., Cluster], coordinating_version: str
) -> None:
    """
    The others take over the partitions of a broker that is cut off from them. That broker still takes itself for a
    leader, and stores nothing that all replicas have to store. After the cut, it follows them again.
    """
    cluster = start_cluster(
        3, kafka=coordinating_version, kind=ClusterOfCuttableBrokers, broker_overrides=PATIENT_LEADER
    )
    await cluster.create_topic("t", 3, replication=3)
    before = await eventually(lambda: all_in_sync(cluster), "every broker knows that all replicas are in sync", 60)
    assert before is not None
    (led,) = [partition for partition, (leader, _) in before.items() if leader == CUT]

    async def stored_by_all() -> bool:
        view = await all_in_sync(cluster)
        return view is not None and await produced(cluster, view[led][0], led) is NO_ERROR

    await eventually(stored_by_all, "the replicas follow their leaders", 60)

    cluster.links.cut(cluster.kafka[CUT])

    async def new_leader() -> int | None:
        views = [await view_of(cluster, broker) for broker in OTHERS]
        gone = all(leader in OTHERS and CUT not in in_sync for view in views for leader, in_sync in view.values())
        return views[0][led][0] if gone and views[0] == views[1] else None

    async def stored_by_others() -> bool:
        leader = await new_leader()
        return leader is not None and await produced(cluster, leader, led) is NO_ERROR

    await eventually(stored_by_others, "the others have taken over", 60)
    assert (await view_of(cluster, CUT))[led] == (CUT, ALL)
    assert (await produced(cluster, CUT, led)).name == "REQUEST_TIMED_OUT"

    cluster.links.heal()
    await eventually(stored_by_all, "every replica is in sync again", 60)
