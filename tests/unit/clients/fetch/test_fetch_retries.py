"""The fetcher after errors: a scripted broker answers with error codes, closes connections, or does not answer."""

from __future__ import annotations

import asyncio
import time

import pytest

from kiel_groups.errors import MessageTooLargeError, OffsetOutOfRangeError
from kiel_groups.model import TopicPartition
from tests.helpers.fake_broker import FETCH, METADATA, FakeBroker, Fault, Request, message_set
from tests.helpers.fetch_bench import T0, T1, T2, fetch_bench, values
from tests.helpers.waiting import eventually, throughout

pytestmark = pytest.mark.unit


async def test_a_position_out_of_range_is_reset() -> None:
    """
    After "offset out of range", the fetcher calls the reset callback with the lost position, and continues at the
    offset that the callback returns.
    """
    async with fetch_bench(reset_to=3) as bench:
        bench.broker.append(T0, message_set(*(b"%d" % n for n in range(5))))
        bench.fetcher.assign({T0: 99})
        assert values(await bench.next_batch()) == [b"3", b"4"]
        assert bench.resets == [(T0, 99)]


async def test_a_record_that_is_read_after_a_broker_has_lacked_its_topic_marks_no_log() -> None:
    """The record may be of the log of a new topic, and would prove that the topic is the same (seed 481246)."""
    async with fetch_bench() as bench:
        for partition in (T0, T1):
            bench.broker.append(partition, message_set(b"0"))
        bench.fetcher.assign({T0: 0})
        await bench.next_batch()
        bench.cluster.seen.missing("t")
        bench.cluster.seen.listed("t")
        bench.fetcher.assign({T1: 0})
        await bench.next_batch()
        read = bench.fetcher.read_logs({T0: 1, T1: 1})
        assert (read[T0].mark is None, read[T1].mark is None) == (False, True)


@pytest.mark.parametrize("refusal", [OffsetOutOfRangeError("no reset allowed", code=1), ZeroDivisionError("a bug")])
async def test_an_error_of_the_reset_callback_is_raised(refusal: Exception) -> None:
    """An error of the reset callback, as of the policy "none" or of a bug, is raised to the caller that polls."""
    async with fetch_bench(reset_to=refusal) as bench:
        bench.fetcher.assign({T0: 99})
        assert await bench.next_error() is refusal


@pytest.mark.parametrize("code", [4, 10, 11, 17, 29, 99])
async def test_a_fatal_code_is_logged_and_the_partition_fetched_again(
    code: int, caplog: pytest.LogCaptureFixture
) -> None:
    """
    A fatal error code is logged and counted, and the partition is fetched again: one answer must not stop a partition
    for good.
    """
    async with fetch_bench() as bench:
        bench.broker.append(T0, message_set(b"0"))
        bench.broker.fail_next(FETCH, T0, code, code)
        bench.fetcher.assign({T0: 0})
        assert values(await bench.next_batch()) == [b"0"]
        assert bench.metrics.counter("fetch_failures") == 2
        lines = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert len(lines) == 2
        assert "fetching t:0 at offset 0" in lines[0]
        assert f"({code})" in lines[0]


async def test_fetches_that_a_broker_always_refuses_back_off() -> None:
    """If a broker always refuses fetches, no error is raised, and the pauses between the requests grow."""
    async with fetch_bench() as bench:
        bench.broker.fail_next(FETCH, T0, *[29] * 1_000)
        bench.fetcher.assign({T0: 0})
        waiting, began_s = asyncio.ensure_future(bench.next_batch()), time.monotonic()
        await bench.broker.wait_for_requests(FETCH, 20)
        # Pauses of 2, 4, 8, 16, 20, 20 … ms, less jitter.
        assert time.monotonic() - began_s > 0.2
        assert not waiting.done()
        waiting.cancel()


async def test_a_permanent_error_is_raised_with_growing_pauses() -> None:
    """
    A permanent error is raised repeatedly, with pauses that double, here from 2 to 20 ms. So a program that only logs
    the error does not run in a busy loop.
    """
    async with fetch_bench(max_bytes=4_096, max_message_bytes=10_000) as bench:
        bench.broker.append(T0, message_set(b"L" * 20_000))
        bench.fetcher.assign({T0: 0})
        began_s = time.monotonic()
        for _ in range(20):
            assert isinstance(await bench.next_error(), MessageTooLargeError)
        assert time.monotonic() - began_s > 0.2


