"""``close()`` of the blocking, the single and the producing clients, in outages: in time, and nothing is left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from kiel_groups import sync
from kiel_groups.clients import Producer, SingleConsumer
from kiel_groups.constants import BEGINNING
from kiel_groups.embedded import Cluster
from kiel_groups.errors import KielGroupsError
from tests.helpers.cluster_data import members, produce
from tests.helpers.leftovers import Leftovers
from tests.helpers.running_time import running_s
from tests.helpers.waiting import eventually, eventually_blocking
from tests.proxies import Exchange, FaultProxy, KafkaProxy

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

#: The bound of the closes, and what they may take beyond it on a busy machine, in seconds.
BOUND_S, MARGIN_S = 0.6, 2.4
#: How long threads may take to end a session that no server closes, in seconds: the session timeout, and some more.
THREADS_S = 7.0
LIST_OFFSETS = 2


# The blocking consumer


class Held:
    """A listener whose assigned hook never ends by itself."""

    def __init__(self) -> None:
        self.runs = threading.Event()

    async def on_partitions_assigned(self, _: object) -> None:
        self.runs.set()
        await asyncio.Event().wait()


class Blocking:
    """A blocking consumer with its ZooKeeper behind a proxy, and the threads that use it."""

    def __init__(self, cluster: Cluster, topic: str, group: str, zookeeper: FaultProxy) -> None:
        self.topic, self.zookeeper, self.listener = topic, zookeeper, Held()
        self._threads: list[threading.Thread] = []
        _, slash, chroot = cluster.zk_hosts.partition("/")
        self._arguments = (cluster.brokers, group, zookeeper.address + slash + chroot)
        self.consumer = self.new()
        #: Set while the application has a record, and when it may continue.
        self.busy, self.free = threading.Event(), threading.Event()

    def new(self, **settings: Any) -> sync.GroupedConsumer:
        self.consumer = sync.GroupedConsumer(*self._arguments, session_timeout_ms=4_000, **settings)
        return self.consumer

    def start(self, work: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            with suppress(KielGroupsError):
                work()

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()
        return self._threads[-1]

    def own(self) -> None:
        self.consumer.connect()
        self.consumer.subscribe(self.topic)
        eventually_blocking(lambda: self.consumer.allocation.get(self.topic), "the consumer owns the topic")

    def read(self) -> None:
        for _ in self.consumer:
            self.busy.set()
            self.free.wait()

    def end(self) -> None:
        self.zookeeper.heal()
        self.free.set()
        self.consumer.close(timeout_s=5.0)
        for thread in self._threads:
            thread.join(10.0)


def zookeeper_connects(blocking: Blocking) -> None:
    blocking.zookeeper.stall()
    blocking.start(blocking.consumer.connect)
    eventually_blocking(lambda: blocking.zookeeper.accepted, "it connects")


def a_hook_runs(blocking: Blocking) -> None:
    blocking.consumer.close()
    blocking.new(listener=blocking.listener)
    blocking.consumer.connect()
    blocking.consumer.subscribe(blocking.topic)
    assert blocking.listener.runs.wait(30.0)


def a_record_is_in_flight(blocking: Blocking) -> None:
    blocking.own()
    blocking.start(blocking.read)
    assert blocking.busy.wait(30.0)


def zookeeper_is_frozen(blocking: Blocking) -> None:
    blocking.own()
    blocking.zookeeper.stall()


@pytest.fixture
def topic(cluster_39: Cluster, unique: Unique) -> str:
    async def fill(name: str) -> None:
        await cluster_39.create_topic(name, 1)
        await produce(cluster_39, name, 20)

    name = unique("topic")
    asyncio.run(fill(name))
    return name


@pytest.fixture
def blocking(cluster_39: Cluster, topic: str, unique: Unique) -> Iterator[Blocking]:
    before = Leftovers()
    group = unique("group")
    with FaultProxy(cluster_39.zk_hosts.partition("/")[0]) as proxy:
        made = Blocking(cluster_39, topic, group, proxy)
        try:
            yield made
        finally:
            made.end()
    eventually_blocking(lambda: not before.found(), f"nothing is left of {before.found()}", THREADS_S)


@pytest.mark.parametrize("shortened", [False, True])
@pytest.mark.parametrize("phase", [zookeeper_connects, a_hook_runs, a_record_is_in_flight, zookeeper_is_frozen])
def test_the_blocking_consumer_closes_in_time(
    blocking: Blocking, phase: Callable[[Blocking], None], shortened: bool
) -> None:
    """Also if another thread waits in a close without a bound: the bound of this call ends both."""
    phase(blocking)
    if shortened:
        first = blocking.start(blocking.consumer.close)
        eventually_blocking(lambda: blocking.consumer._client.closing, "the first close has begun")
    began_s = running_s()
    blocking.consumer.close(timeout_s=BOUND_S)
    assert running_s() - began_s < BOUND_S + MARGIN_S
    if shortened:
        first.join(20.0)
        assert not first.is_alive()
        assert running_s() - began_s < BOUND_S + 2 * MARGIN_S


def test_a_thread_that_closes_its_own_loop_ends_the_close_that_waits_for_its_record(
    blocking: Blocking, cluster_39: Cluster
) -> None:
    """The close waits for the record of the other thread, which finishes it by a close of its own."""

    def read_one() -> None:
        with blocking.consumer as consumer:
            for _ in consumer:
                blocking.busy.set()
                blocking.free.wait()
                break

    blocking.own()
    reading = blocking.start(read_one)
    assert blocking.busy.wait(30.0)
    closing = blocking.start(blocking.consumer.close)
    eventually_blocking(lambda: blocking.consumer._client.closing, "the close has begun")
    assert closing.is_alive()
    blocking.free.set()
    closing.join(10.0)
    reading.join(10.0)
    assert not closing.is_alive()
    assert not reading.is_alive()


# The single consumer, and the producer


@asynccontextmanager
async def broker_of(cluster: Cluster) -> AsyncIterator[KafkaProxy]:
    before = Leftovers()
    async with KafkaProxy(cluster.brokers[0]) as broker:
        try:
            yield broker
        finally:
            broker.heal()
    await before.check(5.0, 5.0)


def disturb(broker: KafkaProxy, outage: str) -> None:
    if outage == "frozen":
        broker.stall()
    elif outage == "gone":
        broker.refuse()
        broker.cut()


@pytest.mark.parametrize("outage", ["none", "frozen", "gone"])
@pytest.mark.parametrize("phase", ["not connected", "connecting", "start is looked up", "records are in flight"])
async def test_the_single_consumer_closes_at_once(cluster_39: Cluster, unique: Unique, phase: str, outage: str) -> None:
    name = unique("topic")
    await cluster_39.create_topic(name, 1)
    await produce(cluster_39, name, 20)
    started: list[asyncio.Future[Any]] = []
    async with broker_of(cluster_39) as broker:
        consumer = SingleConsumer(broker.address)
        if phase == "connecting":
            disturb(broker, outage)
            started.append(consumer.connect())
            await eventually(lambda: outage == "gone" or consumer.metrics.total("requests"), "it connects")
        elif phase == "start is looked up":
            broker.answer = silent_lookups
            await consumer.connect()
            started.append(consumer.subscribe(name, BEGINNING))
            await eventually(lambda: consumer.metrics.counter("requests", api="ListOffsetsRequest"), "it looks up")
        elif phase == "records are in flight":
            await consumer.connect()
            await consumer.subscribe(name, BEGINNING)
            await anext(aiter(consumer))
        disturb(broker, outage)
        began_s = running_s()
        await consumer.close()
        assert running_s() - began_s < MARGIN_S
        for work in started:
            with suppress(KielGroupsError):
                async with asyncio.timeout(20.0):
                    await work
        assert running_s() - began_s < 2 * MARGIN_S


def silent_lookups(exchange: Exchange) -> bytes | None:
    return None if exchange.api_key == LIST_OFFSETS else exchange.response


@pytest.mark.parametrize("outage", ["frozen", "gone"])
@pytest.mark.parametrize("phase", ["not connected", "connecting", "topic is looked up", "records are in flight"])
async def test_the_producer_closes_in_time(cluster_39: Cluster, unique: Unique, phase: str, outage: str) -> None:
    """Records that are not stored by then fail."""
    name = unique("topic")
    await cluster_39.create_topic(name, 1)
    started: list[asyncio.Future[Any]] = []
    async with broker_of(cluster_39) as broker:
        producer = Producer(broker.address)
        if phase == "connecting":
            disturb(broker, outage)
            started.append(producer.connect())
        elif phase != "not connected":
            await producer.connect()
            if phase == "records are in flight":
                await producer.produce(name, b"stored")
            disturb(broker, outage)
            started.append(producer.produce(name, b"not stored"))
        await asyncio.sleep(0)
        began_s = running_s()
        with suppress(KielGroupsError):
            await producer.close(timeout_ms=int(1_000 * BOUND_S))
        assert running_s() - began_s < BOUND_S + MARGIN_S
        for work in started:
            async with asyncio.timeout(20.0):
                with pytest.raises(KielGroupsError):
                    await work
        assert running_s() - began_s < BOUND_S + 2 * MARGIN_S


def test_members_of_blocking_consumers_leave(blocking: Blocking, cluster_39: Cluster) -> None:
    """The table above does not pass because nothing joins."""
    blocking.own()
    group = blocking._arguments[1]
    assert len(members(cluster_39, group)) == 1
    blocking.consumer.close(timeout_s=5.0)
    assert members(cluster_39, group) == []
