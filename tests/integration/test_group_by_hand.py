"""Znodes that somebody deletes or writes by hand under a running group."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.client import KazooClient

from kiel_groups import TopicPartition
from kiel_groups.embedded import Cluster
from kiel_groups.group.layout import GroupLayout
from kiel_groups.group.znodes import Pointer
from tests.integration.members import eventually, group_of, owners, produce, stored_offsets, zookeeper

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


def pointer(client: KazooClient, layout: GroupLayout) -> Pointer:
    return Pointer.parse(client.get(layout.pointer)[0], layout.pointer)


async def test_an_election_znode_is_deleted(cluster: Cluster, unique: Unique) -> None:
    """A leader that cannot prove its leadership stands for election again, and plans again."""
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 2)
    layout = GroupLayout(name)
    async with group_of(cluster, name, [topic]) as group:
        await group.join()
        await group.balanced(topic, 2)
        with zookeeper(cluster) as client:
            (candidate,) = client.get_children(layout.election)
            client.delete(f"{layout.election}/{candidate}")
            await cluster.grow_topic(topic, 4)
            await group.balanced(topic, 4)
            assert len(client.get_children(layout.election)) == 1
            assert client.get_children(layout.election) != [candidate]


async def test_pointer_and_slices_are_deleted(cluster: Cluster, unique: Unique) -> None:
    """Members keep what they hold; the leader publishes the same plan again, which nobody has to follow."""
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 4)
    layout = GroupLayout(name)
    async with group_of(cluster, name, [topic], reconcile_interval_ms=300) as group:
        await group.join()
        await group.join()
        await group.balanced(topic, 4)
        with zookeeper(cluster) as client:
            before = owners(client, name, topic)
            client.delete(layout.pointer, recursive=True)
            await eventually(
                lambda: client.exists(layout.pointer) and pointer(client, layout).state == "done", "it is published"
            )
            assert len(client.get_children(layout.pointer)) == 2
            assert owners(client, name, topic) == before
        values = await produce(cluster, topic, 40)
        assert await group.delivered(values) == Counter(values)


async def test_a_member_znode_is_deleted(cluster: Cluster, unique: Unique) -> None:
    """The member gives its session up within a heartbeat or so, and joins anew."""
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 2)
    layout = GroupLayout(name)
    async with group_of(cluster, name, [topic], session_timeout_ms=3000) as group:
        member = await group.join()
        await group.balanced(topic, 2)
        first = str(member.consumer.member_id)
        with zookeeper(cluster) as client:
            client.delete(layout.member(first))
            await eventually(lambda: client.get_children(layout.members), "it joins anew")
            await eventually(lambda: member.consumer.member_id != first, "as somebody else")
        await group.balanced(topic, 2)
        values = await produce(cluster, topic, 20)
        await group.delivered(values)


async def test_an_owner_znode_is_deleted_and_taken(cluster: Cluster, unique: Unique) -> None:
    """A member whose claim was deleted by hand does not delete the claim of whoever took the partition then."""
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 1)
    layout, partition = GroupLayout(name), TopicPartition(topic, 0)
    values = await produce(cluster, topic, 10)
    with zookeeper(cluster) as client:
        async with group_of(cluster, name, [topic]) as group:
            await group.join()
            await group.delivered(values)
            client.delete(layout.owner(partition))
            client.create(layout.owner(partition), b"somebody-0", ephemeral=True)
            client.set(layout.offset(partition), b"3")
        assert client.get(layout.owner(partition))[0] == b"somebody-0"
        assert stored_offsets(client, name, topic) == {0: 3}


async def test_a_claim_that_is_deleted_is_noticed(cluster: Cluster, unique: Unique) -> None:
    """The regular look finds a claim gone: that is a loss, told as such, and the partition is claimed anew."""
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 2)
    layout = GroupLayout(name)
    async with group_of(cluster, name, [topic], reconcile_interval_ms=200) as group:
        member = await group.join()
        await group.balanced(topic, 2)
        with zookeeper(cluster) as client:
            client.delete(layout.owner(TopicPartition(topic, 1)))
            await eventually(lambda: member.lost_partitions == [TopicPartition(topic, 1)], "the loss is told")
            await group.balanced(topic, 2)
            assert set(owners(client, name, topic)) == {0, 1}
        values = await produce(cluster, topic, 20)
        await group.delivered(values)


async def test_an_offset_znode_is_deleted(cluster: Cluster, unique: Unique) -> None:
    """The next commit creates it again."""
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 1)
    await produce(cluster, topic, 5)
    async with group_of(cluster, name, [topic], auto_commit_interval_ms=50) as group:
        await group.join()
        with zookeeper(cluster) as client:
            await eventually(lambda: stored_offsets(client, name, topic) == {0: 5}, "everything is committed")
            client.delete(GroupLayout(name).offset(TopicPartition(topic, 0)))
            await produce(cluster, topic, 3, first=5)
            await eventually(lambda: stored_offsets(client, name, topic) == {0: 8}, "committed again")


async def test_an_allocator_that_hangs(cluster_39: Cluster, unique: Unique) -> None:
    """It is given up after its time, and keeps neither the group nor the process."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 2)
    never = threading.Event()

    def hanging(members: list[str], partitions: list[str]) -> Any:
        never.wait()

    async with group_of(
        cluster_39, name, [topic], partition_allocator=hanging, allocator_timeout_ms=100, reconcile_interval_ms=60_000
    ) as group:
        await group.join()
        await group.balanced(topic, 2)
        with zookeeper(cluster_39) as client:
            assert "did not return within 0.1 s" in pointer(client, GroupLayout(name)).fallback
    never.set()
