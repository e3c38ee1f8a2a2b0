"""The watchdog: if a live member makes no progress, other members get its partitions, and one of the others leads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection
from typing import Any

import pytest

from kiel_groups import GroupedConsumer, TopicPartition
from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.listeners import Stall
from tests.helpers.cluster_data import produce, zookeeper
from tests.helpers.members import Member, group_of
from tests.helpers.waiting import eventually, throughout

pytestmark = [pytest.mark.integration, pytest.mark.failures]

Unique = Callable[[str], str]


class BlockedMember(threading.Thread):
    """A member on an event loop of its own. At each record the application blocks the loop, until ``resume`` is set."""

    def __init__(self, cluster: Cluster, group: str, topic: str, **settings: Any) -> None:
        super().__init__(daemon=True)
        self.consumer = GroupedConsumer(cluster.brokers, group, cluster.zk_hosts, listener=self, **settings)
        self.stalls: list[tuple[Stall, threading.Thread]] = []
        self.lost: list[TopicPartition] = []
        self.joined, self.blocked, self.resume = threading.Event(), threading.Event(), threading.Event()
        self._topic = topic

    def run(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        async with self.consumer:
            await self.consumer.subscribe(self._topic)
            self._loop = asyncio.get_running_loop()
            self.joined.set()
            async for _ in self.consumer:
                self.blocked.set()
                self.resume.wait()

    async def stop(self) -> None:
        """Unblock the application, and close the member."""
        self.resume.set()
        if self.joined.is_set():
            self._loop.call_soon_threadsafe(self.consumer.close)
        await eventually(lambda: not self.is_alive(), "its thread has ended")

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Do nothing: this application keeps no state of partitions."""

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Do nothing: this application keeps no state of partitions."""

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        self.lost += partitions

    def on_stalled(self, stall: Stall) -> None:
        self.stalls.append((stall, threading.current_thread()))


@pytest.mark.parametrize("role", ["leader", "owner"])
async def test_an_event_loop_is_blocked_for_good(cluster: Cluster, unique: Unique, role: str) -> None:
    """
    After ``loop_stall_ms`` the member's session is closed, although the loop is still blocked. Other members get its
    partitions; the member joins again when the loop runs.
    """
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 4)
    async with group_of(cluster, name, [topic]) as group:
        if role == "owner":
            await group.join()
        blocked = BlockedMember(cluster, name, topic, loop_stall_ms=1_000)
        blocked.start()
        try:
            await eventually(blocked.joined.is_set, "the other thread's member has joined")
            survivor = group.members[0] if role == "owner" else await group.join()
            await eventually(
                lambda: len(blocked.consumer.allocation.get(topic, ())) == 2, "both members share the topic"
            )
            assert blocked.consumer.is_leader == (role == "leader")
            values = await produce(cluster, topic, 40)
            await eventually(blocked.blocked.is_set, "its loop is blocked")
            await eventually(lambda: len(survivor.partitions(topic)) == 4, "the survivor owns all partitions")
            assert survivor.consumer.is_leader
            await group.delivered(values)
            ((stall, thread),) = blocked.stalls
            assert (stall.kind, stall.limit_s, thread is blocked) == ("loop", 1.0, False)
            assert blocked.lost == [], "a blocked loop cannot be notified"
            assert blocked.consumer.metrics.counter("watchdog_exits", kind="loop") == 1
            blocked.resume.set()
            await eventually(lambda: len(blocked.lost) == 2, "it is notified of the loss")
            await eventually(lambda: len(blocked.consumer.allocation.get(topic, ())) == 2, "it owns partitions again")
        finally:
            await blocked.stop()


class HangingMember(Member):
    """A member whose application keeps its first record in flight until ``resume`` is set."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.resume = asyncio.Event()
        self.stalls: list[Stall] = []

    async def _consume(self) -> None:
        async for record in self.consumer:
            self.records.append(record)
            await self.resume.wait()

    async def stop(self) -> None:
        """Unblock the application, because it may still hang after a failed test, and stop the member."""
        self.resume.set()
        await super().stop()

    def on_stalled(self, stall: Stall) -> None:
        self.stalls.append(stall)


