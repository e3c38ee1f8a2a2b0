"""Answers that cannot be decoded are fetched again before and after their error is raised."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from unittest.mock import patch

import pytest

from kiel_groups.clients.fetch.fetch_buffer import TRIES_UNREADABLE
from kiel_groups.clients.fetch.partition_fetch import PartitionFetch
from kiel_groups.clients.net.connection import Connection
from kiel_groups.errors import MessageTooLargeError, ProtocolError
from kiel_groups.model import TopicPartition
from kiel_groups.wire.fetch import FetchedPartition, FetchRequest
from kiel_groups.wire.message_sets.decoder import MessageRun
from tests.helpers.fake_broker import FETCH, METADATA, FakeBroker, Fault, Log, Request, message_set
from tests.helpers.fetch_bench import T0, T1, fetch_bench, values
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.unit


def flip_last_bit(message_set: bytearray) -> None:
    message_set[-1] ^= 1


def zeros(message_set: bytearray) -> None:
    message_set[:] = bytes(len(message_set))


def huge_size(message_set: bytearray) -> None:
    message_set[8:12] = b"\x7f\xff\xff\xff"


def damage(log: Log, how: Callable[[bytearray], object], times: int) -> None:
    """Damage the messages of a partition in the next ``times`` answers, as a network or a failing disk does."""
    read_whole, remaining = log.read, [None] * times

    def read(offset: int, max_bytes: int) -> bytes:
        found = bytearray(read_whole(offset, max_bytes))
        if found and remaining:
            remaining.pop()
            how(found)
        return bytes(found)

    log.read = read  # type: ignore[method-assign]


@pytest.mark.parametrize("how", [flip_last_bit, zeros, huge_size])
async def test_a_damaged_answer_is_fetched_again(
    how: Callable[[bytearray], object], caplog: pytest.LogCaptureFixture
) -> None:
    """
    A damaged answer is fetched again with a new connection and fresh metadata. The damage is logged and counted, and
    the application gets no error.
    """
    async with fetch_bench() as bench:
        damage(bench.broker.logs[T0], how, TRIES_UNREADABLE - 1)
        bench.broker.append(T0, message_set(b"value"))
        bench.fetcher.assign({T0: 0})
        assert values(await bench.next_batch()) == [b"value"]
        connections = [request.connection for request in bench.broker.received(FETCH)][:TRIES_UNREADABLE]
        assert len(set(connections)) == TRIES_UNREADABLE
        assert bench.broker.count(METADATA) == TRIES_UNREADABLE, "one at the start, one before each further try"
        assert bench.metrics.counter("fetches_unreadable") == TRIES_UNREADABLE - 1
        warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert len(warnings) == TRIES_UNREADABLE - 1
        assert all("cannot fetch t:0" in line for line in warnings)


async def test_a_permanently_damaged_answer_is_an_error_until_it_can_be_decoded() -> None:
    """
    Permanent damage raises an error with its position, after earlier records. When the damage is gone, the partition
    continues without a gap.
    """
    async with fetch_bench() as bench:
        bench.broker.append(T0, message_set(b"0"))
        bench.fetcher.assign({T0: 0, T1: 0})
        damage(bench.broker.logs[T0], flip_last_bit, 0)
        assert values(await bench.next_batch()) == [b"0"]
        damage(bench.broker.logs[T0], flip_last_bit, TRIES_UNREADABLE + 3)
        bench.broker.append(T0, message_set(b"1"))
        for _ in range(4):
            error = await bench.next_error()
            assert isinstance(error, ProtocolError)
            assert "t:0 at offset 1" in str(error)
        assert values(await bench.next_batch()) == [b"1"]
        assert bench.fetcher.position(T0) == 2
        bench.broker.append(T1, message_set(b"other"))
        assert values(await bench.next_batch()) == [b"other"]


async def test_tries_are_counted_again_after_an_answer_that_can_be_decoded() -> None:
    """
    The tries are counted from zero after an answer that can be decoded, so occasional damage never becomes an error.
    """
    async with fetch_bench() as bench:
        log, whole = bench.broker.logs[T0], bench.broker.logs[T0].read
        bench.fetcher.assign({T0: 0})
        for number in range(3):
            log.read = whole  # type: ignore[method-assign]
            damage(log, flip_last_bit, TRIES_UNREADABLE - 1)
            bench.broker.append(T0, message_set(b"%d" % number))
            assert values(await bench.next_batch()) == [b"%d" % number]


async def test_an_unexpected_error_of_the_record_decoder_is_retried() -> None:
    """
    An unexpected error of the record decoder is raised as a ProtocolError with topic, partition and offset, and the
    partition is fetched again.
    """
    runs, failures = PartitionFetch.runs, [ZeroDivisionError("a bug")] * (TRIES_UNREADABLE + 1)

    def check_badly(state: PartitionFetch, message_set: bytes, most_bytes: int) -> Iterator[MessageRun]:
        if failures:
            raise failures.pop()
        return runs(state, message_set, most_bytes)

    with patch.object(PartitionFetch, "runs", check_badly):
        async with fetch_bench() as bench:
            bench.broker.append(T0, message_set(b"value"))
            bench.fetcher.assign({T0: 0})
            for _ in range(2):
                error = await bench.next_error()
                assert isinstance(error, ProtocolError)
                assert "t:0 at offset 0" in str(error)
                assert "ZeroDivisionError('a bug')" in str(error)
            assert values(await bench.next_batch()) == [b"value"]


async def test_an_unexpected_error_of_the_answer_decoder_is_retried() -> None:
    """
    After an unexpected error of the answer decoder, the request fails at once instead of by its timeout, and every
    partition of the answer is fetched again.
    """
    decode, failures = FetchRequest.decode_response, [ZeroDivisionError("a bug")]

    def decode_badly(request: FetchRequest, payload: bytes) -> Mapping[TopicPartition, FetchedPartition]:
        if failures:
            raise failures.pop()
        return decode(payload)

    with patch.object(FetchRequest, "decode_response", decode_badly):
        async with fetch_bench() as bench:
            bench.broker.append(T0, message_set(b"0"))
            bench.broker.append(T1, message_set(b"1"))
            bench.fetcher.assign({T0: 0, T1: 0})
            async with asyncio.timeout(10):
                assert {values(await bench.next_batch())[0] for _ in range(2)} == {b"0", b"1"}


async def test_an_unexpected_error_of_a_request_is_retried(caplog: pytest.LogCaptureFixture) -> None:
    """
    An unexpected error of a request, such as a bug, is logged, and the partitions of the request are fetched again.
    """
    request, failures = Connection.request, [ZeroDivisionError("a bug")]

    async def request_badly(self: Connection, *args: object, **kwargs: object) -> object:
        if failures and kwargs:
            raise failures.pop()
        return await request(self, *args, **kwargs)  # type: ignore[arg-type]

    with patch.object(Connection, "request", request_badly):
        async with fetch_bench() as bench:
            bench.broker.append(T0, message_set(b"0"))
            bench.fetcher.assign({T0: 0})
            assert values(await bench.next_batch()) == [b"0"]
    assert "ZeroDivisionError('a bug')" in caplog.text


async def test_an_answer_to_another_request_closes_its_connection_only() -> None:
    """
    An answer with a wrong correlation id closes its connection, and the requests on that connection are repeated. The
    request on the other connection to the broker continues.
    """

    def script(request: Request) -> Fault | None:
        return Fault.WRONG_CORRELATION_ID if request.api_key == FETCH and bench.broker.count(FETCH) == 3 else None

    async with fetch_bench(max_wait_ms=30_000) as bench:
        bench.broker.script = script
        bench.fetcher.assign({T0: 0})
        await bench.broker.wait_for_requests(FETCH, 2)
        polling = bench.broker.received(FETCH)[1].connection
        bench.broker.append(T1, message_set(b"1"))
        bench.fetcher.assign({T1: 0})
        assert values(await bench.next_batch()) == [b"1"]
        fetches = [request.connection for request in bench.broker.received(FETCH)]
        assert fetches.count(polling) == 1, "its long poll is still in flight"
        assert len(set(fetches)) == 3
        bench.broker.append(T0, message_set(b"0"))
        assert values(await bench.next_batch()) == [b"0"]


async def test_a_partition_continues_when_retention_deletes_its_large_message() -> None:
    """
    A partition is fetched again each time the error about its too large message was raised. So it continues when
    retention has deleted the message.
    """
    async with fetch_bench(FakeBroker({"t": 3}), reset_to=1, max_bytes=4_096, max_message_bytes=10_000) as bench:
        bench.broker.append(T0, message_set(b"L" * 20_000, b"after"))
        bench.fetcher.assign({T0: 0})
        assert isinstance(await bench.next_error(), MessageTooLargeError)
        log = bench.broker.logs[T0]
        log.start = 1
        del log.entries[0]

        async def next_values() -> list[bytes]:
            with suppress(MessageTooLargeError):
                return values(await bench.next_batch())
            return []

        assert await eventually(next_values, "the next message is delivered", 5) == [b"after"]
