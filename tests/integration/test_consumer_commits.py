"""Commits of chosen offsets, what a group has committed, and closes, with both stores."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kiel_groups import GroupedConsumer, OffsetAndMetadata, Record, TopicPartition, sync
from kiel_groups.embedded import Cluster, FaultProxy
from kiel_groups.errors import ClosedError, CommitFailedError, ConfigError, KielGroupsError, SessionLostError
from kiel_groups.group.znodes.layout import GroupLayout
from tests.helpers.answer_losers import AnswerLoser
from tests.helpers.cluster_data import members, produce, stored_offsets, zookeeper
from tests.helpers.members import Member, end_session, group_of
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

STORES = pytest.mark.parametrize("store", ["zookeeper", "broker-v0"])


@pytest.fixture
def topic(cluster_39: Cluster, unique: Unique) -> str:
    """Return the name of a topic with one partition of 10 records."""
    name = unique("topic")

    async def create() -> None:
        await cluster_39.create_topic(name, 1)
        await produce(cluster_39, name, 10)

    asyncio.run(create())
    return name


@pytest.fixture
def group(unique: Unique) -> str:
    return unique("group")


@asynccontextmanager
async def joined(cluster: Cluster, group: str, topic: str, **settings: Any) -> AsyncIterator[GroupedConsumer]:
    """Provide a consumer that commits on request only, and owns all partitions of the topic."""
    place = {"brokers": cluster.brokers, "zk_hosts": cluster.zk_hosts, "autocommit": False, **settings}
    async with GroupedConsumer(group=group, **place) as consumer:
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


def stored(cluster: Cluster, group: str, topic: str) -> dict[int, int]:
    with zookeeper(cluster) as client:
        return stored_offsets(client, group, topic)


# Chosen offsets


@STORES
@pytest.mark.parametrize("value", [4, OffsetAndMetadata(4, "a text"), (4, None), OffsetAndMetadata(4)])
async def test_a_chosen_offset_is_where_the_next_member_starts(
    cluster_39: Cluster, topic: str, group: str, store: str, value: Any
) -> None:
    """It is less than what was read; nothing else is stored at the close, and metadata is not kept."""
    partition = TopicPartition(topic, 0)
    async with joined(cluster_39, group, topic, store=store) as consumer:
        assert (await read(consumer, 7)).offset == 6
        assert await consumer.commit({partition: value}) == {partition}
        assert await consumer.committed(partition) == 4
        assert await consumer.fetch_committed_offsets([partition]) == {partition: OffsetAndMetadata(4, "")}
        assert (await read(consumer, 1)).offset == 7, "the position is unchanged"
    assert stored(cluster_39, group, topic) == {0: 4}
    async with joined(cluster_39, group, topic, store=store) as consumer:
        assert (await read(consumer, 1)).offset == 4


@STORES
async def test_a_later_commit_stores_what_is_finished_again(
    cluster_39: Cluster, topic: str, group: str, store: str
) -> None:
    partition = TopicPartition(topic, 0)
    async with joined(cluster_39, group, topic, store=store) as consumer:
        await read(consumer, 7)
        assert await consumer.commit({(topic, 0): 2}) == {partition}  # type: ignore[dict-item]
        assert await consumer.commit() == {partition}
        assert await consumer.committed(partition) == 7
        assert await consumer.commit({}) == frozenset()


@STORES
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
    cluster_39: Cluster, topic: str, group: str, store: str, offsets: Any, error: type[KielGroupsError], text: str
) -> None:
    """The member continues: the same consumer can commit another offset at once."""
    partition = TopicPartition(topic, 0)
    async with joined(cluster_39, group, topic, store=store) as consumer:
        await read(consumer, 3)
        await consumer.commit()
    async with joined(cluster_39, group, topic, store=store) as consumer:
        await read(consumer, 5)
        given = {TopicPartition(topic, each): at for each, at in offsets.items()} if type(offsets) is dict else offsets
        with pytest.raises(error, match=text.replace("T:", f"{topic}:").replace("G:", f"{group}:")):
            await consumer.commit(given)
        assert stored(cluster_39, group, topic) == {0: 3}
        assert await consumer.commit({partition: 5}) == {partition}
        assert consumer.settled


@STORES
async def test_a_superseded_commit_follows_the_other_writer(
    cluster_39: Cluster, topic: str, group: str, store: str
) -> None:
    """The operator's offset stays. Delivery continues there, and the error says so."""
    partition = TopicPartition(topic, 0)
    async with joined(cluster_39, group, topic, store=store) as consumer:
        await read(consumer, 7)
        with zookeeper(cluster_39) as client:
            client.set(GroupLayout(group).offset(partition), b"1")
        with pytest.raises(
            CommitFailedError, match=r"5 of .*:0 was not stored: another writer has stored 1, where delivery continues"
        ):
            await consumer.commit({partition: 5})
        assert stored(cluster_39, group, topic) == {0: 1}
        assert (await read(consumer, 1)).offset == 1
        assert await consumer.commit({partition: 2}) == {partition}


