"""Commits of chosen offsets, what a group has committed, and closes, with each store and coordination."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kiel_groups import GroupedConsumer, OffsetAndMetadata, Record, TopicPartition
from kiel_groups.errors import ClosedError, CommitFailedError, ConfigError, KielGroupsError
from tests.helpers.cluster_data import produce
from tests.helpers.group_backends import GroupBackend
from tests.helpers.members import group_of
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


@pytest.fixture
def backend(store_backend: GroupBackend) -> GroupBackend:
    """Run each test with each store of groups that ZooKeeper coordinates, and in groups that brokers coordinate."""
    return store_backend


@pytest.fixture
def topic(backend: GroupBackend, unique: Unique) -> str:
    """Return the name of a topic with one partition of 10 records."""
    name, cluster = unique("topic"), backend.cluster

    async def create() -> None:
        await cluster.create_topic(name, 1)
        await produce(cluster, name, 10)

    asyncio.run(create())
    return name


@pytest.fixture
def group(unique: Unique) -> str:
    return unique("group")


@asynccontextmanager
async def joined(backend: GroupBackend, group: str, topic: str, **settings: Any) -> AsyncIterator[GroupedConsumer]:
    """Provide a consumer that commits on request only, and owns all partitions of the topic."""
    async with backend.consumer(group, **{"autocommit": False, **settings}) as consumer:
        await consumer.subscribe(topic)
        await eventually(lambda: consumer.settled and consumer.allocation.get(topic), "the consumer owns the topic")
        yield consumer


async def read(consumer: GroupedConsumer, count: int) -> Record:
    """Read ``count`` records, and return the last one, which the loop has finished."""
    seen = 0
    async for record in consumer:
        seen += 1
        if seen == count:
            return record
    raise AssertionError("the consumer was closed")


# Chosen offsets


@pytest.mark.parametrize("value", [4, OffsetAndMetadata(4, "a text"), (4, None), OffsetAndMetadata(4)])
async def test_a_chosen_offset_is_where_the_next_member_starts(
    backend: GroupBackend, topic: str, group: str, value: Any
) -> None:
    """It is less than what was read; nothing else is stored at the close, and metadata is not kept."""
    partition = TopicPartition(topic, 0)
    async with joined(backend, group, topic) as consumer:
        assert (await read(consumer, 7)).offset == 6
        assert await consumer.commit({partition: value}) == {partition}
        assert await consumer.committed(partition) == 4
        assert await consumer.fetch_committed_offsets([partition]) == {partition: OffsetAndMetadata(4, "")}
        assert (await read(consumer, 1)).offset == 7, "the position is unchanged"
    assert backend.stored(group, topic) == {0: 4}
    async with joined(backend, group, topic) as consumer:
        assert (await read(consumer, 1)).offset == 4


async def test_a_later_commit_stores_what_is_finished_again(backend: GroupBackend, topic: str, group: str) -> None:
    partition = TopicPartition(topic, 0)
    async with joined(backend, group, topic) as consumer:
        await read(consumer, 7)
        assert await consumer.commit({(topic, 0): 2}) == {partition}  # type: ignore[dict-item]
        assert await consumer.commit() == {partition}
        assert await consumer.committed(partition) == 7
        assert await consumer.commit({}) == frozenset()


@pytest.mark.parametrize(
    ("offsets", "error", "text"),
    [
        ({0: 9}, ConfigError, r"group G: commit\(\): T:0: 9 given, which is beyond 8, the next offset to deliver"),
        ({0: 2}, ConfigError, r"commit\(\): T:0: 2 given, which is before 3, where this claim began or was set"),
        ({0: 5, 1: 0}, CommitFailedError, "commit\\(\\): T:1 is not owned by this member, .*, but by no member; its"),
        ({0: -1}, ConfigError, r"commit\(\): T:0: -1 given; expected the next offset to read"),
        ({0: "5"}, ConfigError, r"commit\(\): T:0: '5' given; expected the next offset to read"),
        ([0], ConfigError, r"commit\(\): .* given; expected a dict of TopicPartition"),
    ],
)
async def test_each_refusal_says_why_and_stores_nothing(
    backend: GroupBackend, topic: str, group: str, offsets: Any, error: type[KielGroupsError], text: str
) -> None:
    """The member continues: the same consumer can commit another offset at once."""
    partition = TopicPartition(topic, 0)
    async with joined(backend, group, topic) as consumer:
        await read(consumer, 3)
        await consumer.commit()
        assert consumer.is_member
    assert not consumer.is_member
    async with joined(backend, group, topic) as consumer:
        await read(consumer, 5)
        given = {TopicPartition(topic, each): at for each, at in offsets.items()} if type(offsets) is dict else offsets
        with pytest.raises(error, match=text.replace("T:", f"{topic}:").replace("G:", f"{group}:")):
            await consumer.commit(given)
        assert backend.stored(group, topic) == {0: 3}
        assert await consumer.commit({partition: 5}) == {partition}
        assert consumer.settled


async def test_two_members_commit_their_own_partitions(backend: GroupBackend, unique: Unique) -> None:
    """The error for a partition of the other member names that member. Both read what the other has committed."""
    topic, name = unique("topic"), unique("group")
    await backend.cluster.create_topic(topic, 2)
    values = await produce(backend.cluster, topic, 40)
    async with group_of(backend.cluster, name, [topic], **backend.settings, autocommit=False) as group:
        first, second = await group.join(), await group.join()
        await group.balanced(topic, 2)
        await group.delivered(values)
        (mine,), (other,) = ([TopicPartition(topic, n) for n in each.partitions(topic)] for each in (first, second))

        async def has_delivered() -> bool:
            positions = await first.consumer.position(mine), await second.consumer.position(other)
            return min(positions) >= 3

        # In a rebalance by brokers, both start again at the committed offsets.
        await eventually(has_delivered, "both have delivered some records")
        assert await first.consumer.commit({mine: 1}) == {mine}
        assert await second.consumer.commit({other: 2}) == {other}
        with pytest.raises(
            CommitFailedError, match=f"not owned by this member, .*, but by {second.consumer.name}; its"
        ):
            await first.consumer.commit({mine: 3, other: 3})
        for member in (first, second):
            assert await member.consumer.committed([mine, other]) == {mine: 1, other: 2}


# What is committed


async def test_committed_offsets_of_any_partition_are_read(backend: GroupBackend, unique: Unique) -> None:
    """Owned or not, of any topic of the group; missing ones are None, or left out of the other form."""
    topic, other, group = unique("topic"), unique("other"), unique("group")
    await backend.cluster.create_topic(topic, 3)
    await backend.cluster.create_topic(other, 1)
    fetched, missing, foreign = TopicPartition(topic, 0), TopicPartition(topic, 2), TopicPartition(other, 0)
    backend.store_offsets(group, topic, {0: 5})
    async with joined(backend, group, other) as consumer:
        assert await consumer.committed([fetched, missing, foreign]) == {fetched: 5, missing: None, foreign: 0}
        assert await consumer.committed(missing) is None
        assert await consumer.committed([]) == {}
        assert await consumer.fetch_committed_offsets() == {
            fetched: OffsetAndMetadata(5, ""),
            foreign: OffsetAndMetadata(0, ""),
        }
        assert await consumer.fetch_committed_offsets([missing, fetched]) == {fetched: OffsetAndMetadata(5)}
        for wrong in ("t", [("t", "0")], 3):
            with pytest.raises(ConfigError, match=r"committed\(\): .* given; expected"):
                await consumer.committed(wrong)  # type: ignore[call-overload]
    for question in (consumer.committed(fetched), consumer.fetch_committed_offsets(), consumer.commit({fetched: 1})):
        with pytest.raises(ClosedError):
            await question  # type: ignore[misc]


# Asynchronous commits


async def test_asynchronous_commits_report_to_callbacks(
    backend: GroupBackend, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    """
    A callback gets the offsets, and the stored partitions or the error. The constructor's gets those of calls without
    one. A callback that raises is logged and counted. The future has the outcome, too, and need not be awaited.
    """
    partition, calls = TopicPartition(topic, 0), list[tuple[str, Any, Any]]()

    def fail(offsets: object, outcome: object) -> None:
        raise RuntimeError("a bug of the application")

    async def slowly(offsets: object, outcome: object) -> None:
        await asyncio.sleep(0.01)
        calls.append(("slow", offsets, outcome))

    async with joined(
        backend,
        group,
        topic,
        default_offset_commit_callback=lambda offsets, outcome: calls.append(("default", offsets, outcome)),
    ) as consumer:
        await read(consumer, 7)
        assert await consumer.commit_async() == {partition}
        assert calls.pop() == ("default", {partition: OffsetAndMetadata(7)}, {partition})
        await consumer.commit_async({partition: 3}, slowly)
        assert calls.pop() == ("slow", {partition: OffsetAndMetadata(3)}, {partition})
        consumer.commit_async({partition: 30})
        await eventually(lambda: calls, "the error is reported")
        kind, offsets, error = calls.pop()
        assert (kind, offsets, type(error)) == ("default", {partition: OffsetAndMetadata(30)}, ConfigError)
        assert await consumer.commit_async({partition: 4}, fail) == {partition}
        assert consumer.metrics.total("commit_callbacks_failed") == 1
        assert f"group {group}: the callback of a commit failed" in caplog.text
        with pytest.raises(ConfigError, match="callback: 3 given; expected a function"):
            await consumer.commit_async(callback=3)  # type: ignore[arg-type]
        last = consumer.commit_async({partition: 5})
    assert await last == {partition}, "a commit that was started before the close is made"
    assert backend.stored(group, topic) == {0: 5}
    consumer.commit_async()
    await eventually(lambda: isinstance(calls[-1][2], ClosedError), "the error of a closed consumer is reported")
    assert "was not awaited" not in caplog.text


# Closes


@pytest.mark.parametrize(("autocommit", "left"), [(True, 7), (False, 0)])
async def test_a_close_commits_what_is_finished_unless_told_not_to(
    backend: GroupBackend, topic: str, group: str, autocommit: bool, left: int
) -> None:
    settings = {"autocommit": True, "auto_commit_interval_ms": 60_000}
    async with joined(backend, group, topic, **settings) as consumer:
        await read(consumer, 7)
        await consumer.close(autocommit=autocommit)
        assert backend.stored(group, topic) == {0: left}
    assert backend.members(group) == []


async def test_arguments_of_a_close_are_checked(backend: GroupBackend, topic: str, group: str) -> None:
    """``close(5.0)`` was a time limit once: the error says what the first argument is. Nothing is closed."""
    async with joined(backend, group, topic) as consumer:
        for wrong, text in (
            ({"autocommit": 5.0}, "autocommit: 5.0 given; expected True or False"),
            ({"timeout_s": -1}, "timeout_s: -1 given; expected seconds, at least 0, or None"),
            ({"timeout_s": "1"}, "timeout_s: '1' given"),
        ):
            with pytest.raises(ConfigError, match=text):
                consumer.close(**wrong)  # type: ignore[arg-type]
        assert not consumer.closing
        assert (await read(consumer, 1)).offset == 0


def test_the_blocking_consumer_has_the_same_methods(backend: GroupBackend, topic: str, group: str) -> None:
    """An asynchronous commit returns a future of ``concurrent.futures`` at once."""
    partition, calls = TopicPartition(topic, 0), list[Any]()
    with backend.blocking(group, autocommit=False) as consumer:
        consumer.subscribe(topic)
        for record in consumer:
            if record.offset == 6:
                break
        assert consumer.commit({partition: 3}) == {partition}
        assert consumer.committed(partition) == 3
        assert consumer.committed([partition]) == {partition: 3}
        assert consumer.fetch_committed_offsets() == {partition: OffsetAndMetadata(3)}
        committing = consumer.commit_async({partition: 4}, lambda *outcome: calls.append(outcome))
        assert committing.result(10) == {partition}
        assert calls == [({partition: OffsetAndMetadata(4)}, {partition})]
        with pytest.raises(ConfigError, match="beyond 7, the next offset to deliver"):
            consumer.commit_async({partition: 8}).result(10)
        consumer.close(autocommit=False, timeout_s=5.0)
    assert backend.stored(group, topic) == {0: 4}


async def test_a_revoked_hook_commits_at_the_close(backend: GroupBackend, topic: str, group: str) -> None:
    """As programs of kafka-python do: what the loop has finished is stored, and the position is still known."""
    seen: list[int] = []

    class Committer:
        async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            await consumer.commit()
            seen.extend([await consumer.position(each) for each in partitions])
            assert await consumer.committed(partitions[0]) is not None

    async with joined(backend, group, topic, listener=Committer()) as consumer:
        await read(consumer, 3)
    assert seen == [3]
    assert backend.stored(group, topic) == {0: 3}
