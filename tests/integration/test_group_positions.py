"""A member's positions, pauses, and the calls that return records of partitions, on real servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kiel_groups import GroupedConsumer
from kiel_groups.embedded import Cluster
from kiel_groups.errors import ClosedError, ConfigError, IllegalStateError
from kiel_groups.model import Record, TopicPartition
from tests.helpers.cluster_data import produce
from tests.helpers.group_backends import GroupBackend
from tests.helpers.members import group_of
from tests.helpers.waiting import eventually, throughout

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


@asynccontextmanager
async def consumer_of(backend: GroupBackend, topic: str, group: str, **settings: Any) -> AsyncIterator[GroupedConsumer]:
    """Yield a member that owns all partitions of a topic."""
    async with backend.consumer(group, **settings) as consumer:
        await consumer.subscribe(topic)
        await eventually(lambda: consumer.settled and bool(consumer.assignment()), "it owns the partitions")
        yield consumer


async def topic_of(cluster: Cluster, unique: Unique, count: int, partitions: int = 1) -> tuple[str, list[bytes]]:
    topic = unique("topic")
    await cluster.create_topic(topic, partitions)
    return topic, await produce(cluster, topic, count)


async def getmany_until(consumer: GroupedConsumer, count: int, **arguments: Any) -> list[Record]:
    found: list[Record] = []
    async with asyncio.timeout(30):
        while len(found) < count:
            for records in (await consumer.getmany(timeout_ms=500, **arguments)).values():
                found += records
    return found


async def test_a_seek_moves_the_position_and_the_next_commit_stores_it(
    release_backend: GroupBackend, unique: Unique
) -> None:
    """The records after the offset come again, the commit may move back, and the next member starts there."""
    topic, values = await topic_of(release_backend.cluster, unique, 20)
    group, partition = unique("group"), TopicPartition(topic, 0)
    async with consumer_of(release_backend, topic, group) as consumer:
        records = await getmany_until(consumer, 20)
        assert [record.value for record in records] == values
        await consumer.commit()
        assert await consumer.position(partition) == 20
        assert (consumer.highwater(partition), consumer.lag(partition), consumer.lag()) == (20, 0, {partition: 0})
        consumer.seek(partition, 5)
        assert await consumer.position(partition) == 5
        assert consumer.lag(partition) == 15
        await consumer.commit()
        assert release_backend.stored(group, topic) == {0: 5}
        with pytest.raises(IllegalStateError, match=f"not assigned.*{topic}:0"):
            consumer.seek(TopicPartition("other", 0), 0)
        with pytest.raises(ConfigError, match="-1"):
            consumer.seek(partition, -1)
    async with consumer_of(release_backend, topic, group) as consumer:
        assert (await consumer.getone()).offset == 5
        assert await consumer.seek_to_end() == {partition: 20}
        assert await consumer.getmany(timeout_ms=200) == {}
        found = consumer.seek_to_end(partition)
        assert await consumer.seek_to_beginning(partition) == {partition: 0}
        assert await found == {}, "the later seek counts"
        consumer.seek(partition, 3)
        assert (await consumer.getone()).offset == 3
        late = consumer.seek_to_end()
        consumer.seek(partition, 7)
        assert await late == {}, "the later seek counts"
        assert (await consumer.getone()).offset == 7


async def test_a_seek_in_the_assigned_hook_sets_the_first_record(backend: GroupBackend, unique: Unique) -> None:
    """A replayer seeks in its hook: nothing before the offset is delivered."""
    topic, _ = await topic_of(backend.cluster, unique, 10)

    class Seeking:
        """A listener without the other hooks."""

        def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
            for partition in partitions:
                consumer.seek(partition, 6)

    async with backend.consumer(unique("group")) as consumer:
        await consumer.subscribe(topic, listener=Seeking())
        async for record in consumer:
            assert record.offset == 6
            break


async def test_a_pause_keeps_what_is_buffered(backend: GroupBackend, unique: Unique) -> None:
    """A paused partition delivers nothing in the middle of a batch, others continue, and nothing is fetched again."""
    topic, values = await topic_of(backend.cluster, unique, 60, partitions=2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    seen: list[Record] = []
    async with consumer_of(backend, topic, unique("group")) as consumer:
        async for record in consumer:
            seen.append(record)
            if sum(each.partition == 0 for each in seen) == 2:
                consumer.pause(first)
                break
        assert consumer.paused() == {first}
        end = await consumer.end_offsets([second])
        if await consumer.position(second) < end[second]:
            async for record in consumer:
                seen.append(record)
                if await consumer.position(second) == end[second]:
                    break
        assert [each.offset for each in seen if each.partition == 0] == [0, 1]
        fetched = consumer.metrics.total("records_fetched")
        consumer.resume(first)
        async for record in consumer:
            seen.append(record)
            if len(seen) == len(values):
                break
        assert [each.offset for each in seen if each.partition == 0] == list(range(sum(r.partition == 0 for r in seen)))
        assert consumer.metrics.total("records_fetched") == fetched == len(values), "each record is fetched once"


async def test_a_pause_outlasts_a_rebalance(release_backend: GroupBackend, unique: Unique) -> None:
    """A paused partition that stays remains paused while another member joins and takes others."""
    topic, _ = await topic_of(release_backend.cluster, unique, 20, partitions=4)
    name = unique("group")
    settings = {"partition_allocator": "sticky"}
    async with consumer_of(release_backend, topic, name, **settings) as consumer:
        consumer.pause(*consumer.assignment())
        async with release_backend.consumer(name, partition_allocator="sticky") as other:
            await other.subscribe(topic)
            await eventually(lambda: len(other.assignment()) == len(consumer.assignment()) == 2, "they share")
            assert consumer.paused() == consumer.assignment()
            assert other.paused() == frozenset()
            assert await consumer.getmany(timeout_ms=300) == {}
        await eventually(lambda: len(consumer.assignment()) == 4, "it takes all again")
        assert len(consumer.paused()) == 2, "what comes anew is not paused"


async def test_getmany_finishes_what_it_returned_before(release_backend: GroupBackend, unique: Unique) -> None:
    """Asking again finishes the records, also if nothing comes; a cancelled call gave nothing."""
    topic, values = await topic_of(release_backend.cluster, unique, 10)
    group, partition = unique("group"), TopicPartition(topic, 0)
    async with consumer_of(release_backend, topic, group) as consumer:
        found = await getmany_until(consumer, 3, max_records=3)
        assert [record.offset for record in found] == [0, 1, 2]
        assert await asyncio.create_task(asyncio.to_thread(lambda: None)) is None
        await consumer.commit()
        assert release_backend.stored(group, topic) == {0: 3}, "a commit counts what its caller has in flight"
        found += await getmany_until(consumer, 7)
        assert [record.value for record in found] == values
        assert await consumer.getmany() == {}

        async def commits() -> None:
            await consumer.commit()

        await asyncio.create_task(commits())
        assert release_backend.stored(group, topic) == {0: 10}, "the empty call has finished them"
        waiting = consumer.getone()
        await asyncio.sleep(0.05)
        waiting.cancel()
        await produce(release_backend.cluster, topic, 1)
        record = await asyncio.wait_for(consumer.getone(partition), 10)
        assert record.offset == 10
        with pytest.raises(
            ConfigError, match=r"delivers by getone\(\), getmany\(\) and consume_batches\(\), and iteration"
        ):
            aiter(consumer)
        with pytest.raises(ConfigError, match="expected TopicPartition"):
            await consumer.getone([partition])  # type: ignore[arg-type]
        last = asyncio.ensure_future(consumer.getone())
        await asyncio.sleep(0.05)
    with pytest.raises(ClosedError):
        await last


async def test_a_call_during_the_close_finishes_what_the_caller_got(backend: GroupBackend, unique: Unique) -> None:
    """The call raises a ClosedError. The records that the caller got before are finished, so the close commits them."""
    topic, _ = await topic_of(backend.cluster, unique, 5)
    group = unique("group")
    received, closing = asyncio.Event(), asyncio.Event()
    async with consumer_of(backend, topic, group) as consumer:

        async def work() -> None:
            await getmany_until(consumer, 5)
            received.set()
            await closing.wait()
            with pytest.raises(ClosedError):
                await consumer.getmany()

        working = asyncio.create_task(work())
        await received.wait()
        assert consumer.is_member
        closed = consumer.close()
        assert not consumer.is_member
        closing.set()
        await working
        await closed
    assert backend.stored(group, topic) == {0: 5}


async def test_a_partition_with_records_of_getmany_is_not_released(backend: GroupBackend, unique: Unique) -> None:
    """A release waits for the records that a call has returned, and stores them when their coroutine asks again."""
    topic, _ = await topic_of(backend.cluster, unique, 40, partitions=2)
    name = unique("group")
    async with consumer_of(backend, topic, name) as consumer:
        await getmany_until(consumer, 40)
        async with group_of(backend.cluster, name, [topic], **backend.settings) as group:
            # With brokers, a join waits until the other members have given their partitions back.
            joining = asyncio.ensure_future(group.join())
            await eventually(lambda: len(consumer.assignment()) == 2 and not consumer.settled, "one is to be released")
            (other,) = group.members
            await throughout(lambda: not other.consumer.assignment(), "nothing moves", 0.5)
            await consumer.getmany()
            await joining
            await eventually(lambda: bool(other.consumer.assignment()), "it was released")
            assert other.values == []


async def test_unsubscribe_leaves_the_topics_and_keeps_the_member(backend: GroupBackend, unique: Unique) -> None:
    """Nothing is assigned any more, what is finished is committed, and a later subscription resumes there."""
    topic, values = await topic_of(backend.cluster, unique, 10)
    group = unique("group")
    async with consumer_of(backend, topic, group) as consumer:
        await getmany_until(consumer, 4, max_records=4)
        member = consumer.member_id
        await consumer.unsubscribe()
        assert (consumer.subscription(), consumer.assignment()) == (frozenset(), frozenset())
        assert await consumer.getmany(timeout_ms=100) == {}
        await eventually(lambda: backend.stored(group, topic) == {0: 4}, "it is committed")
        assert consumer.member_id == member
        await consumer.subscribe([topic])
        assert [record.value for record in await getmany_until(consumer, 6)] == values[4:]


async def test_the_blocking_twin_has_the_same_methods(release_backend: GroupBackend, unique: Unique) -> None:
    """A thread gets records, pauses, seeks and resumes."""
    topic, _ = await topic_of(release_backend.cluster, unique, 10)
    partition, group = TopicPartition(topic, 0), unique("group")

    def program() -> None:
        with release_backend.blocking(group) as consumer:
            consumer.subscribe(topic)
            assert [consumer.getone().offset for _ in range(3)] == [0, 1, 2]
            assert consumer.assignment() == {partition}
            consumer.pause(partition)
            assert consumer.getmany(timeout_ms=100) == {}
            consumer.seek(partition, 8)
            consumer.resume(partition)
            assert consumer.position(partition) == 8
            found = consumer.getmany(timeout_ms=10_000)
            assert [record.offset for record in found[partition]] == [8, 9]

    await asyncio.to_thread(program)
    assert release_backend.stored(group, topic) == {0: 10}
