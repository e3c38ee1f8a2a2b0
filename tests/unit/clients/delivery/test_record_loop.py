"""A loop takes the records of a batch by itself; what it has not taken can be taken back at any moment."""

from __future__ import annotations

import asyncio

import pytest

from kiel_groups.clients.delivery import record_loop as record_delivery
from kiel_groups.clients.delivery.record_loop import RecordLoop
from kiel_groups.group.partition_offsets import PendingReset
from kiel_groups.model import Record
from tests.helpers.delivery_bench import P0, P1, DeliveryBench, loop_over, open_gate
from tests.helpers.waiting import run_ready_tasks

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("steps")]


@pytest.fixture(autouse=True)
def portions_by_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no portion end early because the machine is busy."""
    monkeypatch.setattr(record_delivery, "LONGEST_AHEAD_S", 60.0)


async def offsets(loop: RecordLoop, count: int) -> list[int]:
    """Return the offsets of the next records."""
    return [(await anext(loop)).offset for _ in range(count)]


async def test_the_offsets_follow_each_record() -> None:
    """While a loop takes the records of a batch, each is finished as soon as the loop asks for the next one."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10, 11, 15, 16)
    loop = loop_over(bench)
    seen = []
    async for record in loop:
        assert bench.records.in_flight.record is record
        seen.append((bench.state().position, bench.state().finished))
        if len(seen) == 4:
            break
    assert seen == [(11, 10), (12, 11), (16, 12), (17, 16)], "offsets of a gap are not stored"


async def test_the_gate_is_asked_before_each_record() -> None:
    """A gate that shuts within a batch stops the loop before the next record. Nothing is lost."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, *range(10, 20))
    loop = loop_over(bench)
    assert await offsets(loop, 3) == [10, 11, 12]
    bench.gate.suspended = True
    waiting = asyncio.ensure_future(anext(loop))
    await run_ready_tasks()
    assert not waiting.done()
    assert bench.finished == {P0: 13}, "the loop has asked for the next record"
    assert bench.handler.in_progress() == []
    bench.gate.suspended = False
    async with asyncio.timeout(5):
        assert (await waiting).offset == 13


async def test_each_session_has_its_gate() -> None:
    """Records that a loop has of one session are delivered while the gate of that session is open, not by another."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, *range(10, 20))
    loop = loop_over(bench)
    assert await offsets(loop, 3) == [10, 11, 12]
    first, second = bench.gate, open_gate()
    first.shut("session over")
    bench.handler.lost([P0])
    bench.handler.gate_changed(second)
    bench.fetcher.add(P1, 10, 11, 12)
    assert await offsets(loop, 1) == [10]
    assert loop._is_open == second.is_open
    assert await offsets(loop, 1) == [11]
    second.suspended = True
    waiting = asyncio.ensure_future(anext(loop))
    await run_ready_tasks()
    assert not waiting.done()
    second.suspended = False
    async with asyncio.timeout(5):
        assert (await waiting).offset == 12


async def test_the_event_loop_runs_other_tasks_within_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """An application that never awaits anything else does not starve the event loop, however large the batches are."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, *range(10, 10_010))
    monkeypatch.setattr(record_delivery, "QUANTUM_S", 0.0001)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.ensure_future(other())
    assert await offsets(loop_over(bench), 10_000) == list(range(10, 10_010))
    assert turns > 2
    beside.cancel()


async def test_a_revocation_takes_back_the_rest_of_the_batch() -> None:
    """A drain waits for the record in flight only, and is over when the loop asks for the next record."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, *range(10, 20))
    loop = loop_over(bench)
    assert await offsets(loop, 3) == [10, 11, 12]
    assert bench.handler.stop([P0]) == {P0}
    draining = asyncio.ensure_future(bench.handler.drained([P0]))
    await run_ready_tasks()
    assert not draining.done()
    assert bench.finished == {P0: 12}
    bench.fetcher.add(P1, 10)
    assert [(await anext(loop)).topic_partition] == [P1]
    await run_ready_tasks()
    assert draining.done()
    assert bench.finished == {P0: 13}


