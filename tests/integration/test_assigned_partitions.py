"""Partitions that the application chooses: both consumers read them by the same code, and commit nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any, TypeAlias

import pytest

from kiel_groups import GroupedConsumer, OffsetAndMetadata, SingleConsumer
from kiel_groups.embedded import Cluster
from kiel_groups.errors import ClosedError, ConfigError, IllegalStateError, NoOffsetsError
from kiel_groups.model import Record, TopicPartition
from tests.helpers.cluster_data import members, owners, produce, stored_offsets, zookeeper
from tests.helpers.group_backends import GroupBackend
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique: TypeAlias = Callable[[str], str]
Consumer: TypeAlias = GroupedConsumer | SingleConsumer
Make: TypeAlias = Callable[..., Consumer]


@pytest.fixture(params=["grouped", "single"])
def make(request: pytest.FixtureRequest, backend: GroupBackend, unique: Unique) -> Make:
    """Return a function that makes a consumer of a group without members, or one without a group."""
    group = unique("group")

    def grouped(**settings: Any) -> Consumer:
        return backend.consumer(group, **settings)

    def single(**settings: Any) -> Consumer:
        return SingleConsumer(backend.cluster.brokers, **settings)

    return grouped if request.param == "grouped" else single


async def topic_of(backend: GroupBackend, unique: Unique, count: int, partitions: int = 1) -> tuple[str, list[bytes]]:
    topic = unique("topic")
    await backend.cluster.create_topic(topic, partitions)
    return topic, await produce(backend.cluster, topic, count)


async def take(consumer: Consumer, count: int) -> list[Record]:
    async with asyncio.timeout(30):
        return [await consumer.getone() for _ in range(count)]


async def test_assigned_partitions_are_read_from_their_beginning(
    backend: GroupBackend, unique: Unique, make: Make
) -> None:
    """Only the chosen partitions are read; the call takes effect at once, before or after the connection."""
    topic, _ = await topic_of(backend, unique, 40, partitions=2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with make() as consumer:
        consumer.assign([first])
        assert (consumer.assignment(), consumer.subscription()) == ({first}, frozenset())
        assert await consumer.position(first) == 0
        end = (await consumer.end_offsets([first]))[first]
        found = await take(consumer, end)
        assert [(record.partition, record.offset) for record in found] == [(0, offset) for offset in range(end)]
        assert await consumer.getmany(timeout_ms=200) == {}
        assert (await consumer.position(first), consumer.highwater(first), consumer.lag()) == (end, end, {first: 0})
    consumer = make()
    consumer.assign([second])
    consumer.seek(second, 3)
    async with consumer, asyncio.timeout(30):
        async for record in consumer:
            assert (record.partition, record.offset) == (1, 3)
            break


async def test_another_assignment_keeps_what_stays(backend: GroupBackend, unique: Unique, make: Make) -> None:
    """A partition that stays keeps position, pause and high watermark; one that comes back starts anew."""
    topic, _ = await topic_of(backend, unique, 60, partitions=2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with make() as consumer:
        consumer.assign([first, second])
        while {record.partition for record in await take(consumer, 5)} != {0, 1}:
            pass
        consumer.pause(first)
        position, highwater = await consumer.position(first), consumer.highwater(first)
        consumer.assign([first])
        assert (consumer.paused(), await consumer.position(first)) == ({first}, position)
        assert consumer.highwater(first) == highwater
        assert await consumer.getmany(timeout_ms=200) == {}
        with pytest.raises(IllegalStateError, match="not assigned"):
            consumer.lag(second)
        consumer.resume(first)
        assert (await take(consumer, 1))[0][:3] == (topic, 0, position)
        consumer.assign([second])
        assert (await take(consumer, 1))[0][:3] == (topic, 1, 0), "without a group, it starts at the beginning"


async def test_seeks_right_after_an_assignment(backend: GroupBackend, unique: Unique, make: Make) -> None:
    """A seek wins over the look-up of the start that runs, and the later of two seeks over the earlier one."""
    topic, _ = await topic_of(backend, unique, 10)
    partition = TopicPartition(topic, 0)
    async with make() as consumer:
        consumer.assign([partition])
        assert await consumer.seek_to_end() == {partition: 10}
        assert await consumer.position(partition) == 10
        consumer.unsubscribe()
        await consumer.unsubscribe()
        consumer.assign([partition])
        earlier = consumer.seek_to_beginning()
        assert await consumer.seek_to_end() == {partition: 10}
        assert await earlier == {}
        late = consumer.seek_to_end(partition)
        consumer.seek(partition, 4)
        assert await late == {}
        assert [record.offset for record in await take(consumer, 2)] == [4, 5]


async def test_a_cancelled_call_gave_nothing(backend: GroupBackend, unique: Unique, make: Make) -> None:
    """Records that no caller received come again, and nothing is missing."""
    topic, values = await topic_of(backend, unique, 30)
    partition, found = TopicPartition(topic, 0), []
    async with make() as consumer, asyncio.timeout(60):
        consumer.assign([partition])
        for _ in range(3):
            call = consumer.getmany(timeout_ms=10_000, max_records=3)
            await asyncio.wait({call})
        while len(found) < 30:
            found += (await consumer.getmany(timeout_ms=2_000)).get(partition, [])
    assert [record.value for record in found][-30:] == values


async def test_one_way_to_get_partitions(backend: GroupBackend, unique: Unique, make: Make) -> None:
    """Topics and an assignment exclude each other until ``unsubscribe``; the error names the ways."""
    topic, _ = await topic_of(backend, unique, 5)
    partition = TopicPartition(topic, 0)
    async with make() as consumer:
        consumer.assign([partition])
        with pytest.raises(IllegalStateError, match=r"subscribe\(\): .*assign\(partitions\).*unsubscribe"):
            await consumer.subscribe(topic)
        with pytest.raises(IllegalStateError, match="unsubscribe"):
            await consumer.consume(topic)
        for wrong in ([], [topic], [TopicPartition(topic, -1)]):
            with pytest.raises(ConfigError, match="assign"):
                consumer.assign(wrong)  # type: ignore[arg-type]
        assert consumer.assignment() == {partition}
        await consumer.unsubscribe()
        assert consumer.assignment() == frozenset()
        await consumer.subscribe(topic)
        with pytest.raises(IllegalStateError, match=r"assign\(\): the consumer has topics"):
            consumer.assign([partition])
        await eventually(lambda: consumer.assignment() == {partition}, "it reads the topic")
    with pytest.raises(ClosedError):
        consumer.assign([partition])


async def test_commits_are_refused(backend: GroupBackend, unique: Unique, make: Make) -> None:
    """The error says why, and what to do; nothing is stored, also not at the close."""
    topic, _ = await topic_of(backend, unique, 5)
    partition = TopicPartition(topic, 0)
    async with make() as consumer:
        consumer.assign([partition])
        await take(consumer, 5)
        with pytest.raises(IllegalStateError, match=r"commit\(\): .*(subscribe\(\), or store position|use Grouped)"):
            await consumer.commit()
        if isinstance(consumer, GroupedConsumer):
            for refused in (consumer.commit({partition: 2}), consumer.commit_async(), consumer.commit_offsets()):
                with pytest.raises(IllegalStateError, match="no claim protects a commit"):
                    await refused
            states = (consumer.is_member, consumer.is_leader, consumer.settled)
            assert (consumer.member_id, states) == (None, (False, False, False))
            assert consumer.fencing_token(partition) is None
            assert backend.stored(consumer.group_name, topic) == {}
        else:
            for name, refused in [
                ("commit_async", consumer.commit_async({partition: 2})),
                ("committed", consumer.committed(partition)),
                ("fetch_committed_offsets", consumer.fetch_committed_offsets()),
            ]:
                with pytest.raises(IllegalStateError, match=rf"^{name}\(\): SingleConsumer has no group"):
                    await refused


@pytest.mark.parametrize("policy", ["latest", "none"])
async def test_the_reset_policy_decides_on_the_start(
    backend: GroupBackend, unique: Unique, make: Make, policy: str
) -> None:
    """With ``latest``, the end of the log; with ``none``, an error until the application seeks."""
    topic, _ = await topic_of(backend, unique, 5)
    partition = TopicPartition(topic, 0)
    async with make(auto_offset_reset=policy) as consumer, asyncio.timeout(30):
        consumer.assign([partition])
        if policy == "latest":
            assert await consumer.position(partition) == 5
            return
        for _ in range(2):
            with pytest.raises(NoOffsetsError, match=f"{topic}:0 has no committed offset.*'none'; seek"):
                await consumer.getone()
        with pytest.raises(NoOffsetsError):
            await consumer.position(partition)
        consumer.seek(partition, 2)
        assert (await consumer.getone()).offset == 2


async def test_a_position_outside_the_log_is_reset(backend: GroupBackend, unique: Unique, make: Make) -> None:
    """The policy chooses another position; ``position`` and the next record agree."""
    topic, _ = await topic_of(backend, unique, 5)
    partition = TopicPartition(topic, 0)
    async with make() as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 1_000)
        assert [record.offset for record in await take(consumer, 2)] == [0, 1]
        assert await consumer.position(partition) == 2


async def test_a_close_while_the_start_is_looked_up(backend: GroupBackend, unique: Unique, make: Make) -> None:
    """The close returns at once, and ends the calls that wait."""
    partition = TopicPartition(unique("missing"), 0)
    before = asyncio.all_tasks()
    async with make() as consumer:
        consumer.assign([partition])

        async def getone() -> Record:
            return await consumer.getone()

        waiting = [asyncio.ensure_future(consumer.position(partition)), asyncio.create_task(getone())]
        await asyncio.sleep(0)
        async with asyncio.timeout(5):
            await consumer.close()
        assert [type(error) for error in await asyncio.gather(*waiting, return_exceptions=True)] == [ClosedError] * 2
    await eventually(lambda: asyncio.all_tasks() <= before, "no task is left")


async def test_a_grouped_consumer_starts_at_the_committed_offset(
    release_cluster: Cluster, unique: Unique, request: pytest.FixtureRequest
) -> None:
    """The group's offsets are read, not changed, and the members of the group are not affected."""
    topic, _ = await topic_of(GroupBackend(release_cluster), unique, 20, partitions=2)
    group, first, second = unique("group"), TopicPartition(topic, 0), TopicPartition(topic, 1)
    address = (release_cluster.brokers, group, release_cluster.zk_hosts)
    async with GroupedConsumer(*address, autocommit=False) as member:
        await member.subscribe(topic)
        await eventually(lambda: member.assignment() == {first, second}, "it owns the partitions")
        for partition in (first, second):
            member.seek(partition, 3)
        await member.commit({first: 3})
        consumer = GroupedConsumer(*address)
        consumer.assign([first, second])
        async with consumer:
            if "kafka0.8.0" in request.node.name:
                with pytest.raises(ConfigError, match="cannot return the group's offsets"):
                    await consumer.position(first)
                consumer.seek(first, 3)
            else:
                assert await consumer.committed([first, second]) == {first: 3, second: 0}
                assert await consumer.fetch_committed_offsets([first]) == {first: OffsetAndMetadata(3)}
                with pytest.raises(IllegalStateError, match="name the partitions"):
                    await consumer.fetch_committed_offsets()
                assert (await consumer.position(first), await consumer.position(second)) == (3, 0)
                consumer.pause(second)
            assert (await take(consumer, 1))[0][:3] == (topic, 0, 3)
            assert members(release_cluster, group) == [member.member_id]
        with zookeeper(release_cluster) as client:
            assert stored_offsets(client, group, topic)[0] == 3
        assert member.assignment() == {first, second}


