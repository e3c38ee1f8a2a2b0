"""Static members: an ``instance_id`` keeps a place in the plan across restarts, and belongs to one member at a time."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable

import pytest
from kazoo.client import KazooClient

from kiel_groups.embedded import Cluster
from kiel_groups.errors import ConfigError, DuplicateInstanceError
from kiel_groups.group.znodes.contents import GroupState, MemberAssignment, MemberInfo
from kiel_groups.group.znodes.layout import GroupLayout
from tests.helpers.cluster_data import owners, produce, zookeeper
from tests.helpers.members import Member, group_of
from tests.helpers.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.failures]

Unique = Callable[[str], str]

#: A static member as a process. It prints its id when it owns two partitions, and runs until it is killed.
PROGRAM = """
import asyncio, sys
from kiel_groups import GroupedConsumer

async def main(brokers, zookeeper, group, topic, instance_id):
    consumer = GroupedConsumer(brokers, group, zookeeper, instance_id=instance_id, session_timeout_ms=8_000)
    async with consumer:
        await consumer.subscribe(topic)
        while len(consumer.allocation.get(topic, ())) < 2:
            await asyncio.sleep(0.01)
        print(consumer.member_id, flush=True)
        await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


def assignment_of(client: KazooClient, group: str, slot: str) -> MemberAssignment:
    path = GroupLayout(group).assignment(slot)
    return MemberAssignment.parse(client.get(path)[0], path)


def group_state(client: KazooClient, group: str) -> GroupState:
    path = GroupLayout(group).group_state
    return GroupState.parse(client.get(path)[0], path)


async def test_a_rolling_restart_moves_no_partition(cluster: Cluster, unique: Unique) -> None:
    """Each restarted member gets its partitions again. No other partition moves, and no record is delivered twice."""
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 6)
    async with group_of(cluster, name, [topic]) as group:
        for instance in ("a", "b", "c"):
            await group.join(instance_id=instance)
        await group.balanced(topic, 6)
        with zookeeper(cluster) as client:
            values = await produce(cluster, topic, 60)
            await group.delivered(values)
            shares = {instance: assignment_of(client, name, instance).partitions for instance in ("a", "b", "c")}
            before = owners(client, name, topic)
            for instance in ("a", "b", "c"):
                old = next(
                    m for m in group.open_members if m.consumer._lifecycle.settings.group.instance_id == instance
                )
                rebalances = {member: member.rebalances for member in group.open_members if member is not old}
                await old.stop()
                after = owners(client, name, topic)
                assert after == {p: owner for p, owner in before.items() if p in after}, (
                    "the other members keep their claims"
                )
                assert len(after) == 4
                await group.join(instance_id=instance)
                await group.balanced(topic, 6)
                assert {member: member.rebalances for member in rebalances} == rebalances
                assert assignment_of(client, name, instance).partitions == shares[instance]
                before = owners(client, name, topic)
        values += await produce(cluster, topic, 60, first=60)
        assert await group.delivered(values) == Counter(values)
        assert group.overlaps() == []


async def test_a_member_connects_long_before_it_subscribes(cluster_39: Cluster, unique: Unique) -> None:
    """
    A restarted member keeps its place while it is connected and has not subscribed, even if the leader plans meanwhile.
    """
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 4)
    async with group_of(cluster_39, name, [topic]) as group:
        stays, old = await group.join(instance_id="stays"), await group.join(instance_id="restarts")
        await group.balanced(topic, 4)
        kept, rebalances = old.partitions(topic), stays.rebalances
        await old.stop()
        new = Member(cluster_39, name, [topic], instance_id="restarts")
        group.members.append(new)
        await new.consumer.connect()
        with zookeeper(cluster_39) as client:
            config, generation = GroupLayout(name).config, group_state(client, name).generation
            asked = json.loads(client.get(config)[0]) | {"rebalance": {"at": 1, "reason": "test"}}
            client.set(config, json.dumps(asked).encode())
            await eventually(lambda: group_state(client, name).generation > generation, "the leader has planned")
        await new.start()
        await group.balanced(topic, 4)
        assert new.partitions(topic) == kept
        assert stays.rebalances == rebalances


