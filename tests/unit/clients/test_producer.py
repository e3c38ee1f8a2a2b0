"""The producer with a scripted broker: records, batches, topics, partitioners, and the limit of its buffer."""

from __future__ import annotations

import asyncio
import json
import logging
import zlib
from typing import Any

import pytest

from kiel_groups.clients.produce.outcomes import RecordMetadata
from kiel_groups.clients.produce.partitioners import (
    find_partitioner,
    hash_partitioner,
    murmur2,
    murmur2_partitioner,
    random_partitioner,
)
from kiel_groups.clients.producer import Producer
from kiel_groups.errors import (
    BufferFullError,
    ConfigError,
    KielGroupsError,
    NoBrokersError,
    UnknownTopicError,
)
from kiel_groups.model import TopicPartition
from tests.helpers.fake_broker import METADATA, PRODUCE, FakeBroker, Fault, Log, Request
from tests.helpers.producers import T0, T1, producing, stored
from tests.helpers.waiting import throughout

pytestmark = pytest.mark.unit


class Whole:
    """A whole number that is no int, as those of numpy."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __index__(self) -> int:
        return self.number


async def test_each_future_returns_the_position_of_its_record() -> None:
    """
    The future of each record returns its topic, partition and offset. Offsets are in the order in which the records
    were produced.
    """
    async with producing() as (broker, producer):
        futures = [producer.produce("t", b"%d" % n, partition=n % 2) for n in range(10)]
        outcomes = await asyncio.gather(*futures)
        assert outcomes == [RecordMetadata("t", n % 2, n // 2) for n in range(10)]
        assert stored(broker, T0) == [(None, b"%d" % n) for n in range(0, 10, 2)]


async def test_values_are_encoded_without_a_serializer() -> None:
    """
    Without a serializer, bytes are sent unchanged, None as null, and other values as JSON with sorted keys. An int key
    is sent as decimal text. A value without a JSON form is refused.
    """
    async with producing() as (broker, producer):
        sent = [(None, b"raw"), ("schlüssel", "x"), (7, None), (b"k", b""), (None, {"b": 1, "a": [True]})]
        for key, value in sent:
            await producer.produce("t", value, key, partition=0)
        assert stored(broker, T0) == [
            (None, b"raw"),
            ("schlüssel".encode(), b'"x"'),
            (b"7", None),
            (b"k", b""),
            (None, b'{"a": [true], "b": 1}'),
        ]
        with pytest.raises(ConfigError, match=r"value: it has no form in JSON .*; send bytes, or give a serializer"):
            await producer.produce("t", {1, 2})
        assert producer.metrics.counter("produce_failures") == 1


async def test_buffers_are_sent_as_their_bytes() -> None:
    """A bytearray or memoryview is copied at the call, as a key, a value and the result of a serializer."""
    buffer = bytearray(b"abc")
    async with producing(linger_ms=60_000) as (broker, producer):
        producer.produce("t", buffer, buffer, partition=0)
        producer.produce("t", memoryview(buffer)[1:], memoryview(buffer)[::2], partition=0)
        producer.produce_many("t", [buffer, b"x"], [memoryview(buffer), buffer], partitions=0)
        buffer[:] = b"---"
        await producer.flush()
        assert stored(broker, T0) == [(b"abc", b"abc"), (b"ac", b"bc"), (b"abc", b"abc"), (b"abc", b"x")]
    async with producing(serializer=bytearray) as (broker, producer):
        await producer.produce("t", b"made", partition=0)
        assert stored(broker, T0) == [(None, b"made")]
    for choose in (hash_partitioner, murmur2_partitioner):
        assert choose(memoryview(b"visitor-7"), range(99)) == choose(b"visitor-7", range(99))


async def test_results_of_a_serializer() -> None:
    """
    If a serializer returns text, it is encoded as UTF-8. None is a null value. Any other result but bytes is refused.
    """
    results: dict[str, Any] = {"text": "grün", "null": None, "bytes": b"raw", "wrong": 1}
    async with producing(serializer=results.__getitem__) as (broker, producer):
        for value in ("text", "null", "bytes"):
            await producer.produce("t", value, partition=0)
        assert [value for _, value in stored(broker, T0)] == ["grün".encode(), None, b"raw"]
        with pytest.raises(ConfigError, match="serializer: int returned; expected bytes, str or None"):
            await producer.produce("t", "wrong")


async def test_a_serializer_may_send_none_as_text() -> None:
    """A program that wants the text null, as kiel sent it, passes a serializer."""
    async with producing(serializer=json.dumps) as (broker, producer):
        await producer.produce("t", None, b"key", partition=0)
        assert stored(broker, T0) == [(b"key", b"null")]


async def test_serializer_and_key_maker() -> None:
    """The serializer encodes each value, and the key maker makes a missing key from the value."""
    async with producing(serializer=lambda v: str(v * 2), key_maker=lambda v: v) as (broker, producer):
        await producer.produce("t", 21, partition=0)
        await producer.produce("t", 1, key="own", partition=0)
        assert stored(broker, T0) == [(b"21", b"42"), (b"own", b"2")]


async def test_batches_are_formed_per_partition() -> None:
    """Records that are produced together are sent in at most two requests, whatever their partitions are."""
    async with producing(linger_ms=20) as (broker, producer):
        await asyncio.gather(*(producer.produce("t", b"%d" % n, partition=n % 2) for n in range(100)))
        assert broker.count(PRODUCE) <= 2


async def test_a_full_batch_does_not_linger() -> None:
    """A batch of ``batch_size`` records is sent at once, regardless of the linger time."""
    async with producing(linger_ms=60_000, batch_size=3) as (broker, producer):
        first = [producer.produce("t", b"x", partition=0) for _ in range(3)]
        await asyncio.wait_for(asyncio.gather(*first), 5)
        last = producer.produce("t", b"y", partition=0)
        await throughout(lambda: not last.done(), "the last record lingers", 0.02)
        await producer.flush()
        assert (await last).offset == 3
        assert broker.count(PRODUCE) == 2


async def test_a_batch_stays_below_the_size_of_a_request() -> None:
    """Records that do not fit into one request are sent in several requests, in order."""
    async with producing(linger_ms=60_000, batch_size=1_000) as (broker, producer):
        values = [bytes([n]) * 200_000 for n in range(10)]
        futures = [producer.produce("t", value, partition=0) for value in values]
        await producer.flush()
        assert [future.result().offset for future in futures] == list(range(10))
        assert [value for _, value in stored(broker, T0)] == values
        assert max(len(request.body) for request in broker.requests) < 1_000_000


async def test_a_record_with_acks_zero_has_no_offset() -> None:
    """With acks 0, a record's future returns the offset −1 once the request is sent."""
    async with producing(required_acks=0) as (broker, producer):
        assert await producer.produce("t", b"x", partition=0) == RecordMetadata("t", 0, -1)
        await broker.wait_for_requests(PRODUCE, 1)
        assert stored(broker, T0) == [(None, b"x")]


