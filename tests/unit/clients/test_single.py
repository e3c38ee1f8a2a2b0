"""The consumer without a group, with a scripted broker."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import time
from datetime import timedelta
from typing import Any

import pytest
from tornado.ioloop import IOLoop

from kiel_groups.clients import BEGINNING, END, SingleConsumer, single
from kiel_groups.errors import (
    BadRecordError,
    ClosedError,
    ConfigError,
    MessageTooLargeError,
    NoBrokersError,
    OffsetOutOfRangeError,
    RecordDeserializationError,
    UnknownTopicError,
)
from kiel_groups.model import Record, TopicPartition
from kiel_groups.wire.message_sets.encoder import encode_message_set
from kiel_groups.wire.primitives import Reader
from tests.helpers.fake_broker import FETCH, LIST_OFFSETS, METADATA, FakeBroker, Log, message_set
from tests.helpers.single_consumers import T0, T1, consuming, take_values
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.unit


async def test_consuming_from_the_beginning() -> None:
    """With BEGINNING, all stored records are delivered, and then new ones, with offsets and partitions."""
    async with consuming(b"0", b"1") as (broker, consumer):
        await consumer.subscribe(["t"], start=BEGINNING)
        assert consumer.assignment() == {T0, T1}
        assert await anext(consumer) == Record("t", 0, 0, None, b"0")
        assert (await consumer.position(T0), consumer.lag(T1)) == (1, 0)
        assert await take_values(consumer, 1) == [b"1"]
        broker.append(T1, message_set(b"2"))
        assert await anext(consumer) == Record("t", 1, 0, None, b"2")


async def test_consuming_from_the_end() -> None:
    """
    With END, the consumer starts at the end of the log at the time of the subscription. Every later record is
    delivered.
    """
    async with consuming(b"old") as (broker, consumer):
        await consumer.subscribe("t", start=END)
        broker.append(T0, message_set(b"new"))
        assert await take_values(consumer, 1) == [b"new"]


async def test_consuming_from_given_offsets() -> None:
    """Partitions with a given offset start there. All other partitions start at their beginning."""
    async with consuming(b"0", b"1", b"2") as (broker, consumer):
        broker.append(T1, message_set(b"other"))
        await consumer.subscribe("t", start={T0: 2})
        assert sorted(await take_values(consumer, 2)) == [b"2", b"other"]


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (7, "start: 7 given"),
        ({TopicPartition("t", 9): 0}, "t:9 given"),
        ({T0: 1 << 63}, "start: t:0: 9223372036854775808 given; expected the next offset to read"),
        ({T0: -3}, "start: t:0: -3 given"),
        ({"t": 0}, "start: 't' given; expected TopicPartition"),
    ],
)
async def test_an_invalid_start_is_refused(start: Any, words: str) -> None:
    """An invalid start is refused with an error that has the given value."""
    async with consuming() as (_, consumer):
        with pytest.raises(ConfigError, match=words):
            await consumer.subscribe("t", start=start)


async def test_unknown_and_illegal_topics_are_refused() -> None:
    """Unknown and illegal topics are refused with the topic's name. No topic is then subscribed to."""
    async with consuming() as (_, consumer):
        with pytest.raises(UnknownTopicError, match="nope"):
            await consumer.subscribe(["t", "nope"])
        with pytest.raises(ConfigError, match="a/b"):
            await consumer.subscribe(["a/b"])
        assert not consumer.assignment()


async def test_connecting_without_a_live_broker_fails() -> None:
    """Connecting without a live broker fails with the reason."""
    async with FakeBroker() as dead:
        pass
    with pytest.raises(NoBrokersError, match="Connection refused"):
        await SingleConsumer(str(dead.address)).connect()


def test_a_consumer_is_created_without_an_event_loop() -> None:
    """A consumer can be created before an event loop exists."""
    SingleConsumer("localhost:9092,other")