async def test_an_application_hangs_with_a_record_in_flight(cluster: Cluster, unique: Unique) -> None:
    """
    After ``max_poll_interval_ms`` the member's session is closed, and other members get its partitions. The member
    joins again only when its application asks for the next record.
    """
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 4)
    values = await produce(cluster, topic, 40)
    async with group_of(cluster, name, [topic]) as group:
        hanging = HangingMember(cluster, name, [topic], max_poll_interval_ms=1_000)
        group.members.append(hanging)
        await hanging.start()
        await eventually(lambda: hanging.records, "a record is in flight")
        old_id = hanging.consumer.member_id
        survivor = await group.join()
        await eventually(lambda: len(survivor.partitions(topic)) == 4, "the survivor owns all partitions")
        await group.delivered(values)
        (stall,) = hanging.stalls
        assert stall.kind == "processing"
        assert stall.partitions == {hanging.records[0].topic_partition}
        assert hanging.records[0].topic_partition in hanging.lost_partitions
        assert group.overlaps() == []
        with zookeeper(cluster) as client:
            # Longer than the pause before an ordinary rejoining.
            members, alone = GroupLayout(name).members, [survivor.consumer.member_id]
            await throughout(lambda: client.get_children(members) == alone, "the member has not joined again", 0.5)
        hanging.resume.set()
        await group.balanced(topic, 4)
        assert hanging.consumer.member_id != old_id


@pytest.mark.parametrize("hangs", [True, False], ids=["hangs", "exits"])
async def test_on_stalled_hangs_or_exits(cluster_39: Cluster, unique: Unique, hangs: bool) -> None:
    """
    If the hook ``on_stalled`` hangs, or raises SystemExit, the session is still closed after ``max_poll_interval_ms``.
    """
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 2)
    values = await produce(cluster_39, topic, 20)
    hook_resume = threading.Event()

    def hang(_: Stall) -> None:
        if not hangs:
            raise SystemExit(1)
        hook_resume.wait()

    async with group_of(cluster_39, name, [topic]) as group:
        hanging = HangingMember(cluster_39, name, [topic], max_poll_interval_ms=1_000)
        hanging.on_stalled = hang  # type: ignore[method-assign]
        group.members.append(hanging)
        try:
            await hanging.start()
            await eventually(lambda: hanging.records, "a record is in flight")
            survivor = await group.join()
            await eventually(lambda: len(survivor.partitions(topic)) == 2, "the survivor owns all partitions")
            await group.delivered(values)
            assert hanging.consumer.metrics.counter("watchdog_exits", kind="processing") == 1
        finally:
            hook_resume.set()


async def test_a_slow_application_keeps_its_session(cluster_39: Cluster, unique: Unique) -> None:
    """A slow application keeps its session, as long as it finishes each record in time."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    values = await produce(cluster_39, topic, 8)
    async with group_of(cluster_39, name, [topic], max_poll_interval_ms=1_000, loop_stall_ms=1_000) as group:
        member = await group.join()
        member.pace_s = 0.2
        await group.delivered(values)
        assert member.consumer.metrics.total("sessions_lost") == 0
        assert member.consumer.metrics.total("stalls") == 0


async def test_a_listener_hangs(cluster_39: Cluster, unique: Unique) -> None:
    """
    After ``max_poll_interval_ms`` in one hook the member's session is closed. Other members get its partitions,
    including those for which the hook was called.
    """
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 2)
    values = await produce(cluster_39, topic, 20)
    async with group_of(cluster_39, name, [topic]) as group:
        hanging = Member(cluster_39, name, [topic], max_poll_interval_ms=1_000)
        resume = asyncio.Event()

        async def hang(partitions: Collection[TopicPartition]) -> None:
            await resume.wait()

        hanging.on_partitions_assigned = hang  # type: ignore[method-assign, assignment]
        group.members.append(hanging)
        await hanging.start()
        try:
            survivor = await group.join()
            await eventually(lambda: len(survivor.partitions(topic)) == 2, "the survivor owns all partitions")
            await group.delivered(values)
            assert hanging.consumer.metrics.counter("watchdog_exits", kind="listener") >= 1
        finally:
            resume.set()
