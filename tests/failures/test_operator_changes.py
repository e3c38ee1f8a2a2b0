"""Znodes that an operator deletes or overwrites while a group runs, and a forced release."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, NotEmptyError

from kiel_groups import TopicPartition
from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes.contents import GroupState
from kiel_groups.group.znodes.layout import GroupLayout, consumer_root
from kiel_groups.ops.actions.release import plan_release
from tests.helpers.answer_losers import AnswerLoser
from tests.helpers.checked_group import RECOVERY_S, SESSION_TIMEOUT_MS, CheckedGroup, checked_group
from tests.helpers.cluster_data import owners, produce, stored_offsets, zookeeper
from tests.helpers.members import Member, group_of
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.failures

Unique = Callable[[str], str]


def group_state(client: KazooClient, layout: GroupLayout) -> GroupState:
    return GroupState.parse(client.get(layout.group_state)[0], layout.group_state)


def has_children(client: KazooClient, folder: str, count: int) -> bool:
    return client.exists(folder) is not None and len(client.get_children(folder)) == count


async def test_the_election_znode_is_deleted(cluster: Cluster, unique: Unique) -> None:
    """
    A leader without its election znode cannot publish. It takes part in the election again, with another znode, and
    plans again.
    """
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


async def test_the_group_state_and_all_assignments_are_deleted(cluster: Cluster, unique: Unique) -> None:
    """
    Members keep their partitions. The leader publishes the same plan again; no partition moves, and no record is
    repeated.
    """
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
                "the plan is published",
            )
            assert len(client.get_children(layout.group_state)) == 2
            assert owners(client, name, topic) == before
        values = await produce(cluster, topic, 40)
        assert await group.delivered(values) == Counter(values)


async def test_a_member_znode_is_deleted(cluster: Cluster, unique: Unique) -> None:
    """
    The member gives up its session at its next heartbeat, which is due within a sixth of the session timeout, and joins
    again with another member id. Nothing is lost.
    """
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 2)
    layout = GroupLayout(name)
    async with group_of(cluster, name, [topic], session_timeout_ms=3000) as group:
        member = await group.join()
        await group.balanced(topic, 2)
        first = str(member.consumer.member_id)
        with zookeeper(cluster) as client:
            client.delete(layout.member(first))
            await eventually(lambda: client.get_children(layout.members), "a member is registered")
            await eventually(lambda: member.consumer.member_id != first, "it has another member id")
        await group.balanced(topic, 2)
        values = await produce(cluster, topic, 20)
        await group.delivered(values)


@pytest.mark.parametrize("root", ["kiel-groups", "consumers"])
async def test_all_znodes_of_a_group_are_deleted(cluster: Cluster, unique: Unique, root: str) -> None:
    """
    All members join again and create the missing parent znodes. No member stops, and nothing is lost.

    If ``/kiel-groups/<group>`` is deleted, each member gives up its session at its next heartbeat. If
    ``/consumers/<group>`` is deleted, the claims and the committed offsets are gone. Members notice this within
    ``reconcile_interval_ms``, claim again, and read from the earliest offset.
    """
    settings = {"session_timeout_ms": SESSION_TIMEOUT_MS, "reconcile_interval_ms": 500}
    async with checked_group(cluster, unique, **settings) as checked:
        for _ in range(3):
            await checked.join()
        await checked.balanced()
        await checked.produce()
        await checked.group.delivered(checked.values)
        folder = checked.layout.root if root == "kiel-groups" else consumer_root(checked.group.name)
        # Delete until the members have noticed and join again, so that deletions and joins overlap.
        until_s = time.monotonic() + SESSION_TIMEOUT_MS / 2_000
        while time.monotonic() < until_s:
            with suppress(NotEmptyError, NoNodeError):
                await asyncio.to_thread(checked.client.delete, folder, recursive=True)
        for registered in (checked.layout.members, checked.layout.ids):
            await eventually(
                partial(has_children, checked.client, registered, 3), "all members are registered", RECOVERY_S
            )
        await checked.check_nothing_is_lost()
        await eventually(
            lambda: all(m.consumer.settled for m in checked.group.members), "no member has stopped", RECOVERY_S
        )


async def test_an_owner_znode_is_deleted_and_another_session_claims(cluster: Cluster, unique: Unique) -> None:
    """When the former owner leaves, it neither deletes the new owner's claim nor overwrites the new owner's offset."""
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 1)
    layout, partition = GroupLayout(name), TopicPartition(topic, 0)
    values = await produce(cluster, topic, 10)
    with zookeeper(cluster) as client:
        async with group_of(cluster, name, [topic]) as group:
            await group.join()
            await group.delivered(values)
            # Between two requests, the member might claim the partition again.
            claim = client.transaction()
            claim.delete(layout.owner(partition))
            claim.create(layout.owner(partition), b"other-0", ephemeral=True)
            assert not [each for each in claim.commit() if isinstance(each, Exception)]
            client.set(layout.offset(partition), b"3")
        assert client.get(layout.owner(partition))[0] == b"other-0"
        assert stored_offsets(client, name, topic) == {0: 3}


async def test_an_owner_znode_is_deleted(cluster: Cluster, unique: Unique) -> None:
    """
    The member notices the deletion within ``reconcile_interval_ms``, calls ``on_partitions_lost``, and claims the
    partition again. Nothing is lost.
    """
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 2)
    layout = GroupLayout(name)
    async with group_of(cluster, name, [topic], reconcile_interval_ms=200) as group:
        member = await group.join()
        await group.balanced(topic, 2)
        with zookeeper(cluster) as client:
            client.delete(layout.owner(TopicPartition(topic, 1)))
            await eventually(
                lambda: member.lost_partitions == [TopicPartition(topic, 1)], "the listener is notified of the loss"
            )
            await group.balanced(topic, 2)
            assert set(owners(client, name, topic)) == {0, 1}
        values = await produce(cluster, topic, 20)
        await group.delivered(values)


async def test_an_offset_znode_is_deleted(cluster: Cluster, unique: Unique) -> None:
    """The owner's next commit creates the offset znode again."""
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