async def test_values_that_cannot_be_deserialized_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    """
    A value that cannot be deserialized is logged with its position, counted and skipped. A null value is delivered as
    None.
    """
    async with consuming(b"1", b"{broken", b"[2]", deserializer=json.loads, on_bad_record="skip") as (broker, consumer):
        broker.append(T0, encode_message_set([b"k"], [None]))
        await consumer.subscribe("t", start=BEGINNING)
        assert await take_values(consumer, 3) == [1, [2], None]
        assert consumer.metrics.counter("deserializer_failures") == 1
        assert "t:0: the deserializer failed on the value at offset 1" in caplog.text


async def test_a_value_that_cannot_be_deserialized_is_raised_until_a_seek_passes_it() -> None:
    """By default, nothing is skipped: the error names the record, its raw value, and where a seek continues."""
    async with consuming(b"1", b"{broken", b"[2]", deserializer=json.loads) as (_, consumer):
        await consumer.subscribe("t", start=BEGINNING)
        assert await take_values(consumer, 1) == [1]
        for _ in range(2):
            with pytest.raises(RecordDeserializationError) as raised:
                await anext(consumer)
            assert (raised.value.topic_partition, raised.value.offset, raised.value.value) == (T0, 1, b"{broken")
        consumer.seek(T0, raised.value.next_offset)
        assert await take_values(consumer, 1) == [[2]]


async def test_a_hook_is_given_what_cannot_be_deserialized() -> None:
    """The hook gets the record in bytes, and its error; the record is passed."""
    letters: list[tuple[int, bytes | None]] = []

    async def keep(record: Record, error: BadRecordError) -> None:
        letters.append((error.offset, record.value))

    async with consuming(b"1", b"{broken", b"[2]", deserializer=json.loads, on_bad_record=keep) as (_, consumer):
        await consumer.subscribe("t", start=BEGINNING)
        assert await take_values(consumer, 2) == [1, [2]]
    assert letters == [(1, b"{broken")]


async def test_a_deserializer_that_fails_is_logged_with_a_count(caplog: pytest.LogCaptureFixture) -> None:
    """
    If the deserializer fails on many values, one line is logged for the first value, and one at the close for all
    others.
    """
    async with consuming(*[b"{broken"] * 50, b"1", deserializer=json.loads, on_bad_record="skip") as (_, consumer):
        await consumer.subscribe("t", start=BEGINNING)
        assert await take_values(consumer, 1) == [1]
    lines = [entry.getMessage() for entry in caplog.records if "the deserializer failed" in entry.getMessage()]
    assert len(lines) == 2
    assert "on 49 more values" in lines[1]


async def test_a_seek_to_a_fetched_offset() -> None:
    """After a seek, the rest of the current batch is dropped, and the next record is the one at the given offset."""
    async with consuming(b"0", b"1", b"2", b"3") as (_, consumer):
        await consumer.subscribe("t", start=BEGINNING)
        assert await take_values(consumer, 2) == [b"0", b"1"]
        consumer.seek(T0, 1)
        assert await take_values(consumer, 3) == [b"1", b"2", b"3"]


async def test_an_error_is_raised_at_its_position_until_a_seek_skips_it() -> None:
    """
    The error of a message that is too large is raised after earlier records, again and again until a seek skips the
    message. Other partitions continue.
    """
    async with consuming(b"0", b"L" * 9_000, b"2", max_bytes=100, max_message_bytes=1_000) as (broker, consumer):
        await consumer.subscribe("t", start=BEGINNING)
        assert await take_values(consumer, 1) == [b"0"]
        for _ in range(2):
            with pytest.raises(MessageTooLargeError, match="t:0 at offset 1"):
                await take_values(consumer, 1)
        broker.append(T1, message_set(b"other"))
        assert await value_after_errors(MessageTooLargeError, consumer) == b"other"
        consumer.seek(T0, 2)
        assert await take_values(consumer, 1) == [b"2"]


