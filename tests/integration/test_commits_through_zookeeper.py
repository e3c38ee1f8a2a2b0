"""Commits of chosen offsets and closes, while ZooKeeper or a broker is silent, or another writer sets offsets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kiel_groups import GroupedConsumer, OffsetAndMetadata, Record, TopicPartition
from kiel_groups.embedded import Cluster
from kiel_groups.errors import ClosedError, CommitFailedError, SessionLostError
from kiel_groups.group.znodes.layout import GroupLayout
from tests.helpers.answer_losers import AnswerLoser
from tests.helpers.cluster_data import members, produce, stored_offsets, zookeeper
from tests.helpers.members import Member, end_session, group_of
from tests.helpers.running_time import running_s
from tests.helpers.waiting import eventually, within
from tests.proxies import FaultProxy

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

STORES = pytest.mark.parametrize("store", ["zookeeper", "broker-v0"])


@pytest.fixture
def topic(cluster_39: Cluster, unique: Unique) -> str:
    """Return the name of a topic with one partition of 10 records."""
    name = unique("topic")

    async def create() -> None:
        await cluster_39.create_topic(name, 1)
        await produce(cluster_39, name, 10)

    asyncio.run(create())
    return name


@pytest.fixture
def group(unique: Unique) -> str:
    return unique("group")


@asynccontextmanager
async def joined(cluster: Cluster, group: str, topic: str, **settings: Any) -> AsyncIterator[GroupedConsumer]:
    """Provide a consumer that commits on request only, and owns all partitions of the topic."""
    place = {"brokers": cluster.brokers, "zk_hosts": cluster.zk_hosts, "autocommit": False, **settings}
    async with GroupedConsumer(group=group, **place) as consumer:
        await consumer.subscribe(topic)
        await eventually(lambda: consumer.settled and consumer.allocation.get(topic), "the consumer owns the topic")
        yield consumer


async def read(consumer: GroupedConsumer, count: int) -> Record:
    """Read ``count`` records, and return the last one, which the loop has finished."""
    seen = 0
    async for record in consumer:
        seen += 1
        if seen == count:
            return record
    raise AssertionError("the consumer was closed")


def stored(cluster: Cluster, group: str, topic: str) -> dict[int, int]:
    with zookeeper(cluster) as client:
        return stored_offsets(client, group, topic)


@STORES
async def test_a_superseded_commit_follows_the_other_writer(
    cluster_39: Cluster, topic: str, group: str, store: str
) -> None:
    """The operator's offset stays. Delivery continues there, and the error says so."""
    partition = TopicPartition(topic, 0)
    async with joined(cluster_39, group, topic, store=store) as consumer:
        await read(consumer, 7)
        with zookeeper(cluster_39) as client:
            client.set(GroupLayout(group).offset(partition), b"1")
        with pytest.raises(
            CommitFailedError, match=r"5 of .*:0 was not stored: another writer has stored 1, where delivery continues"
        ):
            await consumer.commit({partition: 5})
        assert stored(cluster_39, group, topic) == {0: 1}
        assert (await read(consumer, 1)).offset == 1
        assert await consumer.commit({partition: 2}) == {partition}


@pytest.mark.parametrize("expires", [False, True])
async def test_an_answer_is_lost_between_send_and_answer(
    cluster_39: Cluster, topic: str, group: str, expires: bool
) -> None:
    """
    ZooKeeper has executed the commit. If the connection breaks, the member finds that out, and reports the partition.
    If the session ends, the outcome is unknown to the caller, and the next claim starts at the chosen offset.
    """
    hosts, slash, chroot = cluster_39.zk_hosts.partition("/")
    partition = TopicPartition(topic, 0)
    with AnswerLoser(hosts) as proxy:
        member = Member(cluster_39, group, [topic], zk_hosts=proxy.address + slash + chroot, autocommit=False)
        async with group_of(cluster_39, group, [topic]) as others:
            others.members.append(member)
            await member.start()
            await eventually(lambda: len(member.records) == 10, "all is read")
            proxy.lose_answer_to(GroupLayout(group).offset(partition).encode())
            committing = member.consumer.commit({partition: 4})
            assert await asyncio.to_thread(proxy.caught.wait, 10.0)
            await eventually(lambda: stored(cluster_39, group, topic) == {0: 4}, "ZooKeeper has stored it")
            if not expires:
                proxy.reconnect()
                assert await committing == {partition}
                return
            end_session(cluster_39, member)
            proxy.reconnect()
            with pytest.raises(SessionLostError):
                await committing
            await eventually(lambda: len(member.records) == 16, "the records after it are repeated")
            assert [record.offset for record in member.records[10:]] == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("how", ["stalled", "unreachable", "joining", "lost"])