async def test_a_loss_takes_back_the_rest_and_counts_nothing_more() -> None:
    """The record in flight of a lost partition is not finished by the next request."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, *range(10, 20))
    loop = loop_over(bench)
    assert await offsets(loop, 3) == [10, 11, 12]
    bench.handler.lost([P0])
    bench.fetcher.add(P1, 10)
    assert [(await anext(loop)).topic_partition] == [P1]
    assert bench.finished == {P0: 12}


async def test_a_seek_takes_back_the_rest() -> None:
    """After a seek within a batch, the next record is that of the new position; the one in flight does not count."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, *range(10, 20))
    loop = loop_over(bench)
    assert await offsets(loop, 3) == [10, 11, 12]
    bench.subscription.seek(P0, 30)
    bench.owned.resume_at(P0, 30)
    assert (bench.state().position, bench.state().finished) == (30, 30)
    bench.fetcher.add(P0, 30)
    assert await offsets(loop, 1) == [30]
    assert bench.state().finished == 30


async def test_a_pause_puts_the_rest_back() -> None:
    """A pause within a batch puts back exactly the records that the loop did not get."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, *range(10, 20))
    loop = loop_over(bench)
    assert await offsets(loop, 3) == [10, 11, 12]
    bench.owned.pause([P0])
    assert bench.state().position == 13
    bench.fetcher.add(P1, 10)
    assert [(await anext(loop)).topic_partition] == [P1]
    assert bench.finished == {P0: 13}
    bench.owned.resume([P0])
    assert await offsets(loop, 2) == [13, 14]


async def test_a_truncated_log_takes_back_what_it_lacks() -> None:
    """A loop gets the buffered records before the end of a truncated log, and no others."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, *range(10, 20))
    loop = loop_over(bench)
    assert await offsets(loop, 3) == [10, 11, 12]
    bench.subscription.offsets.choose_reset(P0, PendingReset(20, 0, 15, 15))
    bench.fetcher.truncate = lambda *_: 0  # type: ignore[attr-defined]
    assert bench.owned.truncate(P0, 15) == 5
    bench.fetcher.add(P1, 10)
    assert await offsets(loop, 3) == [13, 14, 10]
    assert bench.finished == {P0: 15}


async def test_a_record_after_the_end_of_a_truncated_log_is_not_counted() -> None:
    """If the log was truncated before the record in flight, that record is never counted as finished."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, *range(10, 20))
    loop = loop_over(bench)
    assert await offsets(loop, 3) == [10, 11, 12]
    bench.fetcher.truncate = lambda *_: 0  # type: ignore[attr-defined]
    assert bench.owned.truncate(P0, 12) == 7
    bench.fetcher.add(P1, 10)
    assert await offsets(loop, 1) == [10]
    assert bench.state().finished == 12


async def test_a_commit_within_a_batch_counts_the_record_in_flight_only_once() -> None:
    """A record that was counted, and then put back, is delivered again; the finished offset does not go back."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, *range(10, 20))
    loop = loop_over(bench)
    assert await offsets(loop, 3) == [10, 11, 12]
    bench.records.in_flight.count()
    assert bench.finished == {P0: 13}
    loop.end_loop(finished=False)
    assert (bench.state().position, bench.state().finished) == (12, 13)
    again = loop_over(bench)
    assert await offsets(again, 1) == [12]
    assert (bench.state().position, bench.state().finished) == (13, 13)
    assert await offsets(again, 2) == [13, 14]
    assert bench.finished == {P0: 14}


