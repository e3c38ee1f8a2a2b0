"""Resets: members adopt an operator's reset, and store a reset by the policy at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from kiel_groups import GroupedConsumer, TopicPartition
from kiel_groups.embedded import Cluster
from kiel_groups.errors import CommitFailedError, NoOffsetsError
from kiel_groups.group.znodes.layout import GroupLayout
from tests.helpers.cluster_data import produce, stored_offsets, zookeeper
from tests.helpers.group_backends import GroupBackend
from tests.helpers.members import Member, group_of
from tests.helpers.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.failures]

Unique = Callable[[str], str]

STORES = ["zookeeper", "broker-v0"]


@pytest.mark.parametrize("store", STORES)
async def test_an_idle_owner_adopts_a_reset(cluster: Cluster, unique: Unique, store: str) -> None:
    """
    An idle owner finds a reset within ``reconcile_interval_ms``, by the version of the offset znode. Records are
    delivered again from the new offset, and committed again.
    """
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 1)
    values = await produce(cluster, topic, 10)
    settings = {"auto_commit_interval_ms": 50, "reconcile_interval_ms": 200, "store": store}
    async with group_of(cluster, name, [topic], **settings) as group:
        member = await group.join()
        with zookeeper(cluster) as client:
            await eventually(lambda: stored_offsets(client, name, topic) == {0: 10}, "everything is committed")
            client.set(GroupLayout(name).offset(TopicPartition(topic, 0)), b"4")
            await eventually(lambda: member.values == values + values[4:], "they are delivered again")
            await eventually(lambda: stored_offsets(client, name, topic) == {0: 10}, "committed again")
        assert member.lost_partitions == []


async def test_an_idle_owner_whose_assignment_keeps_changing(cluster_39: Cluster, unique: Unique) -> None:
    """An idle owner adopts a reset within ``reconcile_interval_ms``, even if watches fire more often than that."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    values = await produce(cluster_39, topic, 10)
    settings = {"auto_commit_interval_ms": 50, "reconcile_interval_ms": 2_000}
    async with group_of(cluster_39, name, [topic], **settings) as group:
        member = await group.join()
        with zookeeper(cluster_39) as client:
            await eventually(lambda: stored_offsets(client, name, topic) == {0: 10}, "everything is committed")
            path = GroupLayout(name).assignment(str(member.consumer.member_id))
            data = client.get(path)[0]
            client.set(GroupLayout(name).offset(TopicPartition(topic, 0)), b"4")
            deadline_s = time.monotonic() + 30.0
            while member.values != values + values[4:]:
                assert time.monotonic() < deadline_s, "the reset is not adopted"
                client.set(path, data)
                await asyncio.sleep(0.2)
        assert member.lost_partitions == []


async def test_a_reset_to_the_committed_offset(cluster_39: Cluster, unique: Unique) -> None:
    """
    An owner compares versions, not offsets. So a reset to the committed offset delivers the records since the last
    commit again.
    """
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    values = await produce(cluster_39, topic, 5)
    settings = {"auto_commit_interval_ms": 3_600_000, "reconcile_interval_ms": 200}
    async with group_of(cluster_39, name, [topic], **settings) as group:
        member = await group.join()
        await group.delivered(values)
        with zookeeper(cluster_39) as client:
            assert stored_offsets(client, name, topic) == {0: 0}
            client.set(GroupLayout(name).offset(TopicPartition(topic, 0)), b"0")
            await eventually(lambda: member.values == values * 2, "they are delivered again")


@pytest.mark.parametrize("store", STORES)
async def test_a_busy_owner_adopts_a_reset(cluster: Cluster, unique: Unique, store: str) -> None:
    """
    The next commit of a busy owner finds another version of the offset znode. The commit does not overwrite the
    operator's offset, and the owner resumes there.
    """
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 1)
    values = await produce(cluster, topic, 1_000)
    settings = {"auto_commit_interval_ms": 100, "reconcile_interval_ms": 3_600_000, "store": store}
    async with group_of(cluster, name, [topic], **settings) as group:
        member = await group.join()
        member.pace_s = 0.005
        with zookeeper(cluster) as client:
            await eventually(lambda: len(member.values) > 50, "records flow")
            # A broker that writes at the same time overwrites the reset. The ``zookeeper`` store does not have this
            # race.
            for _ in range(1 if store == "zookeeper" else 5):
                client.set(GroupLayout(name).offset(TopicPartition(topic, 0)), b"3")
                if await is_redelivered(member, values[3], 30 if store == "zookeeper" else 5):
                    break
            assert member.values.count(values[3]) == 2
            member.pace_s = 0.0
            await eventually(lambda: member.values[-1] == values[-1], "it has read to the end")
            await eventually(lambda: stored_offsets(client, name, topic) == {0: 1_000}, "the end is committed")
        again = len(member.values) - 1 - member.values[::-1].index(values[3])
        assert member.values[again:] == values[3:], "all later records are delivered again, in order"


