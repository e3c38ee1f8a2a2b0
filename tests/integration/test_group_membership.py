"""Members join, leave and are killed, on real servers."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable

import pytest

from kiel_groups.clients import Producer
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.config import BrokerConfig, parse_hosts
from kiel_groups.embedded import Cluster
from kiel_groups.embedded.kafka import KafkaBroker
from kiel_groups.group.znodes.contents import GroupState, MemberInfo
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.metrics import Metrics
from kiel_groups.zookeeper.runtime import Runtime
from tests.helpers.cluster_data import owners, produce, stored_offsets, zookeeper
from tests.helpers.members import Group, Member, end_session, group_of
from tests.helpers.servers import LASTING_MS
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


async def test_a_new_group_on_a_new_topic(cluster: Cluster, unique: Unique) -> None:
    """A single member reads every partition from its beginning. When it leaves, it commits the ends of the logs."""
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 4)
    values = await produce(cluster, topic, 400)
    async with group_of(cluster, name, [topic]) as group:
        member = await group.join()
        counts = await group.delivered(values)
        assert counts == Counter(values)
        assert member.partitions(topic) == [0, 1, 2, 3]
        ends = {p: max(r.offset for r in member.records if r.partition == p) + 1 for p in range(4)}
    with zookeeper(cluster) as client:
        assert stored_offsets(client, name, topic) == ends
        assert owners(client, name, topic) == {}
        assert client.get_children(GroupLayout(name).members) == []
        assert client.get_children(GroupLayout(name).ids) == []


async def test_the_znodes_of_a_member_have_the_documented_form(cluster: Cluster, unique: Unique) -> None:
    """Ids, owners and offsets have the form of Kafka 0.8, so its tools can read them."""
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 2)
    layout = GroupLayout(name)
    async with group_of(cluster, name, [topic]) as group:
        member = await group.join()
        await group.balanced(topic, 2)
        member_id = member.consumer.member_id
        assert member_id is not None
        with zookeeper(cluster) as client:
            session = client.exists(layout.member(member_id)).ephemeralOwner
            assert member_id.startswith(f"{name}_")
            assert member_id.endswith(f"-{session & 0xFFFFFFFFFFFFFFFF:x}")
            assert client.exists(layout.consumer_id(member_id)).ephemeralOwner == session
            assert {owner for owner, _ in owners(client, name, topic).values()} == {f"{member_id}-0"}
            assert stored_offsets(client, name, topic) == {0: 0, 1: 0}
            group_state = GroupState.parse(client.get(layout.group_state)[0], layout.group_state)
            assert (group_state.state, group_state.leader, group_state.members) == ("done", member_id, 1)


async def test_a_join_and_a_leave_rebalance(cluster: Cluster, unique: Unique) -> None:
    """Clean rebalances deliver every record exactly once, and a partition never has two owners."""
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 8)
    values = await produce(cluster, topic, 800)
    async with group_of(cluster, name, [topic]) as group:
        first = await group.join()
        first.pace_s = 0.002
        await eventually(lambda: first.records, "the first member reads")
        second = await group.join()
        second.pace_s = 0.002
        await group.balanced(topic, 8)
        values += await produce(cluster, topic, 400, first=800)
        await eventually(lambda: second.records, "the second member reads")
        await group.leave(first)
        await group.balanced(topic, 8)
        assert second.partitions(topic) == list(range(8))
        assert await group.delivered(values) == Counter(values)
        assert group.overlaps() == []
        assert not first.lost_partitions
        assert not second.lost_partitions


async def test_a_member_joins_while_another_leaves(cluster: Cluster, unique: Unique) -> None:
    """After both changes the group is balanced, and no record was lost or repeated."""
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 8)
    values = await produce(cluster, topic, 400)
    async with group_of(cluster, name, [topic]) as group:
        leaver, _ = await group.join(), await group.join()
        await group.balanced(topic, 8)
        await asyncio.gather(group.join(), group.leave(leaver))
        await group.balanced(topic, 8)
        values += await produce(cluster, topic, 400, first=400)
        assert await group.delivered(values) == Counter(values)
        assert group.overlaps() == []


async def test_two_groups_each_get_every_record(cluster: Cluster, unique: Unique) -> None:
    """The groups are independent, although they read the same topic."""
    topic = unique("topic")
    await cluster.create_topic(topic, 4)
    values = await produce(cluster, topic, 200)
    async with group_of(cluster, unique("one"), [topic]) as one, group_of(cluster, unique("two"), [topic]) as two:
        await asyncio.gather(one.join(), two.join())
        assert await one.delivered(values) == Counter(values)
        assert await two.delivered(values) == Counter(values)


async def test_a_subscription_changes(cluster: Cluster, unique: Unique) -> None:
    """An added topic does not change existing owner znodes. A dropped topic is committed and released."""
    kept, added, name = unique("kept"), unique("added"), unique("group")
    await cluster.create_topic(kept, 3)
    await cluster.create_topic(added, 3)
    values = await produce(cluster, kept, 60)
    more = await produce(cluster, added, 60, first=1000)
    async with group_of(cluster, name, [kept]) as group:
        member = await group.join()
        await group.delivered(values)
        with zookeeper(cluster) as client:
            before = owners(client, name, kept)
            await member.consumer.subscribe([kept, added])
            await group.delivered(more)
            assert owners(client, name, kept) == before
            await member.consumer.subscribe([added])
            await eventually(lambda: member.consumer.allocation == {added: [0, 1, 2]}, "the first topic is dropped")
            assert sum(stored_offsets(client, name, kept).values()) == 60
            assert owners(client, name, kept) == {}


async def test_a_topic_that_is_created_later_is_found(cluster: Cluster, unique: Unique) -> None:
    """A subscription may name a topic before it exists."""
    topic = unique("topic")
    async with group_of(cluster, unique("group"), [topic]) as group:
        member = await group.join()
        assert member.consumer.metrics.total("subscribed_topics_missing") == 1
        await cluster.create_topic(topic, 2)
        values = await produce(cluster, topic, 20)
        assert await group.delivered(values) == Counter(values)


async def test_partitions_are_added_under_a_running_group(cluster: Cluster, unique: Unique) -> None:
    """Members claim and read the new partitions. The other partitions keep their owners."""
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 2)
    async with group_of(cluster, name, [topic]) as group:
        await group.join()
        await group.balanced(topic, 2)
        with zookeeper(cluster) as client:
            before = owners(client, name, topic)
            await cluster.grow_topic(topic, 6)
            await group.balanced(topic, 6)
            after = owners(client, name, topic)
            assert {partition: after[partition] for partition in before} == before
        values = [value for partition in range(6) for value in await produce_to(cluster, topic, partition, 10)]
        assert await group.delivered(values) == Counter(values)


@pytest.mark.parametrize("reset", ["earliest", "latest"])
async def test_added_partitions_start_at_their_beginning(cluster: Cluster, unique: Unique, reset: str) -> None:
    """No record of an added partition is skipped, whatever the reset policy is."""
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 2)
    old = await produce(cluster, topic, 20)
    async with group_of(cluster, name, [topic], auto_offset_reset=reset) as group:
        await group.leave(await joined(group, topic, 2))
        await cluster.grow_topic(topic, 3)
        values = await produce_to(cluster, topic, 2, 10)
        member = await group.join()
        await group.delivered(values)
        if reset == "earliest":
            await group.delivered(old)
        else:
            assert member.values == values


async def joined(group: Group, topic: str, partitions: int) -> Member:
    """Have a member join, wait until it owns all partitions, and return it."""
    member = await group.join()
    await group.balanced(topic, partitions)
    return member


async def produce_to(cluster: Cluster, topic: str, partition: int, count: int) -> list[bytes]:
    """Wait until the brokers know a partition, produce values to it, and return the values."""
    view = ClusterMetadata(BrokerConfig(hosts=parse_hosts(cluster.brokers, 9092, "brokers")), Metrics())
    while partition not in await view.partitions_of(topic):
        await view.refresh([topic], "test")
    view.close()
    values = [b"%d-%d" % (partition, number) for number in range(count)]
    async with Producer(cluster.brokers) as producer:
        await asyncio.gather(*(producer.produce(topic, value, partition=partition) for value in values))
    return values


MEMBER_PROGRAM = """
import asyncio, sys
from kiel_groups import GroupedConsumer