async def test_a_loop_that_has_ended_takes_nothing() -> None:
    """An iterator that outlives its loop gets no records of the batch, which belong to the next loop."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, *range(10, 20))
    loop = loop_over(bench)
    assert await offsets(loop, 2) == [10, 11]
    loop.end_loop(finished=True)
    assert list(loop._cursor) == []
    assert await offsets(loop_over(bench), 1) == [12]


def small(value: bytes) -> int:
    """Deserialize a number; raise an error for the largest ones."""
    if int(value) > 10_000:
        raise ValueError(value)
    return int(value)


async def test_a_deserializer_runs_a_little_ahead() -> None:
    """
    Records are deserialized in small portions, so that a seek or a revocation voids little work, and each record once.
    """
    called: list[int] = []
    bench = DeliveryBench(lambda value: called.append(int(value)) or int(value))
    bench.fetcher.add(P0, *range(10, 1_010))
    loop = loop_over(bench)
    assert await anext(loop) == Record("t", 0, 10, None, 10)
    assert called == list(range(10, 10 + record_delivery.MOST_AHEAD))
    assert await offsets(loop, 999) == list(range(11, 1_010))
    assert called == list(range(10, 1_010))
    assert bench.metrics.counter("records_handed_out") == 1_000


async def test_a_slow_deserializer_runs_ahead_for_a_short_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow deserializer gets one record at a time, so that it does not delay the tasks of the event loop."""
    called: list[int] = []
    bench = DeliveryBench(lambda value: called.append(int(value)) or int(value))
    bench.fetcher.add(P0, *range(10, 60))
    monkeypatch.setattr(record_delivery, "LONGEST_AHEAD_S", 0.0)
    loop = loop_over(bench)
    assert await offsets(loop, 2) == [10, 11]
    assert called == [10, 11]
    assert (bench.state().position, bench.state().finished) == (12, 11)
    assert await offsets(loop, 48) == list(range(12, 60))
    assert bench.metrics.counter("records_handed_out") == 50, "each record once"


async def test_skipped_records_are_finished_with_the_record_before_them() -> None:
    """What the deserializer skips ahead is finished only when the record before it is."""
    bench = DeliveryBench(small)
    bench.fetcher.add(P0, 99_998, 99_999, 100_000)
    bench.fetcher.add(P1, 10, 11, 20_000, 20_001, 20_002)
    loop = loop_over(bench)
    waiting = asyncio.ensure_future(anext(loop))
    await run_ready_tasks()
    assert (await waiting).offset == 10
    assert bench.state(P0).finished == 100_001
    assert bench.state(P1).finished == 10
    assert (await anext(loop)).offset == 11
    assert (bench.state(P1).position, bench.state(P1).finished) == (20_003, 11)
    bench.records.finish()
    assert bench.state(P1).finished == 20_003


async def test_a_pause_between_skipped_records_puts_the_rest_back() -> None:
    """Skipped records before the rest count as delivered, so that they are counted and logged once."""
    bench = DeliveryBench(lambda value: small(value) if int(value) % 2 else small(b"99999"))
    bench.fetcher.add(P0, *range(10, 20))
    loop = loop_over(bench)
    assert await offsets(loop, 2) == [11, 13]
    assert bench.state().finished == 13, "12 is skipped, and 11 is finished"
    bench.owned.pause([P0])
    assert bench.state().position == 15
    assert bench.metrics.counter("deserializer_failures") == 5
    bench.owned.resume([P0])
    assert await offsets(loop, 1) == [15]
    assert bench.metrics.counter("deserializer_failures") == 7


async def test_a_deserializer_that_seeks_ends_its_portion() -> None:
    """A seek within the deserializer drops the records that were deserialized before it."""
    bench = DeliveryBench(lambda value: seek() if value == b"12" else int(value))

    def seek() -> None:
        bench.subscription.seek(P0, 30)
        bench.owned.resume_at(P0, 30)
        bench.fetcher.add(P0, 30)

    bench.fetcher.add(P0, *range(10, 20))
    loop = loop_over(bench)
    assert await offsets(loop, 1) == [30]
    assert (bench.state().position, bench.state().finished) == (31, 30)