async def test_a_compressed_batch_is_one_wrapper_message() -> None:
    """With compression, a batch is sent as one wrapper message that has all its records."""
    async with producing(compression="gzip", linger_ms=20) as (broker, producer):
        await asyncio.gather(*(producer.produce("t", b"a" * 1_000, partition=0) for _ in range(50)))
        assert broker.logs[T0].end == 1, "this broker does not look into wrappers"
        assert len(broker.logs[T0].entries[0][1]) < 2_000


@pytest.mark.parametrize("compression", ["gzipp", "", 0, 4, True])
def test_an_unknown_compression_is_refused(compression: str | int) -> None:
    """The constructor refuses an unknown compression with a ValueError that lists the supported codecs."""
    with pytest.raises(ValueError, match=r"compression: .* expected 'gzip'"):
        Producer("localhost", compression=compression)


def test_a_producer_is_created_without_an_event_loop() -> None:
    """A producer can be created before an event loop exists."""
    Producer("localhost:9092,other")


async def test_records_produced_while_a_batch_is_in_flight_form_the_next_one() -> None:
    """Records produced while a batch is in flight form the next batch."""
    async with producing() as (broker, producer):
        broker.gates[PRODUCE] = asyncio.Event()
        first = producer.produce("t", b"first", partition=0)
        await broker.wait_for_requests(PRODUCE, 1)
        second = producer.produce("t", b"second", partition=0)
        broker.gates[PRODUCE].set()
        assert [(await first).offset, (await second).offset] == [0, 1]
        assert stored(broker, T0) == [(None, b"first"), (None, b"second")]