async def test_all_offset_znodes_of_a_topic_are_deleted(cluster: Cluster, unique: Unique) -> None:
    """
    The owners store their offsets again with their next commit, or when they leave. Both succeed although the parent
    znode is deleted, too.
    """
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 2)
    await produce(cluster, topic, 10)
    async with group_of(cluster, name, [topic], auto_commit_interval_ms=50) as group:
        await group.join()
        with zookeeper(cluster) as client:
            await eventually(lambda: sum(stored_offsets(client, name, topic).values()) == 10, "everything is committed")
            client.delete(GroupLayout(name).topic_offsets(topic), recursive=True)
            await produce(cluster, topic, 10, first=10)
            await eventually(lambda: sum(stored_offsets(client, name, topic).values()) == 20, "committed again")
            client.delete(GroupLayout(name).topic_offsets(topic), recursive=True)
            await group.leave(group.members[0])
            assert sum(stored_offsets(client, name, topic).values()) == 20


async def test_an_assignment_is_deleted(cluster: Cluster, unique: Unique) -> None:
    """The member keeps its partitions. The leader writes the assignment again. Nothing is lost."""
    async with checked_group(cluster, unique, reconcile_interval_ms=300) as checked:
        await checked.join()
        member = await checked.join()
        await checked.balanced()
        before, path = checked.owners(), checked.layout.assignment(str(member.consumer.member_id))
        checked.client.delete(path)
        await eventually(lambda: checked.client.exists(path), "the assignment is written again", RECOVERY_S)
        assert checked.owners() == before
        assert member.lost_partitions == []
        await checked.check_nothing_is_lost()


