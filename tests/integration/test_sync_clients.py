"""The blocking clients on real servers: finished records, repeated records, and how a member leaves."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest

from kiel_groups.embedded import Cluster
from kiel_groups.errors import ClosedError, ConfigError, IllegalStateError, UnknownTopicError
from kiel_groups.model import Batch, Record, TopicPartition
from kiel_groups.sync import GroupedConsumer, Producer, SingleConsumer
from tests.helpers.cluster_data import owners, zookeeper
from tests.helpers.commands import Running
from tests.helpers.group_backends import GroupBackend
from tests.helpers.members import group_of
from tests.helpers.waiting import eventually, eventually_blocking

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


def new_topic(cluster: Cluster, unique: Unique) -> str:
    """Create a topic of two partitions, and return its name."""
    name = unique("topic")
    asyncio.run(cluster.create_topic(name, 2))
    return name


@pytest.fixture
def topic(backend: GroupBackend, unique: Unique) -> str:
    """Return the name of a topic of two partitions."""
    return new_topic(backend.cluster, unique)


@pytest.fixture
def producer(backend: GroupBackend) -> Iterator[Producer]:
    with Producer(backend.cluster.brokers) as connected:
        yield connected


def fill(producer: Producer, topic: str, count: int) -> list[bytes]:
    """Produce numbered values to both partitions, and return them."""
    values = [b"%d" % number for number in range(count)]
    stored = [producer.produce(topic, value, partition=number % 2) for number, value in enumerate(values)]
    assert {future.result(30).offset for future in stored} == set(range((count + 1) // 2))
    return values


def test_a_break_finishes_the_record_and_the_block_leaves_the_group(
    backend: GroupBackend, topic: str, producer: Producer, unique: Unique
) -> None:
    """Two consumers, one after the other, get each record once. Afterwards the group has no members."""
    group, values = unique("group"), fill(producer, topic, 100)
    got = []
    for _ in range(2):
        with backend.blocking(group) as consumer:
            consumer.subscribe(topic)
            for record in consumer:
                assert consumer.fencing_token(record) == consumer.fencing_token(record.topic_partition)
                got.append(record.value)
                if len(got) % 50 == 0:
                    break
        assert consumer.closing
    assert sorted(got) == sorted(values)
    assert backend.committed(group, topic) == 100
    assert backend.members(group) == []


def process_one(consumer: GroupedConsumer, got: list[bytes], failure: BaseException) -> None:
    """Receive a record and raise ``failure``."""
    for record in consumer:
        got.append(record.value)
        raise failure


def fail_with_one(backend: GroupBackend, group: str, topic: str, got: list[bytes]) -> None:
    """Raise an exception with a record in flight, receive the record again, and raise KeyboardInterrupt."""
    with backend.blocking(group) as consumer:
        consumer.subscribe(topic)
        with pytest.raises(ZeroDivisionError):
            process_one(consumer, got, ZeroDivisionError())
        process_one(consumer, got, KeyboardInterrupt())


def test_a_record_in_flight_at_an_exception_is_delivered_again(
    backend: GroupBackend, topic: str, producer: Producer, unique: Unique
) -> None:
    """The same consumer's next loop gets the record again, and so does the next consumer after a Ctrl-C."""
    group, values = unique("group"), fill(producer, topic, 2)
    got: list[bytes] = []
    with pytest.raises(KeyboardInterrupt):
        fail_with_one(backend, group, topic, got)
    assert got[0] == got[1]
    assert backend.committed(group, topic) == 0
    with backend.blocking(group) as consumer:
        consumer.subscribe(topic)
        again = [record.value for _, record in zip(values, consumer, strict=False)]
    assert sorted(again) == sorted(values)


def test_a_close_within_the_loop_finishes_its_record(
    backend: GroupBackend, topic: str, producer: Producer, unique: Unique
) -> None:
    """The closing thread has the record in flight, so the close does not wait for it."""
    group = unique("group")
    fill(producer, topic, 1)
    consumer = backend.blocking(group)
    consumer.connect()
    consumer.subscribe(topic)
    for _ in consumer:
        consumer.close()
    assert backend.committed(group, topic) == 1
    with pytest.raises(ClosedError):
        iter(consumer)


