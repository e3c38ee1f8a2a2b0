"""The hook for bad records, and damage, which is skipped as by a hook."""

from __future__ import annotations

import asyncio
import logging

import pytest

from kiel_groups.backoff import Backoff
from kiel_groups.clients.delivery import owned_records as bad_records
from kiel_groups.errors import DamagedRecordError, RecordDeserializationError
from kiel_groups.model import Record
from tests.helpers.delivery_bench import P0, P1, DeliveryBench, received_call, take_values
from tests.helpers.poison import Hook, damage, end_pause, poison, take_offsets
from tests.helpers.waiting import run_ready_tasks

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses do not end by themselves in these tests."""
    monkeypatch.setattr(bad_records, "_PAUSES", Backoff(3_600.0, 3_600.0))


async def running_hook() -> tuple[Hook, DeliveryBench]:
    """Return a hook that runs for the record at offset 10 of partition 0, until ``may_return`` is set."""
    hook = Hook()
    hook.may_return.clear()
    bench = DeliveryBench(poison(10), hook)
    bench.fetcher.add(P0, 10)
    assert bench.take() is None
    await run_ready_tasks()
    return hook, bench


async def test_a_hook_gets_the_record_and_the_next_one_follows() -> None:
    """While the hook runs, the record is in flight: other partitions continue, a release and the watchdog see it."""
    hook = Hook()
    hook.may_return.clear()
    bench = DeliveryBench(poison(11), hook)
    bench.fetcher.add(P0, 10, 11, 12)
    bench.fetcher.add(P1, 10)
    assert bench.take() == 10
    assert bench.take() == 10, "of the other partition"
    await run_ready_tasks()
    ((record, error),) = hook.called
    assert record == Record("t", 0, 11, None, b"11")
    assert isinstance(error, RecordDeserializationError)
    assert error.offset == 11
    assert bench.take() is None
    assert bench.finished == {P0: 11, P1: 11}
    assert [work.partitions for work in bench.handler.in_progress()] == [{P0}]
    assert bench.owned.in_flight.in_flight_of([P0, P1]) == {P0}
    hook.may_return.set()
    await run_ready_tasks()
    assert bench.finished == {P0: 12, P1: 11}
    assert bench.take() == 12
    assert bench.state().position == 13
    assert bench.metrics.counter("bad_records_passed") == 1
    assert bench.handler.in_progress()[0].partitions == {P0}, "the record of the loop"


async def test_a_release_waits_for_a_hook_and_stores_its_record() -> None:
    """The next owner does not get the record again."""
    hook, bench = await running_hook()
    assert bench.handler.stop([P0]) == {P0}
    draining = asyncio.ensure_future(bench.handler.drained([P0]))
    await run_ready_tasks()
    assert not draining.done()
    hook.may_return.set()
    await asyncio.wait_for(draining, 5)
    assert bench.finished == {P0: 11}
    assert bench.fetcher.positions == {}, "it is not fetched again"


async def test_a_record_whose_hook_raises_stays() -> None:
    """The error is raised, caused by that of the hook; after the pause, the hook is called again."""
    hook = Hook(RuntimeError("no dead-letter topic"), None)
    bench = DeliveryBench(poison(10), hook)
    bench.fetcher.add(P0, 10, 11)
    assert bench.take() is None
    await run_ready_tasks()
    with pytest.raises(RecordDeserializationError, match="on_bad_record failed: RuntimeError") as got:
        bench.take()
    assert isinstance(got.value.__cause__, RuntimeError)
    assert isinstance(got.value.__cause__.__context__, ValueError)
    assert bench.finished == {}
    assert bench.metrics.counter("bad_record_hooks_failed") == 1
    assert bench.take() is None
    assert len(hook.called) == 1, "not before the pause has ended"
    end_pause(bench)
    assert bench.take() is None
    await run_ready_tasks()
    assert len(hook.called) == 2
    assert bench.finished == {P0: 11}
    assert bench.take() == 11


async def test_a_hook_that_ends_in_a_cancellation_of_something_else_has_failed() -> None:
    """Such as a send of a producer that was closed. The error is raised, and the hook is called after a pause."""
    hook = Hook(asyncio.CancelledError())
    bench = DeliveryBench(poison(10), hook)
    bench.fetcher.add(P0, 10, 11)
    assert bench.take() is None
    await run_ready_tasks()
    with pytest.raises(RecordDeserializationError, match="on_bad_record failed: CancelledError"):
        bench.take()
    assert bench.metrics.counter("bad_record_hooks_failed") == 1
    assert bench.take() is None
    await run_ready_tasks()
    assert len(hook.called) == 1, "not before the pause has ended"


async def test_a_hook_waits_for_what_is_in_flight_before_its_record() -> None:
    """Otherwise a commit would get past records that another coroutine still processes."""
    hook = Hook()
    bench = DeliveryBench(poison(11), hook)
    bench.fetcher.add(P0, 10, 11, 12)
    first, second = received_call(), received_call()
    assert take_offsets(bench, None, first) == {P0: [10]}
    assert take_offsets(bench, None, second) == {}
    await run_ready_tasks()
    assert hook.called == []
    bench.values.finish([None], {first})
    await run_ready_tasks()
    assert len(hook.called) == 1
    assert bench.finished == {P0: 12}
    assert take_offsets(bench, None, second) == {P0: [12]}


@pytest.mark.parametrize("event", ["seek", "loss", "offset"])
async def test_a_hook_does_not_count_after_a_seek_or_a_loss(event: str) -> None:
    """When it returns, neither the position nor what is finished changes."""
    hook, bench = await running_hook()
    state = bench.state()
    if event == "seek":
        bench.subscription.seek(P0, 5)
        bench.owned.resume_at(P0, 5)
    elif event == "loss":
        bench.handler.lost([P0])
    else:
        bench.handler.offset_changed(P0, 5)
    before = (state.position, state.finished)
    hook.may_return.set()
    await run_ready_tasks()
    assert (state.position, state.finished) == before
    assert bench.owned.in_flight.bad == {}


async def test_one_hook_runs_at_a_time_for_a_partition() -> None:
    """If the record is reached again while its hook runs, as after a seek, the next call waits for the first."""
    hook, bench = await running_hook()
    bench.subscription.seek(P0, 10)
    bench.owned.resume_at(P0, 10)
    bench.fetcher.add(P0, 10)
    assert bench.take() is None
    await run_ready_tasks()
    assert len(hook.called) == 1
    hook.may_return.set()
    await run_ready_tasks()
    assert bench.finished == {}
    assert bench.take() is None
    await run_ready_tasks()
    assert len(hook.called) == 2
    assert bench.finished == {P0: 11}


async def test_a_hook_that_is_no_coroutine_function() -> None:
    """A plain function is called on the loop."""
    called: list[int] = []
    bench = DeliveryBench(poison(10), lambda record, _: called.append(record.offset))
    bench.fetcher.add(P0, 10, 11)
    assert bench.take() is None
    await run_ready_tasks()
    assert (called, bench.finished, bench.take()) == ([10], {P0: 11}, 11)


async def test_no_hook_starts_while_the_gate_is_shut() -> None:
    """A member without a lease gives no record to the application, not even a bad one."""
    hook = Hook()
    bench = DeliveryBench(poison(11), hook)
    bench.fetcher.add(P0, 10, 11)
    call = received_call()
    assert take_offsets(bench, None, call) == {P0: [10]}
    assert take_offsets(bench) == {}
    bench.gate.suspended = True
    bench.values.finish([None], {call})
    await run_ready_tasks()
    assert hook.called == []
    bench.gate.suspended = False
    assert take_offsets(bench) == {}
    await run_ready_tasks()
    assert len(hook.called) == 1


async def test_values_stop_before_a_record_for_a_hook() -> None:
    """``consume()`` calls a hook, too, and returns the other values; without a hook it skips."""
    hook = Hook()
    bench = DeliveryBench(poison(11), hook)
    bench.fetcher.add(P0, 10, 11, 12)
    assert take_values(bench) == [10]
    bench.values.finish()
    assert take_values(bench) == []
    await run_ready_tasks()
    assert [record.offset for record, _ in hook.called] == [11]
    assert take_values(bench) == [12]
    bench = DeliveryBench(poison(11), "raise")
    bench.fetcher.add(P0, 10, 11, 12)
    assert take_values(bench) == [10, 12]


async def test_damage_is_raised_by_default() -> None:
    """Nothing is finished behind it. The fetcher pauses between two errors."""
    bench = DeliveryBench(None, "raise")
    bench.fetcher.batches.append(damage(10, 12))
    with pytest.raises(DamagedRecordError):
        bench.take()
    with pytest.raises(DamagedRecordError):
        take_offsets(bench)
    assert bench.finished == {}
    assert bench.metrics.counter("records_damaged") == 2


async def test_damage_is_skipped_with_its_range(caplog: pytest.LogCaptureFixture) -> None:
    """The partition is fetched again behind it, and the log line has the offsets."""
    bench = DeliveryBench(None, "skip")
    bench.fetcher.batches.append(damage(10, 12))
    with caplog.at_level(logging.ERROR):
        assert bench.take() is None
        await run_ready_tasks()
    assert "t:0: skipping offsets 10 to 12: damaged" in caplog.text
    assert bench.fetcher.positions == {P0: 13}
    assert bench.fetcher.paused == set()
    assert bench.finished == {P0: 13}
    assert bench.state().position == 13


async def test_a_hook_gets_damage() -> None:
    """The record has the first offset, no key, and the damaged message."""
    hook = Hook(RuntimeError("later"), None)
    bench = DeliveryBench(None, hook)
    bench.fetcher.batches.append(damage(10, 12))
    assert bench.take() is None
    await run_ready_tasks()
    assert hook.called[0][0] == Record("t", 0, 10, None, b"message")
    with pytest.raises(DamagedRecordError, match="on_bad_record failed"):
        bench.take()
    assert bench.finished == {}
    assert bench.take() is None
    await run_ready_tasks()
    assert bench.finished == {P0: 13}
    assert bench.fetcher.positions == {P0: 13}


async def test_a_close_cancels_a_hook_that_still_runs() -> None:
    """Its record is not finished."""
    _, bench = await running_hook()
    bench.owned.bad.close()
    await run_ready_tasks()
    assert bench.finished == {}
    assert bench.owned.in_flight.bad == {}


async def test_no_hook_starts_in_a_pause_of_the_application() -> None:
    """It starts after ``resume``, when the record is reached again."""
    hook = Hook()
    bench = DeliveryBench(poison(10), hook)
    bench.fetcher.add(P0, 10)
    assert bench.take() is None
    bench.subscription.pause(P0)
    bench.owned.pause([P0])
    await run_ready_tasks()
    assert hook.called == []
    assert bench.take() is None
    bench.subscription.resume(P0)
    bench.owned.resume([P0])
    assert bench.take() is None
    await run_ready_tasks()
    assert len(hook.called) == 1
    assert bench.finished == {P0: 11}
