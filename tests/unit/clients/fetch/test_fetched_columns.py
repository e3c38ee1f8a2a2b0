"""Batches as columns: no record is made for them, in whole or in part."""

from __future__ import annotations

import pytest

from kiel_groups.clients.fetch.partition_fetch import FetchedBatch
from tests.helpers.fake_broker import message_set
from tests.helpers.fetch_bench import T0, FetchBench, fetch_bench, run_of, values
from tests.helpers.message_sets import WAYS, reading
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.unit

LETTERS = [b"a", b"b", b"c", b"d", b"e"]


async def buffered(bench: FetchBench) -> None:
    """Have five records of one run buffered."""
    bench.broker.append(T0, message_set(*LETTERS))
    bench.fetcher.assign({T0: 0})
    await eventually(lambda: bench.fetcher.is_buffering(T0), "records are buffered")


def poll(bench: FetchBench, most: int | None = None) -> FetchedBatch:
    """Poll the next batch."""
    found = bench.fetcher.poll(most_records=most)
    assert found is not None
    return found


def columns(batch: FetchedBatch) -> list[bytes]:
    """Return the values of a batch, read from its columns."""
    return [bytes(value) for value in batch.columns(None).values if value is not None]


async def test_parts_of_a_run_are_columns_of_one_decoding() -> None:
    """Their positions and the lag are known without records, too."""
    async with fetch_bench() as bench:
        await buffered(bench)
        first = poll(bench, 2)
        assert (columns(first), first.first_offset, first.last_offset, len(first)) == ([b"a", b"b"], 0, 1, 2)
        assert (bench.fetcher.position(T0), bench.lag(T0)) == (2, 3)
        second, rest = poll(bench, 1), poll(bench)
        assert (columns(second), columns(rest)) == ([b"c"], [b"d", b"e"])
        assert first.columns(1).columns is second.columns(2).columns is rest.columns(3).columns
        assert None not in (run_of(first), run_of(rest)), "no record was made"
        assert bench.fetcher._buffer._bytes == 0


@pytest.mark.parametrize("way", WAYS)
async def test_a_run_is_delivered_as_columns_and_as_records_by_turns(way: str) -> None:
    """Each record once, in order."""
    with reading(way):
        async with fetch_bench() as bench:
            await buffered(bench)
            assert columns(poll(bench, 1)) == [b"a"]
            assert values(poll(bench, 2)) == [b"b", b"c"]
            assert columns(poll(bench, 1)) == [b"d"]
            assert values(poll(bench)) == [b"e"]


async def test_columns_that_are_put_back_come_again() -> None:
    """Also a part of a run, and a part of a part."""
    async with fetch_bench() as bench:
        await buffered(bench)
        batch = poll(bench, 3)
        bench.fetcher.put_back(batch, 1)
        assert columns(poll(bench, 1)) == [b"b"]
        rest = poll(bench)
        assert columns(rest) == [b"c", b"d", b"e"]
        bench.fetcher.put_back(rest, 1)
        assert bench.fetcher.position(T0) == 3
        assert columns(poll(bench)) == [b"d", b"e"]


@pytest.mark.parametrize(
    ("taken", "end", "left"), [(0, 3, 3), (2, 3, 1), (2, 9, 3), (2, 2, 0), (0, 0, 0), (2, 1, 0)], ids=str
)
async def test_a_truncated_run_remains_a_run(taken: int, end: int, left: int) -> None:
    """The offsets in it are found without making records. What is taken already does not count as dropped."""
    async with fetch_bench() as bench:
        await buffered(bench)
        if taken:
            poll(bench, taken)
        assert bench.fetcher.truncate(T0, end) == 5 - taken - left
        assert bench.fetcher.is_buffering(T0) == bool(left)
        if left:
            rest = poll(bench)
            assert run_of(rest) is not None
            assert columns(rest) == LETTERS[taken : taken + left]
        assert bench.fetcher._buffer._bytes == 0


async def test_a_part_that_is_put_back_is_truncated_by_its_own_offsets() -> None:
    """Offsets are counted from the part, not from the run that it is a part of."""
    async with fetch_bench() as bench:
        await buffered(bench)
        poll(bench, 2)
        rest = poll(bench)
        bench.fetcher.put_back(rest, 0)
        assert bench.fetcher.truncate(T0, 4) == 1
        assert columns(poll(bench)) == [b"c", b"d"]
