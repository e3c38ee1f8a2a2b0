"""The fetcher on logs of newer brokers: filler, control batches, large messages, and batches that cannot be sent."""

from __future__ import annotations

import asyncio
import struct

import pytest

from kiel_groups.clients.fetch.partition_fetch import PartitionFetch
from kiel_groups.errors import BrokerError, MessageTooLargeError
from tests.helpers.converted_log import ConvertedLog, Release
from tests.helpers.fake_broker import FETCH, FakeBroker, Request
from tests.helpers.fetch_bench import T0, T1, FetchBench, fetch_bench, values
from tests.helpers.waiting import eventually, throughout

pytestmark = pytest.mark.unit

RELEASES = pytest.mark.parametrize("release", Release)


def put(bench: FetchBench, release: Release = Release.V3_9) -> ConvertedLog:
    """Give partition 0 an empty log as a broker of this release has it."""
    log = bench.broker.logs[T0] = ConvertedLog(release=release)
    return log


def asked(broker: FakeBroker) -> list[tuple[int, int]]:
    """Return the offset and the size of each fetch so far of the only partition."""
    return [struct.unpack(">qi", request.body[-12:]) for request in broker.received(FETCH)]


@RELEASES
async def test_a_control_batch_at_the_end_is_passed(release: Release) -> None:
    """
    After the mark of a transaction at the log's end, the partition has no lag, and waits for records in long polls.

    The fetcher reports the partition once as passed. Records that follow the mark are delivered.
    """
    async with fetch_bench(max_wait_ms=30_000) as bench:
        log = put(bench, release)
        log.write(b"0", b"1")
        log.end_transaction()
        bench.fetcher.assign({T0: 0})
        assert values(await bench.next_batch()) == [b"0", b"1"]
        await eventually(lambda: bench.lag(T0) == 0, "the mark is passed")
        assert (bench.fetcher.position(T0), bench.fetcher.passed) == (3, {T0})
        await eventually(lambda: asked(bench.broker)[-1][0] == 3, "the end is polled")
        fetches = bench.broker.count(FETCH)
        await throughout(lambda: bench.broker.count(FETCH) == fetches, "the poll waits", 0.05)
        log.write(b"3")
        bench.broker._appended.set()
        assert values(await bench.next_batch()) == [b"3"]
        assert not bench.metrics.total("fetch_retries")
        bench.fetcher.unassign([T0])
        assert not bench.fetcher.passed


@RELEASES
async def test_offsets_without_records_are_passed(release: Release) -> None:
    """
    Records are found behind many control batches and emptied ones, with a share that grows: marks alone fill the first
    answers.
    """
    async with fetch_bench(max_bytes=4_096, max_wait_ms=20) as bench:
        log = put(bench, release)
        log.write(b"first")
        for _ in range(300):
            log.end_transaction()
        log.compact_away(40)
        log.write(b"x" * 20_000)
        bench.fetcher.assign({T0: 0})
        assert values(await bench.next_batch()) == [b"first"]
        assert [record.offset for record in (await bench.next_batch()).records] == [341]
        assert bench.lag(T0) == 0
        assert not bench.metrics.total("fetch_retries")


@RELEASES
async def test_a_message_that_is_larger_than_the_share_is_fetched(release: Release) -> None:
    """The share grows up to the size of a large message, also if the broker sends nothing of it."""
    async with fetch_bench(max_bytes=4_096, max_wait_ms=20) as bench:
        log = put(bench, release)
        log.write(b"small")
        log.write(b"L" * 100_000)
        log.write(b"last")
        bench.fetcher.assign({T0: 0})
        found: list[bytes] = []
        while len(found) < 3:
            found += values(await bench.next_batch())
        assert found == [b"small", b"L" * 100_000, b"last"]
        assert bench.metrics.counter("fetch_share_grown") >= 1
        assert not bench.metrics.total("fetch_retries")


@RELEASES
async def test_a_message_beyond_the_bound_is_an_error(release: Release) -> None:
    """
    A message that is larger than ``max_message_bytes`` is raised with topic, partition, offset and bound, again and
    again, also if the broker sends nothing of it. Once the topic has it no more, the next message is delivered.
    """
    async with fetch_bench(max_bytes=4_096, max_message_bytes=50_000, max_wait_ms=20) as bench:
        log = put(bench, release)
        log.write(b"0")
        log.write(b"L" * 100_000)
        bench.fetcher.assign({T0: 0})
        assert values(await bench.next_batch()) == [b"0"]
        for _ in range(2):
            error = await bench.next_error()
            assert isinstance(error, MessageTooLargeError)
            assert "t:0 at offset 1" in str(error)
            assert "50000" in str(error)
        largest = max(size for _, size in asked(bench.broker))
        assert largest == 50_000 if release is Release.V3_9 else largest < 10_000, "the others send its size"
        log.write(b"2")
        log.start = 2
        bench.fetcher.assign({T0: 2})
        assert values(await bench.next_batch()) == [b"2"]


