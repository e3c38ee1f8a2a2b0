"""``close()`` in each phase of a join, a hand-over and an outage: it ends within its bound, and leaves nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError

from kiel_groups import GroupedConsumer, TopicPartition
from kiel_groups.embedded import Cluster
from kiel_groups.errors import KielGroupsError
from kiel_groups.group.znodes.layout import GroupLayout
from tests.helpers.closed_sessions import close_session
from tests.helpers.cluster_data import members, produce, zookeeper
from tests.helpers.leftovers import Leftovers
from tests.helpers.running_time import running_s
from tests.helpers.waiting import eventually
from tests.proxies import Exchange, FaultProxy, KafkaProxy

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

#: The bound of the closes, and what they may take beyond it on a busy machine, in seconds.
BOUND_S, MARGIN_S = 0.6, 2.0
#: The session timeout, and how long threads may take beyond it to end a session that no server closes.
SESSION_MS, THREADS_S = 3_000, 6.0

FETCH, LIST_OFFSETS = 1, 2


class Scene:
    """
    One consumer, its brokers and its ZooKeeper behind proxies, and a hook that can be held.

    ``release`` ends the outage, or what the application is busy with.
    """

    def __init__(self, cluster: Cluster, topic: str, group: str, brokers: KafkaProxy, zookeeper: FaultProxy) -> None:
        self.cluster, self.topic, self.group = cluster, topic, group
        self.brokers, self.zookeeper = brokers, zookeeper
        self.consumer: GroupedConsumer = self.new()
        self.work: list[asyncio.Future[Any]] = []
        #: Set while the application holds a hook or a record, and when it may continue.
        self.busy, self.free = asyncio.Event(), asyncio.Event()
        self.release: Callable[[], object] = self.free.set

    def new(self, **settings: Any) -> GroupedConsumer:
        _, slash, chroot = self.cluster.zk_hosts.partition("/")
        defaults: dict[str, Any] = {
            "session_timeout_ms": SESSION_MS,
            "retry_backoff_ms": 10,
            "request_timeout_ms": 1_000,
            "connect_timeout_ms": 1_000,
            "max_wait_time": 100,
        }
        hosts = self.zookeeper.address + slash + chroot
        return GroupedConsumer([self.brokers.address], self.group, hosts, **{**defaults, **settings})

    def start(self, work: Awaitable[Any]) -> None:
        self.work.append(asyncio.ensure_future(work))

    async def hold(self, *_: object) -> None:
        """Hold the hook or the record until ``free`` is set."""
        self.busy.set()
        await self.free.wait()

    async def own(self, **settings: Any) -> GroupedConsumer:
        """Join, and own the partition of the topic."""
        self.consumer = self.new(**settings)
        await self.consumer.connect()
        await self.consumer.subscribe(self.topic)
        await eventually(lambda: self.consumer.allocation.get(self.topic), "the consumer owns the topic")
        return self.consumer

    async def read(self, consumer: GroupedConsumer) -> None:
        async for _ in consumer:
            await self.hold()

    def silence(self, api_key: int) -> None:
        """Have no broker answer requests of one kind, until ``release``."""

        def answer(exchange: Exchange) -> bytes | None:
            if exchange.api_key == api_key:
                self.consumer_loop.call_soon_threadsafe(self.busy.set)
                return None
            return exchange.response

        def speak() -> None:
            self.brokers.answer = None

        self.consumer_loop = asyncio.get_running_loop()
        self.brokers.answer, self.release = answer, speak


class Hooks:
    """A listener with one hook, which the scene holds."""

    def __init__(self, scene: Scene, hook: str) -> None:
        setattr(self, hook, scene.hold)


# Phases of a join


async def not_connected(scene: Scene) -> None:
    """Nothing was started."""


async def brokers_are_looked_up(scene: Scene) -> None:
    scene.brokers.stall()
    scene.release = scene.brokers.heal
    scene.start(scene.consumer.connect())
    await eventually(lambda: scene.consumer.metrics.total("requests"), "the lookup is sent")


async def zookeeper_connects(scene: Scene) -> None:
    scene.zookeeper.stall()
    scene.release = scene.zookeeper.heal
    scene.start(scene.consumer.connect())
    await eventually(lambda: scene.zookeeper.accepted, "it connects")


async def it_registers(scene: Scene) -> None:
    """Each answer of ZooKeeper takes a while: the group's settings are written, the member is not registered."""
    scene.zookeeper.delay(0.1)
    scene.release = scene.zookeeper.heal
    scene.start(scene.consumer.connect())
    with zookeeper(scene.cluster) as client:
        await eventually(lambda: client.exists(GroupLayout(scene.group).config), "it is being admitted")
        assert not client.get_children(GroupLayout(scene.group).members)


