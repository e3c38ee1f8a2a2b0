"""The fetcher with a scripted broker: bulk requests and polls, the buffer's budget, and answers read run by run."""

from __future__ import annotations

import asyncio
import struct

import pytest

from kiel_groups.clients.fetch import fetcher
from kiel_groups.clients.fetch.fetch_requests import Selection
from kiel_groups.wire.message_sets import decoder
from kiel_groups.wire.message_sets.decoder import RUN_BYTES
from tests.helpers.fake_broker import FETCH, FakeBroker, Request, message_set
from tests.helpers.fetch_bench import T0, T1, T2, FetchBench, fetch_bench, run_of, values
from tests.helpers.reference_codec import encode, wrapper
from tests.helpers.waiting import eventually, run_ready_tasks, throughout

pytestmark = pytest.mark.unit

#: Without the compiled decoder, the whole answer is decoded in one step, into runs of another size.
COMPILED = pytest.mark.skipif(not decoder.COMPILED, reason="the package was installed without a C compiler")

LARGE = b"L" * 100_000


def waits_ms(bench: FetchBench) -> list[int]:
    """Return how long the broker was allowed to wait at each fetch."""
    return [struct.unpack_from(">i", request.body, 4)[0] for request in bench.broker.received(FETCH)]


async def test_a_backlog_is_read_without_waiting_and_then_polled() -> None:
    """The broker waits only for the partition that has caught up; another backlog is read in the same way."""
    async with fetch_bench(max_wait_ms=30_000, max_bytes=250_000) as bench:
        bench.broker.append(T0, message_set(*[LARGE] * 6))
        bench.fetcher.assign({T0: 0})
        for first in (0, 6):
            offsets: list[int] = []
            while len(offsets) < 6:
                offsets += [record.offset for record in (await bench.next_batch()).records]
            assert offsets == list(range(first, first + 6))
            await bench.broker.wait_for_requests(FETCH, bench.broker.count(FETCH))
            await eventually(lambda: waits_ms(bench)[-1] == 30_000, "it is polled")
            assert waits_ms(bench).count(30_000) == (1 if not first else 2)
            bench.broker.append(T0, message_set(*[LARGE] * 6))


async def test_an_empty_answer_below_the_high_watermark_is_not_repeated_at_once() -> None:
    """A broker reads its log before its high watermark. The next request waits there."""

    async with fetch_bench(max_wait_ms=30_000) as bench:
        log = bench.broker.logs[T0]
        bench.broker.append(T0, message_set(b"0", b"1"))
        whole, log.read = log.read, lambda offset, max_bytes: b""  # type: ignore[method-assign]
        bench.fetcher.assign({T0: 0})
        await bench.broker.wait_for_requests(FETCH, 2)
        await throughout(lambda: waits_ms(bench) == [0, 30_000], "one poll waits", 0.05)
        log.read = whole  # type: ignore[method-assign]
        bench.broker.append(T1, message_set(b"wakes the broker"))
        assert values(await bench.next_batch()) == [b"0", b"1"]


async def test_polls_of_dropped_partitions_hold_up_no_others() -> None:
    """Their connections are closed, since the broker would not look at another request on them."""
    async with fetch_bench(max_wait_ms=30_000) as bench:
        for number in range(6):
            bench.fetcher.assign({T0: 0, T1: 0})
            await bench.broker.wait_for_requests(FETCH, 2 * number + 2)
            assert waits_ms(bench)[-1] == 30_000
            bench.fetcher.unassign([T0, T1])
        assert bench.metrics.total("connections_opened") == 2 + 6, "one for metadata, one for bulk requests"


async def test_a_poll_with_a_live_partition_is_not_closed() -> None:
    """The answer brings that partition's records."""
    async with fetch_bench(max_wait_ms=30_000) as bench:
        bench.fetcher.assign({T0: 0, T1: 0})
        await bench.broker.wait_for_requests(FETCH, 2)
        bench.fetcher.unassign([T0])
        bench.broker.append(T1, message_set(b"here"))
        assert values(await bench.next_batch()) == [b"here"]
        assert len({request.connection for request in bench.broker.received(FETCH)[:2]}) == 2
        assert bench.metrics.total("connections_opened") == 3, "metadata, bulk, poll"


# ---------------------------------------------------------------------- the budget


async def test_the_buffer_keeps_to_its_bound_and_reads_on_when_there_is_room() -> None:
    """What is in flight counts, too; what was reserved for it is given back."""
    async with fetch_bench(max_bytes=250_000, fetch_buffer_bytes=1_000_000) as bench:
        buffer, peak = bench.fetcher._buffer, 0
        for tp in (T0, T1, T2):
            bench.broker.append(tp, message_set(*[LARGE] * 30))
        bench.fetcher.assign({T0: 0, T1: 0, T2: 0})
        for _ in range(90):
            await bench.fetcher.ready.wait()
            for _ in range(20):
                await run_ready_tasks()
                peak = max(peak, buffer._bytes + buffer._reserved_bytes)
            await bench.next_batch()
            if bench.lag(T0) == bench.lag(T1) == bench.lag(T2) == 0:
                break
        assert 300_000 < peak <= 1_000_000 + 2 * len(LARGE)
        await eventually(lambda: buffer._reserved_bytes == 0, "nothing is in flight")
        assert buffer._bytes == 0