async def test_a_close_with_a_limit_does_not_wait_for_zookeeper(
    cluster_39: Cluster, topic: str, group: str, how: str
) -> None:
    """However silent ZooKeeper is: while the member owns partitions, joins, or has lost its session."""
    hosts, slash, chroot = cluster_39.zk_hosts.partition("/")
    async with FaultProxy(hosts) as proxy:
        consumer = GroupedConsumer(
            cluster_39.brokers, group, proxy.address + slash + chroot, session_timeout_ms=4_000, retry_backoff_ms=10
        )
        if how == "joining":
            proxy.stall()
            connecting = consumer.connect()
            await asyncio.sleep(0.2)
        else:
            await consumer.connect()
            await consumer.subscribe(topic)
            await eventually(lambda: consumer.allocation.get(topic), "the consumer owns the topic")
            proxy.refuse() if how == "unreachable" else proxy.stall()
            if how == "unreachable":
                proxy.cut()
            if how == "lost":
                await eventually(lambda: not consumer.allocation.get(topic), "the session is lost")
        began_s = running_s()
        await consumer.close(timeout_s=0.6)
        # A close that waited for ZooKeeper would wait for the end of the session, 4 s.
        assert running_s() - began_s < 3.5, "the close waits for ZooKeeper"
        if how == "joining":
            with pytest.raises(ClosedError):
                await connecting
        own = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

        def left() -> list[asyncio.Task[Any]]:
            return [task for task in own if not task.done() and "FaultProxy" not in repr(task)]

        await within(lambda: not left(), 5.0)
        assert left() == []
        proxy.heal()


async def test_a_close_with_a_limit_does_not_wait_for_brokers(
    cluster_39: Cluster, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen broker (``broker-v0``) delays the close by some seconds at most, and by no more than its limit."""
    monkeypatch.setattr("kiel_groups.members.zookeeper.owned_partitions.LEAVING_S", 10.0)
    consumer = GroupedConsumer(
        cluster_39.brokers, group, cluster_39.zk_hosts, store="broker-v0", auto_commit_interval_ms=60_000
    )
    await consumer.connect()
    await consumer.subscribe(topic)
    await read(consumer, 7)
    cluster_39.kafka[0].pause()
    try:
        began_s = running_s()
        await consumer.close(timeout_s=0.6)
        assert running_s() - began_s < 5.0, "the close waits for the broker"
    finally:
        cluster_39.kafka[0].resume()
    assert await asyncio.to_thread(members, cluster_39, group) == []


@STORES
async def test_an_unreadable_offset_is_none(
    cluster_39: Cluster, topic: str, group: str, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names the znode, or the partition; all other offsets are returned."""
    layout, unreadable, missing = GroupLayout(group), TopicPartition(topic, 1), TopicPartition(topic, 2)
    async with joined(cluster_39, group, topic, store=store) as consumer:
        with zookeeper(cluster_39) as client:
            client.create(layout.offset(unreadable), b"garbage")
        found = await consumer.committed([TopicPartition(topic, 0), unreadable, missing])
        assert found == {TopicPartition(topic, 0): 0, unreadable: None, missing: None}
        assert layout.offset(unreadable) in caplog.text or f"cannot read the offsets of {unreadable}" in caplog.text
        assert await consumer.fetch_committed_offsets() == {TopicPartition(topic, 0): OffsetAndMetadata(0, "")}