async def no_assignment_yet(scene: Scene) -> None:
    scene.consumer = scene.new(debounce_initial_delay_ms=600_000)
    await scene.consumer.connect()
    await scene.consumer.subscribe(scene.topic)
    scene.start(scene.read(scene.consumer))


async def start_is_looked_up(scene: Scene) -> None:
    scene.silence(LIST_OFFSETS)
    await scene.consumer.connect()
    await scene.consumer.subscribe(scene.topic)
    await scene.busy.wait()


async def assigned_hook_runs(scene: Scene) -> None:
    scene.consumer = scene.new(listener=Hooks(scene, "on_partitions_assigned"))
    await scene.consumer.connect()
    await scene.consumer.subscribe(scene.topic)
    await scene.busy.wait()


# Phases of a hand-over


async def records_are_in_flight(scene: Scene) -> None:
    scene.start(scene.read(await scene.own()))
    await scene.busy.wait()


async def values_are_in_flight(scene: Scene) -> None:
    async def consume(consumer: GroupedConsumer) -> None:
        while await consumer.consume(scene.topic) is not None:
            await scene.hold()

    consumer = await scene.own()
    scene.start(consume(consumer))
    await eventually(lambda: consumer.position(TopicPartition(scene.topic, 0)), "values are taken")


async def a_revoked_partition_drains(scene: Scene) -> None:
    consumer = await scene.own()
    scene.start(scene.read(consumer))
    await scene.busy.wait()
    await consumer.subscribe(f"{scene.topic}-other")


async def revoked_hook_runs(scene: Scene) -> None:
    consumer = await scene.own(listener=Hooks(scene, "on_partitions_revoked"))
    await consumer.subscribe(f"{scene.topic}-other")
    await scene.busy.wait()


async def lost_hook_runs(scene: Scene) -> None:
    await scene.own(listener=Hooks(scene, "on_partitions_lost"))
    await expire(scene)
    await scene.busy.wait()


# Outages


async def broker_is_frozen(scene: Scene) -> None:
    """The commits of the close are sent to it, too (``broker-v0``)."""
    consumer = await scene.own(store="broker-v0", auto_commit_interval_ms=60_000)
    await consumer.getone()
    scene.cluster.kafka[0].pause()
    scene.release = scene.cluster.kafka[0].resume


async def broker_is_gone(scene: Scene) -> None:
    await scene.own(store="broker-v0")
    scene.brokers.refuse()
    scene.brokers.cut()
    scene.release = scene.brokers.heal


async def broker_is_cut_off(scene: Scene) -> None:
    await scene.own()
    scene.brokers.stall()
    scene.release = scene.brokers.heal


async def zookeeper_is_frozen(scene: Scene) -> None:
    scene.start(scene.read(await scene.own()))
    await scene.busy.wait()
    scene.zookeeper.stall()
    release_both(scene)


async def zookeeper_is_gone(scene: Scene) -> None:
    await scene.own()
    scene.zookeeper.refuse()
    scene.zookeeper.cut()
    scene.release = scene.zookeeper.heal


async def zookeeper_is_silent_after_a_cut(scene: Scene) -> None:
    await scene.own()
    scene.zookeeper.stall()
    scene.zookeeper.cut()
    scene.release = scene.zookeeper.heal


async def session_has_expired(scene: Scene) -> None:
    """The next session cannot join yet."""
    consumer = await scene.own()
    scene.zookeeper.refuse()
    scene.release = scene.zookeeper.heal
    await expire(scene)
    await eventually(lambda: not consumer.allocation.get(scene.topic), "the session is lost")