def test_another_thread_closes_a_waiting_consumer(backend: GroupBackend, topic: str, unique: Unique) -> None:
    """When another thread closes a consumer, its loop ends, and a waiting ``consume()`` returns None."""
    ended = []

    def iterate(consumer: GroupedConsumer) -> None:
        ended.append(list(consumer))

    def ask(consumer: GroupedConsumer) -> None:
        while (values := consumer.consume(topic)) is not None:
            assert values == []
        ended.append([])

    for wait in (iterate, ask):
        consumer = backend.blocking(unique("group"))
        consumer.connect()
        consumer.subscribe(topic)
        waiting = threading.Thread(target=wait, args=(consumer,))
        waiting.start()
        eventually_blocking(lambda consumer=consumer: consumer.settled, "it has joined")  # type: ignore[misc]
        consumer.close()
        waiting.join(30)
    assert ended == [[], []]


def take(consumer: GroupedConsumer, topic: str, count: int) -> list[bytes]:
    """Consume until at least ``count`` values have arrived, and return them."""
    got: list[bytes] = []
    while len(got) < count:
        got += consumer.consume(topic) or []
    return got


def test_values_have_the_fencing_token_of_their_claim(
    backend: GroupBackend, topic: str, producer: Producer, unique: Unique
) -> None:
    """
    The fencing token is the czxid of the owner znode, or the generation and the member id. The next owner has a larger
    czxid, and another member id.
    """
    group, claims = unique("group"), list[dict[int, Any]]()
    for _ in range(2):
        for number in range(2):
            producer.produce(topic, b"value", partition=number).result(30)
        claimed: dict[int, Any] = {}
        with backend.blocking(group, deserializer=bytes) as consumer:
            while len(claimed) < 2:
                batch = consumer.consume(topic) or Batch()
                assert [record.value for part in batch.parts for record in part.records] == batch
                claimed |= {part.topic_partition.partition: part.fencing_token for part in batch.parts}
            if backend.by_brokers:
                assert {token.member_id for token in claimed.values()} == {consumer.member_id}
            else:
                with zookeeper(backend.cluster) as client:
                    assert claimed == {number: czxid for number, (_, czxid) in owners(client, group, topic).items()}
        claims.append(claimed)
    assert all(claims[0][number] != claims[1][number] for number in range(2))
    assert backend.by_brokers or all(claims[0][number] < claims[1][number] for number in range(2))


def fail_with_values(backend: GroupBackend, group: str, topic: str) -> None:
    """Receive a value, and raise ZeroDivisionError."""
    with backend.blocking(group, deserializer=bytes) as consumer:
        take(consumer, topic, 1)
        raise ZeroDivisionError


def test_values_are_committed_by_the_next_call(
    backend: GroupBackend, topic: str, producer: Producer, unique: Unique
) -> None:
    """
    A thread counts like a coroutine: a close finishes the values that its thread received last. An exception does not
    finish them.
    """
    group = unique("group")
    with backend.blocking(group, deserializer=bytes) as consumer:
        values = fill(producer, topic, 20)
        assert sorted(take(consumer, topic, 20)) == sorted(values)
        consumer.commit_offsets()
        assert backend.committed(group, topic) == 20
        producer.produce(topic, b"more", partition=0).result(30)
        assert take(consumer, topic, 1) == [b"more"]
    assert backend.committed(group, topic) == 21
    producer.produce(topic, b"unfinished", partition=0).result(30)
    with pytest.raises(ZeroDivisionError):
        fail_with_values(backend, group, topic)
    assert backend.committed(group, topic) == 21


