"""Pauses of partitions, parts of batches, and callers that wait for some partitions."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiel_groups.clients.fetch.fetch_requests import Selection
from kiel_groups.clients.fetch.partition_fetch import FetchedBatch, PartitionFetch, Phase
from kiel_groups.model import Record
from tests.helpers.fake_broker import FETCH, message_set
from tests.helpers.fetch_bench import T0, T1, T2, fetch_bench, values
from tests.helpers.waiting import eventually, run_ready_tasks, throughout

pytestmark = pytest.mark.unit


def offsets(batch: FetchedBatch | None) -> list[int]:
    return [] if batch is None else [record.offset for record in batch.records]


async def test_a_paused_partition_keeps_its_batches_and_is_not_fetched() -> None:
    """Its buffered batches wait for ``resume``, others are delivered, and no request names the partition."""
    async with fetch_bench(max_wait_ms=20) as bench:
        bench.broker.append(T0, message_set(b"a"))
        bench.fetcher.assign({T0: 0, T1: 0})
        await eventually(lambda: bench.fetcher.is_buffering(T0), "a batch is buffered")
        assert bench.fetcher.pause([T0]) == []
        bench.broker.append(T0, message_set(b"b"))
        bench.broker.append(T1, message_set(b"other"))
        assert values(await bench.next_batch()) == [b"other"]
        await eventually(lambda: bench.fetcher._partitions[T0].phase is Phase.PARKED, "no request is in flight")
        await bench.broker.wait_for_requests(FETCH, bench.broker.count(FETCH) + 3)
        assert bench.fetcher._partitions[T0].phase is Phase.PARKED
        assert bench.fetcher.poll() is None
        bench.fetcher.resume([T0])
        assert values(await bench.next_batch()) == [b"a"]
        assert values(await bench.next_batch()) == [b"b"]


async def test_a_partition_that_is_assigned_as_paused_waits_for_resume() -> None:
    """A seek of a paused partition does not end its pause."""
    async with fetch_bench() as bench:
        bench.broker.append(T0, message_set(b"a"))
        bench.fetcher.assign({T0: 0}, paused=[T0])
        await throughout(lambda: bench.broker.count(FETCH) == 0, "nothing is fetched", 0.05)
        bench.fetcher.resume([T0])
        assert values(await bench.next_batch()) == [b"a"]


async def test_paused_partitions_leave_room_for_others() -> None:
    """Beyond half of the buffer, a pause reports the partitions whose batches must be dropped."""
    async with fetch_bench(fetch_buffer_bytes=16 * 4_096) as bench:
        bench.broker.append(T0, message_set(b"a"))
        bench.broker.append(T1, message_set(b"b"))
        bench.fetcher.assign({T0: 0, T1: 0})
        await eventually(lambda: bench.fetcher.is_buffering(T0) and bench.fetcher.is_buffering(T1), "both are buffered")
        assert bench.fetcher.pause([T0]) == []
        buffer = bench.fetcher._buffer
        buffer._paused_bytes += 8 * 4_096
        assert bench.fetcher.pause([T1]) == [T1]
        bench.fetcher.assign({T1: 0, T2: 0}, paused=[T1])
        bench.broker.append(T2, message_set(b"c"))
        assert values(await bench.next_batch()) == [b"c"]
        buffer._paused_bytes -= 8 * 4_096
        bench.fetcher.resume([T0, T1])
        assert sorted([values(await bench.next_batch()), values(await bench.next_batch())]) == [[b"a"], [b"b"]]
        assert buffer._paused_bytes == 0
        assert buffer._bytes == 0


async def test_a_late_answer_of_a_paused_partition_is_kept_or_fetched_again() -> None:
    """An answer that arrives during the pause stays buffered; beyond the bound, it is fetched again after the pause."""
    for is_full in (False, True):
        async with fetch_bench(max_wait_ms=300) as bench:
            bench.fetcher.assign({T0: 0})
            await bench.broker.wait_for_requests(FETCH, 2)
            bench.fetcher.pause([T0])
            bench.fetcher._buffer._paused_bytes += is_full * (32 << 20)
            bench.broker.append(T0, message_set(b"a"))
            await eventually(lambda: bench.fetcher._partitions[T0].phase is Phase.PARKED, "it is answered")
            assert bench.fetcher.is_buffering(T0) is not is_full
            bench.fetcher._buffer._paused_bytes -= is_full * (32 << 20)
            assert bench.fetcher.poll() is None
            bench.fetcher.resume([T0])
            assert offsets(await bench.next_batch()) == [0]


async def test_a_batch_is_delivered_in_parts() -> None:
    """A poll with ``most_records`` leaves the others; the lag counts them."""
    async with fetch_bench() as bench:
        bench.broker.append(T0, message_set(*[b"x"] * 5))
        bench.fetcher.assign({T0: 0})
        await bench.fetcher.ready.wait()
        assert offsets(bench.fetcher.poll(most_records=2)) == [0, 1]
        assert (bench.fetcher.position(T0), bench.lag(T0)) == (2, 3)
        assert offsets(bench.fetcher.poll(most_records=2)) == [2, 3]
        assert bench.fetcher.truncate(T0, 4) == 1
        assert bench.fetcher.poll() is None
        assert bench.fetcher._buffer._bytes == 0


async def test_a_caller_waits_for_its_partitions() -> None:
    """Batches of other partitions do not wake it, and a poll of another caller does not make it miss its own."""
    async with fetch_bench() as bench:
        mine = Selection(partitions=frozenset({T1}))
        bench.broker.append(T0, message_set(b"other"))
        bench.fetcher.assign({T0: 0, T1: 0})
        await bench.fetcher.ready.wait()
        assert bench.fetcher.poll(mine) is None
        waiting = asyncio.ensure_future(bench.fetcher.ready.wait(mine))
        await run_ready_tasks()
        assert not waiting.done()
        bench.broker.append(T1, message_set(b"mine"))
        await eventually(lambda: bench.fetcher.is_buffering(T1), "it is buffered")
        assert bench.fetcher.poll(Selection(partitions=frozenset({T2}))) is None
        async with asyncio.timeout(5):
            await waiting
            await bench.fetcher.ready.wait(mine)
        assert values(bench.fetcher.poll(mine)) == [b"mine"]  # type: ignore[arg-type]
        excluded = Selection(excluded=frozenset({T0}))
        assert bench.fetcher.poll(excluded) is None
        async with asyncio.timeout(5):
            await bench.fetcher.ready.wait()
        assert values(bench.fetcher.poll()) == [b"other"]  # type: ignore[arg-type]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 5)),
        st.tuples(st.just("take"), st.none() | st.integers(1, 4)),
        st.tuples(st.just("put_back"), st.integers(0, 4)),
        st.tuples(st.just("truncate"), st.integers(0, 12)),
    ),
    max_size=30,
)


@settings(deadline=None)
@given(STEPS)
def test_parts_of_batches_are_delivered_in_order(steps: list[tuple[str, int | None]]) -> None:
    """Whatever is taken, put back and truncated, the records come in order, once, and each batch is counted once."""
    state, end = PartitionFetch(T0, 1, 0), 0
    waiting: list[int] = []
    last: FetchedBatch | None = None
    for step, number in steps:
        if step == "add":
            assert number is not None
            records = [Record("t", 0, offset, None, b"") for offset in range(end, end + number)]
            state.buffered.append(FetchedBatch(T0, records, 1, 10))
            waiting += range(end, end + number)
            end += number
        elif step == "take" and state.buffered:
            taken = state.take(number)
            assert isinstance(taken, FetchedBatch)
            assert offsets(taken) == waiting[: len(taken.records)]
            assert number is None or len(taken.records) <= number
            del waiting[: len(taken.records)]
            last = taken if not state.taken else None
        elif step == "put_back" and last is not None and not state.taken:
            assert number is not None
            delivered = min(number, len(last.records) - 1)
            state.put_back(last, delivered)
            waiting[:0] = offsets(last)[delivered:]
            last = None
        elif step == "truncate":
            assert number is not None
            gone, _ = state.truncate(number)
            kept = [offset for offset in waiting if offset < number]
            assert gone == len(waiting) - len(kept)
            waiting, last = kept, None
        if waiting:
            assert state.next_offset == waiting[0]
        assert bool(state.buffered) == bool(waiting)
