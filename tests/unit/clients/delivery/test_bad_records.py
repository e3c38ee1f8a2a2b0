"""Bad records: raised again and again, skipped, or passed to a hook. None is finished without the application."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from kiel_groups.backoff import Backoff
from kiel_groups.clients.calls.callers import ConsumeCall
from kiel_groups.clients.delivery import bad_records
from kiel_groups.clients.fetch.fetcher import ANY
from kiel_groups.errors import BadRecordError, DamagedRecordError, RecordDeserializationError
from kiel_groups.model import Record, TopicPartition
from tests.helpers.delivery_bench import CALL, P0, P1, DeliveryBench, received_call, take_values
from tests.helpers.waiting import run_ready_tasks

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses do not end by themselves in these tests."""
    monkeypatch.setattr(bad_records, "_PAUSES", Backoff(3_600.0, 3_600.0))


def poison(*bad: int) -> Callable[[bytes], int]:
    """Return a deserializer that fails on these values."""

    def read(value: bytes) -> int:
        if int(value) in bad:
            raise ValueError(f"poison {int(value)}")
        return int(value)

    return read


class Hook:
    """A hook that waits until the test says so, and raises the errors that the test gave it."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)
        self.called: list[tuple[Record, BadRecordError]] = []
        self.may_return = asyncio.Event()
        self.may_return.set()

    async def __call__(self, record: Record, error: BadRecordError) -> None:
        self.called.append((record, error))
        await self.may_return.wait()
        if self.errors and (failure := self.errors.pop(0)) is not None:
            raise failure


def damage(first: int, last: int, partition: TopicPartition = P0) -> DamagedRecordError:
    return DamagedRecordError(
        "damaged", topic_partition=partition, offset=first, next_offset=last + 1, value=b"message"
    )


def take_offsets(bench: DeliveryBench, most: int | None = None, call: ConsumeCall = CALL) -> dict[Any, list[int]]:
    """Take records as one call of ``getmany()`` does, and return their offsets."""
    found = bench.values.take_records(ANY, most, call)
    return {partition: [record.offset for record in records] for partition, records in found.items()}


def end_pause(bench: DeliveryBench, partition: TopicPartition = P0) -> None:
    """End the pause after an error now."""
    timer = bench.owned.bad._aside[partition]
    assert timer is not None
    timer.cancel()
    bench.owned.bad._end_pause(partition)


async def test_a_bad_record_is_raised_and_not_finished() -> None:
    """The error has the record's place, key and value. The record before it is finished, and nothing is after it."""
    bench = DeliveryBench(poison(11), "raise")
    bench.fetcher.add(P0, 10, 11, 12)
    assert bench.take() == 10
    with pytest.raises(
        RecordDeserializationError, match="t:0 at offset 11: the deserializer failed: ValueError"
    ) as got:
        bench.take()
    error = got.value
    assert (error.topic_partition, error.offset, error.next_offset) == (P0, 11, 12)
    assert (error.key, error.value, error.field) == (None, b"11", "value")
    assert isinstance(error.__cause__, ValueError)
    assert "seek to 12" in str(error)
    assert "on_bad_record" in str(error)
    assert bench.finished == {P0: 11}
    assert bench.state().position == 11
    assert bench.take() is None, "the pause"
    assert bench.handler.stop([P0]) == frozenset(), "a release does not wait for it"
    assert bench.metrics.counter("bad_records_raised") == bench.metrics.counter("deserializer_failures") == 1


async def test_other_partitions_are_delivered_while_an_error_pauses() -> None:
    """After the pause the error is raised again, at the same record."""
    bench = DeliveryBench(poison(11), "raise")
    bench.fetcher.add(P0, 11, 12)
    bench.fetcher.add(P1, 13, 14)
    with pytest.raises(RecordDeserializationError):
        bench.take()
    assert [bench.take(), bench.take(), bench.take()] == [13, 14, None]
    end_pause(bench)
    with pytest.raises(RecordDeserializationError, match="offset 11"):
        bench.take()
    assert bench.finished == {P1: 15}


async def test_pauses_grow_and_the_error_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Each error of the same record is followed by a longer pause; another record starts with the first pause."""
    bench = DeliveryBench(poison(11, 13), "raise")
    paused: list[float] = []
    bench.owned.bad._set_aside = lambda partition, pause_s: paused.append(pause_s)  # type: ignore[method-assign]
    bad_records._PAUSES = Backoff(1.0, 5.0)
    bench.fetcher.add(P0, 11, 12, 13)
    with caplog.at_level(logging.ERROR):
        for _ in range(4):
            with pytest.raises(RecordDeserializationError, match="offset 11"):
                bench.take()
        bench.fetcher.paused = {P0}
        bench.fetcher.skip(P0, 11)
        bench.fetcher.paused = set()
        assert bench.take() == 12
        with pytest.raises(RecordDeserializationError, match="offset 13"):
            bench.take()
    assert paused == [1.0, 2.0, 4.0, 5.0, 1.0]
    assert len(caplog.records) == 2


async def test_a_pause_after_an_error_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deserializer that works again delivers the record."""
    monkeypatch.setattr(bad_records, "_PAUSES", Backoff(0.001, 0.001))
    bad = [11]
    bench = DeliveryBench(lambda value: poison(*bad)(value), "raise")
    bench.fetcher.add(P0, 11, 12)
    with pytest.raises(RecordDeserializationError):
        bench.take()
    bench.fetcher.has_batch.clear()
    bad.clear()
    await asyncio.wait_for(bench.owned.wait(), 5)
    assert [bench.take(), bench.take()] == [11, 12]