async def is_redelivered(member: Member, value: bytes, timeout_s: float) -> bool:
    """Return whether a value is delivered for the second time within a second."""
    try:
        await eventually(lambda: member.values.count(value) >= 2, "it is delivered again", timeout_s)
    except AssertionError:
        return False
    return True


async def test_a_reset_during_a_rebalance(cluster: Cluster, unique: Unique) -> None:
    """The previous owner does not overwrite the operator's offset, and the next owner starts there."""
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 2)
    values = await produce(cluster, topic, 40)
    async with group_of(cluster, name, [topic], auto_commit_interval_ms=3_600_000) as group:
        first = await group.join()
        await group.delivered(values)
        released = asyncio.Event()
        drained: list[TopicPartition] = []

        async def block(partitions: list[TopicPartition]) -> None:
            drained.extend(partitions)
            await released.wait()

        first.on_partitions_revoked = block  # type: ignore[method-assign, assignment]
        second = await group.join()
        await eventually(lambda: drained, "a partition is drained")
        (moving,) = drained
        with zookeeper(cluster) as client:
            client.set(GroupLayout(name).offset(moving), b"2")
            released.set()
            await eventually(lambda: second.partitions(topic) == [moving.partition], "it has moved")
            records = [record.value for record in first.records if record.topic_partition == moving]
            await eventually(lambda: second.values == records[2:], "the next owner starts at the operator's offset")
            first.on_partitions_revoked = lambda partitions: None  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize("autocommit", [True, False])
async def test_a_truncated_log_with_latest(every_backend: GroupBackend, unique: Unique, autocommit: bool) -> None:
    """
    With ``latest``, the member stores the end of a truncated log before it delivers a record, so the next owner gets
    the records produced in between.
    """
    topic, name = unique("topic"), unique("group")
    await every_backend.cluster.create_topic(topic, 1)
    await produce(every_backend.cluster, topic, 10)
    settings = {"auto_offset_reset": "latest", "autocommit": autocommit}
    async with group_of(
        every_backend.cluster, name, [topic], **every_backend.settings, auto_commit_interval_ms=3_600_000, **settings
    ) as group:
        every_backend.store_offsets(name, topic, {0: 1000})
        first = await group.join()
        await eventually(lambda: every_backend.stored(name, topic) == {0: 10}, "the reset is stored")
        await group.leave(first)
        between = await produce(every_backend.cluster, topic, 10, first=10)
        await group.join()
        await group.delivered(between)
        assert group.values == between
        assert first.consumer.metrics.total("offset_resets") == 1


async def test_an_emptied_log_with_earliest(every_backend: GroupBackend, unique: Unique) -> None:
    """
    With ``earliest``, the member stores the start of an emptied log. So the next owner skips nothing when the log has
    grown past the old offset.
    """
    topic, name = unique("topic"), unique("group")
    await every_backend.cluster.create_topic(topic, 1)
    settings = {"auto_commit_interval_ms": 3_600_000}
    async with group_of(every_backend.cluster, name, [topic], **every_backend.settings, **settings) as group:
        every_backend.store_offsets(name, topic, {0: 10})
        first = await group.join()
        await eventually(lambda: every_backend.stored(name, topic) == {0: 0}, "the reset is stored")
        await group.leave(first)
        values = await produce(every_backend.cluster, topic, 20)
        await group.join()
        await group.delivered(values)
        assert group.values == values


