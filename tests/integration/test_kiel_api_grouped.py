"""kiel's GroupedConsumer, sentence by sentence: each is a behaviour that somebody's program relies on."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from tornado import gen, ioloop

from kiel_groups.clients import GroupedConsumer, Producer
from kiel_groups.embedded import Cluster
from kiel_groups.errors import MessageTooLargeError
from kiel_groups.exc import NoBrokersError
from tests.helpers.members import stored_offsets, zookeeper
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


def consumer_of(cluster: Cluster, group: str, **settings: Any) -> GroupedConsumer:
    """Built as kiel's programs do; a short wait keeps tests short."""
    return GroupedConsumer(
        brokers=cluster.brokers, group=group, zk_hosts=[cluster.zk_hosts], **({"max_wait_time": 200} | settings)
    )


async def produce(cluster: Cluster, topic: str, *values: Any, partition: int | None = None) -> None:
    """Values as JSON; bytes as they are."""
    async with Producer(cluster.brokers) as producer:
        for value in values:
            raw = value if isinstance(value, bytes) else json.dumps(value).encode()
            await producer.produce(topic, raw, partition=partition)


async def values(consumer: GroupedConsumer, topic: str, count: int) -> list[Any]:
    """Consume until so many values have come."""
    found: list[Any] = []
    async with asyncio.timeout(30):
        while len(found) < count:
            found += await consumer.consume(topic) or []
    return found


async def offsets(cluster: Cluster, group: str, topic: str) -> dict[int, int]:
    def read() -> dict[int, int]:
        with zookeeper(cluster) as client:
            return stored_offsets(client, group, topic)

    return await asyncio.to_thread(read)


async def committed(cluster: Cluster, group: str, topic: str, wanted: int) -> None:
    """Wait until the committed offsets sum up to this."""
    async with asyncio.timeout(20):
        while sum((await offsets(cluster, group, topic)).values()) != wanted:  # noqa: ASYNC110 -- a server's doing
            await asyncio.sleep(0.05)


async def test_consume_returns_a_flat_list_of_what_json_says(cluster_39: Cluster, unique: Unique) -> None:
    """Of all partitions; without a deserialiser the values are JSON, with one they are what it makes."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 3)
    for partition in range(3):
        await produce(cluster_39, topic, {"n": partition}, partition=partition)
    consumer = consumer_of(cluster_39, unique("group"))
    await consumer.connect()
    assert consumer.allocation == {}
    assert sorted(v["n"] for v in await values(consumer, topic, 3)) == [0, 1, 2]
    assert consumer.allocation == {topic: [0, 1, 2]}
    await consumer.close()
    consumer = consumer_of(cluster_39, unique("other"), deserializer=len)
    assert await values(consumer, topic, 3) == [8, 8, 8]
    await consumer.close()


async def test_start_is_accepted_and_ignored(cluster_39: Cluster, unique: Unique) -> None:
    """A group goes on where it was; the start is SingleConsumer's business."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, 1, 2)
    consumer = consumer_of(cluster_39, unique("group"))
    async with asyncio.timeout(20):
        while not (found := await consumer.consume(topic, -1)):
            pass
    assert found == [1, 2]
    await consumer.close()


async def test_nothing_allocated_gives_an_empty_list_and_an_unknown_topic_is_found_later(
    cluster_39: Cluster, unique: Unique
) -> None:
    """[] after about max_wait_time, not at once and not never; and no further call of anything is needed."""
    topic = unique("topic")
    consumer = consumer_of(cluster_39, unique("group"))
    await consumer.connect()
    started_s = asyncio.get_running_loop().time()
    assert await consumer.consume(topic) == []
    assert 0.1 < asyncio.get_running_loop().time() - started_s < 5
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, "now")
    assert await values(consumer, topic, 1) == ["now"]
    await consumer.close()


