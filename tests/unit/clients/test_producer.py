"""The producer against a scripted broker: outcomes, order, batches, retries, and what is raised."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kiel_groups.clients.produce.partitioners import hash_partitioner, random_partitioner
from kiel_groups.clients.producer import Producer, RecordMetadata
from kiel_groups.errors import (
    BrokerConnectionError,
    BrokerError,
    BufferFullError,
    ClosedError,
    ConfigError,
    NoBrokersError,
    OutcomeUnknownError,
    RetriableBrokerError,
    UnknownTopicError,
)
from kiel_groups.model import TopicPartition
from kiel_groups.wire.message_sets.decoder import decode_message_set
from tests.helpers.fake_broker import METADATA, PRODUCE, Asked, FakeBroker, Fault, Log

pytestmark = pytest.mark.unit

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@asynccontextmanager
async def producing(broker: FakeBroker | None = None, **settings: Any) -> AsyncIterator[tuple[FakeBroker, Producer]]:
    """A producer that backs off for milliseconds only, at a broker with topic t of two partitions."""
    async with broker or FakeBroker({"t": 2}) as running:
        quick = {"linger_ms": 1, "batch_size": 1_000, "required_acks": 1, "backoff_ms": 2, "max_backoff_ms": 10}
        producer = Producer([str(running.address)], **(quick | settings))
        async with producer:
            yield running, producer


def stored(broker: FakeBroker, tp: TopicPartition) -> list[tuple[bytes | None, bytes | None]]:
    """Key and value of what the broker has in a partition."""
    data = b"".join(entry for _, entry in broker.logs[tp].entries)
    records = decode_message_set(data, tp, 0, max_decompressed_bytes=1 << 20)
    return [(record.key, record.value) for record in records]


async def test_every_record_learns_where_it_was_stored() -> None:
    """Each future resolves to topic, partition and the record's own offset, in the order of production."""
    async with producing() as (broker, producer):
        futures = [producer.produce("t", b"%d" % n, partition=n % 2) for n in range(10)]
        outcomes = await asyncio.gather(*futures)
        assert outcomes == [RecordMetadata("t", n % 2, n // 2) for n in range(10)]
        assert stored(broker, T0) == [(None, b"%d" % n) for n in range(0, 10, 2)]


async def test_values_without_a_serializer() -> None:
    """Bytes go out as they are, anything else as JSON with sorted keys; an int key is its decimal, None is null."""
    async with producing() as (broker, producer):
        sent = [(None, b"raw"), ("schlüssel", "x"), (7, None), (b"k", b""), (None, {"b": 1, "a": [True]})]
        for key, value in sent:
            await producer.produce("t", value, key, partition=0)
        assert stored(broker, T0) == [
            (None, b"raw"),
            ("schlüssel".encode(), b'"x"'),
            (b"7", b"null"),
            (b"k", b""),
            (None, b'{"a": [true], "b": 1}'),
        ]
        with pytest.raises(ConfigError, match=r"value: it has no form in JSON .*; send bytes, or give a serializer"):
            await producer.produce("t", {1, 2})
        assert producer.metrics.counter("produce_failures") == 1


async def test_what_a_serializer_returns() -> None:
    """Text becomes UTF-8, None a null value; anything else is refused."""
    made: dict[str, Any] = {"text": "grün", "null": None, "bytes": b"raw", "wrong": 1}
    async with producing(serializer=made.__getitem__) as (broker, producer):
        for value in ("text", "null", "bytes"):
            await producer.produce("t", value, partition=0)
        assert [value for _, value in stored(broker, T0)] == ["grün".encode(), None, b"raw"]
        with pytest.raises(ConfigError, match="serializer: int returned; expected bytes, str or None"):
            await producer.produce("t", "wrong")


async def test_serializer_and_key_maker() -> None:
    """Values pass through the serialiser; a key that was not given is made of the value."""
    async with producing(serializer=lambda v: str(v * 2), key_maker=lambda v: v) as (broker, producer):
        await producer.produce("t", 21, partition=0)
        await producer.produce("t", 1, key="own", partition=0)
        assert stored(broker, T0) == [(b"21", b"42"), (b"own", b"2")]


async def test_batches_form_per_partition() -> None:
    """Records that are produced together travel together: one request, one message set a partition."""
    async with producing(linger_ms=20) as (broker, producer):
        await asyncio.gather(*(producer.produce("t", b"%d" % n, partition=n % 2) for n in range(100)))
        assert broker.count(PRODUCE) <= 2


async def test_a_full_batch_does_not_linger() -> None:
    """With batch_size records a batch goes out, however long the rest may wait."""
    async with producing(linger_ms=60_000, batch_size=3) as (broker, producer):
        first = [producer.produce("t", b"x", partition=0) for _ in range(3)]
        await asyncio.wait_for(asyncio.gather(*first), 5)
        last = producer.produce("t", b"y", partition=0)
        await asyncio.sleep(0.02)
        assert not last.done()
        await producer.flush()
        assert (await last).offset == 3
        assert broker.count(PRODUCE) == 2


async def test_a_batch_stays_below_the_size_of_a_request() -> None:
    """Records that do not fit into one request go out in several, in order."""
    async with producing(linger_ms=60_000, batch_size=1_000) as (broker, producer):
        values = [bytes([n]) * 200_000 for n in range(10)]
        futures = [producer.produce("t", value, partition=0) for value in values]
        await producer.flush()
        assert [future.result().offset for future in futures] == list(range(10))
        assert [value for _, value in stored(broker, T0)] == values
        assert max(len(asked.body) for asked in broker.asked) < 1_000_000


async def test_acks_zero_has_no_offset() -> None:
    """Send and forget: the future resolves once the bytes are on their way, with offset -1."""
    async with producing(required_acks=0) as (broker, producer):
        assert await producer.produce("t", b"x", partition=0) == RecordMetadata("t", 0, -1)
        await broker.until_asked(PRODUCE, 1)
        assert stored(broker, T0) == [(None, b"x")]


async def test_compressed_batches() -> None:
    """With gzip a batch travels as one wrapper that holds its records."""
    async with producing(compression="gzip", linger_ms=20) as (broker, producer):
        await asyncio.gather(*(producer.produce("t", b"a" * 1_000, partition=0) for _ in range(50)))
        assert broker.logs[T0].end == 1, "this broker does not look into wrappers"
        assert len(broker.logs[T0].entries[0][1]) < 2_000


@pytest.mark.parametrize("compression", ["gzipp", "", 0, 4, True])
def test_an_unknown_compression_is_refused(compression: str | int) -> None:
    """At once, when the producer is made, as a ValueError that says what there is."""
    with pytest.raises(ValueError, match=r"compression: .* expected 'gzip'"):
        Producer("localhost", compression=compression)


def test_a_producer_is_made_without_a_loop() -> None:
    """Constructors touch no event loop."""
    Producer("localhost:9092,other")


async def test_retries_keep_the_order() -> None:
    """A batch that failed goes out again before those produced after it, whatever the error was."""
    async with producing(batch_size=1) as (broker, producer):
        broker.fail_next(PRODUCE, T0, 6, 5, 7)
        futures = []
        for n in range(20):
            futures.append(producer.produce("t", b"%d" % n, partition=0))
            await asyncio.sleep(0)
        assert [outcome.offset for outcome in await asyncio.gather(*futures)] == list(range(20))
        assert stored(broker, T0) == [(None, b"%d" % n) for n in range(20)]
        assert producer.metrics.counter("produce_retries") == 3


async def test_records_that_come_while_a_batch_is_on_its_way_form_the_next_one() -> None:
    """A batch that was sent takes nothing more in: what comes later is neither lost nor credited to it."""
    async with producing() as (broker, producer):
        broker.gates[PRODUCE] = asyncio.Event()
        first = producer.produce("t", b"first", partition=0)
        await broker.until_asked(PRODUCE, 1)
        second = producer.produce("t", b"second", partition=0)
        broker.gates[PRODUCE].set()
        assert [(await first).offset, (await second).offset] == [0, 1]
        assert stored(broker, T0) == [(None, b"first"), (None, b"second")]


async def test_nothing_overtakes_a_batch_that_waits_for_its_retry() -> None:
    """While the leader is looked up, neither the batch nor those after it go out."""
    async with producing(batch_size=1, request_timeout_ms=100) as (broker, producer):
        broker.gates[METADATA] = asyncio.Event()
        broker.fail_next(PRODUCE, T0, 6)
        first = producer.produce("t", b"first", partition=0)
        await broker.until_asked(METADATA, 2)
        second = producer.produce("t", b"second", partition=0)
        await asyncio.sleep(0.02)
        assert broker.count(PRODUCE) == 1
        broker.gates[METADATA].set()
        assert [(await first).offset, (await second).offset] == [0, 1]


async def test_records_for_a_topic_that_is_looked_up_keep_their_order() -> None:
    """What is produced the moment the topic becomes known stands behind what waited for that."""
    async with producing(backoff_ms=50) as (broker, producer):
        first = producer.produce("new", b"first")
        await broker.until_asked(METADATA, 2)
        broker.logs[TopicPartition("new", 0)] = Log()
        while producer._cluster.known_partitions("new") is None:
            await producer._cluster.refresh(["new"], "test")
        second = producer.produce("new", b"second")
        assert [(await first).offset, (await second).offset] == [0, 1]


async def test_a_broken_connection_is_retried() -> None:
    """Closed without an answer, silent, or half an answer: the records are stored all the same."""
    faults = iter([Fault.CLOSE, Fault.HALF])

    def script(asked: Asked) -> Fault | None:
        return next(faults, None) if asked.api_key == PRODUCE else None

    async with producing(FakeBroker({"t": 2}, script=script)) as (broker, producer):
        assert (await producer.produce("t", b"x", partition=0)).offset == 0
        assert broker.count(PRODUCE) == 3


async def test_records_follow_a_leader_that_moves() -> None:
    """After not-leader the metadata is asked again, and the batch goes to the new leader."""
    async with FakeBroker({"t": 2}, node_id=1) as other, producing() as (broker, producer):
        await producer.produce("t", b"old", partition=0)
        for peer in (broker, other):
            peer.peers = [broker, other]
            peer.leaders = {T0: 1}
        await producer.produce("t", b"new", partition=0)
        assert stored(other, T0) == [(None, b"new")]


async def test_retries_end(caplog: pytest.LogCaptureFixture) -> None:
    """When nothing helps, each record's future fails with topic, partition, tries and code; the log says it once."""
    async with producing(retries=2) as (broker, producer):
        broker.fail_next(PRODUCE, T0, *[6] * 3)
        outcomes = await asyncio.gather(
            *(producer.produce("t", b"x", partition=0) for _ in range(5)), return_exceptions=True
        )
        assert {str(outcome) for outcome in outcomes} == {str(outcomes[0])}
        error = outcomes[0]
        assert isinstance(error, BrokerError)
        assert error.code == 6
        assert "producing to t:0 failed after 3 tries" in str(error)
        assert sum(record.levelno == logging.ERROR for record in caplog.records) == 1
        assert (await producer.produce("t", b"later", partition=0)).offset == 0, "what follows goes through"


async def test_a_failure_that_nobody_awaits_is_in_our_log_only(caplog: pytest.LogCaptureFixture) -> None:
    """Dropped futures do not make asyncio complain about each record."""
    async with producing() as (broker, producer):
        broker.fail_next(PRODUCE, T0, 2, *[17] * 2)
        for _ in range(5):
            producer.produce("t", b"x", partition=0)
        await producer.flush()
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [(e.name, "5 records" in e.getMessage()) for e in errors] == [("kiel_groups.clients.produce.sender", True)]


async def test_one_message_too_large_does_not_take_the_others_along() -> None:
    """The batch is split until the one to blame is alone; its error names its size, the others are stored in order."""

    def script(asked: Asked) -> None:
        if asked.api_key == PRODUCE and b"L" * 5_000 in asked.body:
            broker.fail_next(PRODUCE, T0, 10)

    broker = FakeBroker({"t": 2}, script=script)
    async with producing(broker, linger_ms=20) as (_, producer):
        values = [b"0", b"1", b"2", b"L" * 5_000, b"4", b"5"]
        futures = [producer.produce("t", value, partition=0) for value in values]
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        error = outcomes.pop(3)
        assert isinstance(error, BrokerError)
        assert error.code == 10
        assert "producing to t:0 failed: a message of 5026 bytes was refused" in str(error)
        assert [outcome.offset for outcome in outcomes if isinstance(outcome, RecordMetadata)] == [0, 1, 2, 3, 4]
        assert [value for _, value in stored(broker, T0)] == [b"0", b"1", b"2", b"4", b"5"]


async def test_an_unknown_topic() -> None:
    """Every record for it fails with an error that names it; other topics are not held up."""
    async with producing() as (_, producer):
        lost = [producer.produce("nope", b"x") for _ in range(3)]
        assert (await producer.produce("t", b"x", partition=0)).offset == 0
        for outcome in await asyncio.gather(*lost, return_exceptions=True):
            assert isinstance(outcome, UnknownTopicError)
            assert "nope" in str(outcome)
        with pytest.raises(ConfigError, match="topic: 'a/b' is not a legal name"):
            await producer.produce("a/b", b"x")


async def test_a_topic_that_appears_in_time() -> None:
    """Records for a topic that a broker learns of a moment later are stored in order."""

    def script(asked: Asked) -> None:
        if broker.count(METADATA) == 3:
            broker.logs[TopicPartition("new", 0)] = Log()

    broker = FakeBroker({"t": 1}, script=script)
    async with producing(broker) as (_, producer):
        outcomes = await asyncio.gather(*(producer.produce("new", b"%d" % n) for n in range(3)))
        assert [outcome.offset for outcome in outcomes] == [0, 1, 2]


async def test_no_broker_alive() -> None:
    """Connecting fails with the addresses and reasons; a record fails after the retries."""
    async with FakeBroker() as dead:
        pass
    producer = Producer(str(dead.address), retries=1)
    with pytest.raises(NoBrokersError, match=str(dead.address)):
        await producer.connect()
    with pytest.raises(NoBrokersError, match="Connection refused"):
        await producer.produce("t", b"x")
    await producer.close()


async def test_a_partition_that_does_not_exist_or_a_partitioner_that_fails() -> None:
    """Both fail the record's own future, and nothing else."""
    async with producing(partitioner=lambda key, partitions: 1 // 0) as (_, producer):
        with pytest.raises(ConfigError, match="partition: 2 given; t has 0 to 1"):
            await producer.produce("t", b"x", partition=2)
        with pytest.raises(ZeroDivisionError):
            await producer.produce("t", b"x")


async def test_the_partitioner_gets_the_key_as_made() -> None:
    """An int key stays an int, and the partition numbers come ascending, in a list to do with as it likes."""
    seen: list[tuple[Any, Any]] = []

    def partitioner(key: Any, partitions: list[int]) -> int:
        seen.append((key, tuple(partitions)))
        return partitions.pop()

    async with producing(partitioner=partitioner) as (broker, producer):
        for _ in range(2):
            assert (await producer.produce(topic="t", message=b"x", key=5)).partition == 1
        assert seen == [(5, (0, 1))] * 2
        assert stored(broker, T1) == [(b"5", b"x")] * 2


def test_the_partitioners() -> None:
    """By hash, keys go where their CRC-32 says, in every process; at random, and without a key, all are spread."""
    places = [0, 1, 2, 3]
    assert hash_partitioner(b"key", places) == zlib.crc32(b"key") % 4 == hash_partitioner("key", places)
    for choose, key in ((hash_partitioner, None), (random_partitioner, None), (random_partitioner, b"key")):
        counts = [0, 0, 0, 0]
        for _ in range(4_000):
            counts[choose(key, places)] += 1
        assert min(counts) > 800


async def test_buffered_bytes_are_bounded() -> None:
    """Over the bound produce refuses; drain waits for room, and then it goes on."""
    async with producing(linger_ms=0, max_buffered_bytes=10_000) as (_, producer):
        for _ in range(10):
            producer.produce("t", b"x" * 1_000)
        refused = producer.produce("t", b"x" * 1_000)
        assert 10_000 <= producer.buffered_bytes < 12_000
        with pytest.raises(BufferFullError, match="max_buffered_bytes is 10000"):
            await refused
        await producer.drain()
        assert producer.buffered_bytes <= 5_000
        await producer.produce("t", b"x")
        assert producer.buffered_bytes == 0


async def test_closing_sends_what_waits() -> None:
    """Close is a flush first; afterwards nothing more is taken."""
    async with FakeBroker({"t": 2}) as broker:
        producer = Producer(str(broker.address), batch_size=2, linger_ms=60_000)
        future = producer.produce("t", b"x", partition=0)
        await producer.close()
        assert future.result().offset == 0
        assert stored(broker, T0) == [(None, b"x")]
        with pytest.raises(ClosedError):
            await producer.produce("t", b"y")
        await producer.close()


async def test_closing_does_not_wait_longer_than_told() -> None:
    """After the timeout, what was sent is called unknown, what was not is called not sent; each is counted as that."""

    def script(asked: Asked) -> Fault | None:
        return Fault.SILENT if asked.api_key == PRODUCE else None

    broker = FakeBroker({"t": 2}, script=script)
    async with producing(broker, backoff_ms=60_000, max_backoff_ms=60_000) as (_, producer):
        lost = [producer.produce("t", b"x", partition=n % 2) for n in range(10)]
        lost.append(producer.produce("unknown", b"x"))
        await producer.close(timeout_ms=20)
        *sent, unsent = await asyncio.gather(*lost, return_exceptions=True)
        assert [type(outcome) for outcome in sent] == [OutcomeUnknownError] * 10
        assert isinstance(unsent, ClosedError)
        assert isinstance(sent[0].__cause__, ClosedError)
        assert (sent[3].topic, sent[3].partition, sent[3].code) == ("t", 1, None)
        assert producer.buffered_bytes == 0
        assert producer.metrics.counter("produce_unknown") == 10
        assert producer.metrics.counter("produce_failures") == 1


async def test_a_close_of_an_idle_producer_warns_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Also where it may not take any time."""
    async with producing() as (_, producer):
        await producer.produce("t", b"stored", partition=0)
        await producer.close(timeout_ms=0)
    assert "not acknowledged" not in caplog.text


async def test_a_close_without_a_timeout_ends_when_a_broker_stores_nothing() -> None:
    """A broker is frozen after its second answer: one request's time later what waits is unknown, or was not sent."""
    answers = iter([None, None])

    def script(asked: Asked) -> Fault | None:
        return next(answers, Fault.SILENT) if asked.api_key == PRODUCE else None

    settings = {"retries": 1_000, "request_timeout_ms": 150, "ack_timeout": 50, "batch_size": 1, "linger_ms": 0}
    async with producing(FakeBroker({"t": 2}, script=script), **settings) as (broker, producer):
        await producer.produce("t", b"stored", partition=0)
        outcomes = [producer.produce("t", b"on its way", partition=0)]
        await broker.until_asked(PRODUCE, 2)
        outcomes.append(producer.produce("t", b"sent", partition=0))
        await broker.until_asked(PRODUCE, 3)
        outcomes.append(producer.produce("t", b"queued", partition=0))
        began_s = asyncio.get_running_loop().time()
        await producer.close()
        assert 0.15 < asyncio.get_running_loop().time() - began_s < 1
        kinds = [type(outcome) for outcome in await asyncio.gather(*outcomes, return_exceptions=True)]
        assert kinds == [RecordMetadata, OutcomeUnknownError, ClosedError]


async def test_a_close_without_a_timeout_waits_while_records_are_stored() -> None:
    """Twelve batches at a broker that takes a third of a request's time for each: none is given up."""
    broker = FakeBroker({"t": 2})
    broker.gates[PRODUCE] = asyncio.Event()
    settings = {"request_timeout_ms": 150, "ack_timeout": 50, "batch_size": 1, "linger_ms": 0}

    async def slowly() -> None:
        while True:
            await asyncio.sleep(0.05)
            broker.gates[PRODUCE].set()
            broker.gates[PRODUCE].clear()

    async with producing(broker, **settings) as (_, producer):
        answering = asyncio.create_task(slowly())
        outcomes = [producer.produce("t", bytes(500_000), partition=0) for _ in range(12)]
        await producer.close()
        assert [outcome.result().offset for outcome in outcomes] == list(range(12))
        answering.cancel()


@pytest.mark.parametrize(
    ("acks", "code", "kind"),
    [(1, 6, RetriableBrokerError), (-1, 6, OutcomeUnknownError), (-1, 19, RetriableBrokerError)]
    + [(-1, code, OutcomeUnknownError) for code in (7, 20, -1)],
)
async def test_a_refusal_tells_whether_something_was_stored(acks: int, code: int, kind: type[Exception]) -> None:
    """A broker that waits for replicas has appended before it refuses, except where it refuses outright."""
    async with producing(retries=0, required_acks=acks) as (broker, producer):
        broker.fail_next(PRODUCE, T0, code)
        with pytest.raises(kind) as caught:
            await producer.produce("t", b"x", partition=0)
        assert type(caught.value) is kind
        assert isinstance(caught.value, BrokerError)
        assert caught.value.code == code
        unknown = kind is OutcomeUnknownError
        assert producer.metrics.counter("produce_unknown") == unknown
        assert producer.metrics.counter("produce_failures") == (not unknown)


async def test_a_record_that_could_not_be_sent_is_not_unknown() -> None:
    """No connection, no request: the record is not stored, and the error says why."""
    async with producing(retries=1) as (broker, producer):
        await producer.connect()
        await producer.produce("t", b"x", partition=0)
        await broker.stop()
        # The first one may have been sent before the end of the connection was seen.
        await asyncio.wait([producer.produce("t", b"y", partition=0)])
        with pytest.raises(BrokerConnectionError, match="cannot connect"):
            await producer.produce("t", b"z", partition=0)


async def test_a_cancelled_record_holds_nobody_up() -> None:
    """Whoever stops waiting for a record does not disturb its batch, nor a flush."""
    async with producing(linger_ms=60_000) as (_, producer):
        one, two = (producer.produce("t", b"x", partition=0) for _ in range(2))
        two.cancel()
        await producer.flush()
        assert one.result().offset == 0


async def test_a_silent_broker_costs_its_timeout() -> None:
    """No answer in time is an error that may heal: tried again on a new connection, then reported as what it is."""

    def script(asked: Asked) -> Fault | None:
        return Fault.SILENT if asked.api_key == PRODUCE else None

    broker = FakeBroker({"t": 2}, script=script)
    async with producing(broker, retries=1, request_timeout_ms=20, ack_timeout=10) as (_, producer):
        with pytest.raises(BrokerError, match="no answer to a ProduceRequest within 30 ms") as caught:
            await producer.produce("t", b"x", partition=0)
        assert not isinstance(caught.value, BrokerConnectionError)
        assert broker.count(PRODUCE) == 2