async def test_idle_partitions_move_while_the_program_is_busy(backend: GroupBackend, unique: Unique) -> None:
    """While a program processes a record, it makes no call. Its other partition moves all the same."""
    topic, name = unique("topic"), unique("group")
    await backend.cluster.create_topic(topic, 2)
    release, busy = threading.Event(), threading.Event()

    def program() -> None:
        with Producer(backend.cluster.brokers) as producer:
            producer.produce(topic, b"only", partition=0).result(30)
        with backend.blocking(name) as consumer:
            consumer.subscribe(topic)
            for _ in consumer:
                busy.set()
                release.wait(120)
                break

    working = threading.Thread(target=program)
    working.start()
    assert await asyncio.to_thread(busy.wait, 60)
    async with group_of(backend.cluster, name, [topic], **backend.settings) as group:
        await group.join()
        await eventually(lambda: len(group.members[0].partitions(topic)) == 1, "the other member owns a partition")
        release.set()
        await group.balanced(topic, 2)
    await asyncio.to_thread(working.join, 30)


def test_the_single_consumer_has_position_lag_and_seek(cluster_39: Cluster, unique: Unique) -> None:
    """After a seek the loop continues at the new position."""
    topic = new_topic(cluster_39, unique)
    with Producer(cluster_39.brokers) as producer:
        fill(producer, topic, 20)
    with SingleConsumer(cluster_39.brokers) as consumer:
        consumer.subscribe(topic, start=SingleConsumer.BEGINNING, partitions=[1])
        partition = TopicPartition(topic, 1)
        assert consumer.allocation == {topic: [1]}
        assert [next(consumer).offset for _ in range(10)] == list(range(10))
        assert consumer.position(partition) == 10
        consumer.seek(partition, 7)
        assert [next(consumer).offset for _ in range(3)] == [7, 8, 9]
        assert consumer.lag(partition) == 0
    assert next(consumer, None) is None
    with pytest.raises(ClosedError):
        list(consumer)
    with SingleConsumer(cluster_39.brokers) as consumer:
        consumer.assign([partition])
        consumer.pause(partition)
        assert consumer.getmany(timeout_ms=100) == {}
        assert (consumer.position(partition), consumer.paused()) == (0, {partition})
        consumer.resume(partition)
        assert consumer.getone().offset == 0
        with pytest.raises(IllegalStateError, match="SingleConsumer has no group"):
            consumer.commit()
        with pytest.raises(IllegalStateError, match="SingleConsumer has no group"):
            consumer.commit_async()
        consumer.unsubscribe()
        assert consumer.assignment() == frozenset()
    with SingleConsumer(cluster_39.brokers) as consumer:
        assert len(consumer.consume(topic, SingleConsumer.BEGINNING) or []) > 0
    assert consumer.consume(topic) is None


def test_the_producer_raises_at_once_for_an_invalid_record(cluster_39: Cluster, unique: Unique) -> None:
    """
    The producer raises at once for an invalid record. Errors of brokers are set on the future. A full buffer blocks the
    program, and no record is lost.
    """
    topic = new_topic(cluster_39, unique)
    with Producer(cluster_39.brokers, max_buffered_bytes=2_000) as producer:
        with pytest.raises(ConfigError, match="topic"):
            producer.produce("no/topic", b"value")
        with pytest.raises(ConfigError, match="it has no form in JSON"):
            producer.produce(topic, object())
        with pytest.raises(UnknownTopicError):
            producer.produce(f"{topic}-missing", b"value").result(30)
        stored = [producer.produce(topic, b"x" * 300, partition=0) for _ in range(50)]
        assert [future.result(30).offset for future in stored] == list(range(50))
        producer.flush()
        assert producer.unsent_count == 0
    with pytest.raises(ClosedError):
        producer.produce(topic, b"late")


NEVER_CLOSES = """
import json
import sys
from kiel_groups.sync import GroupedConsumer

broker, group, topic, settings = sys.argv[1:]
consumer = GroupedConsumer(broker, group, **{"session_timeout_ms": 30_000, **json.loads(settings)})
consumer.connect()
consumer.subscribe(topic)
for record in consumer:
    print(record.offset)
"""