@STORES
async def test_two_members_commit_their_own_partitions(cluster_39: Cluster, unique: Unique, store: str) -> None:
    """The error for a partition of the other member names that member. Both read what the other has committed."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 2)
    values = await produce(cluster_39, topic, 40)
    async with group_of(cluster_39, name, [topic], store=store, autocommit=False) as group:
        first, second = await group.join(), await group.join()
        await group.balanced(topic, 2)
        await group.delivered(values)
        (mine,), (other,) = ([TopicPartition(topic, n) for n in each.partitions(topic)] for each in (first, second))
        assert await first.consumer.commit({mine: 1}) == {mine}
        assert await second.consumer.commit({other: 2}) == {other}
        with pytest.raises(
            CommitFailedError, match=f"not owned by this member, .*, but by {second.consumer.name}; its"
        ):
            await first.consumer.commit({mine: 3, other: 3})
        for member in (first, second):
            assert await member.consumer.committed([mine, other]) == {mine: 1, other: 2}


@pytest.mark.parametrize("expires", [False, True])
async def test_an_answer_is_lost_between_send_and_answer(
    cluster_39: Cluster, topic: str, group: str, expires: bool
) -> None:
    """
    ZooKeeper has executed the commit. If the connection breaks, the member finds that out, and reports the partition.
    If the session ends, the outcome is unknown to the caller, and the next claim starts at the chosen offset.
    """
    hosts, slash, chroot = cluster_39.zk_hosts.partition("/")
    partition = TopicPartition(topic, 0)
    with AnswerLoser(hosts) as proxy:
        member = Member(cluster_39, group, [topic], zk_hosts=proxy.address + slash + chroot, autocommit=False)
        async with group_of(cluster_39, group, [topic]) as others:
            others.members.append(member)
            await member.start()
            await eventually(lambda: len(member.records) == 10, "all is read")
            proxy.lose_answer_to(GroupLayout(group).offset(partition).encode())
            committing = member.consumer.commit({partition: 4})
            assert await asyncio.to_thread(proxy.caught.wait, 10.0)
            await eventually(lambda: stored(cluster_39, group, topic) == {0: 4}, "ZooKeeper has stored it")
            if not expires:
                proxy.reconnect()
                assert await committing == {partition}
                return
            end_session(cluster_39, member)
            proxy.reconnect()
            with pytest.raises(SessionLostError):
                await committing
            await eventually(lambda: len(member.records) == 16, "the records after it are repeated")
            assert [record.offset for record in member.records[10:]] == [4, 5, 6, 7, 8, 9]


# What is committed


@STORES
async def test_committed_offsets_of_any_partition_are_read(
    cluster_39: Cluster, unique: Unique, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Owned or not, of any topic of the group; missing and unreadable ones are None, or left out of the other form."""
    topic, other, group = unique("topic"), unique("other"), unique("group")
    await cluster_39.create_topic(topic, 3)
    await cluster_39.create_topic(other, 1)
    layout, fetched = GroupLayout(group), TopicPartition(topic, 0)
    unreadable, missing, foreign = TopicPartition(topic, 1), TopicPartition(topic, 2), TopicPartition(other, 0)
    async with joined(cluster_39, group, other, store=store) as consumer:
        with zookeeper(cluster_39) as client:
            client.create(layout.offset(fetched), b"5", makepath=True)
            client.create(layout.offset(unreadable), b"garbage")
        assert await consumer.committed([fetched, unreadable, missing, foreign]) == {
            fetched: 5,
            unreadable: None,
            missing: None,
            foreign: 0,
        }
        assert (
            f"{layout.offset(unreadable)}" in caplog.text or f"cannot read the offsets of {unreadable}" in caplog.text
        )
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


