"""What somebody with fresh eyes broke once: each of these lost records, members or errors before it was mended."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable

import pytest

from kiel_groups import GroupedConsumer, TopicPartition
from kiel_groups.clients import Producer
from kiel_groups.coordination.session.zk_session import Session
from kiel_groups.embedded import Cluster
from kiel_groups.embedded.servers.kafka_broker import KafkaBroker
from kiel_groups.errors import ClosedError, NoOffsetsError
from kiel_groups.group.znodes.layout import GroupLayout
from tests.helpers.members import Member, group_of, owners, produce, stored_offsets, zookeeper
from tests.helpers.waiting import eventually
from tests.integration.test_group_membership import MEMBER_PROGRAM, end_session

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


async def test_a_topic_is_created_again_under_a_running_group(cluster: Cluster, unique: Unique) -> None:
    """
    Positions in the old log mean nothing in the new one: everything in it is delivered, from its beginning.

    That goes also for a partition that is just being handed over, and while brokers do not know the topic yet
    (``tests/sim/test_recreated_topics.py``).
    """
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 2)
    old = await produce(cluster, topic, 40)
    async with group_of(cluster, name, [topic], auto_commit_interval_ms=50) as group:
        member = await group.join()
        await group.delivered(old)
        await cluster.delete_topic(topic)
        await cluster.create_topic(topic, 2)
        fresh = await produce(cluster, topic, 60, first=1000)
        await group.delivered(fresh, 60)
        assert member.consumer.metrics.total("offsets_of_deleted_topic") >= 2
        with zookeeper(cluster) as client:
            await eventually(lambda: sum(stored_offsets(client, name, topic).values()) == 60, "all is committed")


async def test_a_close_that_nobody_waits_for_goes_on(cluster_39: Cluster, unique: Unique) -> None:
    """Giving up waiting for a close does not leave a member behind that holds partitions and reads nothing."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 2)
    await produce(cluster_39, topic, 10)
    member = Member(cluster_39, name, [topic])
    member.pace_s = 1.0
    await member.start()
    await eventually(lambda: member.records, "a record is in hand")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(member.consumer.close(), 0.1)
    await member.consumer.close()
    with zookeeper(cluster_39) as client:
        assert client.get_children(GroupLayout(name).members) == []
        assert owners(client, name, topic) == {}


async def test_a_connect_that_is_cancelled_leaves_nobody(cluster_39: Cluster, unique: Unique) -> None:
    """At whatever moment it is cancelled, no member stays behind that would hold partitions."""
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
            lambda: client.exists(layout.members) is None or not client.get_children(layout.members), "nobody is left"
        )


async def test_a_subscription_while_joining_is_told(cluster_39: Cluster, unique: Unique) -> None:
    """Whenever it comes between connecting and being connected, it reaches the group."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    for number in range(20):
        name = unique("group")
        consumer = GroupedConsumer(cluster_39.brokers, name, cluster_39.zk_hosts, debounce_initial_delay_ms=0)
        connecting = consumer.connect()
        await asyncio.wait({connecting}, timeout=0.003 * number)
        await consumer.subscribe(topic)
        await connecting
        member = consumer.allocation
        await eventually(lambda consumer=consumer: consumer.allocation == {topic: [0]}, f"it is told, try {number}")
        assert member in ({}, {topic: [0]})
        await consumer.close()


async def test_a_subscription_while_joining_anew_is_told(cluster_39: Cluster, unique: Unique) -> None:
    """So it does when the session was lost a moment ago."""
    first, second, name = unique("first"), unique("second"), unique("group")
    await cluster_39.create_topic(first, 1)
    await cluster_39.create_topic(second, 1)
    async with group_of(cluster_39, name, [first], session_timeout_ms=4000) as group:
        member = await group.join()
        await group.balanced(first, 1)
        end_session(cluster_39, member)
        for _ in range(40):
            await member.consumer.subscribe([first])
            await asyncio.sleep(0.005)
            await member.consumer.subscribe([first, second])
        await eventually(lambda: member.consumer.allocation == {first: [0], second: [0]}, "both are held")
        with zookeeper(cluster_39) as client:
            data = json.loads(client.get(GroupLayout(name).member(str(member.consumer.member_id)))[0])
        assert data["subscription"] == sorted([first, second])


async def test_two_commits_at_once_follow_an_operators_reset(cluster_39: Cluster, unique: Unique) -> None:
    """The second of them must not write over what the first one has adopted."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, 20)
    offset = GroupLayout(name).offset(TopicPartition(topic, 0))
    async with GroupedConsumer(cluster_39.brokers, name, cluster_39.zk_hosts, autocommit=False) as consumer:
        await consumer.subscribe(topic)
        with zookeeper(cluster_39) as client:
            async for record in consumer:
                if record.offset == 10:
                    client.set(offset, b"5")
                    await asyncio.gather(consumer.commit(), consumer.commit())
                    break
            assert client.get(offset)[0] == b"5"
        async for record in consumer:
            assert record.offset == 5
            break


async def test_the_folder_of_owners_is_deleted(cluster: Cluster, unique: Unique) -> None:
    """The next plan makes it again; it costs the claims and no member."""
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 4)
    async with group_of(cluster, name, [topic], reconcile_interval_ms=500) as group:
        members = [await group.join() for _ in range(3)]
        await group.balanced(topic, 4)
        with zookeeper(cluster) as client:
            client.delete(GroupLayout(name).owners, recursive=True)
            await group.leave(members[0])
            await eventually(lambda: set(owners(client, name, topic)) == {0, 1, 2, 3}, "everything is claimed again")
        values = await produce(cluster, topic, 20)
        await group.delivered(values)
        assert all(member.consumer.member_id for member in group.living)


