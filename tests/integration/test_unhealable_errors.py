"""Errors of a running member that no retry can heal: each is raised once, whatever the application waits in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from kazoo.client import KazooClient

from kiel_groups import GroupedConsumer
from kiel_groups.embedded import Cluster
from kiel_groups.errors import (
    DuplicateInstanceError,
    ForeignMemberError,
    GroupConfigError,
    KielGroupsError,
    NoZooKeeperError,
)
from kiel_groups.group.znodes.contents import GroupSettings
from kiel_groups.group.znodes.layout import GroupLayout
from tests.helpers.closed_sessions import close_session
from tests.helpers.cluster_data import zookeeper
from tests.helpers.waiting import eventually, throughout
from tests.proxies import FaultProxy

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


class Scene:
    """A member that owns the partition of a topic, and a client of ZooKeeper that is allowed everything."""

    def __init__(self, cluster: Cluster, topic: str, group: str, stack: AsyncExitStack, owner: KazooClient) -> None:
        self.cluster, self.topic, self.group, self.stack, self.owner = cluster, topic, group, stack, owner
        self.layout = GroupLayout(group)
        self.consumer = self.new(cluster.zk_hosts)

    def new(self, hosts: str) -> GroupedConsumer:
        settings: dict[str, Any] = {"instance_id": "one", "retry_backoff_ms": 10}
        return GroupedConsumer(self.cluster.brokers, self.group, hosts, **settings)

    async def join(self) -> None:
        await self.consumer.connect()
        await self.consumer.subscribe(self.topic)
        await eventually(lambda: self.consumer.allocation.get(self.topic), "the consumer owns the topic")

    async def expire(self) -> None:
        """End the member's session on the server."""
        session = self.consumer._lifecycle.connected.member._member_session.session  # type: ignore[union-attr]
        await asyncio.to_thread(close_session, self.cluster.zk_hosts, session.client.client_id)


async def other_settings(scene: Scene) -> None:
    path = scene.layout.config
    stored = GroupSettings.parse(scene.owner.get(path)[0], path)
    scene.owner.set(path, replace(stored, auto_offset_reset="latest").encode())
    await scene.expire()


async def a_foreign_member(scene: Scene) -> None:
    scene.owner.create(f"{scene.layout.ids}/foreign", b"{}", ephemeral=True, makepath=True)
    await scene.expire()


async def the_same_instance(scene: Scene) -> None:
    other = scene.new(scene.cluster.zk_hosts)
    scene.stack.push_async_callback(other.close)
    await other.connect()
    await other.subscribe(scene.topic)


CAUSES: dict[Callable[[Scene], Awaitable[None]], type[KielGroupsError]] = {
    other_settings: GroupConfigError,
    a_foreign_member: ForeignMemberError,
    the_same_instance: DuplicateInstanceError,
}


async def loop(consumer: GroupedConsumer, topic: str) -> object:
    async for record in consumer:
        return record
    return None


async def getone(consumer: GroupedConsumer, topic: str) -> object:
    return await consumer.getone()


async def getmany(consumer: GroupedConsumer, topic: str) -> object:
    return await consumer.getmany(timeout_ms=30_000)


async def consume(consumer: GroupedConsumer, topic: str) -> object:
    while not (values := await consumer.consume(topic)):
        assert values is not None, "the consumer was closed"
    return values


async def text_raised(kind: type[KielGroupsError], work: Awaitable[object]) -> str:
    """Return the text of the error that ``work`` raises. The error would keep the loop of its traceback active."""
    try:
        await work
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__} is raised")


@asynccontextmanager
async def scene_of(cluster: Cluster, topic: str, group: str) -> AsyncIterator[Scene]:
    await cluster.create_topic(topic, 1)
    async with AsyncExitStack() as stack:
        owner = KazooClient(cluster.zk_hosts, auth_data=[("digest", "owner:secret")])
        owner.start()
        stack.callback(owner.close)
        stack.callback(owner.stop)
        scene = Scene(cluster, topic, group, stack, owner)
        stack.push_async_callback(scene.consumer.close, timeout_s=5.0)
        yield scene