PHASES: list[Callable[[Scene], Coroutine[Any, Any, None]]] = [
    not_connected,
    brokers_are_looked_up,
    zookeeper_connects,
    it_registers,
    no_assignment_yet,
    start_is_looked_up,
    assigned_hook_runs,
    records_are_in_flight,
    values_are_in_flight,
    a_revoked_partition_drains,
    revoked_hook_runs,
    lost_hook_runs,
    broker_is_frozen,
    broker_is_gone,
    broker_is_cut_off,
    zookeeper_is_frozen,
    zookeeper_is_gone,
    zookeeper_is_silent_after_a_cut,
    session_has_expired,
]


def release_both(scene: Scene) -> None:
    def release() -> None:
        scene.zookeeper.heal()
        scene.free.set()

    scene.release = release


async def expire(scene: Scene) -> None:
    """End the consumer's session on the server."""
    session = scene.consumer._lifecycle.connected.member._member_session.session  # type: ignore[union-attr]
    await asyncio.to_thread(close_session, scene.cluster.zk_hosts, session.client.client_id)


def left_in(cluster: Cluster, group: str) -> list[str]:
    """Return the members of the group, which may never have begun."""
    with suppress(NoNodeError):
        return members(cluster, group)
    return []


@asynccontextmanager
async def scene_of(cluster: Cluster, topic: str, group: str) -> AsyncIterator[Scene]:
    await cluster.create_topic(topic, 1)
    await cluster.create_topic(f"{topic}-other", 1)
    await produce(cluster, topic, 20)
    hosts = cluster.zk_hosts.partition("/")[0]
    async with KafkaProxy(cluster.brokers[0]) as brokers, FaultProxy(hosts) as zookeepers:
        scene = Scene(cluster, topic, group, brokers, zookeepers)
        try:
            yield scene
        finally:
            scene.release()
            scene.free.set()
            for work in scene.work:
                work.cancel()
            await scene.consumer.close(timeout_s=5.0)


HOWS = ("with a bound", "until the outage ends")
#: Phases in which a close without any time has something to cancel, and those in which a second close ends a first one.
AT_ONCE = (it_registers, values_are_in_flight, revoked_hook_runs, zookeeper_is_frozen)
SHORTENED = (values_are_in_flight, revoked_hook_runs, zookeeper_is_frozen, broker_is_frozen)


@pytest.mark.parametrize(
    ("phase", "how"),
    [(phase, how) for phase in PHASES for how in HOWS]
    + [(phase, "at once") for phase in AT_ONCE]
    + [(phase, "shortened") for phase in SHORTENED],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
async def test_a_close_ends_in_time_and_leaves_nothing(
    cluster_39: Cluster, unique: Unique, phase: Callable[[Scene], Coroutine[Any, Any, None]], how: str
) -> None:
    """
    A bound counts from the call that sets it, also if that is a second call. Without one, the close ends when the
    servers answer again and the application is done.
    """
    before = Leftovers()
    group = unique("group")
    async with scene_of(cluster_39, unique("topic"), group) as scene:
        await phase(scene)
        began_s = running_s()
        if how in ("with a bound", "at once"):
            await scene.consumer.close(timeout_s=BOUND_S if how == "with a bound" else 0)
        elif how == "shortened":
            closing = scene.consumer.close()
            await asyncio.sleep(0)
            await scene.consumer.close(timeout_s=BOUND_S)
            async with asyncio.timeout(20.0):
                await closing
        else:
            closing = scene.consumer.close()
            await asyncio.sleep(0)
            scene.release()
            scene.free.set()
            async with asyncio.timeout(20.0):
                await closing
        took_s = running_s() - began_s
        assert how == "until the outage ends" or took_s < BOUND_S + MARGIN_S, f"the close took {took_s:.2f} s"
        scene.release()
        scene.free.set()
        for work in scene.work:
            with suppress(KielGroupsError):
                async with asyncio.timeout(10.0):
                    await work
    await before.check(5.0, THREADS_S)
    # A session that was not closed expires.
    await eventually(lambda: asyncio.to_thread(lambda: not left_in(cluster_39, group)), "the member is gone", 10.0)
