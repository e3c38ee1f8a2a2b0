"""What a running leader follows: the group's config, places of static members, owners that are not as planned."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.client import KazooClient

from kiel_groups.embedded import Cluster
from kiel_groups.group.history import HistoryEntry
from kiel_groups.group.layout import GroupLayout
from kiel_groups.group.znodes import Pointer
from kiel_groups.model import TopicPartition
from tests.integration.members import eventually, group_of, zookeeper

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


def set_config(client: KazooClient, layout: GroupLayout, **fields: Any) -> None:
    """As a person does: fields are added to those that stand there."""
    standing = json.loads(client.get(layout.config)[0])
    client.set(layout.config, json.dumps(standing | fields).encode())


def pointer(client: KazooClient, layout: GroupLayout) -> Pointer:
    return Pointer.parse(client.get(layout.pointer)[0], layout.pointer)


async def test_a_running_leader_follows_the_allocator_that_people_name(
    cluster_39: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """Sticky from the next plan on; a name that is none is refused in one line, and what counted goes on to count."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 6)
    layout = GroupLayout(name)
    async with group_of(cluster_39, name, [topic]) as group:
        first = await group.join()
        await group.balanced(topic, 6)
        with zookeeper(cluster_39) as client:
            assert pointer(client, layout).allocator == "round_robin"
            set_config(client, layout, allocator="sticky")
            await eventually(lambda: pointer(client, layout).allocator == "sticky", "the allocator is followed")
            assert pointer(client, layout).cause == "config"
            set_config(client, layout, allocator="stiky")
            await eventually(
                lambda: first.consumer.metrics.total("group_settings_refused") >= 1, "a wrong name is refused"
            )
            assert "did you mean 'sticky'?; it is not followed" in caplog.text
            await group.join()
            await group.balanced(topic, 6)
            assert pointer(client, layout).allocator == "sticky"
            past = [client.get(f"{layout.history}/{name}")[0] for name in sorted(client.get_children(layout.history))]
            entries = [HistoryEntry.parse(data, layout.history) for data in past]
            assert [entry.generation for entry in entries] == list(range(1, len(entries) + 1))
            assert entries[-1].cause.startswith("join of ")
            assert entries[-1].moved == 3


async def test_a_drained_member_gets_nothing(cluster_39: Cluster, unique: Unique) -> None:
    """By its name in the group's config; where all are drained, partitions have no owner and the reason is told."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 4)
    layout = GroupLayout(name)
    async with group_of(cluster_39, name, [topic]) as group:
        first, second = await group.join(), await group.join()
        await group.balanced(topic, 4)
        with zookeeper(cluster_39) as client:
            set_config(client, layout, drained=[second.consumer.member_id])
            await eventually(lambda: len(first.partitions(topic)) == 4, "the drained member gave everything back")
            assert second.partitions(topic) == []
            set_config(client, layout, drained=[first.consumer.member_id, second.consumer.member_id])
            await eventually(
                lambda: pointer(client, layout).unassigned == {"all its subscribers are drained": 4},
                "the reason is told",
            )
            set_config(client, layout, drained=[])
            await group.balanced(topic, 4)


async def test_a_claim_deleted_by_hand_is_an_alarm_until_it_is_back(
    cluster_39: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """The leader says which partition has no owner, and whom it is for."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 2)
    async with group_of(cluster_39, name, [topic], drain_alarm_ms=200) as group:
        member = await group.join()
        await group.balanced(topic, 2)
        with zookeeper(cluster_39) as client:
            client.delete(GroupLayout(name).owner(TopicPartition(topic, 1)))
            await eventually(
                lambda: member.consumer.metrics.total("ownership_alarms") >= 1, "the leader misses an owner"
            )
            told = f"{topic}:1, allocated to {member.consumer.member_id}: no owner for"
            assert told in caplog.text