async def test_what_is_owned_keeps_flowing_when_a_topic_is_added(cluster_39: Cluster, unique: Unique) -> None:
    """The first call for a topic subscribes to it, repeats change nothing, concurrent ones do not hide each other."""
    first, second, third = unique("first"), unique("second"), unique("third")
    for topic in (first, second, third):
        await cluster_39.create_topic(topic, 2)
        await produce(cluster_39, topic, topic)
    assigned: list[Any] = []

    class Listener:
        def on_partitions_assigned(self, partitions: Any) -> None:
            assigned.extend(partitions)

        def on_partitions_revoked(self, partitions: Any) -> None:
            raise AssertionError(f"{partitions} were taken away")

        def on_partitions_lost(self, partitions: Any) -> None:
            raise AssertionError(f"{partitions} were lost")

    consumer = consumer_of(cluster_39, unique("group"), listener=Listener())
    assert await values(consumer, first, 1) == [first]
    together = await asyncio.gather(values(consumer, second, 1), values(consumer, third, 1))
    assert together == [[second], [third]]
    assert consumer.subscription == {first, second, third}
    await eventually(lambda: len(assigned) == 6, "all partitions are held")
    assert len(set(assigned)) == 6
    assert consumer.metrics.counter("listener_failures") == 0
    await consumer.close()


async def test_after_the_close_the_result_is_none(cluster_39: Cluster, unique: Unique) -> None:
    """Also for a call that waits at that moment; wind_down leaves the group as well."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    for leave in ("close", "wind_down"):
        consumer = consumer_of(cluster_39, unique("group"), max_wait_time=60_000)
        await consumer.connect()
        waiting = consumer.consume(topic)
        await eventually(lambda: consumer.allocation, "the partition is held")  # noqa: B023
        async with asyncio.timeout(5):
            await getattr(consumer, leave)()
            assert await waiting is None
            assert await consumer.consume(topic) is None
        assert consumer.allocation == {}


@pytest.mark.parametrize("last", [b"good", b"bad"])
async def test_a_value_that_cannot_be_read_is_passed_over(
    cluster_39: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture, last: bytes
) -> None:
    """Logged, counted, and committed with the others, even when it is the last one."""
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    sent = [b"1", b"{not json", b"2", b'"good"' if last == b"good" else b"}"]
    await produce(cluster_39, topic, *sent)
    consumer = consumer_of(cluster_39, group)
    wanted = [1, 2, "good"] if last == b"good" else [1, 2]
    assert await values(consumer, topic, len(wanted)) == wanted
    await consumer.consume(topic)
    assert consumer.metrics.counter("deserializer_failures") == (1 if last == b"good" else 2)
    assert f"{topic}:0: the deserializer failed on the value at offset 1" in caplog.text
    await consumer.close()
    assert await offsets(cluster_39, group, topic) == {0: 4}


async def test_a_deserializer_that_fails_on_every_value(
    cluster_39: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """One line a minute for each partition, with a count; it says that values are bytes here. All is committed."""
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, *[b"a,b"] * 300)
    # As for kiel, which gave text to it.
    consumer = consumer_of(cluster_39, group, deserializer=lambda value: value.split(","))
    async with asyncio.timeout(20):
        while consumer.metrics.counter("deserializer_failures") < 300:
            assert await consumer.consume(topic) == []
    await consumer.close()
    lines = [entry.getMessage() for entry in caplog.records if "deserializ" in entry.name]
    assert len(lines) == 2
    assert all("a deserializer is given bytes" in line for line in lines)
    assert f"{topic}:0: the deserializer failed on 299 more values" in lines[1]
    assert await offsets(cluster_39, group, topic) == {0: 300}


async def test_only_unreadable_values_are_finished_without_anybody(cluster_39: Cluster, unique: Unique) -> None:
    """Nobody has them in hand, so nothing waits for the next call."""
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, b"{", b"}")
    consumer = consumer_of(cluster_39, group)
    async with asyncio.timeout(20):
        while consumer.metrics.counter("deserializer_failures") < 2:
            assert await consumer.consume(topic) == []
    await consumer.close()
    assert await offsets(cluster_39, group, topic) == {0: 2}


async def test_a_large_message_does_not_stall_its_partition(cluster_39: Cluster, unique: Unique) -> None:
    """However small its share of max_bytes."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 4)
    await produce(cluster_39, topic, "x" * 300_000, "y", partition=2)
    consumer = consumer_of(cluster_39, unique("group"), max_bytes=4_096)
    assert [len(v) for v in await values(consumer, topic, 2)] == [300_000, 1]
    await consumer.close()