async def test_a_partition_that_a_caller_waits_for_is_fetched_into_a_full_buffer() -> None:
    """Others fill it, and their batches are not asked for."""
    async with fetch_bench(max_bytes=250_000, fetch_buffer_bytes=1_000_000) as bench:
        for tp in (T0, T1):
            bench.broker.append(tp, message_set(*[LARGE] * 12))
        bench.fetcher.assign({T0: 0, T1: 0})
        mine = Selection(partitions=frozenset({T1}))
        offsets: list[int] = []
        async with asyncio.timeout(5):
            bench.fetcher._buffer.reserve(900_000)
            while len(offsets) < 12:
                batch = bench.fetcher.poll(mine)
                if batch is None:
                    await bench.fetcher.ready.wait(mine)
                else:
                    offsets += [record.offset for record in batch.records]
        assert offsets == list(range(12))


@pytest.mark.parametrize("is_sought", [False, True])
async def test_callers_wait_for_partitions_that_come_later_while_another_one_polls(is_sought: bool) -> None:
    """
    The buffer is full. Two callers ask once, and wait: their partitions cannot be asked for yet, since their fetches
    fail. A third caller finds batches meanwhile, which does not end the wait of the others.
    """
    async with fetch_bench(max_bytes=250_000, fetch_buffer_bytes=1_000_000) as bench:
        for tp in (T0, T1, T2):
            bench.broker.append(tp, message_set(*[LARGE] * 12))
        bench.fetcher.assign({T0: 0, T1: 0, T2: 0})
        waiting, polling = [Selection(partitions=frozenset({tp})) for tp in (T0, T1)], Selection("t", frozenset({T2}))
        await eventually(lambda: all(map(bench.fetcher.is_buffering, (T0, T1, T2))), "each has a batch")
        for tp in (T0, T1):
            bench.broker.fail_next(FETCH, tp, *[5] * 1_000)
        bench.fetcher._buffer.reserve(1_000_000)
        for selection in waiting:
            while bench.fetcher.poll(selection) is not None:
                await run_ready_tasks()
        callers = [asyncio.create_task(bench.fetcher.ready.wait(selection)) for selection in waiting]
        await eventually(lambda: bench.metrics.counter("fetch_retries") > 4, "their fetches fail")
        assert not any(caller.done() for caller in callers)
        assert bench.fetcher.poll(polling) is not None
        if is_sought:
            bench.fetcher.assign({T0: 0, T1: 0})
        bench.broker.errors.clear()
        async with asyncio.timeout(5):
            await asyncio.gather(*callers)
        assert all(bench.fetcher.poll(selection) is not None for selection in waiting)


async def test_bytes_are_counted_without_compression() -> None:
    """What does not fit is fetched again, and the next request asks for less."""
    async with fetch_bench(max_bytes=1 << 20, fetch_buffer_bytes=300_000) as bench:
        entries = [(n, wrapper(encode([(n, None, LARGE)]), n)) for n in range(40)]
        log = bench.broker.logs[T0]
        log.entries, log.end = entries, len(entries)
        bench.fetcher.assign({T0: 0})
        await bench.fetcher.ready.wait()
        peak = 0
        offsets: list[int] = []
        while len(offsets) < 40:
            await bench.fetcher.ready.wait()
            peak = max(peak, bench.fetcher._buffer._bytes)
            offsets += [record.offset for record in (await bench.next_batch()).records]
        assert offsets == list(range(40))
        assert peak <= 300_000 + RUN_BYTES


# ---------------------------------------------------------------------- answers, run by run


@pytest.fixture
def _pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return to the event loop after each run, which has four messages."""
    monkeypatch.setattr(fetcher, "_QUANTUM_S", 0.0)
    monkeypatch.setattr(decoder, "_ENOUGH_MESSAGES", 4)


@COMPILED
@pytest.mark.usefixtures("_pauses")
async def test_a_partition_may_be_dropped_while_its_answer_is_read() -> None:
    """Nothing more of it is buffered."""
    async with fetch_bench(max_bytes=2 << 20) as bench:
        bench.broker.append(T0, message_set(*[LARGE] * 15))
        bench.fetcher.assign({T0: 0})
        await bench.fetcher.ready.wait()
        assert bench.fetcher._partitions[T0].position == 4, "one run was read"
        bench.fetcher.unassign([T0])
        for _ in range(10):
            await run_ready_tasks()
        assert bench.fetcher._buffer._bytes == 0
        assert bench.metrics.counter("records_fetched") == 4


@COMPILED
@pytest.mark.usefixtures("_pauses")
async def test_a_run_is_delivered_while_the_rest_of_the_answer_is_read() -> None:
    """In order, and each once. The records of a run are made when it is delivered."""
    async with fetch_bench(max_bytes=2 << 20) as bench:
        bench.broker.append(T0, message_set(*[LARGE] * 15))
        bench.fetcher.assign({T0: 0})
        await bench.fetcher.ready.wait()
        batch = bench.fetcher.poll()
        assert batch is not None
        run = run_of(batch)
        assert run is not None
        assert (batch.first_offset, batch.last_offset, len(batch)) == (0, 3, 4)
        offsets = [record.offset for record in batch.records]
        assert run is not run_of(batch), "they were made"
        while len(offsets) < 15:
            offsets += [record.offset for record in (await bench.next_batch()).records]
        assert offsets == list(range(15))


async def test_a_full_fast_answer_makes_the_next_bite_larger() -> None:
    """Up to four times of ``max_bytes``."""
    shares: list[int] = []

    def script(request: Request) -> None:
        if request.api_key == FETCH:
            shares.append(struct.unpack_from(">i", request.body, len(request.body) - 4)[0])

    async with fetch_bench(FakeBroker({"t": 3}, script=script), max_bytes=150_000) as bench:
        bench.broker.append(T0, message_set(*[LARGE] * 40))
        bench.fetcher.assign({T0: 0})
        offsets: list[int] = []
        while len(offsets) < 40:
            offsets += [record.offset for record in (await bench.next_batch()).records]
        assert shares[0] == 150_000
        assert max(shares) == 600_000
