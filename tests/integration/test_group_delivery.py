"""Finished records, and how a group survives changes by brokers, logs and operators."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Collection

import pytest

from kiel_groups import GroupedConsumer, TopicPartition
from kiel_groups.embedded import Cluster
from kiel_groups.errors import OffsetOutOfRangeError
from kiel_groups.group.znodes.layout import GroupLayout
from tests.helpers.cluster_data import owners, produce, stored_offsets, zookeeper
from tests.helpers.group_backends import GroupBackend
from tests.helpers.members import Member, group_of
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


def consumer_of(backend: GroupBackend, group: str, **settings: object) -> GroupedConsumer:
    return backend.consumer(group, **settings)


async def topic_of_one(backend: GroupBackend, unique: Unique, count: int) -> str:
    topic = unique("topic")
    await backend.cluster.create_topic(topic, 1)
    await produce(backend.cluster, topic, count)
    return topic


def offset_of(backend: GroupBackend, group: str, topic: str) -> int | None:
    return backend.stored(group, topic).get(0)


def test_a_consumer_is_constructed_before_any_event_loop_runs(backend: GroupBackend, unique: Unique) -> None:
    """Tornado services construct clients at module level, before the loop runs."""
    topic = unique("topic")
    consumer = consumer_of(backend, unique("group"))
    asyncio.run(backend.cluster.create_topic(topic, 1))

    async def main() -> list[bytes]:
        await produce(backend.cluster, topic, 1)
        async with consumer:
            await consumer.subscribe(topic)
            async for record in consumer:
                return [record.value]
        return []

    assert asyncio.run(main()) == [b"0"]


async def test_a_break_finishes_the_record_in_flight(release_backend: GroupBackend, unique: Unique) -> None:
    """The record at the break is committed by the close."""
    topic, name = await topic_of_one(release_backend, unique, 10), unique("group")
    async with consumer_of(release_backend, name) as consumer:
        await consumer.subscribe(topic)
        async for record in consumer:
            if record.offset == 4:
                break
    assert offset_of(release_backend, name, topic) == 5


async def test_an_exception_does_not_finish_the_record_in_flight(backend: GroupBackend, unique: Unique) -> None:
    """The record is not committed, so that the next member gets it again."""
    topic, name = await topic_of_one(backend, unique, 10), unique("group")

    async def fail() -> None:
        async with consumer_of(backend, name) as consumer:
            await consumer.subscribe(topic)
            async for record in consumer:
                if record.offset == 4:
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert offset_of(backend, name, topic) == 4


async def test_the_next_loop_starts_with_the_first_unfinished_record(backend: GroupBackend, unique: Unique) -> None:
    """After a break the loop starts with the next record, after an exception with the same record."""
    topic, name = await topic_of_one(backend, unique, 10), unique("group")
    seen: list[int] = []

    async def read_until(offset: int, *, fail: bool) -> None:
        async for record in consumer:
            seen.append(record.offset)
            if record.offset == offset and fail:
                raise ZeroDivisionError
            if record.offset == offset:
                return

    async with consumer_of(backend, name) as consumer:
        await consumer.subscribe(topic)
        await read_until(2, fail=False)
        with pytest.raises(ZeroDivisionError):
            await read_until(4, fail=True)
        await read_until(5, fail=False)
    assert seen == [0, 1, 2, 3, 4, 4, 5]
    assert offset_of(backend, name, topic) == 6


async def test_a_close_during_an_exception_does_not_finish_the_record(backend: GroupBackend, unique: Unique) -> None:
    """A close in ``finally``, without ``async with``, does not treat the exception as a break."""
    topic, name = await topic_of_one(backend, unique, 10), unique("group")
    consumer = consumer_of(backend, name)
    await consumer.connect()
    await consumer.subscribe(topic)

    async def fail() -> None:
        try:
            async for record in consumer:
                if record.offset == 2:
                    raise ZeroDivisionError
        finally:
            await consumer.close()

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert offset_of(backend, name, topic) == 2


async def test_a_close_inside_the_loop_finishes_the_record_and_ends_the_loop(
    backend: GroupBackend, unique: Unique
) -> None:
    """A close inside the loop does not wait for the loop."""
    topic, name = await topic_of_one(backend, unique, 10), unique("group")
    consumer = consumer_of(backend, name)
    await consumer.connect()
    await consumer.subscribe(topic)
    seen = []
    async for record in consumer:
        seen.append(record.offset)
        if record.offset == 2:
            await consumer.close()
    assert seen == [0, 1, 2]
    assert offset_of(backend, name, topic) == 3


async def test_a_close_from_another_task_waits_for_the_record_in_flight(backend: GroupBackend, unique: Unique) -> None:
    """The loop can finish its record before the member leaves, and the record is committed."""
    topic, name = await topic_of_one(backend, unique, 10), unique("group")
    consumer = consumer_of(backend, name)
    await consumer.connect()
    await consumer.subscribe(topic)
    busy, may_continue = asyncio.Event(), asyncio.Event()

    async def loop() -> None:
        async for _ in consumer:
            busy.set()
            await may_continue.wait()

    task = asyncio.ensure_future(loop())
    await busy.wait()
    closing = consumer.close()
    await asyncio.wait({closing}, timeout=0.3)
    assert not closing.done()
    may_continue.set()
    await closing
    await task
    assert offset_of(backend, name, topic) == 1


async def test_a_close_with_a_bound_gives_up_on_a_hanging_loop(backend: GroupBackend, unique: Unique) -> None:
    """After ``timeout_s``, ``close`` leaves the group without committing the unfinished record."""
    topic, name = await topic_of_one(backend, unique, 10), unique("group")
    consumer = consumer_of(backend, name)
    await consumer.connect()
    await consumer.subscribe(topic)
    busy = asyncio.Event()

    async def loop() -> None:
        async for _ in consumer:
            busy.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(loop())
    await busy.wait()
    await consumer.close(timeout_s=0.2)
    assert offset_of(backend, name, topic) == 0
    # The bound may be over before the server has answered that the member has left.
    await eventually(lambda: backend.members(name) == [], "the member has left", 5.0)
    task.cancel()


async def test_commit_includes_the_record_in_flight(backend: GroupBackend, unique: Unique) -> None:
    """``commit()`` inside the loop also stores the record in flight, and returns the stored partitions."""
    topic, name = await topic_of_one(backend, unique, 10), unique("group")
    async with consumer_of(backend, name, autocommit=False) as consumer:
        await consumer.subscribe(topic)
        async for record in consumer:
            if record.offset == 6:
                assert await consumer.commit() == {TopicPartition(topic, 0)}
                assert offset_of(backend, name, topic) == 7
            if record.offset == 9:
                break
    assert offset_of(backend, name, topic) == 7, "without autocommit nothing else is committed"


async def test_autocommit_does_not_include_the_record_in_flight(release_backend: GroupBackend, unique: Unique) -> None:
    """At each interval only finished records are committed."""
    topic, name = await topic_of_one(release_backend, unique, 10), unique("group")
    async with group_of(
        release_backend.cluster, name, [topic], **release_backend.settings, auto_commit_interval_ms=50
    ) as group:
        member = await group.join()
        member.pace_s = 0.05
        await eventually(lambda: release_backend.stored(name, topic).get(0, 0) >= 3, "offsets are committed")
        stored = release_backend.stored(name, topic)[0]
        assert stored < len(member.records) + 1


async def test_a_blocking_application_still_releases_partitions(backend: GroupBackend, unique: Unique) -> None:
    """If the loop blocks for each record, a rebalance still need not wait until the loop has read all records."""
    topic, name = unique("topic"), unique("group")
    await backend.cluster.create_topic(topic, 2)
    # Half a minute of work: far more than a rebalance takes on a busy machine.
    await produce(backend.cluster, topic, 6_000)
    async with group_of(backend.cluster, name, [topic], **backend.settings) as group:
        first = Member(backend.cluster, name, [topic], **backend.settings)
        first.block_s = 0.005
        group.members.append(first)
        await first.start()
        await eventually(lambda: first.records, "the first member reads")
        await group.join()
        await group.balanced(topic, 2)
        assert len(first.records) < 6_000


async def test_a_rebalance_waits_for_a_record_in_flight(cluster_39: Cluster, unique: Unique) -> None:
    """The partition of the record moves when the record is finished. Idle partitions move at once."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 4)
    await produce(cluster_39, topic, 40)
    async with group_of(cluster_39, name, [topic], drain_alarm_ms=100) as group:
        first = await group.join()
        await eventually(lambda: len(first.records) == 40, "everything is read")
        first.pace_s = 3600
        await produce(cluster_39, topic, 1, first=100)
        in_flight = (await eventually(lambda: first.records[40:], "a record is in flight"))[0].partition
        second = await group.join()
        wanted = {0, 2} if first.consumer.member_id > second.consumer.member_id else {1, 3}
        expected = sorted(wanted - {in_flight})
        await eventually(lambda: second.partitions(topic) == expected, "idle partitions move")
        if in_flight in wanted:
            metrics = first.consumer.metrics
            await eventually(lambda: metrics.total("drain_alarms"), "the wait is reported")
            assert second.partitions(topic) == expected
        first._task.cancel()  # type: ignore[union-attr]
        await group.balanced(topic, 4)