async def test_an_error_of_an_unsent_message_ends_when_the_broker_sends_it() -> None:
    """After the error, the whole bound is requested again: the broker's own bound may have been raised."""
    async with fetch_bench(max_bytes=4_096, max_message_bytes=50_000, max_wait_ms=20) as bench:
        log = put(bench)
        log.write(b"0" * 40_000, size=100_000)
        bench.fetcher.assign({T0: 0})
        assert isinstance(await bench.next_error(), MessageTooLargeError)
        log.batches[0].size = 40_061
        while True:
            try:
                batch = await bench.next_batch()
            except MessageTooLargeError:
                continue
            break
        assert values(batch) == [b"0" * 40_000]


async def test_an_empty_answer_that_only_its_own_watermark_contradicts_proves_nothing() -> None:
    """
    If a record is appended between a broker's read and its look at the high watermark, the empty answer neither changes
    the share nor counts as an error.
    """
    async with fetch_bench(max_wait_ms=20) as bench:
        races = 1

        def script(request: Request) -> bytes | None:
            nonlocal races
            if request.api_key != FETCH or not races or bench.broker.count(FETCH) < 2:
                return None
            races -= 1
            return bench.broker._fetched({T0: (0, b"")})

        log = put(bench)
        bench.fetcher.assign({T0: 0})
        await bench.broker.wait_for_requests(FETCH, 1)
        bench.broker.script = script
        log.write(b"0")
        assert values(await bench.next_batch()) == [b"0"]
        assert races == 0
        assert not bench.metrics.counter("fetch_share_grown")


def test_offsets_beyond_the_high_watermark_are_not_passed() -> None:
    """No CRC covers the offset of a batch without records. One that leads beyond the log's end is not believed."""
    state = PartitionFetch(T0, 1, 4, high_watermark=9)
    assert not state.pass_empty(10, 1_000, 4_000)
    assert state.position == 4
    assert state.pass_empty(8, 1_000, 4_000)
    assert (state.position, state.needed_bytes) == (8, 2_000)
    assert state.pass_empty(9, 2_000, 4_000)
    assert (state.position, state.needed_bytes) == (9, 0)


def test_only_the_first_partition_of_a_request_proves_that_a_message_is_too_large() -> None:
    """
    A partition after the first one may get nothing because the others have used up what the broker sends at once. It
    is asked for again.
    """
    state = PartitionFetch(T0, 1, 0, high_watermark=9)
    for share in (1_000, 2_000, 4_000, 4_000):
        state.grow_unanswered(share, 4_000, is_first=False)
        assert state.needed_bytes == min(2 * share, 4_000)
    with pytest.raises(MessageTooLargeError, match=r"t:0 at offset 0.*max_message_bytes, 4000"):
        state.grow_unanswered(4_000, 4_000, is_first=True)


@pytest.mark.parametrize(("code", "words"), [(76, "zstd"), (35, "message.downconversion.enable")])
async def test_batches_that_this_request_cannot_carry_are_an_error(code: int, words: str) -> None:
    """
    Codes 76 and 35 are raised by name, with what to do, after the records before them. The partition is fetched again
    with pauses that grow, and the records are delivered once the topic was changed. Other partitions continue.
    """
    async with fetch_bench(max_wait_ms=20) as bench:
        bench.broker.fail_next(FETCH, T0, *[code] * 4)
        bench.broker.logs[T1] = log = ConvertedLog()
        put(bench).write(b"0")
        log.write(b"of another partition")
        bench.fetcher.assign({T0: 0, T1: 0})
        batches, errors = [], []
        async with asyncio.timeout(5):
            while len(batches) < 2:
                try:
                    batches += values(await bench.next_batch())
                except BrokerError as error:
                    errors.append(error)
        assert batches == [b"of another partition", b"0"]
        assert [error.code for error in errors] == [code] * 4
        assert not errors[0].retriable
        assert "t:0 at offset 0 cannot be fetched" in str(errors[0])
        assert words in str(errors[0])
        assert bench.metrics.counter("fetch_failures") == 4
