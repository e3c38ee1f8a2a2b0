"""Orders of offsets on real servers: live members perform them and acknowledge, and the operator may take them back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from kiel_groups.clients import Producer
from kiel_groups.embedded import Cluster
from kiel_groups.errors import ConfigError, ConflictError, SessionLostError
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.model import MemberId, TopicPartition
from kiel_groups.ops.actions.offset_order import place_order
from kiel_groups.ops.zookeeper_client import zookeeper
from tests.helpers.members import Group, group_of
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

RECORDS = 20


async def fill(cluster: Cluster, partition: TopicPartition, count: int) -> None:
    async with Producer(cluster.brokers) as producer:
        sent = (
            producer.produce(partition.topic, b"%d" % number, partition=partition.partition) for number in range(count)
        )
        await asyncio.gather(*sent)


async def share(cluster: Cluster, group: Group, topic: str) -> None:
    """Have two members join, each of which then delivers all records of one of two partitions."""
    for _ in range(2):
        await group.join()
    # A member that is alone for a moment would deliver records of both.
    await group.balanced(topic, 2)
    for number in range(2):
        await fill(cluster, TopicPartition(topic, number), RECORDS)
    await eventually(lambda: len(group.values) == 2 * RECORDS, "all is delivered")


@pytest.mark.parametrize("store", ["zookeeper", "broker-v0", "broker-v1"])
async def test_live_members_continue_at_ordered_offsets(cluster_39: Cluster, unique: Unique, store: str) -> None:
    """
    One partition goes back to its beginning, the other one stays. A record in flight does not count; its owner delivers
    the earliest record next, and what is stored in the end is the end of the log.
    """
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 2)
    first, second = (TopicPartition(topic, number) for number in range(2))
    async with group_of(cluster_39, name, [topic], store=store, auto_offset_reset="earliest") as group:
        await share(cluster_39, group, topic)
        for member in group.members:
            await member.consumer.commit()
        (owner,) = (member for member in group.members if first in member.held)
        # The next record stays in flight.
        owner.go_on.clear()
        await fill(cluster_39, first, 1)
        await eventually(lambda: len(owner.records) == RECORDS + 1, "a record is in flight")

        def order() -> frozenset[TopicPartition]:
            with zookeeper(cluster_39.zk_hosts) as client:
                return place_order(client, name, {first: 0}).wait(client, timeout_s=30)

        assert await asyncio.to_thread(order) == frozenset()
        assert await owner.consumer.committed(first) == 0
        assert owner.consumer.metrics.total("orders_performed") == 1
        owner.go_on.set()
        await eventually(lambda: len(owner.records) == 2 * RECORDS + 2, "all is delivered again")
        assert [record.offset for record in owner.records[RECORDS + 1 :]] == list(range(RECORDS + 1))
        await owner.consumer.commit()
        assert await owner.consumer.committed(first) == RECORDS + 1
        assert await owner.consumer.committed(second) == RECORDS
        (other,) = (member for member in group.members if member is not owner)
        assert len(other.records) == RECORDS


async def test_an_order_waits_for_the_next_owner_and_is_taken_back(cluster_39: Cluster, unique: Unique) -> None:
    """
    While a dead member still has the claim, the order names it; another order is refused. The next owner performs the
    order. One that no member acknowledges in time, as of a stopped member, is taken back.
    """
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 2)
    first = TopicPartition(topic, 0)
    reports: list[Mapping[TopicPartition, MemberId | None]] = []
    async with group_of(cluster_39, name, [topic], auto_offset_reset="earliest", session_timeout_ms=6_000) as group:
        await share(cluster_39, group, topic)
        (owner,) = (member for member in group.members if first in member.held)
        (other,) = (member for member in group.members if member is not owner)
        await owner.consumer.commit()
        dead = owner.consumer.member_id
        layout = GroupLayout(name)
        with zookeeper(cluster_39.zk_hosts) as client, zookeeper(cluster_39.zk_hosts) as second:
            with pytest.raises(ConfigError, match="has no partition 7"):
                await asyncio.to_thread(place_order, client, name, {TopicPartition(topic, 7): 0})
            with pytest.raises(ConfigError, match="does not exist"):
                await asyncio.to_thread(place_order, client, name, {TopicPartition(unique("none"), 0): 0})
            with pytest.raises(ConfigError, match="expected an offset from 0"):
                await asyncio.to_thread(place_order, client, name, {first: -1})
            with pytest.raises(ConfigError, match="has no members"):
                await asyncio.to_thread(place_order, client, unique("empty"), {first: 0})
            with pytest.raises(ConfigError, match="none given"):
                await asyncio.to_thread(place_order, client, name, {})
            # Without its tasks, the member neither performs the order nor releases the partition.
            await owner.consumer._lifecycle.connected.member._member_session._tasks.cancel()  # type: ignore[union-attr]
            order = await asyncio.to_thread(place_order, client, name, {first: 3})
            with pytest.raises(ConflictError, match=r"another order of offsets is in progress \(placed by .*:"):
                await asyncio.to_thread(place_order, second, name, {first: 4})
            assert await asyncio.to_thread(order.wait, client, report=reports.append, timeout_s=3) == {first}
            assert reports[0] == {first: dead}
            assert await owner.consumer.committed(first) == RECORDS
            assert client.get_children(layout.orders) == []
            order = await asyncio.to_thread(place_order, client, name, {first: 3})
            # As kill -9 of its process does, once its session has expired.
            owner.consumer._lifecycle.connected.member._member_session.session.abandon("killed by the test")
            assert await asyncio.to_thread(order.wait, client, timeout_s=60) == frozenset()
            assert (await other.consumer.committed(first)) is not None
            rest = list(range(3, RECORDS))

            def offsets() -> list[int]:
                return [record.offset for record in other.records if record.topic_partition == first]

            await eventually(lambda: offsets()[-len(rest) :] == rest and first in other.held, "the rest is delivered")
            third = await asyncio.to_thread(place_order, client, name, {first: 5})
            client._session_id = 7
            with pytest.raises(SessionLostError, match="its order with it"):
                third.unacknowledged(client)