async def test_records_of_a_topic_that_is_looked_up_keep_their_order() -> None:
    """
    Records that are produced when their topic has just become known are sent after the records that waited for the
    topic.
    """
    async with producing(backoff_ms=50) as (broker, producer):
        first = producer.produce("new", b"first")
        await broker.wait_for_requests(METADATA, 2)
        broker.logs[TopicPartition("new", 0)] = Log()
        while producer._cluster.known_partitions("new") is None:
            await producer._cluster.refresh(["new"], "test")
        second = producer.produce("new", b"second")
        assert [(await first).offset, (await second).offset] == [0, 1]


async def test_records_of_an_unknown_topic_fail() -> None:
    """
    Records of an unknown topic fail with an error that has the topic's name. Records of other topics are not delayed.
    """
    async with producing() as (_, producer):
        lost = [producer.produce("nope", b"x") for _ in range(3)]
        assert (await producer.produce("t", b"x", partition=0)).offset == 0
        for outcome in await asyncio.gather(*lost, return_exceptions=True):
            assert isinstance(outcome, UnknownTopicError)
            assert "nope" in str(outcome)
        with pytest.raises(ConfigError, match="topic: 'a/b' is not a legal name"):
            await producer.produce("a/b", b"x")


async def test_records_of_a_topic_that_appears_in_time_are_stored() -> None:
    """Records of a new topic wait until the broker has learned of it, and are then stored in order."""

    def script(request: Request) -> None:
        if broker.count(METADATA) == 3:
            broker.logs[TopicPartition("new", 0)] = Log()

    broker = FakeBroker({"t": 1}, script=script)
    async with producing(broker) as (_, producer):
        outcomes = await asyncio.gather(*(producer.produce("new", b"%d" % n) for n in range(3)))
        assert [outcome.offset for outcome in outcomes] == [0, 1, 2]


async def test_without_a_live_broker_connecting_and_producing_fail() -> None:
    """
    Without a live broker, connecting fails with the address, and a record fails with the reason after its retries.
    """
    async with FakeBroker() as dead:
        pass
    producer = Producer(str(dead.address), retries=1)
    with pytest.raises(NoBrokersError, match=str(dead.address)):
        await producer.connect()
    with pytest.raises(NoBrokersError, match="Connection refused"):
        await producer.produce("t", b"x")
    await producer.close()