async def test_partitions_that_wait_for_a_broker_that_is_down_are_retried_together(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A request has some of the partitions that are behind. A try of all of them is a few lines in the log, not 60."""
    caplog.set_level("INFO", "kiel_groups.clients.fetch")
    partitions = [TopicPartition("t", number) for number in range(60)]
    async with fetch_bench(FakeBroker({"t": 60}), max_bytes=8_192) as bench:
        for partition in partitions:
            bench.broker.append(partition, message_set(*[b"v" * 1_000] * 20))
        bench.fetcher.assign(dict.fromkeys(partitions, 0))
        await bench.next_batch()
        bench.broker.script = lambda request: Fault.CLOSE if request.api_key == FETCH else None

        def is_down() -> bool:
            while bench.fetcher.poll() is not None:
                pass
            return any("(try 8)" in record.getMessage() for record in caplog.records)

        await eventually(is_down, "the broker was tried eight times")
        lines = [record for record in caplog.records if record.msg.startswith("cannot fetch")]
        assert len(lines) <= 8 * 6, [record.getMessage() for record in lines]
        bench.broker.script = None
        for _ in partitions:
            await bench.next_batch()


async def test_retriable_errors_refresh_the_metadata() -> None:
    """
    After the codes "not leader", "leader not available", "unknown topic or partition" and "unknown", the metadata is
    requested again, and then the records are fetched.
    """
    async with fetch_bench() as bench:
        bench.broker.append(T0, message_set(b"0"))
        bench.broker.fail_next(FETCH, T0, 6, 5, 3, -1)
        bench.fetcher.assign({T0: 0})
        assert values(await bench.next_batch()) == [b"0"]
        assert bench.broker.count(METADATA) == 5
        assert bench.metrics.counter("fetch_retries") == 4


async def test_a_topic_that_a_fetch_misses_is_not_named() -> None:
    """
    After "unknown topic or partition", the metadata of all topics is requested: naming the topic, which may have been
    deleted, could create it again. After "not leader", the topic is named.
    """
    async with fetch_bench() as bench:
        bench.broker.append(T0, message_set(b"0"))
        bench.broker.fail_next(FETCH, T0, 6, 3, 6)
        bench.fetcher.assign({T0: 0})
        assert values(await bench.next_batch()) == [b"0"]
        named = [len(request.body) > 4 for request in bench.broker.received(METADATA)]
        assert named == [False, True, False, True]


async def test_fetching_follows_a_leader_that_moves() -> None:
    """When the leader of a partition moves, the fetcher requests the same position from the new leader."""
    async with FakeBroker({"t": 3}, node_id=1) as other, fetch_bench() as bench:
        bench.broker.append(T0, message_set(b"0"))
        bench.fetcher.assign({T0: 0})
        assert values(await bench.next_batch()) == [b"0"]
        other.append(T0, message_set(b"0", b"1"))
        for broker in (bench.broker, other):
            broker.peers = [bench.broker, other]
            broker.leaders = {T0: 1, T1: 0, T2: 0}
        bench.broker.append(T0, message_set(b"wakes the long poll, and is not delivered"))
        assert values(await bench.next_batch()) == [b"1"]


async def test_a_partition_that_waits_for_a_lane_follows_its_leader() -> None:
    """It is not sent to a broker that the metadata no longer names, although it was queued for that broker."""
    async with FakeBroker({"t": 3}, node_id=1) as successor, fetch_bench() as bench:
        bench.broker.gates[FETCH] = asyncio.Event()
        for number, partition in enumerate((T0, T1, T2)):
            bench.fetcher.assign({partition: 0})
            if number < 2:
                await bench.broker.wait_for_requests(FETCH, number + 1)
        bench.broker.peers, bench.broker.leaders[T2] = [bench.broker, successor], 1
        successor.append(T2, message_set(b"moved"))
        await bench.cluster.refresh(["t"], "test")
        bench.broker.gates[FETCH].set()
        assert values(await bench.next_batch()) == [b"moved"]
        assert not bench.metrics.total("fetch_retries")


async def test_a_broken_connection_is_replaced() -> None:
    """A connection that breaks during a long poll is replaced, and no record is lost or repeated."""
    async with fetch_bench(max_wait_ms=30_000) as bench:
        bench.broker.append(T0, message_set(b"0"))
        bench.fetcher.assign({T0: 0})
        assert values(await bench.next_batch()) == [b"0"]
        await bench.broker.wait_for_requests(FETCH, 2)
        bench.broker.drop_connections()
        bench.broker.append(T0, message_set(b"1"))
        assert values(await bench.next_batch()) == [b"1"]


async def test_a_fetch_without_an_answer_is_retried_on_a_new_connection() -> None:
    """A fetch without an answer is repeated after the request timeout."""
    silent = True

    def script(request: Request) -> Fault | None:
        return Fault.SILENT if silent and request.api_key == FETCH else None

    async with fetch_bench(FakeBroker({"t": 3}, script=script), max_wait_ms=10) as bench:
        object.__setattr__(bench.cluster.config, "request_timeout_ms", 50)
        bench.broker.append(T0, message_set(b"0"))
        bench.fetcher.assign({T0: 0})
        await bench.broker.wait_for_requests(FETCH, 2)
        silent = False
        assert values(await bench.next_batch()) == [b"0"]


async def test_retries_of_a_partition_without_a_leader_back_off() -> None:
    """For a partition without a leader, the metadata is requested with growing pauses, not in a busy loop."""
    async with fetch_bench() as bench:
        bench.broker.leaders = {T0: -1}
        await bench.cluster.refresh(["t"], "test")
        before = bench.broker.count(METADATA)
        bench.fetcher.assign({T0: 0, T1: 0})
        bench.broker.append(T1, message_set(b"1"))
        assert values(await bench.next_batch()) == [b"1"], "other partitions continue"
        await throughout(lambda: bench.broker.count(METADATA) - before <= 30, "the retries back off", 0.2)
        await bench.broker.wait_for_requests(METADATA, before + 4)
        bench.broker.leaders = {}
        bench.broker.append(T0, message_set(b"0"))
        assert values(await bench.next_batch()) == [b"0"]