@pytest.mark.parametrize(("mebibytes", "refused"), [(63, False), (64, True)])
async def test_the_default_limit_of_decompressed_bytes(mebibytes: int, refused: bool) -> None:
    """
    By default, a compressed message may have 64 MiB of decompressed bytes, including the bytes around its value. Less
    than 100 kB of compressed data can exceed this limit.
    """
    packed = encode_message_set([None], [bytes(mebibytes << 20)], "gzip")
    assert len(packed) < 100_000
    async with consuming() as (broker, consumer):
        broker.append(T0, packed)
        await consumer.subscribe("t", start=BEGINNING)
        if refused:
            with pytest.raises(MessageTooLargeError, match=r"t:0.* offset 0"):
                await take_values(consumer, 1)
        else:
            assert list(map(len, await take_values(consumer, 1))) == [mebibytes << 20]


async def value_after_errors(error: type[Exception], consumer: SingleConsumer) -> Any:
    """Return the next value, and ignore errors of the given class before it."""
    for _ in range(100_000):
        try:
            return (await anext(consumer)).value
        except error:
            continue
    raise AssertionError("nothing but errors: ignoring them stops the fetching")


@pytest.mark.parametrize(("policy", "expected"), [("earliest", b"2"), ("latest", b"new")])
async def test_the_reset_policy_decides_after_a_position_outside_the_log(policy: Any, expected: bytes) -> None:
    """
    If its position is outside of the log, a consumer continues at the start or the end of the log, as the reset policy
    says.
    """
    async with consuming(b"0", b"1", b"2", auto_offset_reset=policy) as (broker, consumer):
        broker.logs[T0].start = 2
        await consumer.subscribe("t", start={T0: 1, T1: 0})
        await broker.wait_for_requests(LIST_OFFSETS, 1)
        broker.append(T0, message_set(b"new"))
        assert await take_values(consumer, 1) == [expected]


async def test_a_position_outside_the_log_is_an_error_with_the_policy_none(caplog: pytest.LogCaptureFixture) -> None:
    """
    With the reset policy "none", a position outside of the log is an error with the partition and the offset. The log
    has no error, because the application may expect this one.
    """
    async with consuming(b"0", auto_offset_reset="none") as (_, consumer):
        await consumer.subscribe("t", start={T0: 7})
        with pytest.raises(OffsetOutOfRangeError, match="t:0: offset 7 is not in the log") as caught:
            await take_values(consumer, 1)
        assert caught.value.code == 1
        assert str(caught.value).startswith(f"{caught.value.cause}; seek() to an offset that exists")
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