def znode_path(checked: CheckedGroup, member: Member, what: str) -> str:
    """Return the path of one of the group's znodes. ``what`` names the kind of the znode."""
    layout, member_id = checked.layout, str(member.consumer.member_id)
    held = checked.partition(member.partitions(checked.topic)[0])
    children = {"candidate": layout.election, "history": layout.history}
    if what in children:
        return f"{children[what]}/{min(checked.client.get_children(children[what]))}"
    return {
        "member": layout.member(member_id),
        "consumer id": layout.consumer_id(member_id),
        "assignment": layout.assignment(member_id),
        "group state": layout.group_state,
        "config": layout.config,
        "owner": layout.owner(held),
        "offset": layout.offset(held),
    }[what]


@pytest.mark.parametrize(
    "what", ["member", "consumer id", "assignment", "group state", "config", "candidate", "history", "owner", "offset"]
)
async def test_a_znode_contains_garbage(cluster_39: Cluster, unique: Unique, what: str) -> None:
    """
    One znode of the group, or of a member that is not the leader, contains garbage. The group still claims and reads
    all partitions of its topic, and nothing is lost.

    A member whose member znode cannot be read keeps its partitions and gets no others, until that znode is deleted and
    the member joins again.
    """
    async with checked_group(cluster_39, unique, reconcile_interval_ms=300) as checked:
        await checked.produce()
        await checked.join()
        member = await checked.join()
        await checked.balanced()
        await checked.group.delivered(checked.values)
        path = znode_path(checked, member, what)
        checked.client.set(path, b"\x00\xff{")
        await checked.grow_topic(6)
        if what == "member":
            await checked.wait_for_partitions(checked.group.members[0], 4)
            assert len(member.partitions(checked.topic)) == 2
            checked.client.delete(path)
        await checked.balanced()
        await checked.produce(200)  # enough that every partition has a new offset to commit
        await checked.check_nothing_is_lost()


async def test_a_forced_release_with_a_commit_in_flight(cluster: Cluster, unique: Unique) -> None:
    """
    The commit arrives after the member znode was deleted, so ZooKeeper refuses it. The records of the commit are
    delivered again, to the next owner.
    """
    chosen: list[Member] = []

    def to_chosen(members: list[str], partitions: list[str]) -> dict[str, dict[str, list[int]]]:
        ids = {str(member.consumer.member_id) for member in chosen}
        return {next((member for member in members if member in ids), members[0]): {checked.topic: [0]}}

    async with (
        AnswerLoser(cluster.zk_hosts) as proxy,
        checked_group(cluster, unique, partitions=1, partition_allocator=to_chosen) as checked,
    ):
        second = await checked.join()
        first = await checked.join(zk_hosts=proxy.address)
        chosen[:] = [first]
        await checked.group.leave(second)
        await checked.wait_for_partitions(first, 1)
        second = await checked.join()
        await checked.produce(20)
        await checked.group.delivered(checked.values)
        await eventually(lambda: checked.committed_offsets() == {0: 20}, "all is committed")
        proxy.lose_answer_to(checked.layout.offset(checked.partition(0)).encode(), request_too=True)
        later = await checked.produce(5)
        assert await asyncio.to_thread(proxy.caught.wait, RECOVERY_S)
        chosen[:] = [second]
        member_id = str(first.consumer.member_id)
        # The forced release waits for a session timeout; the test ends that wait as soon as it has seen the effect.
        wait_over = threading.Event()
        plan = plan_release(checked.client, checked.group.name, member_id)
        release = partial(plan.apply, checked.client, sleep=wait_over.wait)
        releasing = asyncio.create_task(asyncio.to_thread(release))
        await eventually(
            lambda: not checked.client.exists(checked.layout.member(member_id)), "the member znode is gone"
        )
        proxy.heal()
        await eventually(
            lambda: set(later) <= set(second.values), "what was not committed is delivered again", RECOVERY_S
        )
        wait_over.set()
        assert (await releasing).taken == (), "the member released its claims by itself"
        assert checked.partition(0) in first.lost_partitions
        await eventually(lambda: checked.committed_offsets() == {0: 25}, "the next owner has committed")
