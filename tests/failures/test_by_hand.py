"""Znodes that somebody deletes or writes by hand under a running group."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, NotEmptyError

from kiel_groups import TopicPartition
from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes.contents import GroupState
from kiel_groups.group.znodes.layout import GroupLayout, consumer_root
from tests.helpers.cluster_data import owners, produce, stored_offsets, zookeeper
from tests.helpers.members import Member, group_of
from tests.helpers.trial import RECOVERY_S, SESSION_TIMEOUT_MS, Trial, trial
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.failures

Unique = Callable[[str], str]


def group_state(client: KazooClient, layout: GroupLayout) -> GroupState:
    return GroupState.parse(client.get(layout.group_state)[0], layout.group_state)


def has_children(client: KazooClient, folder: str, count: int) -> bool:
    return client.exists(folder) is not None and len(client.get_children(folder)) == count


async def test_election_znode_deleted_by_hand(cluster: Cluster, unique: Unique) -> None:
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


async def test_pointer_and_slices_deleted_by_hand(cluster: Cluster, unique: Unique) -> None:
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
            client.delete(layout.group_state, recursive=True)
            await eventually(
                lambda: client.exists(layout.group_state) and group_state(client, layout).state == "done",
                "it is published",
            )
            assert len(client.get_children(layout.group_state)) == 2
            assert owners(client, name, topic) == before
        values = await produce(cluster, topic, 40)
        assert await group.delivered(values) == Counter(values)


async def test_member_znode_deleted_by_hand(cluster: Cluster, unique: Unique) -> None:
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


@pytest.mark.parametrize("root", ["kiel-groups", "consumers"])
async def test_folder_of_the_whole_group_deleted_by_hand(cluster: Cluster, unique: Unique, root: str) -> None:
    """
    All members join again, create the folders that they miss, and go on; none stops for good.

    Under ``/kiel-groups`` the members' own znodes go: each gives its session up within a heartbeat. Under
    ``/consumers`` the claims go, which the regular look finds, and the offsets, which are read from the beginning.
    """
    async with trial(cluster, unique, reconcile_interval_ms=500) as tried:
        for _ in range(3):
            await tried.join()
        await tried.balanced()
        await tried.produce()
        await tried.group.delivered(tried.values)
        folder = tried.layout.root if root == "kiel-groups" else consumer_root(tried.group.name)
        # Until after the members have found out and join again: each is in the way of the other.
        until_s = time.monotonic() + SESSION_TIMEOUT_MS / 2_000
        while time.monotonic() < until_s:
            with suppress(NotEmptyError, NoNodeError):
                await asyncio.to_thread(tried.client.delete, folder, recursive=True)
        for registered in (tried.layout.members, tried.layout.ids):
            await eventually(partial(has_children, tried.client, registered, 3), "all are registered", RECOVERY_S)
        await tried.nothing_is_lost()
        await eventually(lambda: all(m.consumer.settled for m in tried.group.members), "none has stopped", RECOVERY_S)


async def test_owner_znode_deleted_by_hand_and_taken(cluster: Cluster, unique: Unique) -> None:
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


async def test_owner_znode_deleted_by_hand(cluster: Cluster, unique: Unique) -> None:
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


async def test_offset_znode_deleted_by_hand(cluster: Cluster, unique: Unique) -> None:
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


async def test_offsets_of_a_topic_deleted_by_hand_folder_and_all(cluster: Cluster, unique: Unique) -> None:
    """Owners store what they know with their next commit, or when they leave; nobody waits for ever."""
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 2)
    await produce(cluster, topic, 10)
    async with group_of(cluster, name, [topic], auto_commit_interval_ms=50) as group:
        await group.join()
        with zookeeper(cluster) as client:
            await eventually(lambda: sum(stored_offsets(client, name, topic).values()) == 10, "all is committed")
            client.delete(GroupLayout(name).topic_offsets(topic), recursive=True)
            await produce(cluster, topic, 10, first=10)
            await eventually(lambda: sum(stored_offsets(client, name, topic).values()) == 20, "committed again")
            client.delete(GroupLayout(name).topic_offsets(topic), recursive=True)
            await group.leave(group.members[0])
            assert sum(stored_offsets(client, name, topic).values()) == 20


async def test_allocator_that_hangs(cluster_39: Cluster, unique: Unique) -> None:
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
            assert "did not return within 0.1 s" in group_state(client, GroupLayout(name)).fallback
    never.set()


async def test_slice_deleted_by_hand(cluster: Cluster, unique: Unique) -> None:
    """Its member keeps what it holds; the next plan writes it again."""
    async with trial(cluster, unique, reconcile_interval_ms=300) as tried:
        await tried.join()
        member = await tried.join()
        await tried.balanced()
        before, path = tried.owners(), tried.layout.assignment(str(member.consumer.member_id))
        tried.client.delete(path)
        await eventually(lambda: tried.client.exists(path), "it is written again", RECOVERY_S)
        assert tried.owners() == before
        assert member.lost_partitions == []
        await tried.nothing_is_lost()


def garbled(tried: Trial, member: Member, what: str) -> str:
    """The path of one znode of a group."""
    layout, member_id = tried.layout, str(member.consumer.member_id)
    held = tried.partition(member.partitions(tried.topic)[0])
    children = {"candidate": layout.election, "history": layout.history}
    if what in children:
        return f"{children[what]}/{min(tried.client.get_children(children[what]))}"
    return {
        "member": layout.member(member_id),
        "consumer id": layout.consumer_id(member_id),
        "slice": layout.assignment(member_id),
        "group_state": layout.group_state,
        "config": layout.config,
        "owner": layout.owner(held),
        "offset": layout.offset(held),
    }[what]


@pytest.mark.parametrize(
    "what", ["member", "consumer id", "slice", "group_state", "config", "candidate", "history", "owner", "offset"]
)
async def test_garbage_in_any_znode(cluster_39: Cluster, unique: Unique, what: str) -> None:
    """Whatever stands there, of a member that does not lead: the group follows its topic, and loses nothing."""
    async with trial(cluster_39, unique, reconcile_interval_ms=300) as tried:
        await tried.produce()
        await tried.join()
        member = await tried.join()
        await tried.balanced()
        await tried.group.delivered(tried.values)
        path = garbled(tried, member, what)
        tried.client.set(path, b"\x00\xff{")
        await tried.grow(6)
        if what == "member":
            # Who cannot be read gets nothing, and gives nothing back before it is another member.
            await tried.has(tried.group.members[0], 4)
            assert len(member.partitions(tried.topic)) == 2
            tried.client.delete(path)
        await tried.balanced()
        await tried.produce(200)  # So many that the offset of every partition is written again.
        await tried.nothing_is_lost()


async def test_topic_nobody_subscribes_to(cluster: Cluster, unique: Unique) -> None:
    """Nobody owns what nobody wants any more; its offsets stay, and whoever wants it again goes on from there."""
    async with trial(cluster, unique) as tried:
        other = unique("other")
        await tried.cluster.create_topic(other, 2)
        await tried.produce()
        member = await tried.join()
        await tried.group.delivered(tried.values)
        await member.consumer.subscribe([other])
        await eventually(lambda: member.consumer.allocation == {other: [0, 1]}, "the topic is dropped", RECOVERY_S)
        assert tried.owners() == {}
        assert sum(tried.stored().values()) == len(tried.values)
        await tried.pointer_is(
            lambda group_state: group_state.unassigned == {}, "nothing is said to be without an owner"
        )
        await asyncio.gather(tried.produce(), member.consumer.subscribe([tried.topic]))
        await tried.nothing_is_lost()
        assert Counter(member.values) == Counter(tried.values)