async def test_a_grouped_consumer_starts_at_the_coordinators_offset(
    coordinating_cluster: Cluster, unique: Unique
) -> None:
    """The group's offsets in Kafka are read, not changed, and the group has no member of this consumer."""
    backend, group = GroupBackend(coordinating_cluster, "brokers"), unique("group")
    topic, _ = await topic_of(backend, unique, 20, partitions=2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    backend.store_offsets(group, topic, {0: 3})
    consumer = backend.consumer(group)
    consumer.assign([first, second])
    async with consumer:
        assert await consumer.committed([first, second]) == {first: 3, second: None}
        assert await consumer.fetch_committed_offsets([first]) == {first: OffsetAndMetadata(3)}
        with pytest.raises(IllegalStateError, match="name the partitions"):
            await consumer.fetch_committed_offsets()
        assert (await consumer.position(first), await consumer.position(second)) == (3, 0)
        consumer.pause(second)
        assert (await take(consumer, 1))[0][:3] == (topic, 0, 3)
        assert backend.members(group) == []
    assert backend.stored(group, topic) == {0: 3}


async def test_a_member_leaves_its_group_for_an_assignment_and_joins_again(
    backend: GroupBackend, unique: Unique
) -> None:
    """Nothing of the member stays; a loop under way raises an error that says what has happened."""
    topic, _ = await topic_of(backend, unique, 10)
    group, partition = unique("group"), TopicPartition(topic, 0)
    async with backend.consumer(group) as consumer, asyncio.timeout(60):
        # Without topics, a member joins a group in ZooKeeper only.
        assert backend.members(group) == ([] if backend.by_brokers else [consumer.member_id])
        await consumer.subscribe(unique("missing"))
        await consumer.unsubscribe()
        waiting = consumer.getone()
        await asyncio.sleep(0)
        consumer.assign([partition])
        with pytest.raises(IllegalStateError, match=r"assign\(\) has changed how"):
            await waiting
        assert [record.offset for record in await take(consumer, 3)] == [0, 1, 2]
        await eventually(lambda: backend.members(group) == [], "the member has left")
        await consumer.unsubscribe()
        await consumer.subscribe(topic)
        assert [record.offset for record in await take(consumer, 3)] == [0, 1, 2]
        assert consumer.fencing_token(partition) is not None
        if not backend.by_brokers:
            with zookeeper(backend.cluster) as client:
                assert set(owners(client, group, topic)) == {0}
        assert await consumer.commit() == {partition}
    assert backend.members(group) == []


def test_blocking_assignments(backend: GroupBackend, unique: Unique) -> None:
    """The blocking consumer has the same call."""
    topic = asyncio.run(topic_of(backend, unique, 5))[0]
    partition = TopicPartition(topic, 0)
    with backend.blocking(unique("group")) as consumer:
        consumer.assign([partition])
        assert [record.offset for record, _ in zip(consumer, range(3), strict=False)] == [0, 1, 2]
        with pytest.raises(IllegalStateError, match="no claim protects"):
            consumer.commit()


async def test_changes_in_quick_succession(backend: GroupBackend, unique: Unique) -> None:
    """The last call decides; nothing of the others stays, neither a member nor a task."""
    topic, _ = await topic_of(backend, unique, 10)
    group, partition = unique("group"), TopicPartition(topic, 0)
    before = asyncio.all_tasks()
    async with backend.consumer(group) as consumer, asyncio.timeout(60):
        for _ in range(3):
            consumer.assign([partition])
            await consumer.unsubscribe()
            joining = consumer.subscribe(topic)
            await asyncio.sleep(0)
            await consumer.unsubscribe()
            consumer.assign([partition])
            await joining
            await consumer.unsubscribe()
        await consumer.subscribe(topic)
        assert [record.offset for record in await take(consumer, 3)] == [0, 1, 2]
        assert backend.members(group) == [consumer.member_id]
        await consumer.unsubscribe()
        # The partition is released once its records are finished.
        assert await consumer.getmany() == {}
        await eventually(lambda: not consumer.allocation, "the partition is released")
        consumer.assign([partition])
        assert (await take(consumer, 1))[0].offset == 3, "the group's offset"
        await eventually(lambda: backend.members(group) == [], "the member has left")
    await eventually(lambda: asyncio.all_tasks() <= before, "no task is left")


async def test_a_member_assigns_right_after_an_unsubscribe(backend: GroupBackend, unique: Unique) -> None:
    """No call is awaited, as in programs for aiokafka. A partition that the member still owns is refused."""
    (topic, _), (other, _) = await topic_of(backend, unique, 5), await topic_of(backend, unique, 5)
    group, owned, partition = unique("group"), TopicPartition(topic, 0), TopicPartition(other, 0)
    async with backend.consumer(group) as consumer, asyncio.timeout(60):
        consumer.subscribe(topic)
        assert consumer.subscription() == {topic}
        assert [record.offset for record in await take(consumer, 2)] == [0, 1]
        await consumer.commit()
        left = consumer.unsubscribe()
        with pytest.raises(IllegalStateError, match="not released"):
            consumer.assign([owned])
        consumer.assign([partition])
        consumer.seek(partition, 3)
        assert [record.offset for record in await take(consumer, 2)] == [3, 4]
        await left
        await eventually(lambda: backend.members(group) == [], "the member has left")
        consumer.unsubscribe()
        consumer.subscribe(topic)
        assert [record.offset for record in await take(consumer, 1)] == [2], "the group's offset"


async def test_a_close_in_the_loop_of_a_former_member(backend: GroupBackend, unique: Unique) -> None:
    """The record in flight is finished by the close of its coroutine, and committed by the member that leaves."""
    topic, _ = await topic_of(backend, unique, 5)
    other, _ = await topic_of(backend, unique, 5)
    group = unique("group")
    async with asyncio.timeout(60):
        consumer = backend.consumer(group)
        await consumer.connect()
        await consumer.subscribe(topic)
        async for record in consumer:
            if record.offset == 2:
                await consumer.unsubscribe()
                with pytest.raises(IllegalStateError, match="not released"):
                    consumer.assign([TopicPartition(topic, 0)])
                consumer.assign([TopicPartition(other, 0)])
                await consumer.close()
                break
        assert backend.stored(group, topic) == {0: 3}
    assert backend.members(group) == []


class SlowListener:
    """Its hook for a revocation waits until it may return."""

    def __init__(self) -> None:
        self.release = asyncio.Event()

    async def on_partitions_revoked(self, _: Collection[TopicPartition]) -> None:
        await self.release.wait()


@pytest.mark.parametrize("change", ["assign once", "assign twice", "unsubscribe"])
async def test_a_former_member_commits_after_a_slow_hook(change: str, backend: GroupBackend, unique: Unique) -> None:
    """What was finished before ``unsubscribe()`` is committed, although the consumer reads other partitions already."""
    topic, _ = await topic_of(backend, unique, 5)
    other, _ = await topic_of(backend, unique, 40, partitions=2)
    group, listener = unique("group"), SlowListener()
    async with backend.consumer(group, listener=listener, auto_commit_interval_ms=60_000) as consumer:
        async with asyncio.timeout(60):
            await consumer.subscribe(topic)
            await take(consumer, 3)
            await consumer.unsubscribe()
            consumer.assign([TopicPartition(other, 0)])
            assert (await take(consumer, 1))[0].topic == other, "it reads while the hook runs"
            if change == "assign twice":
                consumer.assign([TopicPartition(other, 0), TopicPartition(other, 1)])
            elif change == "unsubscribe":
                await consumer.unsubscribe()
            listener.release.set()
            await eventually(lambda: backend.members(group) == [], "the member has left")
            assert backend.stored(group, topic) == {0: 2}, "the last record was in flight"