def test_a_program_that_never_closes_leaves_the_group(
    backend: GroupBackend, topic: str, producer: Producer, unique: Unique
) -> None:
    """After a Ctrl-C the member has left when the process has ended, and finished records are committed."""
    group = unique("group")
    fill(producer, topic, 5)
    arguments = [backend.cluster.brokers[0], group, topic, json.dumps(backend.settings)]
    with Running(["-c", NEVER_CLOSES, *arguments]) as program:
        program.wait_for_lines(5)
        program.end(signal.SIGINT)
        assert any(line.endswith("KeyboardInterrupt") for line in program.errors)
    assert backend.members(group) == []
    # All five records were printed. The Ctrl-C may have come before the program asked for a sixth one.
    assert backend.committed(group, topic) in (4, 5)


class Positions:
    """A listener that starts each partition at offset 3, and commits what is revoked."""

    def __init__(self) -> None:
        self.consumer: GroupedConsumer | None = None
        self.starts: dict[TopicPartition, int] = {}
        self.stored: list[frozenset[TopicPartition]] = []
        self.later: list[object] = []

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        assert self.consumer is not None
        for partition in partitions:
            self.starts[partition] = self.consumer.position(partition)
            assert self.consumer.committed(partition) == 0
            self.consumer.seek(partition, 3)

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        assert self.consumer is not None
        assert self.consumer.assignment() >= set(partitions)
        self.stored.append(self.consumer.commit())

    def committed(self, _: Any, outcome: object) -> None:
        assert self.consumer is not None
        # A callback may start another commit, and wait for that one's callback.
        if not self.later:
            self.later.append(outcome)
            self.consumer.commit_async().result(30)
        else:
            self.later.append(outcome)


def test_the_hooks_of_a_listener_seek_and_commit(
    backend: GroupBackend, topic: str, producer: Producer, unique: Unique
) -> None:
    """
    The program waits meanwhile: in its loop for the assigned hook, in ``close()`` for the revoked hook. Without
    automatic commits, only the hook stores offsets.
    """
    group, listener = unique("group"), Positions()
    fill(producer, topic, 10)
    consumer = backend.blocking(
        group,
        autocommit=False,
        default_offset_commit_callback=listener.committed,
    )
    listener.consumer = consumer
    both = {TopicPartition(topic, 0), TopicPartition(topic, 1)}
    with consumer:
        consumer.subscribe(topic, listener=listener)
        got = []
        for record in consumer:
            got.append(record.offset)
            if len(got) == 4:
                break
        assert sorted(got) == [3, 3, 4, 4]
        assert listener.starts == dict.fromkeys(both, 0)
        assert consumer.commit_async({TopicPartition(topic, 0): 4}).result(30) == {TopicPartition(topic, 0)}
    assert listener.later[0] == {TopicPartition(topic, 0)}
    assert len(listener.later) == 2
    assert len(listener.stored) == 1
    assert consumer.metrics.counter("listener_failures") == 0
    assert consumer.metrics.counter("commit_callbacks_failed") == 0
    assert backend.committed(group, topic) == 10


def test_a_dead_letter_hook_uses_the_blocking_producer(
    backend: GroupBackend, topic: str, producer: Producer, unique: Unique
) -> None:
    """The hook of a bad record waits for the producer's outcome, and the record is finished."""
    group, dead = unique("group"), unique("dead")
    asyncio.run(backend.cluster.create_topic(dead, 1))
    values = [*fill(producer, topic, 4), b"bad", b"4"]
    # The loop ends with the record behind the bad one, whichever partition comes first.
    for value in values[4:]:
        producer.produce(topic, value, partition=0).result(30)
    offsets: list[int] = []

    def to_dead_letters(record: Record, _: object) -> None:
        offsets.append(producer.produce(dead, record.value, partition=0).result(30).offset)
        consumer.commit()

    consumer = backend.blocking(group, deserializer=int, on_bad_record=to_dead_letters)
    with consumer:
        consumer.subscribe(topic)
        got = []
        for record in consumer:
            got.append(record.value)
            if len(got) == 5:
                break
    assert offsets == [0]
    assert consumer.metrics.counter("bad_records_passed") == 1
    assert sorted(got) == [0, 1, 2, 3, 4]
    assert consumer.metrics.counter("bad_record_hooks_failed") == 0
    assert backend.committed(group, topic) == len(values)