async def test_a_join_that_fails_oddly_is_tried_again(
    cluster_39: Cluster, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that is not ours, such as too many open files, ends no member for good."""
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
    """Deleting a member znode, as a forced release does, keeps nobody else from joining."""
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


async def test_a_closed_consumer_says_so(cluster_39: Cluster, unique: Unique) -> None:
    """Whatever is asked of it."""
    consumer = GroupedConsumer(cluster_39.brokers, unique("group"), cluster_39.zk_hosts)
    await consumer.connect()
    await consumer.close()
    for method in (consumer.connect, consumer.commit, lambda: consumer.subscribe("t"), consumer.__aenter__):
        with pytest.raises(ClosedError, match="was closed"):
            await method()
    with pytest.raises(ClosedError, match="was closed"):
        consumer.__aiter__()
    await consumer.close()


async def test_a_consumer_closed_before_it_was_used_says_so(cluster_39: Cluster, unique: Unique) -> None:
    """Also one that was closed where no event loop ran yet."""
    consumer = GroupedConsumer(cluster_39.brokers, unique("group"), cluster_39.zk_hosts)
    await asyncio.to_thread(consumer.close)
    assert await asyncio.wait_for(consumer.consume("t"), 10) is None


async def test_a_group_without_offsets_and_without_a_reset_policy(cluster_39: Cluster, unique: Unique) -> None:
    """Where to start is a question then, and not this group's to answer."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, 3)

    async def read() -> None:
        async with GroupedConsumer(cluster_39.brokers, name, cluster_39.zk_hosts, auto_offset_reset="none") as consumer:
            await consumer.subscribe(topic)
            async for _ in consumer:
                raise AssertionError("nothing says where to start")

    with pytest.raises(NoOffsetsError, match=f"group {name} has no offsets of {topic}"):
        await asyncio.wait_for(read(), 30)
    with zookeeper(cluster_39) as client:
        assert stored_offsets(client, name, topic) == {}


async def test_many_members_settle_on_a_fresh_topic(cluster_39: Cluster, unique: Unique) -> None:
    """Twenty members that find two hundred partitions without offsets do not write them one by one."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 200)
    async with group_of(cluster_39, name, [topic]) as group:
        await asyncio.gather(*(group.join() for _ in range(20)))
        await group.balanced(topic, 200)
        with zookeeper(cluster_39) as client:
            assert len(stored_offsets(client, name, topic)) == 200


async def test_a_process_that_is_stopped_past_its_session(cluster: Cluster, unique: Unique) -> None:
    """Others take over what it held; when it goes on, it hands out nothing of that, and joins anew."""
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 4)
    async with group_of(cluster, name, [topic], session_timeout_ms=3000) as group:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-c", MEMBER_PROGRAM, ",".join(cluster.brokers), cluster.zk_hosts, name, topic),
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        try:
            values = await produce(cluster, topic, 40)
            theirs = [await asyncio.wait_for(process.stdout.readline(), 30) for _ in range(40)]
            member = await group.join()
            await eventually(lambda: len(member.partitions(topic)) == 2, "both share the topic")
            os.kill(process.pid, signal.SIGSTOP)
            await group.balanced(topic, 4)
            values += await produce(cluster, topic, 40, first=40)
            await group.delivered(values[40:])
            os.kill(process.pid, signal.SIGCONT)
            await eventually(lambda: len(member.partitions(topic)) == 2, "it joins anew")
            values += await produce(cluster, topic, 40, first=80)
            theirs.append(await asyncio.wait_for(process.stdout.readline(), 30))
            assert int(theirs[-1]) >= 80, "what others have delivered meanwhile is not its own to hand out"
        finally:
            process.kill()
        theirs += (await process.stdout.read()).splitlines(keepends=True)
        await process.wait()
        await group.delivered(set(values) - {line.strip() for line in theirs})


async def test_brokers_are_found_in_zookeeper(start_cluster: Callable[..., Cluster]) -> None:
    """When no address that a member knows answers any more, those registered in ZooKeeper are asked."""
    cluster = start_cluster()
    await cluster.create_topic("t", 1)
    async with group_of(cluster, "g", ["t"]) as group:
        member = await group.join()
        await group.balanced("t", 1)
        await cluster.kafka[0].stop()
        async with KafkaBroker(cluster.zk_hosts, 0) as elsewhere:
            assert elsewhere.address not in cluster.brokers
            async with Producer([elsewhere.address]) as producer:
                await producer.produce("t", b"found")
            await eventually(lambda: b"found" in member.values, "the broker is found at its new address", 60)


async def test_a_member_leaves_although_no_broker_answers(start_cluster: Callable[..., Cluster]) -> None:
    """A claim whose position cannot be read, since no broker is there, does not keep its member from leaving."""
    cluster = start_cluster()
    await cluster.create_topic("t", 2)
    member = Member(cluster, "g", ["t"])
    await member.consumer.connect()
    await cluster.kafka[0].stop()
    with zookeeper(cluster) as client:
        # What no broker does any more: the leader would withhold its plan.
        client.create("/brokers/ids/7", json.dumps({"version": 1, "host": "127.0.0.1", "port": 1}).encode())
        await member.start()
        await eventually(lambda: set(owners(client, "g", "t")) == {0, 1}, "both are claimed")
        await asyncio.wait_for(member.stop(), 60)
        assert owners(client, "g", "t") == {}
        assert client.get_children(GroupLayout("g").members) == []
