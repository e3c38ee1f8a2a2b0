"""The producer's calls with many records, and the choice of their partitions, with a scripted broker."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kiel_groups import sync
from kiel_groups.clients.produce import sender
from kiel_groups.clients.producer import Producer
from kiel_groups.errors import BrokerError, BufferFullError, ClosedError, ConfigError
from tests.helpers.fake_broker import PRODUCE, FakeBroker, Request
from tests.helpers.producers import T0, T1, producing, stored
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.unit


def all_stored(broker: FakeBroker) -> list[bytes | None]:
    return sorted((value for tp in (T0, T1) for _, value in stored(broker, tp)), key=lambda value: value or b"")


async def test_one_future_is_done_when_all_records_are_stored() -> None:
    """The future of a call has the number of its records. Values without a key keep their order in one partition."""
    values = [b"%03d" % n for n in range(500)]
    async with producing() as (broker, producer):
        assert await producer.produce_many("t", values) == 500, "the partitions were looked up"
        assert await producer.produce_many("t", iter(values)) == 500
        assert await producer.produce_many("t", []) == 0
        assert all_stored(broker) == sorted(values * 2)
        for tp in (T0, T1):
            assert [value for _, value in stored(broker, tp)] in ([], values, values * 2)
        assert broker.count(PRODUCE) == 2
        assert producer.metrics.counter("records_produced") == 1_000


async def test_a_future_for_each_record_has_its_place() -> None:
    """With ``each``, there is a future for each record, with its offset."""
    async with producing() as (broker, producer):
        futures = producer.produce_many("t", [b"a", b"b", b"c"], partitions=[1, 0, 1], each=True)
        assert [tuple(await future) for future in futures] == [("t", 1, 0), ("t", 0, 0), ("t", 1, 1)]
        assert stored(broker, T1) == [(None, b"a"), (None, b"c")]
        assert producer.produce_many("t", [], each=True) == []


async def test_keys_and_partitions_are_those_of_produce() -> None:
    """Keys choose partitions as for single records. One partition may be given for all values."""
    keys = [f"key {n}" for n in range(50)]
    async with producing(partitioner="murmur2") as (broker, producer):
        one_by_one = [(await producer.produce("t", b"x", key)).partition for key in keys]
        together = await asyncio.gather(*producer.produce_many("t", [b"x"] * 50, keys, each=True))
        assert [place.partition for place in together] == one_by_one
        assert set(one_by_one) == {0, 1}
        before = len(stored(broker, T1))
        assert await producer.produce_many("t", [b"y"] * 3, partitions=1) == 3
        assert stored(broker, T1)[before:] == [(None, b"y")] * 3


async def test_values_and_keys_are_made_by_the_producers_functions() -> None:
    """The serializer encodes the values, and ``key_maker`` makes the keys that are not given."""
    async with producing(serializer=str, key_maker=lambda value: value + 1) as (broker, producer):
        assert await producer.produce_many("t", [1, 2], partitions=0) == 2
        assert await producer.produce_many("t", [3, 4], ["k", None], 0) == 2
        assert stored(broker, T0) == [(b"2", b"1"), (b"3", b"2"), (b"k", b"3"), (b"5", b"4")]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"messages": [b"a", object()]}, "value: it has no form in JSON"),
        ({"messages": [b"a", b"b"], "keys": [b"k"]}, "keys: 1 given for 2 values"),
        ({"messages": [b"a", b"b"], "partitions": [0, 2]}, "partition: 2 given; t has 0 to 1"),
        ({"messages": [b"a", b"b"], "partitions": [0, []]}, r"partitions: \[\] given; expected a number"),
        ({"topic": "no/topic", "messages": [b"a"]}, "topic"),
    ],
)
@pytest.mark.parametrize("is_known", [True, False])
async def test_a_call_that_is_not_valid_sends_nothing(arguments: dict[str, Any], error: str, is_known: bool) -> None:
    """If one record is not valid, no record of the call is sent, and each of its futures fails."""
    async with producing() as (broker, producer):
        if is_known:
            await producer.produce("t", b"first", partition=0)
        call = {"topic": "t", **arguments}
        with pytest.raises(ConfigError, match=error):
            await producer.produce_many(**call)
        for future in producer.produce_many(**call, each=True):
            with pytest.raises(ConfigError, match=error):
                await future
        await producer.flush()
        assert broker.count(PRODUCE) == is_known
        assert producer.buffered_bytes == 0


async def test_the_future_of_a_call_fails_once_all_its_records_have_an_outcome() -> None:
    """One record is too large. The other records of the call are stored, also those of calls in the same batch."""

    def script(request: Request) -> None:
        if request.api_key == PRODUCE and b"L" * 5_000 in request.body:
            broker.fail_next(PRODUCE, T0, 10)

    broker = FakeBroker({"t": 2}, script=script)
    async with producing(broker, linger_ms=20) as (_, producer):
        values = [b"0", b"1", b"L" * 5_000, b"3"]
        before = producer.produce("t", b"before", partition=0)
        failing = producer.produce_many("t", values, partitions=0)
        after = producer.produce_many("t", [b"4", b"5"], partitions=0)
        with pytest.raises(BrokerError, match="producing to t:0 failed"):
            await failing
        assert [value for _, value in stored(broker, T0)][:3] == [b"before", b"0", b"1"], "stored before the error"
        assert (await before).offset == 0
        assert await after == 2
        assert [value for _, value in stored(broker, T0)] == [b"before", b"0", b"1", b"3", b"4", b"5"]
        assert producer.metrics.counter("produce_failures") == 1


async def test_a_batch_ends_at_its_bytes() -> None:
    """A call with more than ``batch_bytes`` makes several batches, in order. A record that is larger is alone."""
    values = [b"%02d" % n + b"x" * 72 for n in range(10)]  # 100 bytes each on the wire
    async with producing(batch_bytes=350) as (broker, producer):
        await producer.connect()
        assert await producer.produce_many("t", [*values, b"y" * 1_000], partitions=0) == 11
        assert [value for _, value in stored(broker, T0)] == [*values, b"y" * 1_000]
        assert broker.count(PRODUCE) >= 4
        for value in values:
            producer.produce("t", value, partition=1)
        sent = broker.count(PRODUCE)
        await producer.flush()
        assert stored(broker, T1) == [(None, value) for value in values]
        assert broker.count(PRODUCE) - sent == 4


async def test_a_call_fills_the_open_batch() -> None:
    """What does not fit into the open batch begins a new one. Each call, and each record, has its own outcome."""
    values = [[b"%d%d" % (call, n) + b"x" * 72 for n in range(7)] for call in range(4)]  # 100 bytes each on the wire
    async with producing(batch_bytes=350, linger_ms=0) as (broker, producer):
        await producer.produce("t", b"first", partition=0)
        joint = [producer.produce_many("t", each, partitions=0) for each in values[:2]]
        single = producer.produce("t", b"y" * 74, partition=0)
        joint += [producer.produce_many("t", values[2], partitions=0)]
        each = producer.produce_many("t", values[3], partitions=0, each=True)
        assert await asyncio.gather(*joint) == [7, 7, 7]
        assert (await single).offset == 15
        assert [place.offset for place in await asyncio.gather(*each)] == list(range(23, 30))
        assert [value for _, value in stored(broker, T0)][1:] == [
            *values[0],
            *values[1],
            b"y" * 74,
            *values[2],
            *values[3],
        ]
        assert broker.count(PRODUCE) == 1 + 10, "29 records, three in a batch"


async def test_a_call_ends_the_wait_of_earlier_records() -> None:
    """Records that wait until ``batch_size`` records have come are sent with the records of a call."""
    async with producing(linger_ms=None, batch_size=1_000) as (broker, producer):
        await producer.produce("t", b"waits", partition=0)
        assert await producer.produce_many("t", [b"a"], partitions=0) == 1
        assert await producer.produce_many("t", [b"b", b"c"], partitions=1) == 2
        assert all_stored(broker) == [b"a", b"b", b"c", b"waits"]


async def test_a_full_buffer_and_a_closed_producer_refuse_a_call() -> None:
    """The futures of a call fail if the buffer is full, or the producer was closed."""
    async with producing(linger_ms=0, max_buffered_bytes=10_000) as (_, producer):
        accepted = producer.produce_many("t", [b"x" * 1_000] * 10)
        with pytest.raises(BufferFullError):
            await producer.produce_many("t", [b"x"])
        assert await accepted == 10
    with pytest.raises(ClosedError):
        await producer.produce_many("t", [b"x"])


def test_a_call_before_the_loop_runs_is_accepted_when_it_runs() -> None:
    """A program may call the method before its event loop runs."""

    async def outcome(made: Any, broker: FakeBroker) -> tuple[int, int]:
        producer, one, each = made
        async with producer:
            return await one, len(await asyncio.gather(*each))

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        broker = FakeBroker({"t": 2})
        loop.run_until_complete(broker.__aenter__())
        producer = Producer(str(broker.address), required_acks=1)
        made = (
            producer,
            producer.produce_many("t", [b"a", b"b"]),
            producer.produce_many("t", [b"c"], partitions=1, each=True),
        )
        assert loop.run_until_complete(outcome(made, broker)) == (2, 1)
        assert all_stored(broker) == [b"a", b"b", b"c"]
        loop.run_until_complete(broker.__aexit__(None, None, None))
    finally:
        asyncio.set_event_loop(None)
        loop.close()


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4"])
async def test_large_batches_are_compressed_on_another_thread(
    compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records of a batch that is compressed on another thread have their outcomes."""
    values = [b"%06d" % n + b"abc" * 40 for n in range(2_000)]
    threads: list[threading.Thread] = []

    def encode(*arguments: Any) -> Any:
        threads.append(threading.current_thread())
        return encode_here(*arguments)

    encode_here = sender._encode
    monkeypatch.setattr(sender, "_encode", encode)
    async with producing(compression=compression, batch_bytes=1 << 20) as (broker, producer):
        first = producer.produce_many("t", values, partitions=0)
        second = producer.produce("t", b"last", partition=0)
        assert await first == 2_000
        assert (await second).offset == 2_000
        assert broker.count(PRODUCE) == 1
        assert [thread is threading.main_thread() for thread in threads] == [False]