@STORES
async def test_asynchronous_commits_report_to_callbacks(
    cluster_39: Cluster, topic: str, group: str, store: str, caplog: pytest.LogCaptureFixture
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
        cluster_39,
        group,
        topic,
        store=store,
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
    assert stored(cluster_39, group, topic) == {0: 5}
    consumer.commit_async()
    await eventually(lambda: isinstance(calls[-1][2], ClosedError), "the error of a closed consumer is reported")
    assert "was not awaited" not in caplog.text


# Closes


@STORES
@pytest.mark.parametrize(("autocommit", "left"), [(True, 7), (False, 0)])
async def test_a_close_commits_what_is_finished_unless_told_not_to(
    cluster_39: Cluster, topic: str, group: str, store: str, autocommit: bool, left: int
) -> None:
    settings = {"store": store, "autocommit": True, "auto_commit_interval_ms": 60_000}
    async with joined(cluster_39, group, topic, **settings) as consumer:
        await read(consumer, 7)
        await consumer.close(autocommit=autocommit)
        assert stored(cluster_39, group, topic) == {0: left}
    assert members(cluster_39, group) == []


async def test_arguments_of_a_close_are_checked(cluster_39: Cluster, topic: str, group: str) -> None:
    """``close(5.0)`` was a time limit once: the error says what the first argument is. Nothing is closed."""
    async with joined(cluster_39, group, topic) as consumer:
        for wrong, text in (
            ({"autocommit": 5.0}, "autocommit: 5.0 given; expected True or False"),
            ({"timeout_s": -1}, "timeout_s: -1 given; expected seconds, at least 0, or None"),
            ({"timeout_s": "1"}, "timeout_s: '1' given"),
        ):
            with pytest.raises(ConfigError, match=text):
                consumer.close(**wrong)  # type: ignore[arg-type]
        assert not consumer.closing
        assert (await read(consumer, 1)).offset == 0


@pytest.mark.parametrize("how", ["stalled", "unreachable", "joining", "lost"])
async def test_a_close_with_a_limit_does_not_wait_for_zookeeper(
    cluster_39: Cluster, topic: str, group: str, how: str
) -> None:
    """However silent ZooKeeper is: while the member owns partitions, joins, or has lost its session."""
    hosts, slash, chroot = cluster_39.zk_hosts.partition("/")
    async with FaultProxy(hosts) as proxy:
        consumer = GroupedConsumer(
            cluster_39.brokers, group, proxy.address + slash + chroot, session_timeout_ms=4_000, retry_backoff_ms=10
        )
        if how == "joining":
            proxy.stall()
            connecting = consumer.connect()
            await asyncio.sleep(0.2)
        else:
            await consumer.connect()
            await consumer.subscribe(topic)
            await eventually(lambda: consumer.allocation.get(topic), "the consumer owns the topic")
            proxy.refuse() if how == "unreachable" else proxy.stall()
            if how == "unreachable":
                proxy.cut()
            if how == "lost":
                await eventually(lambda: not consumer.allocation.get(topic), "the session is lost")
        began_s = time.monotonic()
        await consumer.close(timeout_s=0.6)
        assert time.monotonic() - began_s < 0.6 + 0.4, "the close waits for ZooKeeper"
        if how == "joining":
            with pytest.raises(ClosedError):
                await connecting
        own = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        await asyncio.wait(own, timeout=0.5) if own else None
        assert [task for task in own if not task.done() and "FaultProxy" not in repr(task)] == []
        proxy.heal()


async def test_a_close_with_a_limit_does_not_wait_for_brokers(cluster_39: Cluster, topic: str, group: str) -> None:
    """A frozen broker (``broker-v0``) delays the close by two seconds at most, and by no more than its limit."""
    consumer = GroupedConsumer(
        cluster_39.brokers, group, cluster_39.zk_hosts, store="broker-v0", auto_commit_interval_ms=60_000
    )
    await consumer.connect()
    await consumer.subscribe(topic)
    await read(consumer, 7)
    cluster_39.kafka[0].pause()
    try:
        began_s = time.monotonic()
        await consumer.close(timeout_s=0.6)
        assert time.monotonic() - began_s < 1.0
    finally:
        cluster_39.kafka[0].resume()
    assert await asyncio.to_thread(members, cluster_39, group) == []


def test_the_blocking_consumer_has_the_same_methods(cluster_39: Cluster, topic: str, group: str) -> None:
    """An asynchronous commit returns a future of ``concurrent.futures`` at once."""
    partition, calls = TopicPartition(topic, 0), list[Any]()
    with sync.GroupedConsumer(cluster_39.brokers, group, cluster_39.zk_hosts, autocommit=False) as consumer:
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
    assert stored(cluster_39, group, topic) == {0: 4}


@STORES
async def test_a_revoked_hook_commits_at_the_close(cluster_39: Cluster, topic: str, group: str, store: str) -> None:
    """As programs of kafka-python do: what the loop has finished is stored, and the position is still known."""
    seen: list[int] = []

    class Committer:
        async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            await consumer.commit()
            seen.extend([await consumer.position(each) for each in partitions])
            assert await consumer.committed(partitions[0]) is not None

    async with joined(cluster_39, group, topic, store=store, listener=Committer()) as consumer:
        await read(consumer, 3)
    assert seen == [3]
    assert stored(cluster_39, group, topic) == {0: 3}