@pytest.mark.parametrize("way", [loop, getone, getmany, consume], ids=lambda way: way.__name__)
@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.__name__)
async def test_an_error_that_no_retry_heals_is_raised_once(
    cluster_39: Cluster,
    unique: Unique,
    caplog: pytest.LogCaptureFixture,
    cause: Callable[[Scene], Awaitable[None]],
    way: Callable[[GroupedConsumer, str], Awaitable[object]],
) -> None:
    """
    It is logged once, and no join is tried again. A later call raises it, too, in place of waiting for records of a
    member that has stopped.
    """
    async with scene_of(cluster_39, unique("topic"), unique("group")) as scene, asyncio.timeout(60.0):
        await scene.join()
        consumer, metrics = scene.consumer, scene.consumer.metrics
        waiting = asyncio.ensure_future(text_raised(CAUSES[cause], way(consumer, scene.topic)))
        await asyncio.sleep(0)
        await cause(scene)
        text = await waiting
        opened = metrics.total("sessions_opened")
        await throughout(lambda: metrics.total("sessions_opened") == opened, "nothing is tried again", 0.3)
        assert metrics.total("joins_failed") == 0
        stopped = [record.message for record in caplog.records if "this member stops" in record.message]
        assert len(stopped) == 1
        assert text.removeprefix(f"group {scene.group}: ") in stopped[0]
        assert await text_raised(CAUSES[cause], way(consumer, scene.topic)) == text


async def test_an_error_that_passes_is_retried(
    cluster_39: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """The application gets no error. Its cause is logged once, and each try is counted."""
    hosts, slash, chroot = cluster_39.zk_hosts.partition("/")
    topic = unique("topic")
    async with FaultProxy(hosts) as proxy, scene_of(cluster_39, topic, unique("group")) as scene:
        consumer = GroupedConsumer(
            cluster_39.brokers,
            scene.group,
            proxy.address + slash + chroot,
            session_timeout_ms=4_000,
            zk_timeout_ms=1_500,
            retry_backoff_ms=10,
        )
        scene.consumer = consumer
        scene.stack.push_async_callback(consumer.close, timeout_s=5.0)
        await scene.join()
        waiting = asyncio.ensure_future(consumer.getone())
        proxy.stall()
        proxy.cut()
        await eventually(lambda: consumer.metrics.total("joins_failed") >= 2, "joins fail")
        proxy.heal()
        await eventually(lambda: consumer.allocation.get(topic), "it has joined again")
        assert not waiting.done()
        waiting.cancel()
    failed = [record.message for record in caplog.records if "could not join" in record.message]
    assert len(failed) == len(set(failed))
    assert all("retrying, with pauses of up to 5 s" in message for message in failed)


async def test_a_first_join_raises_what_no_retry_heals_and_what_takes_too_long(
    cluster_39: Cluster, unique: Unique
) -> None:
    """``connect`` of a static member whose group has other settings, and one without ZooKeeper: one try each."""
    async with scene_of(cluster_39, unique("topic"), unique("group")) as scene:
        stored = GroupSettings(store="broker-v0", mode="cooperative", auto_offset_reset="earliest")
        scene.owner.create(scene.layout.config, stored.encode(), makepath=True)
        with pytest.raises(GroupConfigError):
            await scene.consumer.connect()
        assert scene.consumer.metrics.total("joins_failed") == 0
    hosts, slash, chroot = cluster_39.zk_hosts.partition("/")
    async with FaultProxy(hosts) as proxy:
        proxy.stall()
        consumer = GroupedConsumer(cluster_39.brokers, "g", proxy.address + slash + chroot, zk_timeout_ms=300)
        with pytest.raises(NoZooKeeperError):
            await consumer.connect()
        await consumer.close(timeout_s=1.0)
        proxy.heal()
    with zookeeper(cluster_39) as client:
        assert client.connected