@pytest.mark.parametrize("start", [BEGINNING, END])
async def test_a_partition_without_a_leader_delays_no_others(
    start: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A partition without a leader does not delay other partitions. Its leader is requested again in the background. Then
    it is consumed from its beginning, so that no record is skipped.
    """
    monkeypatch.setattr(single, "LEADERLESS_PATIENCE_S", 0.05)
    async with consuming(b"1", max_wait_time=3_000) as (broker, consumer):
        broker.leaders = {T1: -1}
        broker.append(T1, message_set(b"3"))
        result = consumer.consume("t", start)
        if start == END:
            await broker.wait_for_requests(FETCH, 1)
            broker.append(T0, message_set(b"2"))
        async with asyncio.timeout(30):
            assert await result == ([1] if start == BEGINNING else [2])
            assert consumer.assignment() == {T0}
            while ("partitions_unopened", (), 1.0) not in consumer.metrics.samples():
                await broker.wait_for_requests(METADATA, broker.count(METADATA) + 1)
            broker.leaders = {}
            assert await consumer.consume("t", start) == [3]
        assert consumer.assignment() == {T0, T1}
        assert ("partitions_unopened", (), 0.0) in consumer.metrics.samples()
    assert [entry.levelname for entry in caplog.records if "(t:1) are not known yet" in entry.getMessage()] == [
        "WARNING"
    ]


async def test_a_new_partition_without_a_leader_delays_no_others() -> None:
    """A new partition without a leader does not delay other new partitions."""
    async with consuming(b"0", metadata_max_age_ms=20) as (broker, consumer):
        await consumer.subscribe("t", start=BEGINNING)
        assert await take_values(consumer, 1) == [b"0"]
        third, fourth = TopicPartition("t", 2), TopicPartition("t", 3)
        broker.leaders = {third: -1}
        broker.logs |= {third: Log(), fourth: Log()}
        broker.append(third, message_set(b"3"))
        broker.append(fourth, message_set(b"4"))
        assert await take_values(consumer, 1) == [b"4"]
        broker.leaders = {}
        assert await take_values(consumer, 1) == [b"3"]


async def test_added_partitions_are_consumed_from_their_beginning() -> None:
    """
    A partition that is added to a topic is consumed from its beginning, even if the consumer started at END, because
    all its records are new.
    """
    async with consuming(b"old", metadata_max_age_ms=30) as (broker, consumer):
        await consumer.subscribe("t", start=END)
        added = TopicPartition("t", 2)
        broker.logs[added] = Log()
        broker.append(added, message_set(b"first"))
        assert await take_values(consumer, 1) == [b"first"]


async def test_a_close_ends_an_iteration() -> None:
    """A close ends a loop that waits for records. A later subscription is refused."""
    async with consuming(b"0", b"1") as (_, consumer):
        await consumer.subscribe("t", start=BEGINNING)
        last = asyncio.Event()

        async def loop() -> None:
            async for record in consumer:
                if record.value == b"1":
                    last.set()

        running = asyncio.create_task(loop())
        await last.wait()
        await consumer.close()
        await asyncio.wait_for(running, 5)
        with pytest.raises(ClosedError):
            await consumer.subscribe("u")


async def test_attributes_that_programs_of_kiel_read() -> None:
    """
    A consumer has kiel's attributes: its settings or their defaults, the assigned partitions, and whether it is closed.
    """
    async with FakeBroker({"t": 2}) as broker:
        consumer = SingleConsumer(str(broker.address))
        assert (consumer.max_wait_time, consumer.min_bytes, consumer.max_bytes) == (1_000, 1, 1 << 20)
        assert consumer.deserializer is json.loads
        assert consumer.name == f"{socket.gethostname()}:{id(consumer)}"
        assert consumer.allocation == {}
        await consumer.subscribe("t")
        assert consumer.allocation == {"t": [0, 1]}
        assert consumer.allocation["unknown"] == []
        await consumer.wind_down()
        assert not consumer.closing
        await consumer.close()
        assert consumer.closing


@pytest.mark.parametrize("arguments", [("a/b",), ("t", 7), ("t", "earliest"), ([],)], ids=str)
async def test_an_invalid_argument_fails_the_future(arguments: tuple[Any, ...]) -> None:
    """
    An invalid argument of ``consume()`` fails its future. The call itself raises nothing, as with a coroutine of
    Tornado.
    """
    async with consuming() as (_, consumer):
        result = consumer.consume(*arguments)
        with pytest.raises(ConfigError, match=r"topic: |start: "):
            await result


def test_a_call_may_be_made_before_the_loop_runs() -> None:
    """``consume()`` may be called before the loop runs. It is answered when the loop runs."""
    loop = IOLoop(make_current=True)
    broker = FakeBroker({"t": 1})
    broker.append(T0, message_set(b"1"))
    loop.run_sync(broker.__aenter__)
    consumer = SingleConsumer(str(broker.address), max_wait_time=20_000)
    result = consumer.consume("t", BEGINNING)
    assert loop.run_sync(lambda: result) == [1]
    loop.run_sync(consumer.close)
    loop.run_sync(broker.__aexit__)
    loop.close(all_fds=True)


async def test_a_fetch_request_equals_that_of_kiel() -> None:
    """
    A poll equals kiel's fetch request: it waits at most a second for at least one byte, and asks for one MiB for all
    partitions together. The first request does not wait.
    """
    async with FakeBroker({"t": 2}) as broker, SingleConsumer(str(broker.address)) as consumer:
        await consumer.subscribe("t", start=BEGINNING)
        await broker.wait_for_requests(FETCH, 2)
        _, fetch = broker.received(FETCH)
    body = Reader(fetch.body, "a fetch")
    assert (body.int32(), body.int32(), body.int32()) == (-1, 1_000, 1)
    shares = []
    for _ in body.array(2):
        assert body.string() == "t"
        for _ in body.array(4):
            assert (body.int32(), body.int64()) in ((0, 0), (1, 0))
            shares.append(body.int32())
    assert shares == [1 << 19, 1 << 19]


@pytest.mark.parametrize("back", [timedelta(milliseconds=1_500), timedelta(hours=1)])
async def test_a_timedelta_is_sent_in_milliseconds(back: timedelta) -> None:
    """
    A timedelta is sent as a time in milliseconds, as brokers expect. Kiel's seconds would mean a day in January 1970.
    """
    async with FakeBroker({"t": 1}) as broker, SingleConsumer(str(broker.address), max_wait_time=100) as consumer:
        before_ms = time.time() * 1_000
        await consumer.consume("t", back)
        await broker.wait_for_requests(LIST_OFFSETS, 1)
        after_ms = time.time() * 1_000
        (request, *_) = broker.received(LIST_OFFSETS)
    body = Reader(request.body, "a request for offsets")
    body.int32()
    for _ in body.array(2):
        body.string()
        for _ in body.array(4):
            body.int32()
            at_ms = body.int64()
    back_ms = back.total_seconds() * 1_000
    assert before_ms - back_ms - 1 <= at_ms <= after_ms - back_ms


@pytest.mark.parametrize(
    "settings",
    [{"max_bytes": 1e6}, {"max_wait_time": 0.5}, {"min_bytes": "1"}, {"max_bytes": True}, {"max_bytes": 1 << 31}],
    ids=str,
)
def test_invalid_settings_are_refused(settings: dict[str, Any]) -> None:
    """The constructor refuses an invalid setting with a ValueError that has the setting and the given value."""
    ((name, value),) = settings.items()
    with pytest.raises(ValueError, match=re.escape(f"{name}: {value!r} given")):
        SingleConsumer("localhost", **settings)


@pytest.mark.parametrize(("start", "away_s"), [(BEGINNING, 0.2), (END, 2.5)], ids=["beginning", "end"])
async def test_a_topic_without_leaders_is_requested_again_within_the_call(start: int, away_s: float) -> None:
    """
    If an election ends during a ``consume()`` call, the call returns values. With END, these are records written after
    the call has started to wait.
    """
    async with FakeBroker({"t": 1}) as broker:
        broker.append(T0, message_set(b"1"))
        broker.leaders = {T0: -1}
        asyncio.get_running_loop().call_later(away_s, broker.leaders.clear)
        async with SingleConsumer([str(broker.address)], bytes, max_wait_time=20_000) as consumer, asyncio.timeout(20):
            taking = consumer.consume("t", start)
            await eventually(lambda: broker.count(FETCH), "the consumer reads")
            if start == END:
                broker.append(T0, message_set(b"2"))
            assert await taking == [b"1" if start == BEGINNING else b"2"]


async def test_a_call_that_looks_up_its_start_ends_with_the_consumer() -> None:
    """It returns None as other calls of ``consume()`` do, and raises no error."""
    async with consuming(b"0") as (_, consumer):
        waiting = consumer.consume("missing", BEGINNING)
        await eventually(lambda: "missing" in consumer._lifecycle._lookups, "the start is looked up")
        await consumer.close()
        assert await waiting is None