async def test_a_process_restarts_faster_than_its_old_session_expires(cluster: Cluster, unique: Unique) -> None:
    """
    A restarted member gets its place in the plan at once, and the partitions when the old claims end. No other
    partition moves.
    """
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 4)
    async with group_of(cluster, name, [topic]) as group:
        other = await group.join(instance_id="stays")
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            PROGRAM,
            ",".join(cluster.brokers),
            cluster.zk_hosts,
            name,
            topic,
            "restarts",
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        try:
            old_id = (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip()
            await eventually(lambda: len(other.partitions(topic)) == 2, "both share the topic")
        finally:
            os.kill(process.pid, signal.SIGKILL)
            await process.wait()
        with zookeeper(cluster) as client:
            kept = {number: owners(client, name, topic)[number] for number in other.partitions(topic)}
            wanted = assignment_of(client, name, "restarts").partitions
            new = await group.join(instance_id="restarts")
            await eventually(
                lambda: assignment_of(client, name, "restarts").member_id == new.consumer.member_id,
                "the assignment is for the new member",
            )
            assert client.exists(GroupLayout(name).member(old_id)), "the old session has not ended"
            await eventually(lambda: len(new.partitions(topic)) == 2, "it owns its partitions")
            assert assignment_of(client, name, "restarts").partitions == wanted
            assert {number: owners(client, name, topic)[number] for number in kept} == kept
            path = GroupLayout(name).member(str(new.consumer.member_id))
            assert MemberInfo.parse("m", client.get(path)[0], path).instance_id == "restarts"
        values = await produce(cluster, topic, 20)
        assert await group.delivered(values) == Counter(values)


async def test_two_members_have_one_instance(
    cluster: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """
    If two members have the same ``instance_id``, the later member gets all partitions when it subscribes. The earlier
    member releases them, and its loop ends with an error.
    """
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 4)
    values = await produce(cluster, topic, 40)
    async with group_of(cluster, name, [topic], instance_id="only-one") as group:
        earlier = await group.join()
        await group.delivered(values)
        later = await group.join()
        await eventually(lambda: len(later.partitions(topic)) == 4, "the later member owns all partitions")
        assert earlier._task is not None
        with pytest.raises(DuplicateInstanceError) as caught:
            await asyncio.wait_for(asyncio.shield(earlier._task), 30)
        assert "another member of instance 'only-one' is alive and has its place" in str(caught.value)
        assert "Give every process an instance_id of its own" in str(caught.value)
        values += await produce(cluster, topic, 40, first=40)
        assert await group.delivered(values) == Counter(values), "an orderly release repeats nothing"
        assert earlier.lost_partitions == []
        assert group.overlaps() == []
        errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert [error.startswith(f"group {name}: this member stops: ") for error in errors] == [True]
        with zookeeper(cluster) as client:
            assert client.get_children(GroupLayout(name).members) == [later.consumer.member_id]
        earlier._task = None


async def test_a_member_is_drained_by_the_settings(cluster: Cluster, unique: Unique) -> None:
    """
    The drained member releases its partitions and remains a member. When it is no longer drained, it gets partitions
    again.
    """
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 4)
    values = await produce(cluster, topic, 40)
    async with group_of(cluster, name, [topic]) as group:
        drained, other = await group.join(instance_id="tired"), await group.join()
        await group.balanced(topic, 4)
        with zookeeper(cluster) as client:
            path = GroupLayout(name).config
            before = client.get(path)[0]
            client.set(path, json.dumps({**json.loads(before), "drained": ["tired"]}).encode())
            await eventually(lambda: len(other.partitions(topic)) == 4, "the other member owns all partitions")
            assert drained.partitions(topic) == []
            assert len(client.get_children(GroupLayout(name).members)) == 2
            client.set(path, before)
            await group.balanced(topic, 4)
        assert await group.delivered(values) == Counter(values)
        assert drained.lost_partitions == []


async def test_an_assignment_in_the_wrong_slot_is_repaired(cluster_39: Cluster, unique: Unique) -> None:
    """
    If an operator has written the assignment for another member, the owner keeps its partitions, and the leader writes
    the assignment again.
    """
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 2)
    async with group_of(cluster_39, name, [topic], reconcile_interval_ms=200) as group:
        member = await group.join()
        await group.balanced(topic, 2)
        member_id = str(member.consumer.member_id)
        with zookeeper(cluster_39) as client:
            client.set(GroupLayout(name).assignment(member_id), MemberAssignment(99, "another", frozenset()).encode())
            await eventually(
                lambda: assignment_of(client, name, member_id).member_id == member_id, "the leader has repaired it"
            )
        assert member.partitions(topic) == [0, 1]
        await eventually(lambda: member.consumer.settled, "the member has read it")


@pytest.mark.parametrize("instance_id", ["", "a/b", "x" * 256, 7])
async def test_an_invalid_instance_id_is_refused(cluster_39: Cluster, unique: Unique, instance_id: object) -> None:
    """An invalid instance id is refused, because it becomes the name of a znode."""
    with pytest.raises(ConfigError, match="instance_id"):
        Member(cluster_39, unique("group"), ["t"], instance_id=instance_id)


async def test_a_heartbeat_interval_above_the_server_s_limit_is_refused(cluster_39: Cluster, unique: Unique) -> None:
    """``connect`` raises an error when it knows the granted session timeout, and leaves no znodes."""
    name = unique("group")
    member = Member(cluster_39, name, [unique("topic")], session_timeout_ms=4_000, heartbeat_interval_ms=2_000)
    with pytest.raises(ConfigError, match="heartbeat_interval_ms: 2000 given; expected at most 1333"):
        await member.start()
    with zookeeper(cluster_39) as client:
        assert client.exists(GroupLayout(name).root) is None
    accepted = Member(cluster_39, name, [unique("topic")], session_timeout_ms=4_000, heartbeat_interval_ms=100)
    await accepted.start()
    await eventually(lambda: accepted.consumer.metrics.latency("heartbeat").count >= 10, "ten heartbeats")
    await accepted.stop()