async def test_a_wrong_partition_or_a_failing_partitioner_fails_its_record() -> None:
    """A record with a wrong partition, or whose partitioner raises an error, fails by its own future."""
    async with producing(partitioner=lambda key, partitions: 1 // 0) as (_, producer):
        with pytest.raises(ConfigError, match="partition: 2 given; t has 0 to 1"):
            await producer.produce("t", b"x", partition=2)
        with pytest.raises(ZeroDivisionError):
            await producer.produce("t", b"x")


async def test_a_partition_that_was_just_added_gets_its_records() -> None:
    """
    The topic's partitions are looked up again, once for all records that wait, and these keep their order. So do
    records of the known partitions.
    """
    added = TopicPartition("t", 2)
    async with producing() as (broker, producer):
        await producer.produce("t", b"first", partition=0)
        broker.logs[added] = Log()
        before = broker.count(METADATA)
        places = [0, 2, 0, 2, 1, 0]
        futures = [producer.produce("t", b"0", partition=0)]
        many = producer.produce_many("t", [b"a", b"b"], partitions=[2, 0])
        futures += [producer.produce("t", b"%d" % n, partition=places[n]) for n in range(1, 6)]
        assert (producer.unsent_count, broker.count(METADATA)) == (8, before)
        assert [(await each).partition for each in futures] == places
        assert await many == 2
        assert [value for _, value in stored(broker, added)] == [b"a", b"1", b"3"]
        assert [value for _, value in stored(broker, T0)] == [b"first", b"0", b"b", b"2", b"5"]
        assert broker.count(METADATA) == before + 1
        broker.logs[added._replace(partition=3)] = Log()
        assert (await producer.produce("t", b"c", partition=Whole(3))).partition == 3
        assert await producer.produce_many("t", [b"d", b"e"], partitions=[Whole(3), Whole(1)]) == 2
        assert (await producer.produce("t", b"f", partition=Whole(3))).offset == 2


async def test_records_wait_only_for_a_lookup_of_their_partition() -> None:
    """A wrong partition, given again and again while no broker answers lookups, delays no records of other ones."""
    async with producing() as (broker, producer):
        await producer.produce("t", b"0", partition=0)
        broker.gates[METADATA] = asyncio.Event()
        wrong = []
        for number in range(1, 4):
            wrong += [
                producer.produce("t", b"x", partition=2),
                producer.produce_many("t", [b"x"] * 2, partitions=[2, 3]),
            ]
            assert (await producer.produce("t", b"%d" % number, partition=0)).partition == 0
            assert await producer.produce_many("t", [b"y"]) == 1
        mixed = producer.produce_many("t", [b"a", b"x"], partitions=[0, 2])
        behind = producer.produce("t", b"b", partition=0)
        assert not any(each.done() for each in wrong)
        broker.logs[TopicPartition("t", 2)] = Log()
        broker.gates[METADATA].set()
        assert (await behind).offset > (await wrong[0]).offset == 0
        assert await mixed == 2
        assert [value for _, value in stored(broker, T0) if value != b"y"] == [b"0", b"1", b"2", b"3", b"a", b"b"]
        for future in wrong[1::2]:
            with pytest.raises(ConfigError, match="partition: 3 given; t has 0 to 2"):
                await future


async def test_a_lookup_without_an_answer_fails_only_the_records_that_caused_it() -> None:
    """Records of known partitions, which have waited behind them, are sent in order."""
    async with producing(retries=3) as (broker, producer):
        await producer.produce("t", b"a", partition=0)
        broker.script = lambda request: Fault.CLOSE if request.api_key == METADATA else None
        before = broker.count(METADATA)
        wrong = producer.produce("t", b"x", partition=2)
        half_wrong = producer.produce_many("t", [b"x", b"y"], partitions=[0, 2])
        right = producer.produce("t", b"b", partition=0), producer.produce_many("t", [b"c"], partitions=0)
        for error in await asyncio.gather(wrong, half_wrong, return_exceptions=True):
            assert isinstance(error, NoBrokersError)
        assert ((await right[0]).offset, await right[1]) == (1, 1)
        assert [value for _, value in stored(broker, T0)] == [b"a", b"b", b"c"]
        assert broker.count(METADATA) == before + 1


async def test_a_lookup_that_fails_unexpectedly_fails_its_records(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any error of a lookup reaches the futures, and ``close()`` does not wait for the lookup that has ended."""

    async def await_topics(*args: object) -> None:
        raise MemoryError

    async with producing() as (_, producer):
        monkeypatch.setattr(producer._cluster, "await_topics", await_topics)
        with pytest.raises(KielGroupsError, match=r"^unexpected: MemoryError\(\)$"):
            await asyncio.wait_for(producer.produce("new", b"a"), 5)
    assert "the lookup of new failed in a way that is not expected" in caplog.text


@pytest.mark.parametrize("fault", [None, Fault.CLOSE])
async def test_records_for_a_partition_that_does_not_exist_cause_few_lookups(
    fault: Fault | None, caplog: pytest.LogCaptureFixture
) -> None:
    """
    However many there are, one lookup runs at a time, and none within ``backoff_ms`` after it. Nor does each record
    cause a line of the log.
    """
    async with producing(backoff_ms=200, max_backoff_ms=200) as (broker, producer):
        await producer.produce("t", b"x", partition=0)
        loop, before = asyncio.get_running_loop(), broker.count(METADATA)
        broker.script = lambda request: fault if request.api_key == METADATA else None
        began_s = loop.time()
        for number in range(300):
            futures = [producer.produce("t", b"x", partition=2), producer.produce_many("t", [b"x"], partitions=9)]
            futures.append(producer.produce("t", b"x", partition=-1))
            for error in await asyncio.gather(*futures, return_exceptions=True):
                assert isinstance(error, ConfigError if fault is None else (ConfigError, NoBrokersError))
            if number % 100 == 0:
                await producer.produce("t", b"x", partition=0)
        assert broker.count(METADATA) - before <= 1 + (loop.time() - began_s) / 0.2
        assert len(stored(broker, T0)) == 4
        assert producer.buffered_bytes == 0
    lines = [record.getMessage() for record in caplog.records if "cannot be sent" in record.getMessage()]
    assert len(lines) <= 1 + (loop.time() - began_s) / 10
    assert "899 more records for t could not be sent" in caplog.text or len(lines) > 1


async def test_lookups_of_many_topics_share_requests() -> None:
    """Records for many topics at once do not wait for a request for each topic."""
    topics = {f"t{number}": 1 for number in range(100)}
    async with FakeBroker(topics) as broker:
        producer = Producer([str(broker.address)], required_acks=1)
        await asyncio.gather(*(producer.produce(topic, b"x") for topic in topics))
        assert broker.count(METADATA) == 2
        await producer.close()


async def test_the_log_has_the_type_of_a_partitioners_error(caplog: pytest.LogCaptureFixture) -> None:
    """The text of a KeyError is only the key."""
    async with producing(partitioner=lambda key, partitions: {}[key]) as (_, producer):
        for _ in range(3):
            with pytest.raises(KeyError):
                await producer.produce("t", b"x", b"k")
    assert "1 record for t cannot be sent: the partitioner raised KeyError(b'k')" in caplog.text
    assert "2 more records for t could not be sent: the partitioner raised KeyError(b'k')" in caplog.text


async def test_the_partitioner_gets_the_key_before_its_encoding() -> None:
    """
    The partitioner gets the key before its encoding, for example an int. It gets the partitions in ascending order, in
    a list that it may change.
    """
    seen: list[tuple[Any, Any]] = []

    def partitioner(key: Any, partitions: list[int]) -> int:
        seen.append((key, tuple(partitions)))
        return partitions.pop()

    async with producing(partitioner=partitioner) as (broker, producer):
        for _ in range(2):
            assert (await producer.produce(topic="t", message=b"x", key=5)).partition == 1
        assert seen == [(5, (0, 1))] * 2
        assert stored(broker, T1) == [(b"5", b"x")] * 2


def test_the_included_partitioners() -> None:
    """
    The hash partitioner chooses by the key's CRC-32, so each process chooses the same partition. The random partitioner
    uses all partitions, and so does the hash partitioner for records without a key.
    """
    places = [0, 1, 2, 3]
    assert hash_partitioner(b"key", places) == zlib.crc32(b"key") % 4 == hash_partitioner("key", places)
    for choose, key in ((hash_partitioner, None), (random_partitioner, None), (random_partitioner, b"key")):
        counts = [0, 0, 0, 0]
        for _ in range(4_000):
            counts[choose(key, places)] += 1
        assert min(counts) > 800


async def test_buffered_bytes_are_bounded() -> None:
    """
    If the buffer is full, ``produce()`` raises an error. ``drain()`` waits until ``produce()`` accepts records again.
    """
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


async def test_records_that_a_full_buffer_refuses_share_a_line(caplog: pytest.LogCaptureFixture) -> None:
    """A program that awaits neither futures nor ``drain()`` does not fill its log."""
    async with producing(linger_ms=0, max_buffered_bytes=10_000) as (_, producer):
        for _ in range(110):
            producer.produce("t", b"x" * 1_000)
        producer.produce_many("t", [b"x"] * 5)
        producer.produce_many("t", [b"x"] * 6, each=True)
        await producer.flush()
        assert producer.metrics.counter("produce_failures") == 111
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert [line.partition(" bytes wait")[0] for line in lines] == [
        "1 record for t cannot be sent: 10260",
        "110 more records for t could not be sent: 10260",
    ]


async def test_a_drain_does_not_wait_for_the_lookup_of_another_topic() -> None:
    """It ends once enough records are stored."""
    async with producing(linger_ms=0, max_buffered_bytes=1_000) as (broker, producer):
        await producer.connect()
        broker.gates[METADATA] = asyncio.Event()
        unknown = producer.produce("unknown", b"x")
        known = producer.produce_many("t", [b"x" * 100] * 8)
        await asyncio.wait_for(producer.drain(), 2)
        assert (known.done(), unknown.done()) == (True, False)
        broker.gates[METADATA].set()
        with pytest.raises(UnknownTopicError):
            await unknown


async def test_a_drain_waits_for_lookups() -> None:
    """It ends once the records that waited for their partitions have failed."""
    async with producing(max_buffered_bytes=1_000) as (broker, producer):
        await producer.connect()
        broker.gates[METADATA] = asyncio.Event()
        unknown = producer.produce("unknown", b"x" * 1_000)
        draining = producer.drain()
        await asyncio.sleep(0)
        broker.gates[METADATA].set()
        await asyncio.wait_for(draining, 2)
        with pytest.raises(UnknownTopicError):
            await unknown


async def test_a_cancelled_record_delays_no_others() -> None:
    """Cancelling one record's future affects neither the other records of its batch nor a flush."""
    async with producing(linger_ms=60_000) as (_, producer):
        one, two = (producer.produce("t", b"x", partition=0) for _ in range(2))
        two.cancel()
        await producer.flush()
        assert one.result().offset == 0


@pytest.mark.parametrize(
    ("key", "number"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_that_of_java(key: bytes, number: int) -> None:
    """The hash has the values that the tests of Kafka's Java client expect."""
    assert murmur2(key) == number & 0xFFFFFFFF
    assert murmur2_partitioner(key, range(7)) == (number & 0x7FFFFFFF) % 7


def test_the_sticky_partitioner_keeps_a_partition_for_a_while() -> None:
    """Records without a key get the same partition 100 times in a row; keys are placed as by Java."""
    choose = find_partitioner("sticky")
    places = [choose(None, [0, 1, 2]) for _ in range(3_000)]
    assert all(len(set(places[start : start + 100])) == 1 for start in range(0, 3_000, 100))
    assert set(places) == {0, 1, 2}
    assert choose("abc", [0, 1, 2]) == murmur2_partitioner("abc", [0, 1, 2])


async def test_partitioners_have_names() -> None:
    """A producer takes a partitioner by its name, and refuses other names."""
    async with producing(partitioner="hash") as (_, producer):
        assert producer.partitioner is hash_partitioner
        assert (await producer.produce("t", b"x", b"key")).partition == zlib.crc32(b"key") % 2
    with pytest.raises(ConfigError, match="partitioner: 'round' given; expected a function or 'random', 'hash', 'mur"):
        Producer("127.0.0.1", partitioner="round")
    for wrong in (5, ["hash"]):
        with pytest.raises(ConfigError, match=r"partitioner: .* given"):
            Producer("127.0.0.1", partitioner=wrong)  # type: ignore[arg-type]
