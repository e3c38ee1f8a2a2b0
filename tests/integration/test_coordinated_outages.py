"""Members of broker-coordinated groups whose process or broker stops, and brokers that cannot coordinate them."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

import pytest

from kiel_groups import GroupedConsumer, TopicPartition
from kiel_groups.embedded import Cluster
from kiel_groups.errors import AllocatorError, ConfigError, KielGroupsError, NoBrokersError
from kiel_groups.wire.group_requests import FindCoordinatorRequest, JoinGroupRequest, SyncGroupRequest
from tests.helpers.cluster_data import produce
from tests.helpers.commands import Running
from tests.helpers.group_backends import GroupBackend
from tests.helpers.leftovers import Leftovers
from tests.helpers.members import group_of
from tests.helpers.running_time import running_s
from tests.helpers.waiting import eventually
from tests.proxies import Exchange, KafkaProxy

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

#: The least session timeout that brokers accept by default, in milliseconds.
SESSION_MS = 6_000

#: The bound of the closes, and what they may take beyond it on a busy computer, in seconds.
BOUND_S, MARGIN_S = 0.6, 2.4
#: How long the heartbeat's thread may wait for an answer, in seconds: a sixth of the session timeout, and a margin.
THREADS_S = 8.0

#: Prints what it is delivered and what becomes of its commits, each with the generation.
_MEMBER = """
import asyncio
import json
import sys
from kiel_groups import GroupedConsumer
from kiel_groups.errors import KielGroupsError

async def main():
    broker, group, topic, settings = sys.argv[1:]
    async with GroupedConsumer(broker, group, autocommit=False, **json.loads(settings)) as consumer:
        await consumer.subscribe(topic)
        async for record in consumer:
            generation = consumer.fencing_token(record).generation
            print("delivered", generation, record.offset, flush=True)
            await asyncio.sleep(0.02)
            try:
                await consumer.commit()
                print("committed", generation, record.offset + 1, flush=True)
            except KielGroupsError as error:
                print("refused", generation, record.offset + 1, flush=True)