async def test_autocommit_commits_what_was_returned_before(cluster_39: Cluster, unique: Unique) -> None:
    """The next call finishes it, and says so at once; what was returned last is not committed."""
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, 1, 2, 3)
    consumer = consumer_of(cluster_39, group, auto_commit_interval_ms=60_000)
    assert await values(consumer, topic, 3) == [1, 2, 3]
    assert await offsets(cluster_39, group, topic) == {0: 0}
    await consumer.consume(topic)
    await committed(cluster_39, group, topic, 3)
    await consumer.close()


@pytest.mark.parametrize("way", ["consume", "commit_offsets"])
async def test_what_one_coroutine_is_busy_with_is_not_committed_by_another(
    cluster_39: Cluster, unique: Unique, way: str
) -> None:
    """They take turns with one topic: what each got ends when it asks again itself, or is gone."""
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 2)
    await produce(cluster_39, topic, 0, 1, partition=0)
    consumer = consumer_of(cluster_39, group, auto_commit_interval_ms=20)
    busy, may_end = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        await values(consumer, topic, 2)
        busy.set()
        await may_end.wait()

    working = asyncio.ensure_future(slow())
    async with asyncio.timeout(30):
        await busy.wait()
        await produce(cluster_39, topic, 2, partition=0)
        await produce(cluster_39, topic, 3, 4, 5, partition=1)
        await values(consumer, topic, 4)
        await (consumer.consume(topic) if way == "consume" else consumer.commit_offsets())
        await committed(cluster_39, group, topic, 3)
        assert await offsets(cluster_39, group, topic) == {0: 0, 1: 3}
        may_end.set()
        await working
        del working
        await consumer.consume(topic)
        await committed(cluster_39, group, topic, 6)
    await consumer.close()


async def test_a_close_amid_a_commit_commits_the_rest(cluster_39: Cluster, unique: Unique) -> None:
    """The offset that is on its way is ours: it must not look like somebody else's doing."""
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 4)
    await produce(cluster_39, topic, *range(400))
    found: list[int] = []
    while len(found) < 400:
        consumer = consumer_of(cluster_39, group, max_bytes=200)
        found += await values(consumer, topic, min(60, 400 - len(found)))
        await consumer.close()
        assert consumer.metrics.counter("commits_superseded") == 0
        assert sum((await offsets(cluster_39, group, topic)).values()) == len(found)
    assert sorted(found) == list(range(400)), "nothing comes twice"


async def test_without_autocommit_nothing_is_committed_but_by_call(cluster_39: Cluster, unique: Unique) -> None:
    """commit_offsets() covers all that was returned before it, although nobody awaits it, and nothing else."""
    first, second, group = unique("first"), unique("second"), unique("group")
    for topic in (first, second):
        await cluster_39.create_topic(topic, 1)
        await produce(cluster_39, topic, 1, 2)
    consumer = consumer_of(cluster_39, group, autocommit=False)
    assert await values(consumer, first, 2) == [1, 2]
    await consumer.consume(first)
    assert await offsets(cluster_39, group, first) == {0: 0}
    consumer.commit_offsets()
    await committed(cluster_39, group, first, 2)
    assert await values(consumer, second, 2) == [1, 2]
    stored = consumer.metrics.counter("offsets_committed")
    await consumer.commit_offsets("a text")
    assert consumer.metrics.counter("offsets_committed") == stored + 1, "only topics consumed since the last commit"
    assert await offsets(cluster_39, group, second) == {0: 2}
    await produce(cluster_39, first, 3)
    assert await values(consumer, first, 1) == [3]
    await consumer.close()
    assert await offsets(cluster_39, group, first) == {0: 2}, "the close commits nothing by itself"


async def test_metadata_that_is_too_long_is_left_out(
    cluster_39: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """Where brokers write the offsets they refuse it (12): a warning, and the offset is stored without it."""
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, 1)
    consumer = consumer_of(cluster_39, group, autocommit=False, store="broker-v0")
    assert await values(consumer, topic, 1) == [1]
    await consumer.commit_offsets("x" * 5_000)
    assert "the metadata of a commit is too long" in caplog.text
    assert await offsets(cluster_39, group, topic) == {0: 1}
    await produce(cluster_39, topic, 2)
    assert await values(consumer, topic, 1) == [2]
    caplog.clear()
    await consumer.commit_offsets()
    assert caplog.text == "", "by default it says who committed, in short"
    assert await offsets(cluster_39, group, topic) == {0: 2}
    await consumer.close()


