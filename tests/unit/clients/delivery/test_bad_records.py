"""Bad records that are raised, or skipped: none is finished without the application."""

from __future__ import annotations

import asyncio
import logging

import pytest

from kiel_groups.backoff import Backoff
from kiel_groups.clients.delivery import owned_records as bad_records
from kiel_groups.clients.delivery.record_reader import VALUES
from kiel_groups.clients.fetch.fetch_requests import Selection
from kiel_groups.errors import ConfigError, RecordDeserializationError
from kiel_groups.model import Record
from tests.helpers.delivery_bench import CALL, P0, P1, DeliveryBench, loop_over
from tests.helpers.poison import end_pause, poison, take_offsets

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses do not end by themselves in these tests."""
    monkeypatch.setattr(bad_records, "_PAUSES", Backoff(3_600.0, 3_600.0))


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
    found = bench.values.take(Selection("t"), VALUES, CALL, most_bytes=1_000)
    assert list(found) == [1, 4]
    assert found.parts[0].records == [Record("t", 0, 10, "a", 1), Record("t", 0, 13, None, 4)]
    bench.values.finish()
    assert bench.finished == {P0: 14}


async def test_an_error_that_the_application_keeps_does_not_block_a_new_loop() -> None:
    """Its traceback refers to the old loop, which must neither count as active nor end the new one."""
    bench = DeliveryBench(poison(11), "raise")
    bench.fetcher.add(P0, 10, 11, 12)

    first = loop_over(bench)
    assert (await anext(first)).offset == 10
    with pytest.raises(RecordDeserializationError):
        await anext(first)
    second = loop_over(bench)
    bench.fetcher.add(P1, 20, 21)
    assert (await anext(second)).offset == 20
    with pytest.raises(ConfigError, match="another loop"):
        await anext(first)
    del first
    assert bench.records.in_flight.record is not None, "the old loop has not ended the new one"
    second.end_loop(finished=True)


async def test_a_loop_goes_on_after_an_error() -> None:
    """A caller that takes single records with ``anext`` may keep the iterator."""
    bench = DeliveryBench(poison(11), "raise")
    bench.fetcher.add(P0, 11)
    bench.fetcher.add(P1, 20)

    records = loop_over(bench)
    with pytest.raises(RecordDeserializationError):
        await anext(records)
    assert (await anext(records)).offset == 20
    records.end_loop(finished=False)
    assert bench.finished == {}
