"""Members join and leave: cancelled and concurrent calls, failing joins, and brokers that do not answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from kiel_groups import GroupedConsumer
from kiel_groups.embedded import Cluster
from kiel_groups.errors import ClosedError
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.zookeeper.session import Session
from tests.helpers.cluster_data import owners, produce, stored_offsets, zookeeper
from tests.helpers.members import Member, end_session, group_of
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


async def test_a_cancelled_close_continues(cluster_39: Cluster, unique: Unique) -> None:
    """A cancelled close continues. If it stopped, a member would remain that owns partitions without reading them."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 2)
    await produce(cluster_39, topic, 10)
    member = Member(cluster_39, name, [topic])
    member.go_on.clear()
    await member.start()
    await eventually(lambda: member.records, "a record is in flight")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(member.consumer.close(), 0.1)
    member.go_on.set()
    await member.consumer.close()
    with zookeeper(cluster_39) as client:
        assert client.get_children(GroupLayout(name).members) == []
        assert owners(client, name, topic) == {}


async def test_a_cancelled_connect_leaves_no_member(cluster_39: Cluster, unique: Unique) -> None:
    """No member remains, whenever ``connect`` is cancelled."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 2)
    layout = GroupLayout(name)
    for number in range(30):
        consumer = GroupedConsumer(cluster_39.brokers, name, cluster_39.zk_hosts)
        connecting = consumer.connect()
        await asyncio.wait({connecting}, timeout=0.003 * number)
        connecting.cancel()
        await asyncio.wait({connecting})
        if not connecting.cancelled():
            await consumer.close()
    with zookeeper(cluster_39) as client:
        await eventually(
            lambda: client.exists(layout.members) is None or not client.get_children(layout.members),
            "no member is left",
        )


async def test_a_subscription_during_the_join_reaches_the_group(cluster_39: Cluster, unique: Unique) -> None:
    """``subscribe`` may be called at any time between the start and the end of ``connect``."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    for number in range(20):
        name = unique("group")
        consumer = GroupedConsumer(cluster_39.brokers, name, cluster_39.zk_hosts, debounce_initial_delay_ms=0)
        connecting = consumer.connect()
        await asyncio.wait({connecting}, timeout=0.003 * number)
        await consumer.subscribe(topic)
        await connecting
        before = consumer.allocation
        await eventually(
            lambda consumer=consumer: consumer.allocation == {topic: [0]}, f"the partition is owned, try {number}"
        )
        assert before in ({}, {topic: [0]})
        await consumer.close()


async def test_a_subscription_during_a_rejoin_reaches_the_group(cluster_39: Cluster, unique: Unique) -> None:
    """``subscribe`` may be called right after a session is lost."""
    first, second, name = unique("first"), unique("second"), unique("group")
    await cluster_39.create_topic(first, 1)
    await cluster_39.create_topic(second, 1)
    async with group_of(cluster_39, name, [first]) as group:
        member = await group.join()
        await group.balanced(first, 1)
        end_session(cluster_39, member)
        for _ in range(40):
            await member.consumer.subscribe([first])
            await asyncio.sleep(0.005)
            await member.consumer.subscribe([first, second])
        await eventually(lambda: member.consumer.allocation == {first: [0], second: [0]}, "both partitions are owned")
        with zookeeper(cluster_39) as client:
            data = json.loads(client.get(GroupLayout(name).member(str(member.consumer.member_id)))[0])
        assert data["subscription"] == sorted([first, second])


async def test_a_join_that_fails_unexpectedly_is_retried(
    cluster_39: Cluster, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the operating system, such as too many open files, does not stop the member."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    async with group_of(cluster_39, name, [topic]) as group:
        member = await group.join()
        await group.balanced(topic, 1)
        real, failed = Session.open, asyncio.Event()

        async def fails_once(session: Session) -> None:
            if not failed.is_set():
                failed.set()
                raise OSError(24, "Too many open files")
            await real(session)

        monkeypatch.setattr(Session, "open", fails_once)
        end_session(cluster_39, member)
        await failed.wait()
        await group.balanced(topic, 1)
        assert member.consumer.metrics.total("joins_failed") == 1


async def test_a_member_without_its_znode_is_not_foreign(cluster_39: Cluster, unique: Unique) -> None:
    """A deleted member znode, as after a forced release, does not keep other members from joining."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 2)
    layout = GroupLayout(name)
    async with group_of(cluster_39, name, [topic]) as group:
        first = await group.join()
        await group.balanced(topic, 2)
        with zookeeper(cluster_39) as client:
            client.delete(layout.member(str(first.consumer.member_id)))
            assert client.exists(layout.consumer_id(str(first.consumer.member_id)))
            await group.join()
        await group.balanced(topic, 2)


async def test_a_closed_consumer_raises(cluster_39: Cluster, unique: Unique) -> None:
    """``connect``, ``subscribe``, ``commit``, ``async with`` and a loop raise ClosedError; ``close`` does not."""
    consumer = GroupedConsumer(cluster_39.brokers, unique("group"), cluster_39.zk_hosts)
    await consumer.connect()
    await consumer.close()
    for method in (consumer.connect, consumer.commit, lambda: consumer.subscribe("t"), consumer.__aenter__):
        with pytest.raises(ClosedError, match="was closed"):
            await method()
    with pytest.raises(ClosedError, match="was closed"):
        consumer.__aiter__()
    await consumer.close()


async def test_a_consumer_that_was_closed_before_its_use_returns_none(cluster_39: Cluster, unique: Unique) -> None:
    """``consume`` returns None if the consumer was closed before ``connect``, outside an event loop."""
    consumer = GroupedConsumer(cluster_39.brokers, unique("group"), cluster_39.zk_hosts)
    await asyncio.to_thread(consumer.close)
    assert await asyncio.wait_for(consumer.consume("t"), 10) is None


@pytest.mark.slow
async def test_many_members_settle_on_a_new_topic(cluster_39: Cluster, unique: Unique) -> None:
    """Twenty members settle in time on two hundred partitions, because they store the start offsets in batches."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 200)
    async with group_of(cluster_39, name, [topic]) as group:
        await asyncio.gather(*(group.join() for _ in range(20)))
        # It took 17 s on a busy machine.
        await group.balanced(topic, 200, timeout_s=120)
        with zookeeper(cluster_39) as client:
            assert len(stored_offsets(client, name, topic)) == 200


async def test_a_member_leaves_while_no_broker_answers(start_cluster: Callable[..., Cluster]) -> None:
    """A member can leave while no broker answers for the position of a partition that it has claimed."""
    cluster = start_cluster()
    await cluster.create_topic("t", 2)
    member = Member(cluster, "g", ["t"])
    await member.consumer.connect()
    await cluster.kafka[0].stop()
    with zookeeper(cluster) as client:
        # Without a registered broker the leader would not publish a plan.
        client.create("/brokers/ids/7", json.dumps({"version": 1, "host": "127.0.0.1", "port": 1}).encode())
        await member.start()
        await eventually(lambda: set(owners(client, "g", "t")) == {0, 1}, "both are claimed")
        await asyncio.wait_for(member.stop(), 60)
        assert owners(client, "g", "t") == {}
        assert client.get_children(GroupLayout("g").members) == []