async def test_a_commit_that_fails_is_logged_and_counted(
    cluster_39: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not raise, and consume() goes on returning values."""
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, 1)
    consumer = consumer_of(cluster_39, group, autocommit=False)
    assert await values(consumer, topic, 1) == [1]
    assert consumer._consuming is not None
    consumer._consuming.member.gate.suspended = True
    await consumer.commit_offsets()
    consumer._consuming.member.gate.suspended = False
    assert consumer.metrics.counter("commits_failed") == 1
    assert "were not committed" in caplog.text
    await produce(cluster_39, topic, 2)
    assert await values(consumer, topic, 1) == [2]
    await consumer.commit_offsets()
    assert await offsets(cluster_39, group, topic) == {0: 2}
    await consumer.close()


async def _cancelled(consumer: GroupedConsumer, topic: str) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(consumer.consume(topic), 0.2)


async def _given_up(consumer: GroupedConsumer, topic: str) -> None:
    with pytest.raises(TimeoutError):
        await gen.with_timeout(timedelta(seconds=0.2), consumer.consume(topic))


async def _never_looked_at(consumer: GroupedConsumer, topic: str) -> None:
    await asyncio.wait({consumer.consume(topic)}, timeout=0.2)


async def _given_up_by_another(consumer: GroupedConsumer, topic: str) -> None:
    await asyncio.ensure_future(_given_up(consumer, topic))


@pytest.mark.parametrize("waits", [True, False], ids=["still waiting", "answered"])
@pytest.mark.parametrize("give_up", [_cancelled, _given_up, _never_looked_at, _given_up_by_another])
async def test_values_that_came_for_nobody_come_again(
    cluster_39: Cluster,
    unique: Unique,
    give_up: Callable[[GroupedConsumer, str], Awaitable[None]],
    waits: bool,
) -> None:
    """Whoever asked had given up: nothing that it was not given is finished, whether it is asked for soon or late."""
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    consumer = consumer_of(cluster_39, group, max_wait_time=30_000, auto_commit_interval_ms=60_000)
    await consumer.connect()
    await consumer.subscribe(topic)
    await eventually(lambda: consumer.allocation, "the partition is held")
    await give_up(consumer, topic)
    if waits:
        asked = consumer.consume(topic)
        await produce(cluster_39, topic, 1, 2)
        found = await asked or []
    else:
        await produce(cluster_39, topic, 1, 2)
        # Fetched, and handed to the call that nobody waits for, if it is still there.
        await asyncio.sleep(1.2)
        await consumer.commit_offsets()
        found = []
    assert await offsets(cluster_39, group, topic) == {0: 0}
    assert (found + await values(consumer, topic, 2 - len(found)))[:2] == [1, 2]
    await consumer.close()
    assert await offsets(cluster_39, group, topic) == {0: 2}


async def test_a_hand_over_waits_for_the_values_in_hand(cluster_39: Cluster, unique: Unique) -> None:
    """They are being processed until they are committed, or the topic is asked for again."""
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, 1)

    def to_the_other(members: list[str], partitions: list[str]) -> dict[str, dict[str, list[int]]]:
        others = [member for member in members if member != first.member_id]
        return {(others or members)[0]: {topic: [0]}}

    first = consumer_of(cluster_39, group, partition_allocator=to_the_other)
    second = consumer_of(cluster_39, group, partition_allocator=to_the_other)
    assert await values(first, topic, 1) == [1]
    asking = asyncio.ensure_future(_forever(second, topic))
    await eventually(lambda: not first.settled, "the partition is to move")
    await asyncio.sleep(0.3)
    assert second.allocation == {}, "what is in hand must not move"
    first.commit_offsets()
    await eventually(lambda: second.allocation == {topic: [0]}, "the other has it")
    assert await offsets(cluster_39, group, topic) == {0: 1}
    await asyncio.gather(first.close(), second.close())
    await asking


async def _forever(consumer: GroupedConsumer, topic: str) -> None:
    while await consumer.consume(topic) is not None:
        pass


async def _same_coroutine(consumer: GroupedConsumer, topic: str) -> None:
    await values(consumer, topic, 2)
    await consumer.close()


@gen.coroutine
def _same_tornado_coroutine(consumer: GroupedConsumer, topic: str) -> Any:
    found = []
    while len(found) < 2:
        found += yield consumer.consume(topic)
    yield consumer.close()


async def _another_one(consumer: GroupedConsumer, topic: str) -> None:
    taken = asyncio.Event()

    async def work() -> None:
        await values(consumer, topic, 2)
        taken.set()
        await asyncio.sleep(0.3)
        assert await consumer.consume(topic) is None

    working = asyncio.ensure_future(work())
    await taken.wait()
    await consumer.close()
    await working


async def _after_the_next_topic(consumer: GroupedConsumer, topic: str) -> None:
    async def work() -> None:
        await values(consumer, topic, 2)
        taken.set()
        assert await consumer.consume(f"{topic}-none") in (None, [])

    taken = asyncio.Event()
    working = asyncio.ensure_future(work())
    await taken.wait()
    await consumer.close()
    await working


async def _with_an_exception(consumer: GroupedConsumer, topic: str) -> None:
    async def fail() -> None:
        async with consumer:
            await values(consumer, topic, 2)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()


async def _left_in_hand(consumer: GroupedConsumer, topic: str) -> None:
    await asyncio.ensure_future(values(consumer, topic, 2))
    await consumer.close()


@pytest.mark.parametrize(
    ("ending", "stored", "most_s"),
    [
        (_same_coroutine, 2, 2.0),
        (_same_tornado_coroutine, 2, 2.0),
        (_another_one, 2, 2.0),
        (_after_the_next_topic, 2, 2.0),
        (_with_an_exception, 0, 2.0),
        (_left_in_hand, 0, 4.0),
    ],
)
async def test_what_a_close_makes_of_the_values_in_hand(
    cluster_39: Cluster,
    unique: Unique,
    ending: Callable[[GroupedConsumer, str], Awaitable[None]],
    stored: int,
    most_s: float,
) -> None:
    """Finished where the closing coroutine has them, or their own goes on; delivered again where nobody can tell."""
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, 1, 2)
    consumer = consumer_of(cluster_39, group, auto_commit_interval_ms=60_000)
    await consumer.connect()
    await eventually(lambda: consumer.is_leader, "the group gathers")
    started_s = asyncio.get_running_loop().time()
    await ending(consumer, topic)
    assert asyncio.get_running_loop().time() - started_s < most_s + 2
    assert await offsets(cluster_39, group, topic) == {0: stored}


async def test_iterating_and_consuming_exclude_each_other(cluster_39: Cluster, unique: Unique) -> None:
    """Nobody could tell what is finished."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, 1)
    async with consumer_of(cluster_39, unique("group")) as consumer:
        await values(consumer, topic, 1)
        with pytest.raises(ValueError, match="iterate over the consumer or call consume"):
            aiter(consumer)
    async with consumer_of(cluster_39, unique("group")) as consumer:
        aiter(consumer)
        with pytest.raises(ValueError, match="iterated over already"):
            await consumer.consume(topic)


async def test_a_dead_bootstrap_host_is_skipped_and_none_is_an_error(cluster_39: Cluster, unique: Unique) -> None:
    """brokers and zk_hosts are lists."""
    consumer = GroupedConsumer(["127.0.0.1:1", *cluster_39.brokers], unique("group"), [cluster_39.zk_hosts])
    await consumer.connect()
    await consumer.close()
    with pytest.raises(NoBrokersError):
        await GroupedConsumer(["127.0.0.1:1"], unique("group"), [cluster_39.zk_hosts]).connect()


def test_a_close_outside_of_the_loop_leaves_the_group_before_it_returns(cluster_39: Cluster, unique: Unique) -> None:
    """As after a Ctrl-C out of loop.start(): what was not committed is delivered again, and nothing hangs."""
    topic, group = unique("topic"), unique("group")
    asyncio.run(cluster_39.create_topic(topic, 1))
    asyncio.run(produce(cluster_39, topic, 1, 2))
    consumer = consumer_of(cluster_39, group, autocommit=False)
    loop = ioloop.IOLoop(make_current=False)

    @gen.coroutine
    def run() -> Any:
        yield consumer.connect()
        while True:
            if (yield consumer.consume(topic)):
                consumer.commit_offsets()
                loop.add_callback(_interrupt)

    def _interrupt() -> None:
        raise KeyboardInterrupt

    loop.add_callback(run)
    with pytest.raises(KeyboardInterrupt):
        loop.start()
    left = consumer.close()
    assert left.done()
    assert left.exception() is None
    with zookeeper(cluster_39) as client:
        assert client.get_children(f"/kiel-groups/{group}/members") == []
        assert stored_offsets(client, group, topic) == {0: 2}
    loop.close(all_fds=True)


def test_calls_before_the_loop_runs(cluster_39: Cluster, unique: Unique) -> None:
    """They do their work when it does: programs call before ``IOLoop.current().start()``."""
    topic, group = unique("topic"), unique("group")
    asyncio.run(cluster_39.create_topic(topic, 1))
    asyncio.run(produce(cluster_39, topic, 1))
    loop = ioloop.IOLoop(make_current=True)
    consumer = consumer_of(cluster_39, group, max_wait_time=30_000)
    connecting, asked = consumer.connect(), consumer.consume(topic)
    assert loop.run_sync(lambda: asked) == [1]
    assert connecting.done()
    committing = consumer.commit_offsets()
    loop.run_sync(lambda: committing)
    loop.run_sync(consumer.close)
    loop.close(all_fds=True)
    with zookeeper(cluster_39) as client:
        assert stored_offsets(client, group, topic) == {0: 1}


async def test_what_kiels_programs_read_of_a_member(cluster_39: Cluster, unique: Unique) -> None:
    """Its settings, and the name by which allocator functions know it once it has joined."""
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    seen: list[str] = []

    def allocator(members: list[str], partitions: list[str]) -> dict[str, dict[str, list[int]]]:
        seen.extend(members)
        return {members[0]: {topic: [0]}}

    consumer = consumer_of(cluster_39, group, autocommit=False, partition_allocator=allocator)
    assert consumer.name.endswith(f":{id(consumer)}")
    assert (consumer.group_name, consumer.autocommit, consumer.closing) == (group, False, False)
    assert consumer.deserializer is json.loads
    await consumer.connect()
    await consumer.consume(topic)
    await eventually(lambda: set(seen) == {consumer.name}, "it leads, and allocates to itself")
    await consumer.wind_down()
    assert consumer.closing


async def test_what_unpacks_to_too_much_is_refused(cluster_39: Cluster, unique: Unique) -> None:
    """By the bound that the program sets, with topic, partition and offset; the next call goes on elsewhere."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 2)
    async with Producer(cluster_39.brokers, compression="gzip") as producer:
        await producer.produce(topic, "x" * 100_000, partition=0)
        await producer.produce(topic, "y", partition=1)
    consumer = consumer_of(cluster_39, unique("group"), max_decompressed_bytes=10_000)
    found: list[str] = []
    refused: list[str] = []
    async with asyncio.timeout(30):
        while not found or not refused:
            try:
                found += await consumer.consume(topic) or []
            except MessageTooLargeError as error:
                refused.append(str(error))
    assert found == ["y"]
    assert f"{topic}:0 at offset 0" in refused[0]
    await consumer.close()


@pytest.mark.parametrize("topic", ["a/b", "", 7, ["t"]], ids=repr)
async def test_a_topic_that_cannot_be_is_told_by_the_future(topic: Any) -> None:
    """The call itself returns, whatever it is given."""
    asked = GroupedConsumer(["localhost"], "g", ["localhost"]).consume(topic)
    with pytest.raises(ValueError, match="topic: "):
        await asked


def test_a_close_before_anything_began_is_nothing(cluster_39: Cluster, unique: Unique) -> None:
    """Clients are built before any loop runs; one that was never used has nothing to leave."""
    assert consumer_of(cluster_39, unique("group")).close().done()


logging.getLogger("kazoo").setLevel(logging.ERROR)
