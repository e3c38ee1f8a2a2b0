"""A running leader follows the group settings, and reports owners that differ from the plan."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.client import KazooClient

from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes.contents import GroupState, encode_owner
from kiel_groups.group.znodes.group_settings import HistoryEntry
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.model import TopicPartition
from tests.helpers.cluster_data import produce, zookeeper
from tests.helpers.members import Group, group_of
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


def set_config(client: KazooClient, layout: GroupLayout, **fields: Any) -> None:
    """Add fields to the group settings, as an operator does."""
    current = json.loads(client.get(layout.config)[0])
    client.set(layout.config, json.dumps(current | fields).encode())


def group_state(client: KazooClient, layout: GroupLayout) -> GroupState:
    return GroupState.parse(client.get(layout.group_state)[0], layout.group_state)


async def test_a_leader_follows_the_allocator_in_the_settings(
    cluster_39: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """
    The leader uses a new allocator in the settings for its next plan. It refuses an unknown name and keeps the previous
    allocator.
    """
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 6)
    layout = GroupLayout(name)
    async with group_of(cluster_39, name, [topic]) as group:
        first = await group.join()
        await group.balanced(topic, 6)
        with zookeeper(cluster_39) as client:
            assert group_state(client, layout).allocator == "round_robin"
            set_config(client, layout, allocator="sticky")
            await eventually(lambda: group_state(client, layout).allocator == "sticky", "the allocator is followed")
            assert group_state(client, layout).cause == "config"
            set_config(client, layout, allocator="stiky")
            await eventually(
                lambda: first.consumer.metrics.total("group_settings_refused") >= 1, "a wrong name is refused"
            )
            assert "did you mean 'sticky'?; keeping the previous settings" in caplog.text
            await group.join()
            await group.balanced(topic, 6)
            assert group_state(client, layout).allocator == "sticky"
            past = [client.get(f"{layout.history}/{name}")[0] for name in sorted(client.get_children(layout.history))]
            entries = [HistoryEntry.parse(data, layout.history) for data in past]
            assert [entry.generation for entry in entries] == list(range(1, len(entries) + 1))
            # A plan may come between the registration of the member and its subscription.
            assert entries[-1].cause.startswith(("join of ", "subscription of "))
            assert entries[-1].moved == 3


async def test_a_drained_member_gets_no_partitions(cluster_39: Cluster, unique: Unique) -> None:
    """
    The settings name the drained members. If all members are drained, no partition has an owner, and the group state
    has the reason. A drained member that leaves is forgotten, also if it was the leader.
    """
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 4)
    layout = GroupLayout(name)
    async with group_of(cluster_39, name, [topic]) as group:
        first, second = await group.join(), await group.join()
        await group.balanced(topic, 4)
        with zookeeper(cluster_39) as client:
            set_config(client, layout, drained=[second.consumer.member_id])
            await eventually(
                lambda: len(first.partitions(topic)) == 4, "the drained member has released its partitions"
            )
            assert second.partitions(topic) == []
            set_config(client, layout, drained=[first.consumer.member_id, second.consumer.member_id])
            await eventually(
                lambda: group_state(client, layout).unassigned == {"all its subscribers are drained": 4},
                "the group state has the reason",
            )
            set_config(client, layout, drained=[first.consumer.member_id, "shelf"])
            await eventually(
                lambda: len(second.partitions(topic)) == 4, "the drained leader has released its partitions"
            )
            await group.leave(first)
            await eventually(
                lambda: json.loads(client.get(layout.config)[0])["drained"] == ["shelf"],
                "the next leader has forgotten the drained member that has left, but not the instance id",
            )


def alarms(group: Group) -> bool:
    """Return whether a leader has raised an alarm about an owner that differs from the plan."""
    return any(member.consumer.metrics.total("ownership_alarms") for member in group.members)


async def test_a_deleted_claim_raises_an_alarm(
    cluster_39: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """
    After a claim was deleted, the leader logs the partition without an owner, and the member to which the partition is
    assigned.
    """
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 2)
    async with group_of(cluster_39, name, [topic], drain_alarm_ms=200) as group:
        member = await group.join()
        await group.balanced(topic, 2)
        with zookeeper(cluster_39) as client:
            client.delete(GroupLayout(name).owner(TopicPartition(topic, 1)))
            await eventually(
                lambda: member.consumer.metrics.total("ownership_alarms") >= 1, "the leader reports the missing owner"
            )
            message = f"{topic}:1, allocated to {member.consumer.member_id}: no owner for"
            assert message in caplog.text


async def test_an_owner_that_does_not_release_raises_an_alarm(
    cluster_39: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """
    If an owner does not release a partition, the leader logs the partition, its owner, the member that waits for it,
    and the likely reason.
    """
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 2)
    async with group_of(cluster_39, name, [topic], drain_alarm_ms=200) as group:
        busy, late = await group.join(), await group.join()
        await group.balanced(topic, 2)
        busy.go_on.clear()
        await produce(cluster_39, topic, 20)
        await eventually(lambda: busy.records, "a record is in flight")
        with zookeeper(cluster_39) as client:
            set_config(client, GroupLayout(name), drained=[busy.consumer.member_id])
        await eventually(lambda: alarms(group), "the leader reports the missing release")
        in_flight = busy.records[-1].topic_partition
        assert (
            f"{in_flight}, allocated to {late.consumer.member_id}: owned by {busy.consumer.member_id} for"
            in caplog.text
        )
        assert "and not released: that member is still processing, or hangs; look at its log" in caplog.text
        busy.go_on.set()
        await eventually(lambda: late.partitions(topic) == [0, 1], "the partition is released")


async def test_a_claim_of_no_member_raises_an_alarm(
    cluster_39: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """
    The leader raises an alarm about an owner znode that belongs to no session. When the znode is deleted, the partition
    is claimed.
    """
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 2)
    owner = GroupLayout(name).owner(TopicPartition(topic, 1))
    async with group_of(cluster_39, name, [topic], drain_alarm_ms=200) as group:
        with zookeeper(cluster_39) as client:
            client.create(owner, encode_owner("unknown"), makepath=True)
            member = await group.join()
            await eventually(lambda: alarms(group), "the leader reports the owner")
            message = f"{topic}:1, allocated to {member.consumer.member_id}: owned by unknown for"
            assert message in caplog.text
            assert "which is no member: its session is about to end, or its member znode was deleted" in caplog.text
            client.delete(owner)
        await group.balanced(topic, 2)