@pytest.mark.parametrize("event", ["seek", "revoke", "loss", "pause"])
async def test_what_ends_the_pause_after_an_error(event: str) -> None:
    """A seek, a revocation, a loss and a pause of the application end it, and no timer remains."""
    bench = DeliveryBench(poison(11), "raise")
    bench.fetcher.add(P0, 11, 12)
    with pytest.raises(RecordDeserializationError):
        bench.take()
    timer = bench.owned.bad._aside[P0]
    assert timer is not None
    if event == "seek":
        bench.subscription.seek(P0, 12)
        bench.owned.resume_at(P0, 12)
        assert bench.fetcher.positions == {P0: 12}
        assert bench.fetcher.paused == set()
        assert bench.finished == {P0: 12}
    elif event == "revoke":
        bench.handler.stop([P0])
    elif event == "loss":
        bench.handler.lost([P0])
    else:
        bench.subscription.pause(P0)
        bench.owned.pause([P0])
        assert bench.take() is None
        bench.subscription.resume(P0)
        bench.owned.resume([P0])
        with pytest.raises(RecordDeserializationError):
            bench.take()
    assert timer.cancelled()


async def test_resume_does_not_end_the_pause_after_an_error() -> None:
    """``resume`` makes no difference for a partition that the application has not paused."""
    bench = DeliveryBench(poison(11), "raise")
    bench.fetcher.add(P0, 11)
    with pytest.raises(RecordDeserializationError):
        bench.take()
    bench.owned.resume([P0])
    assert bench.take() is None


async def test_a_call_returns_the_records_before_a_bad_one() -> None:
    """The next call raises, although other partitions have records too."""
    bench = DeliveryBench(poison(12), "raise")
    bench.fetcher.add(P0, 10, 11, 12, 13)
    bench.fetcher.add(P1, 20)
    assert take_offsets(bench) == {P0: [10, 11]}
    with pytest.raises(RecordDeserializationError, match="offset 12"):
        take_offsets(bench)
    assert bench.finished == {}, "the coroutine has not asked again"
    bench.values.finish()
    assert bench.finished == {P0: 12}
    assert take_offsets(bench) == {P1: [20]}
    assert take_offsets(bench) == {}
    end_pause(bench)
    with pytest.raises(RecordDeserializationError, match="offset 12"):
        take_offsets(bench)


async def test_getone_reaches_each_bad_record() -> None:
    """Of a batch of which single records are taken, the bad one is raised in its place."""
    bench = DeliveryBench(poison(11), "raise")
    bench.fetcher.add(P0, 10, 11, 12)
    assert take_offsets(bench, 1) == {P0: [10]}
    with pytest.raises(RecordDeserializationError, match="offset 11"):
        take_offsets(bench, 1)


async def test_skipped_records_are_finished_with_the_others() -> None:
    """They are counted."""
    bench = DeliveryBench(poison(11, 12), "skip")
    bench.fetcher.add(P0, 10, 11, 12, 13)
    assert take_offsets(bench) == {P0: [10, 13]}
    bench.values.finish()
    assert bench.finished == {P0: 14}
    assert bench.metrics.counter("deserializer_failures") == 2


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
    hook = Hook()
    hook.may_return.clear()
    bench = DeliveryBench(poison(10), hook)
    bench.fetcher.add(P0, 10)
    assert bench.take() is None
    await run_ready_tasks()
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
    hook = Hook()
    hook.may_return.clear()
    bench = DeliveryBench(poison(10), hook)
    bench.fetcher.add(P0, 10)
    assert bench.take() is None
    await run_ready_tasks()
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
    hook = Hook()
    hook.may_return.clear()
    bench = DeliveryBench(poison(10), hook)
    bench.fetcher.add(P0, 10)
    assert bench.take() is None
    await run_ready_tasks()
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


async def test_keys_are_deserialized() -> None:
    """A failure on a key is one of the record. Null keys and values stay None."""

    def read_key(key: bytes) -> str:
        return key.decode()

    bench = DeliveryBench(poison(), "raise", read_key)
    records = [
        Record("t", 0, 10, b"a", b"1"),
        Record("t", 0, 11, None, None),
        Record("t", 0, 12, b"\xff", b"2"),
    ]
    bench.fetcher.add(P0, 10)
    bench.fetcher.batches[0] = bench.fetcher.batches[0]._replace(records=records)  # type: ignore[union-attr]
    assert bench.records.take() == Record("t", 0, 10, "a", 1)
    assert bench.records.take() == Record("t", 0, 11, None, None)
    with pytest.raises(RecordDeserializationError, match="the key_deserializer failed: UnicodeDecodeError") as got:
        bench.take()
    assert (got.value.field, got.value.key, got.value.value) == ("key", b"\xff", b"2")


async def test_the_parts_of_consume_have_deserialized_keys() -> None:
    """A record on whose key the function fails is left out, as one whose value fails."""
    bench = DeliveryBench(poison(3), "raise", bytes.decode)
    keys = (b"a", b"\xff", b"c", None)
    records = [Record("t", 0, 10 + number, key, b"%d" % (number + 1)) for number, key in enumerate(keys)]
    bench.fetcher.add(P0, 10)
    bench.fetcher.batches[0] = bench.fetcher.batches[0]._replace(records=records)  # type: ignore[union-attr]
    found = bench.values.take("t", 1_000, CALL)
    assert list(found) == [1, 4]
    assert found.parts[0].records == [Record("t", 0, 10, "a", 1), Record("t", 0, 13, None, 4)]
    bench.values.finish()
    assert bench.finished == {P0: 14}


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
    hook = Hook()
    hook.may_return.clear()
    bench = DeliveryBench(poison(10), hook)
    bench.fetcher.add(P0, 10)
    assert bench.take() is None
    await run_ready_tasks()
    bench.owned.bad.close()
    await run_ready_tasks()
    assert bench.finished == {}
    assert bench.owned.in_flight.bad == {}