async def test_the_next_batch_is_compressed_while_one_is_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch is compressed once, and the batches of a partition keep their order."""
    values = [b"%02d" % n + bytes(10_000) for n in range(20)]
    made: list[bytes] = []

    def encode(batches: Any, compression: Any) -> Any:
        sets = encode_here(batches, compression)
        made.extend(sets.values())
        return sets

    encode_here = sender._encode
    monkeypatch.setattr(sender, "_encode", encode)
    async with producing(FakeBroker({"t": 1}), compression="snappy", batch_bytes=41_000) as (broker, producer):
        broker.gates[PRODUCE] = asyncio.Event()
        sent = [producer.produce_many("t", values[start : start + 4]) for start in range(0, 20, 4)]
        await eventually(lambda: len(made) == 2, "the second batch is compressed")
        assert broker.count(PRODUCE) <= 1
        broker.gates[PRODUCE].set()
        assert await asyncio.gather(*sent) == [4] * 5
        without_offsets = [entry[8:] for _, entry in broker.logs[T0].entries]
        assert without_offsets == [message_set[8:] for message_set in made]
        assert len(made) == 5


async def test_compression_needs_no_thread_of_the_program() -> None:
    """Functions that occupy all threads of the loop's executor may wait for records."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    async with producing(compression="gzip") as (_, producer):

        async def send() -> int:
            return await producer.produce_many("t", [b"x" * 1_000] * 100, partitions=0)

        sending = asyncio.to_thread(lambda: asyncio.run_coroutine_threadsafe(send(), loop).result(5))
        assert await sending == 100