async def main():
    brokers, hosts, group, topic = sys.argv[1:]
    async with GroupedConsumer(brokers, group, hosts, session_timeout_ms=3000) as consumer:
        await consumer.subscribe(topic)
        async for record in consumer:
            print(record.value.decode(), flush=True)

asyncio.run(main())
"""


async def test_a_process_is_killed(cluster: Cluster, unique: Unique) -> None:
    """
    Other members own the partitions of a killed process when its session expires, a session timeout after its last
    heartbeat. Records that were not committed are delivered again, and none is lost.
    """
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 8)
    values = await produce(cluster, topic, 400)
    async with group_of(cluster, name, [topic], session_timeout_ms=3000) as group:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            MEMBER_PROGRAM,
            ",".join(cluster.brokers),
            cluster.zk_hosts,
            name,
            topic,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        try:
            printed = {await asyncio.wait_for(process.stdout.readline(), 30)}
            member = await group.join()
            await eventually(lambda: len(member.partitions(topic)) == 4, "both share the topic")
            values += await produce(cluster, topic, 400, first=400)
            await eventually(lambda: len(member.records) > 50, "the survivor reads its share")
        finally:
            os.kill(process.pid, signal.SIGKILL)
        printed |= set((await process.stdout.read()).splitlines(keepends=True))
        await process.wait()
        await group.balanced(topic, 8)
        wanted = set(values) - {line.strip() for line in printed}
        await group.delivered(wanted)


async def test_a_session_expires(cluster: Cluster, unique: Unique) -> None:
    """A member whose session expires loses its claims and joins again. No record is lost."""
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 4)
    values = await produce(cluster, topic, 100)
    async with group_of(cluster, name, [topic]) as group:
        member = await group.join()
        await group.delivered(values)
        old_id = member.consumer.member_id
        with zookeeper(cluster) as client:
            end_session(cluster, member)
            await eventually(lambda: len(member.lost_partitions) == 4, "the loss is notified")
            values += await produce(cluster, topic, 100, first=100)
            await group.delivered(values)
            await group.balanced(topic, 4)
            assert member.consumer.member_id != old_id
            members = client.get_children(GroupLayout(name).members)
            assert members == [member.consumer.member_id]
        assert member.consumer.metrics.total("sessions_lost") == 1
        assert group.overlaps() == []


async def test_a_shorter_session_timeout_is_granted(
    cluster: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """The timeout that the server granted applies to the member znode, the lease and the heartbeat."""
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 2)
    async with group_of(cluster, name, [topic], session_timeout_ms=2 * LASTING_MS) as group:
        member = await group.join()
        await group.balanced(topic, 2)
        layout = GroupLayout(name)
        member_id = member.consumer.member_id
        assert member_id is not None
        with zookeeper(cluster) as client:
            info = MemberInfo.parse(member_id, client.get(layout.member(member_id))[0], "")
            assert info.session_timeout_ms == LASTING_MS
        assert "session_timeout_ms: 60000 was asked for, and ZooKeeper granted 30000" in caplog.text
        assert member.consumer._lifecycle.connected is not None
        gate = member.consumer._lifecycle.connected.reader.owned.gate
        assert gate.timeout_ms == LASTING_MS
        first_s, metrics = gate.deadline_s, member.consumer.metrics
        assert 0 < first_s - Runtime().boot_time_s() < LASTING_MS / 2_000
        await eventually(lambda: gate.deadline_s > first_s, "a heartbeat renews the lease", LASTING_MS / 2_000)
        assert metrics.total("sessions_lost") == 0
        assert member.consumer.member_id == member_id
        values = await produce(cluster, topic, 20)
        assert await group.delivered(values) == Counter(values)


async def test_the_parent_of_all_owner_znodes_is_deleted(cluster: Cluster, unique: Unique) -> None:
    """
    If the parent of all owner znodes is deleted, all claims are lost, but no session is. Members create the parent
    again, and claim again.
    """
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
        assert all(member.consumer.member_id for member in group.open_members)


async def test_a_process_is_stopped_past_its_session(cluster: Cluster, unique: Unique) -> None:
    """
    Other members own a stopped process's partitions when its session has expired. When the process resumes, it delivers
    nothing under its old claims, and joins again.
    """
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 4)
    async with group_of(cluster, name, [topic]) as group:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-c", MEMBER_PROGRAM, ",".join(cluster.brokers), cluster.zk_hosts, name, topic),
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        try:
            values = await produce(cluster, topic, 40)
            printed = [await asyncio.wait_for(process.stdout.readline(), 30) for _ in range(40)]
            member = await group.join()
            await eventually(lambda: len(member.partitions(topic)) == 2, "both share the topic")
            os.kill(process.pid, signal.SIGSTOP)
            await group.balanced(topic, 4)
            values += await produce(cluster, topic, 40, first=40)
            await group.delivered(values[40:])
            os.kill(process.pid, signal.SIGCONT)
            await eventually(lambda: len(member.partitions(topic)) == 2, "it has joined again")
            values += await produce(cluster, topic, 40, first=80)
            printed.append(await asyncio.wait_for(process.stdout.readline(), 30))
            assert int(printed[-1]) >= 80, "it delivers nothing that another member has delivered"
        finally:
            process.kill()
        printed += (await process.stdout.read()).splitlines(keepends=True)
        await process.wait()
        await group.delivered(set(values) - {line.strip() for line in printed})


async def test_brokers_are_found_in_zookeeper(start_cluster: Callable[..., Cluster]) -> None:
    """If no known broker address answers, the member reads the brokers' addresses in ZooKeeper."""
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