asyncio.run(main())
"""


async def test_a_process_is_stopped_past_its_session(coordinating_cluster: Cluster, unique: Unique) -> None:
    """
    Another member owns the partition when the session is over. When the process resumes, it delivers none of the
    records that it has buffered, and its commit is not accepted.
    """
    backend, topic, name = GroupBackend(coordinating_cluster, "brokers"), unique("topic"), unique("group")
    await coordinating_cluster.create_topic(topic, 1)
    await produce(coordinating_cluster, topic, 300)
    settings: dict[str, Any] = {**backend.settings, "session_timeout_ms": SESSION_MS}
    arguments = [coordinating_cluster.brokers[0], name, topic, json.dumps(settings)]
    async with group_of(coordinating_cluster, name, [topic], auto_commit_interval_ms=100, **settings) as group:
        with Running(["-c", _MEMBER, *arguments]) as stopped:
            before = await asyncio.to_thread(stopped.wait_for_lines, 10)
            generation = before[0].split()[1]
            stopped.process.send_signal(signal.SIGSTOP)
            heir = await group.join()
            await eventually(lambda: len(heir.records) and heir.records[-1].offset == 299, "the heir has read it all")
            await backend.await_committed(name, topic, 300)
            printed = len(stopped.lines)
            stopped.process.send_signal(signal.SIGCONT)
            await eventually(lambda: len(backend.members(name)) == 2, "the process has joined again")
            later = await produce(coordinating_cluster, topic, 20, first=300)

            def delivered_later() -> list[int]:
                lines = [line.split() for line in stopped.lines[printed:]]
                offsets = [int(offset) for what, _, offset in lines if what == "delivered"]
                return sorted(offsets + [record.offset for record in heir.records if record.offset >= 300])

            await eventually(lambda: len(delivered_later()) >= len(later), "the later records are delivered")
            assert delivered_later() == list(range(300, 320))
            resumed = [line.split() for line in stopped.lines[printed:]]
            # The coordinator may have accepted a commit right before the stop.
            begun = heir.records[0].offset
            zombies = [line for line in resumed if line[1] == generation and line[0] == "committed"]
            assert all(int(offset) <= begun for _, _, offset in zombies), "a late commit was accepted"
            assert backend.committed(name, topic) >= 300


async def test_the_coordinator_restarts_under_a_member(
    start_cluster: Callable[..., Cluster], coordinating_version: str
) -> None:
    """The member keeps its membership and its partition: the coordinator finds the group in its log."""
    cluster = start_cluster(kafka=coordinating_version)
    await cluster.create_topic("t", 1)
    backend = GroupBackend(cluster, "brokers")
    async with group_of(cluster, "g", ["t"], **backend.settings, auto_commit_interval_ms=100) as group:
        member = await group.join()
        values = await produce(cluster, "t", 20)
        await group.delivered(values)
        await backend.await_committed("g", "t", 20)
        await cluster.kafka[0].stop()
        await cluster.kafka[0].start()
        values += await produce(cluster, "t", 20, first=20)
        assert set((await group.delivered(values, 60)).values()) == {1}
        await backend.await_committed("g", "t", 40)
        assert member.lost_partitions == []
        assert {delivery.token for delivery in member.deliveries} == {member.deliveries[0].token}


async def test_a_record_that_outlasts_the_rebalance_timeout_is_lost_loudly(
    coordinating_cluster: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """
    With JoinGroup v0, the coordinator waits for the session timeout. A member whose application is busy for longer
    joins in time all the same: the partition of that record is lost, with an error, and the other one is given back.
    """
    backend, topic, name = GroupBackend(coordinating_cluster, "brokers"), unique("topic"), unique("group")
    await coordinating_cluster.create_topic(topic, 2)
    settings: dict[str, Any] = {**backend.settings, "api_version": (0, 9), "session_timeout_ms": SESSION_MS}
    async with group_of(coordinating_cluster, name, [topic], auto_commit_interval_ms=100, **settings) as group:
        busy = await group.join()
        await group.balanced(topic, 2)
        token = busy.consumer.fencing_token(min(busy.held))
        busy.go_on.clear()
        await produce(coordinating_cluster, topic, 1)
        await eventually(lambda: busy.records, "a record is in flight")
        began_s = running_s()
        other = await group.join()
        await eventually(lambda: len(other.held) == 1 and len(busy.held) == 1, "the members share the partitions")
        assert running_s() - began_s < SESSION_MS / 1000
        assert busy.lost_partitions == [busy.records[0].topic_partition]
        assert re.search(rf"1 partition, first {topic}:\d, were not given back within [12]\.\d s", caplog.text)
        assert busy.consumer.metrics.total("memberships_lost") == 0
        assert busy.consumer.fencing_token(min(busy.held)).member_id == token.member_id
        busy.go_on.set()
        await eventually(lambda: len(group.values) == 2, "the record is delivered again")


# Closes


class HeldListener:
    """A listener that gives partitions back when the test says so."""

    def __init__(self) -> None:
        self.revoking, self.may_revoke, self.assigned = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def on_partitions_revoked(self, _: Collection[TopicPartition]) -> None:
        self.assigned.clear()
        self.revoking.set()
        await self.may_revoke.wait()

    def on_partitions_assigned(self, _: Collection[TopicPartition]) -> None:
        self.assigned.set()


@pytest.mark.parametrize("limit_s", [None, 0.0])
async def test_a_member_that_closes_during_its_first_join_leaves_the_group(
    coordinating_cluster: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture, limit_s: float | None
) -> None:
    """
    The other member has its partitions again as soon as it has given them back, and not when the session of the former
    one is over. Before 2.2, a member has no id during its first join, so it cannot leave.
    """
    backend, topic, name = GroupBackend(coordinating_cluster, "brokers"), unique("topic"), unique("group")
    if tuple(int(number) for number in coordinating_cluster._release.version.split(".")[:2]) < (2, 2):
        pytest.skip("brokers before 2.2 know no JoinGroup v4")
    await coordinating_cluster.create_topic(topic, 2)
    listener = HeldListener()
    staying, leaving = backend.consumer(name, listener=listener), backend.consumer(name)
    try:
        await staying.subscribe(topic)
        await staying.connect()
        await eventually(listener.assigned.is_set, "the member has its partitions")
        (own_id,) = backend.members(name)
        await leaving.subscribe(topic)
        connecting = asyncio.ensure_future(leaving.connect())
        await eventually(listener.revoking.is_set, "the other member joins")
        assert len(backend.members(name)) == 2
        began_s = running_s()
        await leaving.close(timeout_s=limit_s)
        await eventually(lambda: backend.members(name) == [own_id], "the other member has left", 10)
        listener.may_revoke.set()
        await eventually(listener.assigned.is_set, "the member has its partitions again", 10)
        # The default session timeout is 30 s.
        assert running_s() - began_s < 20
        await asyncio.wait({connecting})
    finally:
        listener.may_revoke.set()
        await staying.close()
    assert "could not" not in caplog.text


class Scene:
    """A consumer whose only broker is behind a proxy."""

    def __init__(self, backend: GroupBackend, topic: str, group: str, proxy: KafkaProxy) -> None:
        self.cluster = backend.cluster
        self.topic = topic
        self.proxy = proxy
        self.consumer: GroupedConsumer = backend.consumer(
            group,
            brokers=[proxy.address],
            session_timeout_ms=SESSION_MS,
            request_timeout_ms=1_000,
            connect_timeout_ms=1_000,
        )
        self.work: asyncio.Future[Any] | None = None

    async def own(self) -> None:
        """Join, and have a record in flight that only the close finishes."""
        await self.consumer.connect()
        await self.consumer.subscribe(self.topic)
        await self.consumer.getone()

    def silence(self, api_key: int) -> asyncio.Event:
        """Have no broker answer requests of one kind, and return an event that is set by the first one."""
        loop, asked = asyncio.get_running_loop(), asyncio.Event()

        def answer(exchange: Exchange) -> bytes | None:
            if exchange.api_key == api_key:
                loop.call_soon_threadsafe(asked.set)
                return None
            return exchange.response

        self.proxy.answer = answer
        return asked

    async def join_without(self, api_key: int) -> None:
        """Join until a request of this kind, which is not answered."""
        asked = self.silence(api_key)

        async def join() -> None:
            await self.consumer.connect()
            await self.consumer.subscribe(self.topic)

        self.work = asyncio.ensure_future(join())
        await asked.wait()


async def it_owns_a_partition(scene: Scene) -> None:
    await scene.own()


async def its_coordinator_is_looked_up(scene: Scene) -> None:
    await scene.join_without(FindCoordinatorRequest.API_KEY)


async def it_joins(scene: Scene) -> None:
    await scene.join_without(JoinGroupRequest.API_KEY)


async def it_syncs(scene: Scene) -> None:
    await scene.join_without(SyncGroupRequest.API_KEY)


async def its_broker_is_frozen(scene: Scene) -> None:
    await scene.own()
    scene.cluster.kafka[0].pause()


async def its_broker_is_gone(scene: Scene) -> None:
    await scene.own()
    scene.proxy.refuse()
    scene.proxy.cut()


@pytest.mark.parametrize(
    "phase",
    [
        it_owns_a_partition,
        its_coordinator_is_looked_up,
        it_joins,
        it_syncs,
        its_broker_is_frozen,
        its_broker_is_gone,
    ],
    ids=lambda phase: phase.__name__,
)
async def test_a_close_ends_in_time_and_leaves_nothing(
    coordinating_cluster: Cluster, unique: Unique, phase: Callable[[Scene], Awaitable[None]]
) -> None:
    """No task, no thread and no socket of the consumer is left, whatever the broker does not answer."""
    backend, topic = GroupBackend(coordinating_cluster, "brokers"), unique("topic")
    await coordinating_cluster.create_topic(topic, 1)
    await produce(coordinating_cluster, topic, 5)
    before = Leftovers()
    async with KafkaProxy(coordinating_cluster.brokers[0]) as proxy:
        scene = Scene(backend, topic, unique("group"), proxy)
        try:
            await phase(scene)
            began_s = running_s()
            await scene.consumer.close(timeout_s=BOUND_S)
            took_s = running_s() - began_s
        finally:
            coordinating_cluster.kafka[0].resume()
        assert took_s < BOUND_S + MARGIN_S, f"the close took {took_s:.2f} s"
        if scene.work is not None:
            with pytest.raises(KielGroupsError):
                await asyncio.wait_for(scene.work, 10)
    await before.check(5.0, THREADS_S)


# Starts that fail


async def test_a_broker_that_is_stopped_is_named_in_time(coordinating_cluster: Cluster, unique: Unique) -> None:
    """An error says which broker does not answer, whether it stops before the connection or before the join."""
    backend, topic = GroupBackend(coordinating_cluster, "brokers"), unique("topic")
    await coordinating_cluster.create_topic(topic, 1)
    async with KafkaProxy(coordinating_cluster.brokers[0]) as proxy:
        for is_connected in (False, True):
            consumer = backend.consumer(
                unique("group"), brokers=[proxy.address], request_timeout_ms=1_000, connect_timeout_ms=1_000
            )
            if is_connected:
                proxy.heal()
                await consumer.connect()
            proxy.refuse()
            proxy.cut()
            began_s = running_s()
            with pytest.raises(NoBrokersError, match=proxy.address):
                await (consumer.subscribe(topic) if is_connected else consumer.connect())
            assert running_s() - began_s < 6
            await consumer.close()


@pytest.mark.parametrize("timeout_ms", [5_999, 1_800_001])
async def test_a_session_timeout_that_the_brokers_refuse_names_their_bounds(
    coordinating_cluster: Cluster, unique: Unique, timeout_ms: int
) -> None:
    """The error is raised by the call that joins, and not repeated."""
    backend, topic = GroupBackend(coordinating_cluster, "brokers"), unique("topic")
    await coordinating_cluster.create_topic(topic, 1)
    async with backend.consumer(unique("group"), session_timeout_ms=timeout_ms) as consumer:
        with pytest.raises(
            ConfigError, match=rf"session_timeout_ms: {timeout_ms} given.*group\.min\.session\.timeout\.ms \(6,000"
        ):
            await consumer.subscribe(topic)
        assert consumer.metrics.total("group_requests_failed") == 0


async def test_an_allocator_that_fails_is_an_error_of_the_join(coordinating_cluster: Cluster, unique: Unique) -> None:
    """The call that joins raises it, and the member leaves: another one has the partitions at once."""
    backend, topic, name = GroupBackend(coordinating_cluster, "brokers"), unique("topic"), unique("group")
    await coordinating_cluster.create_topic(topic, 1)

    def failing(members: Sequence[str], partitions: Sequence[str]) -> dict[str, dict[str, list[int]]]:
        raise ValueError("no plan today")

    async with backend.consumer(name, partition_allocator=failing) as consumer:
        with pytest.raises(AllocatorError, match="it raised ValueError: no plan today"):
            await consumer.subscribe(topic)
    began_s = running_s()
    async with backend.consumer(name) as other:
        await other.subscribe(topic)
        await eventually(lambda: other.assignment(), "the partition is owned")
    assert running_s() - began_s < SESSION_MS / 1000


@pytest.mark.parametrize("version", ["0.8.1.1", "0.8.2.2"])
async def test_brokers_that_coordinate_no_groups_are_refused(
    shared_clusters: Callable[..., Cluster], unique: Unique, version: str
) -> None:
    """Those of 0.8.2 keep offsets, and name a coordinator; that is not enough."""
    cluster = shared_clusters("3.9.5", version)
    consumer = GroupBackend(cluster, "brokers").consumer(unique("group"))
    with pytest.raises(
        ConfigError, match=r"does not know group requests: brokers coordinate groups from Kafka 0\.9 on"
    ):
        await consumer.connect()
    await consumer.close()