async def test_a_stalled_partition_keeps_no_message_sets_of_others() -> None:
    """Also if its next batch was compressed together with theirs."""
    async with producing(compression="gzip", batch_bytes=41_000, retries=1_000_000) as (broker, producer):
        await producer.connect()
        broker.fail_next(PRODUCE, T0, *[5] * 10_000)
        sent = [producer.produce_many("t", [bytes(10_000)] * 4, partitions=n) for _ in range(3) for n in (0, 1)]
        assert await asyncio.gather(*sent[1::2]) == [4] * 3
        ahead = producer._sender.queue_of(T0).batches[1].compressing
        assert ahead is not None
        assert (await ahead).keys() == {T0}
        broker.errors.clear()
        assert await asyncio.gather(*sent[::2]) == [4] * 3


async def test_batches_are_compressed_without_a_thread_if_none_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the batches that are sent, nor those that are compressed ahead, fail at the limit of threads."""

    def start(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", start)
    async with producing(FakeBroker({"t": 1}), compression="gzip", batch_bytes=41_000) as (broker, producer):
        sent = [producer.produce_many("t", [b"%d" % n + bytes(10_000)] * 4) for n in range(4)]
        assert await asyncio.gather(*sent) == [4] * 4
        assert broker.count(PRODUCE) == 4


async def test_a_call_is_done_after_its_last_record() -> None:
    """Also if its batch is split, and one half is stored before the other one is."""
    async with producing() as (broker, producer):
        await producer.connect()
        broker.fail_next(PRODUCE, T0, 10, 0, 7)
        joint = producer.produce_many("t", [b"a", b"b", b"c"], partitions=0)
        await broker.wait_for_requests(PRODUCE, 3)
        assert not joint.done()
        assert len(stored(broker, T0)) == 1
        assert await joint == 3
        assert [value for _, value in stored(broker, T0)] == [b"a", b"b", b"c"]


async def test_records_of_unkeyed_calls_use_all_partitions() -> None:
    """A large call is divided, and several small calls use all partitions."""
    async with producing() as (broker, producer):
        await producer.produce_many("t", [b"x"] * 20_000)
        counts = Counter(tp for tp in (T0, T1) for _ in stored(broker, tp))
        assert set(counts.values()) <= set(range(1_000, 20_000, 1_000))


@pytest.mark.parametrize("single", ["text", b"bytes", memoryview(b"bytes"), {"a": 1}, None, 5])
def test_a_single_value_is_refused(single: Any) -> None:
    """The letters of a text, or the keys of a dictionary, are not sent as values by mistake."""
    with pytest.raises(ConfigError, match=r"messages: \w+ given; expected a list or another"):
        Producer("127.0.0.1:1").produce_many("t", single)
    with pytest.raises(ConfigError, match="messages: "):
        sync.Producer("127.0.0.1:1").produce_many("t", single)


@pytest.mark.parametrize("single", ["ab", b"ab", {"a": 1, "b": 2}, 5])
async def test_a_single_key_is_refused(single: Any) -> None:
    """Its letters are not sent as keys by mistake, even if there is one for each value."""
    async with producing() as (broker, producer):
        with pytest.raises(ConfigError, match=r"keys: .* given; expected one for each value"):
            await producer.produce_many("t", [b"x", b"y"], single)
        assert not stored(broker, T0) + stored(broker, T1)


@pytest.mark.parametrize("topic", [["t"], b"t", None])
async def test_a_topic_that_is_no_text_is_refused(topic: Any) -> None:
    """The first record, and one that might join an open batch, fail as any invalid one does."""
    async with producing(linger_ms=1_000) as (_, producer):
        joins = producer.produce("t", b"x")
        for call in (producer.produce(topic, b"x"), producer.produce_many(topic, [b"x"])):
            with pytest.raises(ConfigError, match="not a legal name"):
                await call
        await producer.flush()
        assert joins.done()


async def test_text_without_a_form_in_utf_8_is_refused() -> None:
    async with producing(serializer=str) as (_, producer):
        for refused in (producer.produce("t", "x", "\ud800"), producer.produce_many("t", ["x", "\ud800"])):
            with pytest.raises(ConfigError, match="it has no form in UTF-8"):
                await refused
