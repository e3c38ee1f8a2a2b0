"""Starts and closes that are cancelled at any moment, and closes beside other work: none leaves anything."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from kiel_groups import GenericMember, GroupedConsumer, TopicPartition
from kiel_groups.allocators import round_robin
from kiel_groups.config import GroupConfig, ZooKeeperConfig
from kiel_groups.embedded import Cluster
from kiel_groups.errors import ClosedError, IllegalStateError, KielGroupsError
from kiel_groups.members.zookeeper.allocator_process import AllocatorProcess
from tests.helpers.cluster_data import members, produce
from tests.helpers.contexts import process_context
from tests.helpers.group_backends import GroupBackend
from tests.helpers.leftovers import Leftovers
from tests.helpers.running_time import running_s
from tests.helpers.scripted_coordinator import RecordedHooks
from tests.helpers.waiting import eventually, eventually_blocking
from tests.proxies import FaultProxy
from tests.soak import PARTITIONS, VisitedGroup

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

#: The seconds between an ``assign`` and the close that follows; None: not even a turn of the event loop.
_PAUSES_S = (None, 0.0, 0.005, 0.02)

#: How many moments of a start are played.
_MOMENTS = 24

#: How long threads may take to end a session or a membership, in seconds.
_THREADS_S = 12.0


@dataclass(frozen=True, slots=True)
class _Member:
    """A consumer, or a generic member."""

    start: Callable[[], Awaitable[object]]
    close: Callable[[], Awaitable[object]]


def _consumer(backend: GroupBackend, group: str) -> _Member:
    consumer = backend.consumer(group)
    return _Member(consumer.connect, consumer.close)


def _generic_member(backend: GroupBackend, group: str) -> _Member:
    settings: dict[str, Any] = {"zk_hosts": backend.settings["zk_hosts"]}
    if backend.by_brokers:
        settings = {"brokers": backend.cluster.brokers, "coordination": "brokers"}
    member = GenericMember(RecordedHooks([], "test"), group, **settings)
    return _Member(member.start, member.close)


async def test_rebalances_leave_nothing(backend: GroupBackend, unique: Unique) -> None:
    """Members that join and leave for some seconds, blocking ones too, leave no task, thread or socket."""
    topic = unique("topic")
    await backend.cluster.create_topic(topic, PARTITIONS)
    leftovers = Leftovers()
    group = VisitedGroup(backend, unique("group"), topic, time.monotonic() + 2)
    await group.run()
    assert group.counts["rebalances"] >= 6
    await leftovers.check(2, _THREADS_S)


@pytest.mark.parametrize("new", [_consumer, _generic_member])
async def test_a_cancelled_start_leaves_nothing(
    backend: GroupBackend, unique: Unique, new: Callable[[GroupBackend, str], _Member]
) -> None:
    """No task, no thread and no socket is left, whatever the member had sent or begun when its start was cancelled."""
    group = unique("group")
    before = Leftovers()
    began_s = time.monotonic()
    complete = new(backend, group)
    await complete.start()
    took_s = time.monotonic() - began_s
    await complete.close()
    for moment in range(_MOMENTS):
        member = new(backend, group)
        starting = asyncio.ensure_future(member.start())
        await asyncio.wait({starting}, timeout=took_s * moment / _MOMENTS)
        starting.cancel()
        await member.close()
        with suppress(asyncio.CancelledError, ClosedError):
            await starting
    await before.check(5.0, _THREADS_S)


@pytest.mark.parametrize("timeout_s", [0.0, 0.01, None])
async def test_a_close_ends_the_membership_that_assign_has_replaced(
    backend: GroupBackend, unique: Unique, timeout_s: float | None
) -> None:
    """``assign`` leaves the group in the background. That ends with the close, also if the close has no time left."""
    topic = unique("topic")
    await backend.cluster.create_topic(topic, 1)
    before = Leftovers()
    for pause_s in _PAUSES_S:
        consumer = backend.consumer(unique("group"))
        await consumer.connect()
        consumer.assign([TopicPartition(topic, 0)])
        if pause_s is not None:
            await asyncio.sleep(pause_s)
        await consumer.close(timeout_s=timeout_s)
    await before.check(5.0, _THREADS_S)


async def test_an_entry_that_is_cancelled_when_it_has_just_connected_leaves_nothing(
    backend: GroupBackend, unique: Unique
) -> None:
    """``__aexit__`` is not called then, so ``async with`` itself has to close the consumer."""
    before = Leftovers()
    consumer = backend.consumer(unique("group"))
    # This callback comes before that of the entry, which begins to wait later.
    consumer.connect().add_done_callback(lambda _: entering.cancel())
    entering = asyncio.ensure_future(consumer.__aenter__())
    with pytest.raises(asyncio.CancelledError):
        await entering
    await before.check(5.0, _THREADS_S)


@pytest.mark.parametrize("turns", [0, 1, 2, 5, 20])
async def test_a_program_that_cancels_all_tasks_during_a_close_leaves_nothing(
    backend: GroupBackend, unique: Unique, turns: int
) -> None:
    """The member leaves without waiting for a value that is not finished. The close may be repeated."""
    topic = unique("topic")
    await backend.cluster.create_topic(topic, 1)
    await produce(backend.cluster, topic, 1)
    before = Leftovers()
    consumer = backend.consumer(unique("group"))
    await consumer.connect()
    await consumer.subscribe(topic)
    taking = asyncio.ensure_future(consumer.consume(topic))
    await taking
    closing = consumer.close()
    for _ in range(turns):
        await asyncio.sleep(0)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    with suppress(asyncio.CancelledError):
        await closing
    await consumer.close()
    await before.check(5.0, _THREADS_S)


async def test_a_hook_of_a_former_membership_cannot_close_the_consumer(backend: GroupBackend, unique: Unique) -> None:
    """The close would wait for that membership, which waits for its hook."""
    topic = unique("topic")
    await backend.cluster.create_topic(topic, 1)

    class Closing:
        errors: ClassVar[list[Exception]] = []

        async def on_partitions_revoked(self, _: object) -> None:
            await replaced.wait()
            try:
                await consumer.close()
            except IllegalStateError as error:
                self.errors.append(error)

    replaced = asyncio.Event()
    consumer = backend.consumer(unique("group"), listener=Closing())
    await consumer.connect()
    await consumer.subscribe(topic)
    await eventually(lambda: consumer.allocation.get(topic), "the consumer owns the topic")
    consumer.unsubscribe()
    consumer.assign([TopicPartition(unique("other"), 0)])
    replaced.set()
    await eventually(lambda: Closing.errors, "the close is refused")
    await consumer.close()


@pytest.mark.parametrize("after_s", [0.0, 0.003])
async def test_a_start_of_a_generic_member_that_is_cancelled_closes_it(
    backend: GroupBackend, unique: Unique, after_s: float
) -> None:
    """It does not join in the background."""
    before = Leftovers()
    member = _generic_member(backend, unique("group"))
    starting = asyncio.ensure_future(member.start())
    await asyncio.wait({starting}, timeout=after_s)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await before.check(5.0, _THREADS_S)


async def test_an_allocator_that_is_closed_while_it_starts_does_not_join(
    zookeeper_backend: GroupBackend, unique: Unique
) -> None:
    """The start raises an error when its session has joined, and closes that."""
    before = Leftovers()
    zookeeper = ZooKeeperConfig.parse(zookeeper_backend.cluster.zk_hosts)
    process = process_context(GroupConfig(group=unique("group")), zookeeper)
    allocator = AllocatorProcess(process, round_robin, _ignore)
    starting = asyncio.ensure_future(allocator.start())
    await asyncio.sleep(0)
    await allocator.close()
    with pytest.raises(ClosedError):
        await starting
    await before.check(5.0, _THREADS_S)


async def test_a_generic_member_closes_in_time_beside_a_frozen_zookeeper(cluster_39: Cluster, unique: Unique) -> None:
    """The session's threads close it when the server answers again."""
    hosts, slash, chroot = cluster_39.zk_hosts.partition("/")
    before = Leftovers()
    async with FaultProxy(hosts) as proxy:
        address = proxy.address + slash + chroot
        member = GenericMember(RecordedHooks([], "test"), unique("group"), address, session_timeout_ms=6_000)
        await member.start()
        proxy.stall()
        began_s = running_s()
        await member.close(timeout_s=0.5)
        assert running_s() - began_s < 5.0, "the close waits for the end of the session"
        proxy.heal()
    await before.check(5.0, _THREADS_S)


# Programs that have left their event loop


def test_the_exit_of_the_interpreter_ends_a_membership_that_assign_has_replaced(
    cluster_39: Cluster, unique: Unique
) -> None:
    """Its partitions are free at once, not after its session timeout."""
    group, topic = unique("group"), unique("topic")
    asyncio.run(cluster_39.create_topic(topic, 1))
    loop = asyncio.new_event_loop()
    consumer = GroupedConsumer(cluster_39.brokers, group, cluster_39.zk_hosts)

    async def replace() -> None:
        await consumer.connect()
        consumer.assign([TopicPartition(topic, 0)])

    loop.run_until_complete(replace())
    assert members(cluster_39, group) != []
    consumer._left_loop.exit()
    eventually_blocking(lambda: members(cluster_39, group) == [], "the member is gone", 6.0)
    loop.close()


def _ignore(_: KielGroupsError) -> None: ...