async def test_a_reset_during_an_assigned_hook(cluster: Cluster, unique: Unique) -> None:
    """No record is delivered before the hook has ended. Then delivery starts at the operator's offset."""
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 1)
    values = await produce(cluster, topic, 40)
    early: list[list[bytes]] = []
    settings = {"auto_commit_interval_ms": 50, "reconcile_interval_ms": 200}
    async with group_of(cluster, name, [topic], **settings) as group:
        member = Member(cluster, name, [topic], **settings)
        group.members.append(member)
        with zookeeper(cluster) as client:

            async def slow(partitions: list[TopicPartition]) -> None:
                client.set(GroupLayout(name).offset(partitions[0]), b"16")
                await eventually(
                    lambda: member.consumer.metrics.total("commits_superseded") == 1, "the reset is adopted"
                )
                # Enough time for a fetch, although none must be sent.
                await asyncio.sleep(0.5)
                early.append(list(member.values))

            member.on_partitions_assigned = slow  # type: ignore[method-assign, assignment]
            await member.start()
            await eventually(lambda: early, "the hook has ended")
            await eventually(lambda: stored_offsets(client, name, topic) == {0: 40}, "everything is committed")
        assert early == [[]]
        assert member.values == values[16:]


async def test_a_topic_is_created_again_under_a_running_group(cluster: Cluster, unique: Unique) -> None:
    """
    Positions in the old log do not apply to the new log, which is delivered from its beginning.

    ``tests/sim/test_recreated_topics.py`` has the cases of a partition that is being released, and of brokers that do
    not know the new topic yet.
    """
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 2)
    old = await produce(cluster, topic, 40)
    async with group_of(cluster, name, [topic], auto_commit_interval_ms=50) as group:
        member = await group.join()
        await group.delivered(old)
        await cluster.delete_topic(topic)
        await cluster.create_topic(topic, 2)
        fresh = await produce(cluster, topic, 60, first=1000)
        await group.delivered(fresh, 60)
        assert member.consumer.metrics.total("offsets_of_deleted_topic") >= 2
        with zookeeper(cluster) as client:
            await eventually(lambda: sum(stored_offsets(client, name, topic).values()) == 60, "all is committed")


async def test_concurrent_commits_adopt_an_operators_reset(cluster_39: Cluster, unique: Unique) -> None:
    """The second commit must not overwrite the offset that the first commit has adopted."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, 20)
    offset = GroupLayout(name).offset(TopicPartition(topic, 0))
    async with GroupedConsumer(cluster_39.brokers, name, cluster_39.zk_hosts, autocommit=False) as consumer:
        await consumer.subscribe(topic)
        with zookeeper(cluster_39) as client:
            async for record in consumer:
                if record.offset == 10:
                    client.set(offset, b"5")
                    await asyncio.gather(consumer.commit(), consumer.commit())
                    break
            assert client.get(offset)[0] == b"5"
        async for record in consumer:
            assert record.offset == 5
            break


async def test_a_group_without_offsets_and_without_a_reset_policy(
    release_backend: GroupBackend, unique: Unique
) -> None:
    """
    A consumer raises an error if its group has neither offsets nor a reset policy, and so no rule for its start
    offsets.
    """
    topic, name = unique("topic"), unique("group")
    await release_backend.cluster.create_topic(topic, 1)
    await produce(release_backend.cluster, topic, 3)

    async def read() -> None:
        async with release_backend.consumer(name, auto_offset_reset="none") as consumer:
            await consumer.subscribe(topic)
            async for _ in consumer:
                raise AssertionError("no start offset is known")

    with pytest.raises(NoOffsetsError, match=f"group {name} has no offsets of {topic}"):
        await asyncio.wait_for(read(), 30)
    assert release_backend.stored(name, topic) == {}


async def test_a_group_that_may_reset_nothing_starts_where_the_error_says(
    backend: GroupBackend, unique: Unique
) -> None:
    """What ``NoOffsetsError`` advises works: a commit if brokers coordinate the group, else a write of the znode."""
    topic, name, records = unique("topic"), unique("group"), []
    await backend.cluster.create_topic(topic, 1)
    await produce(backend.cluster, topic, 10)
    partition = TopicPartition(topic, 0)
    async with backend.consumer(name, auto_offset_reset="none") as consumer:
        await consumer.subscribe(topic)
        with pytest.raises(NoOffsetsError) as raised:
            await consumer.getone()
        if backend.by_brokers:
            assert "start them by commit({partition: offset})" in str(raised.value)
            assert await consumer.commit({partition: 6}) == {partition}
            assert await consumer.position(partition) == 6
        else:
            with pytest.raises(CommitFailedError, match="write its first offset to /consumers/"):
                await consumer.commit({partition: 6})
            await asyncio.to_thread(backend.store_offsets, name, topic, {0: 6})
            await eventually(lambda: consumer.assignment() == {partition}, "the member finds the offset")
        while len(records) < 4:
            records.append((await consumer.getone()).offset)
    assert records == [6, 7, 8, 9]
    assert backend.stored(name, topic) == {0: 10}