async def test_a_slow_release_is_reported_with_its_cause(
    backend: GroupBackend, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """After ``drain_alarm_ms``, the member logs what the application is busy with: records, or a hook by its name."""
    topic, name = await topic_of_one(backend, unique, 1), unique("group")
    hook_may_end = asyncio.Event()

    async def on_partitions_revoked(partitions: Collection[TopicPartition]) -> None:
        await hook_may_end.wait()

    async with group_of(backend.cluster, name, [topic], **backend.settings, drain_alarm_ms=100) as group:
        member = await group.join()
        member.on_partitions_revoked = on_partitions_revoked
        member.go_on.clear()
        await eventually(lambda: member.records, "a record is in flight")
        await member.consumer.unsubscribe()
        alarm = rf"group {name}: cannot release 1 partition, first {topic}:0, for \d s now: "
        records = f"{alarm}the application is still processing records"
        await eventually(lambda: re.search(records, caplog.text), "the record is named")
        member.go_on.set()
        hook = "the listener's on_partitions_revoked is still running"
        await eventually(lambda: hook in caplog.text, "the hook is named")
        hook_may_end.set()
        await eventually(lambda: not member.consumer.assignment(), "the partition is released")
        assert member.consumer.metrics.total("drain_alarms") >= 2


async def test_a_broker_restarts_under_a_running_group(start_cluster: Callable[..., Cluster]) -> None:
    """When the broker is back, members resume at their positions."""
    cluster = start_cluster()
    await cluster.create_topic("t", 4)
    values = await produce(cluster, "t", 200)
    async with group_of(cluster, "g", ["t"]) as group:
        member, _ = await group.join(), await group.join()
        await group.delivered(values)
        await cluster.kafka[0].restart()
        values += await produce(cluster, "t", 200, first=200)
        assert await group.delivered(values, 60) == Counter(values)
        assert member.consumer.metrics.total("sessions_lost") == 0


async def test_a_leader_of_partitions_is_killed(start_cluster: Callable[..., Cluster]) -> None:
    """When a leader of partitions is killed, another broker becomes the leader, and members fetch from that broker."""
    # Acknowledgements wait for a dead replica until its leader drops it, by default after 10 to 20 s.
    cluster = start_cluster(brokers=2, broker_overrides={"replica.lag.time.max.ms": 1000})
    await cluster.create_topic("t", 4, replication=2)
    values = await produce(cluster, "t", 200)
    async with group_of(cluster, "g", ["t"]) as group:
        await group.join()
        await group.delivered(values)
        await cluster.kafka[1].kill()
        values += await produce(cluster, "t", 200, first=200)
        await group.delivered(values, 60)


@pytest.mark.parametrize(("reset", "redelivered"), [("earliest", True), ("latest", False)])
async def test_a_committed_offset_beyond_the_log(
    zookeeper_backend: GroupBackend, unique: Unique, reset: str, redelivered: bool
) -> None:
    """If the committed offset is beyond the log, the member resets it by the policy, logs the reset and counts it."""
    topic, name = await topic_of_one(zookeeper_backend, unique, 10), unique("group")
    zookeeper_backend.store_offsets(name, topic, {0: 1000})
    async with group_of(
        zookeeper_backend.cluster, name, [topic], **zookeeper_backend.settings, auto_offset_reset=reset
    ) as group:
        member = await group.join()
        await eventually(lambda: member.consumer.metrics.total("offset_resets"), "the reset is counted")
        fresh = await produce(zookeeper_backend.cluster, topic, 5, first=10)
        await group.delivered(fresh)
        assert len(member.records) == (15 if redelivered else 5)
    assert offset_of(zookeeper_backend, name, topic) == 15


async def test_without_a_reset_policy_the_error_reaches_the_loop(backend: GroupBackend, unique: Unique) -> None:
    """
    The loop raises an error with the position if ``auto_offset_reset`` is "none" and the position is outside the log.
    """
    topic, name = await topic_of_one(backend, unique, 10), unique("group")
    backend.store_offsets(name, topic, {0: 1000})

    async def read() -> None:
        async with consumer_of(backend, name, auto_offset_reset="none") as consumer:
            await consumer.subscribe(topic)
            async for _ in consumer:
                raise AssertionError("nothing is at that offset")

    with pytest.raises(OffsetOutOfRangeError, match=f"{topic}:0: offset 1000"):
        await read()


async def test_an_operators_reset_is_adopted(cluster: Cluster, unique: Unique) -> None:
    """
    The next commit does not overwrite an offset that another client has written. The member resumes at that offset.
    """
    backend = GroupBackend(cluster)
    topic, name = await topic_of_one(backend, unique, 20), unique("group")
    async with group_of(cluster, name, [topic], auto_commit_interval_ms=50) as group:
        member = await group.join()
        with zookeeper(cluster) as client:
            await eventually(lambda: stored_offsets(client, name, topic) == {0: 20}, "everything is committed")
            client.set(GroupLayout(name).offset(TopicPartition(topic, 0)), b"5")
            await produce(cluster, topic, 2, first=20)
            await eventually(lambda: Counter(member.values)[b"7"] == 2, "records are delivered again")
            await eventually(lambda: stored_offsets(client, name, topic) == {0: 22}, "the end is committed")
        assert [record.offset for record in member.records[-17:]] == list(range(5, 22))


async def test_a_topic_deleted_and_created_again_starts_at_its_beginning(cluster: Cluster, unique: Unique) -> None:
    """The committed offsets of the deleted topic do not apply to the new topic."""
    backend = GroupBackend(cluster)
    topic, name = await topic_of_one(backend, unique, 20), unique("group")
    async with group_of(cluster, name, [topic]) as group:
        await group.join()
        await eventually(lambda: len(group.values) == 20, "everything is read")
    assert offset_of(backend, name, topic) == 20
    await cluster.delete_topic(topic)
    await cluster.create_topic(topic, 1)
    values = await produce(cluster, topic, 30, first=100)
    async with group_of(cluster, name, [topic]) as group:
        member = await group.join()
        await group.delivered(values)
        assert member.values == values


async def test_zookeeper_restarts_under_a_running_group(
    start_cluster: Callable[..., Cluster], zookeeper_version: str
) -> None:
    """If the server is back before the lease ends, members keep their sessions and claims."""
    # A lease of 30 s: Java takes seconds to start, and longer on a busy machine.
    cluster = start_cluster(zookeeper=zookeeper_version, max_session_timeout_ms=60_000)
    await cluster.create_topic("t", 4)
    async with group_of(cluster, "g", ["t"], session_timeout_ms=60_000) as group:
        first, second = await group.join(), await group.join()
        await group.balanced("t", 4)
        ids = [first.consumer.member_id, second.consumer.member_id]
        with zookeeper(cluster) as client:
            before = owners(client, "g", "t")
        await cluster.zookeeper.restart()
        metrics = first.consumer.metrics
        await eventually(lambda: metrics.total("zookeeper_suspensions"), "the break is noticed")
        values = await produce(cluster, "t", 100)
        await group.delivered(values)
        assert [first.consumer.member_id, second.consumer.member_id] == ids
        with zookeeper(cluster) as client:
            assert owners(client, "g", "t") == before


async def test_a_frozen_zookeeper_shuts_the_gate_in_time(
    start_cluster: Callable[..., Cluster], zookeeper_version: str
) -> None:
    """
    When ZooKeeper stops answering, delivery ends with the lease. When ZooKeeper is resumed, a new session delivers.
    """
    cluster = start_cluster(zookeeper=zookeeper_version)
    await cluster.create_topic("t", 4)
    async with group_of(cluster, "g", ["t"], session_timeout_ms=6_000) as group:
        member = await group.join()
        await group.balanced("t", 4)
        cluster.zookeeper.pause()
        try:
            await eventually(lambda: len(member.lost_partitions) == 4, "the lease ends", timeout_s=20)
            await produce(cluster, "t", 20)
            assert member.values == []
        finally:
            cluster.zookeeper.resume()
        await eventually(lambda: len(group.values) == 20, "the next session delivers", timeout_s=60)


class Hooks:
    """A listener that records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self.calls.append(("assigned", len(partitions)))

    async def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self.calls.append(("revoked", len(partitions)))
        raise RuntimeError("the application's error")

    async def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        self.calls.append(("lost", len(partitions)))


async def test_a_listener_that_raises_does_not_block_the_group(release_backend: GroupBackend, unique: Unique) -> None:
    """The hooks of a listener may be coroutines. Their errors are logged and counted, and the release continues."""
    topic, name, hooks = unique("topic"), unique("group"), Hooks()
    await release_backend.cluster.create_topic(topic, 3)
    consumer = consumer_of(release_backend, name, listener=hooks)
    await consumer.connect()
    await consumer.subscribe(topic)
    await eventually(lambda: hooks.calls == [("assigned", 3)], "the assignment is notified")
    await consumer.close()
    assert hooks.calls == [("assigned", 3), ("revoked", 3)]
    assert consumer.metrics.total("listener_failures") == 1
