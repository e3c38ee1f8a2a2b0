"""Large compressed messages are unpacked on a thread, while the event loop serves other partitions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest

from kiel_groups.clients.fetch.fetch_requests import ANY, Selection
from kiel_groups.clients.fetch.partition_fetch import LARGE_WRAPPER_BYTES, Phase
from kiel_groups.errors import DamagedRecordError, MessageTooLargeError
from kiel_groups.model import TopicPartition
from kiel_groups.wire.message_sets import decoder
from kiel_groups.wire.message_sets.decoder import message_steps
from kiel_groups.zookeeper.runtime import Runtime
from tests.helpers.fake_broker import FakeBroker, message_set
from tests.helpers.fetch_bench import T0, T1, T2, FetchBench, fetch_bench, values
from tests.helpers.reference_codec import NUMBERS, encode, message, packed, wrapper
from tests.helpers.waiting import eventually, run_ready_tasks, throughout

COMPILED = pytest.mark.skipif(not decoder.COMPILED, reason="the package was installed without a C compiler")
pytestmark = [pytest.mark.unit, COMPILED]

_Result = TypeVar("_Result")

LARGE = bytes(LARGE_WRAPPER_BYTES)


def large(offset: int = 0) -> bytes:
    """Return a compressed message with a value that is a little above the bound without compression."""
    return wrapper(message(offset, None, LARGE), offset)


class Threads(Runtime):
    """Counts the calls on threads, and notes on which threads they ran."""

    def __init__(self) -> None:
        self.idents: list[int] = []

    def in_thread(self, function: Callable[[], _Result], name: str) -> asyncio.Future[_Result]:
        def noted() -> _Result:
            self.idents.append(threading.get_ident())
            return function()

        return super().in_thread(noted, name)


class HeldThreads(Runtime):
    """Keeps the calls on threads, which end when the test says so."""

    def __init__(self) -> None:
        self.held: list[tuple[Callable[[], object], asyncio.Future[object]]] = []

    def in_thread(self, function: Callable[[], _Result], name: str) -> asyncio.Future[_Result]:
        result: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()
        self.held.append((function, result))  # type: ignore[arg-type]
        return result

    async def wait(self) -> None:
        """Wait for one call."""
        await eventually(lambda: len(self.held) == 1, "a large message is being unpacked")

    async def end(self) -> None:
        """End one call, as soon as there is one."""
        await self.wait()
        function, result = self.held.pop(0)
        if not result.done():
            result.set_result(function())
        await run_ready_tasks()


@asynccontextmanager
async def unpacking(*following: bytes) -> AsyncIterator[tuple[FetchBench, HeldThreads]]:
    """Fetch T0 until its first message, a large one, is being unpacked. ``following`` are the message sets after it."""
    threads = HeldThreads()
    async with fetch_bench(runtime=threads) as bench:
        for each in (large(), *following):
            bench.broker.append(T0, each)
        bench.fetcher.assign({T0: 0})
        await threads.wait()
        yield bench, threads


async def test_large_wrappers_are_unpacked_on_a_thread() -> None:
    """Messages that are compressed to less, or are not compressed, are read at once. The order of all is kept."""
    threads = Threads()
    async with fetch_bench(runtime=threads) as bench:
        small = wrapper(message(1, None, bytes(LARGE_WRAPPER_BYTES - 100)), 1)
        for each in (message_set(b"plain"), small, large(2), message_set(b"last")):
            bench.broker.append(T0, each)
        bench.fetcher.assign({T0: 0})
        found: list[bytes] = []
        while len(found) < 4:
            found += values(await bench.next_batch())
        assert found == [b"plain", bytes(LARGE_WRAPPER_BYTES - 100), LARGE, b"last"]
        assert len(threads.idents) == 1
        assert threading.get_ident() not in threads.idents


def test_wrappers_are_announced_by_either_size() -> None:
    """A wrapper is announced if it is larger than the bound before or after it is unpacked, whatever its codec."""
    for codec, number in NUMBERS.items():
        content = encode([(5, None, b"v" * 2_000)])
        data = message(5, None, packed(codec, content), attributes=number)
        assert len(data) < len(content)
        for bound, announced in ((len(content), 0), (len(content) - 1, 1), (len(data) - 1, 1)):
            steps = list(message_steps(data, T0, 0, max_decompressed_bytes=1 << 20, announced_bytes=bound))
            assert steps.count(None) == announced, (codec, bound)
            assert [run.count for run in steps if run is not None] == [1]


async def test_other_partitions_are_delivered_meanwhile() -> None:
    """A thread blocks neither the event loop nor the other requests."""
    async with unpacking() as (bench, threads):
        bench.broker.append(T1, message_set(b"other"))
        bench.fetcher.assign({T1: 0})
        assert values(await bench.next_batch()) == [b"other"]
        await threads.end()
        assert values(await bench.next_batch()) == [LARGE]


async def test_one_wrapper_is_unpacked_at_a_time() -> None:
    """Answers of several connections may all be compressed: what they unpack to might not fit into memory."""
    async with unpacking() as (bench, threads):
        bench.broker.append(T1, large())
        bench.fetcher.assign({T1: 0})
        partition = bench.fetcher._partitions[T1]
        await eventually(lambda: partition.high_watermark == 1, "the other answer is being read")
        await run_ready_tasks()
        assert len(threads.held) == 1
        await threads.end()
        await threads.end()
        assert [values(await bench.next_batch()) for _ in range(2)] == [[LARGE], [LARGE]]


async def test_a_partition_that_is_lost_meanwhile_gets_nothing() -> None:
    """What is unpacked after the end of the assignment is dropped: another member may own the partition by then."""
    async with unpacking() as (bench, threads):
        bench.fetcher.unassign([T0])
        await threads.end()
        assert bench.fetcher.poll() is None
        assert bench.fetcher._buffer._bytes == 0
        assert bench.metrics.counter("records_fetched") == 0


async def test_a_seek_meanwhile_has_an_effect() -> None:
    """The message that was being unpacked is not delivered before the new position."""
    async with unpacking(message_set(b"second")) as (bench, threads):
        bench.fetcher.assign({T0: 1})
        await threads.end()
        assert values(await bench.next_batch()) == [b"second"]
        assert bench.fetcher.poll() is None


async def test_a_pause_meanwhile_keeps_or_drops_the_message() -> None:
    """The message stays buffered until ``resume``; if paused partitions keep too much already, it is fetched again."""
    for is_full in (False, True):
        async with unpacking() as (bench, threads):
            bench.fetcher.pause([T0])
            bench.fetcher._buffer._paused_bytes += is_full * (32 << 20)
            await threads.end()
            assert bench.fetcher._partitions[T0].phase is Phase.PARKED
            assert bench.fetcher.is_buffering(T0) is not is_full
            assert bench.fetcher.poll() is None
            bench.fetcher._buffer._paused_bytes -= is_full * (32 << 20)
            bench.fetcher.resume([T0])
            if is_full:
                await threads.end()
            assert values(await bench.next_batch()) == [LARGE]


async def test_a_close_abandons_the_thread() -> None:
    """The thread may end later: its result is dropped."""
    async with unpacking() as (bench, threads):
        bench.fetcher.close()
        await run_ready_tasks()
        assert threads.held[0][1].cancelled()
        await threads.end()
        assert bench.fetcher.poll() is None


async def test_damage_that_a_thread_finds_is_raised() -> None:
    """The error is the one of a small message, and names the offset to seek to."""
    damaged = bytearray(message(0, None, LARGE))
    damaged[-1] ^= 1
    async with fetch_bench() as bench:
        bench.broker.append(T0, wrapper(bytes(damaged), 0))
        bench.broker.append(T0, message_set(b"next"))
        bench.fetcher.assign({T0: 0})
        error = await bench.next_error()
        assert isinstance(error, DamagedRecordError)
        assert (error.offset, error.next_offset) == (0, 1)
        bench.fetcher.assign({T0: 1})
        assert values(await bench.next_batch()) == [b"next"]


async def test_the_bound_of_unpacked_bytes_holds_on_a_thread() -> None:
    """A message that unpacks to more than ``max_decompressed_bytes`` is refused, with its partition and offset."""
    async with fetch_bench(max_decompressed_bytes=LARGE_WRAPPER_BYTES + 1) as bench:
        bench.broker.append(T0, large())
        bench.fetcher.assign({T0: 0})
        error = await bench.next_error()
        assert isinstance(error, MessageTooLargeError)
        assert str(error).startswith(f"{T0} at offset 0: a compressed message of ")
        assert str(error).endswith("raise max_decompressed_bytes to read it, or seek to 1 to pass all of it")


# ---------------------------------------------------------------------- memory


def many(first: int = 0, count: int = 40) -> bytes:
    """Return a compressed message with ``count`` values of 100 kB."""
    return wrapper(encode([(first + n, None, bytes(100_000)) for n in range(count)]), first + count - 1)


def store_many(bench: FetchBench, partition: TopicPartition) -> None:
    log = bench.broker.logs[partition]
    log.entries, log.end = [(39, many())], 40


def test_a_run_does_not_keep_all_of_a_large_message() -> None:
    """Otherwise the last run that waits would keep it in memory, and the buffer would not count it."""
    runs = [run for run in message_steps(many(), T0, 0, max_decompressed_bytes=1 << 30) if run]
    assert sum(run.count for run in runs) == 40
    kept = [sum(len(data) for data, _, _ in run.pieces) for run in runs]  # type: ignore[attr-defined]
    assert kept == [run.size_bytes for run in runs]


async def test_a_message_that_is_larger_than_the_buffer_is_unpacked_once() -> None:
    """All that it unpacks to is kept, and delivered without another fetch."""
    threads = Threads()
    async with fetch_bench(runtime=threads, fetch_buffer_bytes=300_000) as bench:
        store_many(bench, T0)
        bench.fetcher.assign({T0: 0})
        found = 0
        while found < 40:
            found += len(await bench.next_batch())
        assert (found, len(threads.idents)) == (40, 1)
        assert bench.fetcher._buffer._bytes == 0


async def test_a_large_message_is_not_unpacked_into_a_full_buffer() -> None:
    """Its partition is fetched again when there is room."""
    threads = HeldThreads()
    async with fetch_bench(runtime=threads, fetch_buffer_bytes=1 << 20) as bench:
        for tp in (T0, T1):
            store_many(bench, tp)
        bench.fetcher.assign({T0: 0, T1: 0})
        await threads.end()
        await eventually(lambda: bench.fetcher._buffer._bytes > 3_900_000, "the first message is buffered")
        await throughout(lambda: not threads.held, "the second message is not unpacked", 0.1)
        found = 0
        while found < 40:
            batch = bench.fetcher.poll()
            assert batch is not None
            found += len(batch)
        await threads.end()
        assert (await bench.next_batch()).topic_partition == T1


SIX = [TopicPartition("t", number) for number in range(6)]


async def full_for_a_caller(bench: FetchBench, selection: Selection) -> None:
    """Store large messages in all partitions of ``SIX`` but the first, and ask for ``selection`` while they come."""
    for tp in SIX[1:]:
        store_many(bench, tp)
    assert bench.fetcher.poll(selection) is None
    bench.fetcher.assign(dict.fromkeys(SIX, 0))


@pytest.mark.parametrize(
    ("selection", "asks_again"),
    [(Selection(None, frozenset({T0})), True), (Selection("u"), True), (ANY, False)],
    ids=["a partition", "a topic", "any"],
)
async def test_one_large_message_is_unpacked_for_a_caller_that_waits(selection: Selection, asks_again: bool) -> None:
    """
    The buffer takes one beyond its bound, however many partitions have one: the caller may wait for a partition that
    has no data, or come back late for what it gets.
    """
    threads = Threads()
    async with fetch_bench(FakeBroker({"t": 6}), runtime=threads, fetch_buffer_bytes=1 << 20) as bench:
        await full_for_a_caller(bench, selection)
        await eventually(lambda: bench.fetcher._buffer.is_full, "the first message is buffered")
        for _ in range(20):
            if asks_again:
                assert bench.fetcher.poll(selection) is None
            await asyncio.sleep(0.01)
        assert bench.fetcher._buffer._bytes < 4_100_000
        assert len(threads.idents) == 1


async def test_a_caller_gets_a_large_message_although_the_buffer_is_full() -> None:
    """It is unpacked for the caller that waits for its partition, and for no other caller."""
    threads = Threads()
    async with fetch_bench(FakeBroker({"t": 6}), runtime=threads, fetch_buffer_bytes=1 << 20) as bench:
        wanted = Selection(None, frozenset({T0}))
        await full_for_a_caller(bench, wanted)
        await eventually(lambda: bench.fetcher._buffer.is_full, "a message is buffered")
        store_many(bench, T0)
        async with asyncio.timeout(5):
            while (batch := bench.fetcher.poll(wanted)) is None:
                await bench.fetcher.ready.wait(wanted)
        assert batch.topic_partition == T0
        assert len(threads.idents) == 2


async def test_the_last_caller_is_not_the_only_one_that_waits() -> None:
    """A program asks for two partitions by turns. The other one has no data."""
    async with fetch_bench(FakeBroker({"t": 6}), fetch_buffer_bytes=1 << 20) as bench:
        first, last = (Selection(None, frozenset({tp})) for tp in (T0, T1))
        store_many(bench, T2)
        bench.fetcher.assign(dict.fromkeys(SIX, 0))
        await eventually(lambda: bench.fetcher._buffer.is_full, "a message is buffered")
        store_many(bench, T0)

        def ask_both() -> bool:
            found = bench.fetcher.poll(first)
            assert bench.fetcher.poll(last) is None
            return found is not None

        await eventually(ask_both, "the first caller gets its message")
