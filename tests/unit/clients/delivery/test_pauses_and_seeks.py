"""Pauses and seeks of owned partitions, in the middle of a loop's batch and of calls."""

from __future__ import annotations

import pytest

from kiel_groups.clients.calls.callers import ConsumeCall
from kiel_groups.clients.delivery.record_reader import RECORDS
from kiel_groups.clients.fetch.fetch_requests import ANY, Selection
from kiel_groups.model import TopicPartition
from tests.helpers.delivery_bench import CALL, P0, P1, DeliveryBench, received_call, take_values

pytestmark = pytest.mark.unit


def pause(bench: DeliveryBench, *partitions: TopicPartition) -> None:
    """Pause partitions as the consumer does."""
    for partition in partitions:
        bench.subscription.pause(partition)
    bench.owned.pause(partitions)


def resume(bench: DeliveryBench, *partitions: TopicPartition) -> None:
    for partition in partitions:
        bench.subscription.resume(partition)
    bench.owned.resume(partitions)


def seek(bench: DeliveryBench, partition: TopicPartition, offset: int) -> None:
    """Seek as the consumer does."""
    bench.subscription.seek(partition, offset)
    bench.owned.resume_at(partition, offset)


def take_offsets(
    bench: DeliveryBench, most: int | None = None, call: ConsumeCall = CALL, selection: Selection = ANY
) -> dict[TopicPartition, list[int]]:
    """Take records as one call of ``getmany()`` does, and return their offsets."""
    found = bench.values.take(selection, RECORDS, call, most)
    return {partition: [record.offset for record in records] for partition, records in found.items()}


async def test_a_pause_returns_the_rest_of_a_batch_to_the_buffer() -> None:
    """The record in flight is finished as usual, and the next one comes after the pause."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10, 11, 12)
    bench.fetcher.add(P1, 10)
    bench.records.begin_loop()
    assert bench.take() == 10
    pause(bench, P0)
    assert bench.take() == 10, "of the other partition"
    assert bench.finished == {P0: 11}
    assert bench.take() is None
    resume(bench, P0)
    assert [bench.take(), bench.take(), bench.take()] == [11, 12, None]


async def test_a_record_that_is_not_finished_before_a_pause_comes_again() -> None:
    """After an exception, the record is fetched again, and its partition stays paused."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10, 11)
    bench.records.begin_loop()
    assert bench.take() == 10
    pause(bench, P0)
    bench.records.end_loop(finished=False)
    assert bench.fetcher.positions == {P0: 10}
    assert bench.fetcher.paused == {P0}
    assert bench.finished == {}


async def test_a_pause_of_another_partition_does_not_touch_the_batch() -> None:
    """The loop continues with its batch."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10, 11)
    bench.records.begin_loop()
    assert bench.take() == 10
    pause(bench, P1)
    assert bench.take() == 11


async def test_a_seek_disowns_the_record_in_flight() -> None:
    """Its end does not count, and the next commit stores the offset, backwards too."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10, 11, 12)
    bench.records.begin_loop()
    assert [bench.take(), bench.take()] == [10, 11]
    seek(bench, P0, 3)
    assert bench.take() is None
    assert bench.finished == {P0: 3}
    assert bench.fetcher.positions == {P0: 3}


async def test_a_seek_disowns_what_calls_have_in_flight() -> None:
    """Neither records of ``getmany()`` nor values of ``consume()`` count after a seek, or come again."""
    for is_received in (True, False):
        bench = DeliveryBench()
        bench.fetcher.add(P0, 10, 11, 12)
        call = ConsumeCall()
        call.received = is_received
        assert take_offsets(bench, 2, call) == {P0: [10, 11]}
        seek(bench, P0, 40)
        call.superseded = True
        bench.values.finish([None], {call})
        assert bench.finished == {P0: 40}
        assert bench.fetcher.positions == {P0: 40}
        assert bench.state().position == 40


async def test_a_seek_keeps_a_pause() -> None:
    """A paused partition is fetched from the new offset after the pause."""
    bench = DeliveryBench()
    pause(bench, P0)
    seek(bench, P0, 40)
    assert bench.fetcher.positions == {P0: 40}
    assert bench.fetcher.paused == {P0}


async def test_records_are_finished_when_the_coroutine_asks_again() -> None:
    """Before that they are in flight, and a release waits for them; what remains of a batch comes next."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10, 11, 12)
    bench.fetcher.add(P1, 10)
    first = received_call()
    assert take_offsets(bench, 2, first) == {P0: [10, 11]}
    bench.values.finish([None], ())
    assert bench.finished == {}
    assert bench.owned.in_flight.in_flight_of([P0, P1]) == {P0}
    first.superseded = True
    bench.values.finish([None], ())
    assert bench.finished == {P0: 12}
    assert take_offsets(bench) == {P0: [12], P1: [10]}


async def test_records_of_some_partitions_are_taken() -> None:
    """A call takes only records of the partitions that it names."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10)
    bench.fetcher.add(P1, 10)
    assert take_offsets(bench, selection=Selection(partitions=frozenset({P1}))) == {P1: [10]}
    assert take_offsets(bench) == {P0: [10]}


async def test_records_that_no_caller_received_come_again() -> None:
    """A cancelled call gave nothing: the next call of its coroutine has the records delivered again."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10, 11)
    call = ConsumeCall()
    assert take_offsets(bench, 1, call) == {P0: [10]}
    call.superseded = True
    bench.values.finish([None], ())
    assert bench.fetcher.positions == {P0: 10}
    assert bench.finished == {}


async def test_the_gate_is_asked_before_records_are_taken() -> None:
    """While the gate is shut, calls get nothing."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10)
    bench.gate.shut("test")
    assert take_offsets(bench) == {}


async def test_records_on_which_the_deserializer_fails_are_skipped() -> None:
    """They are left out and counted as finished."""

    def even(value: bytes) -> int:
        if int(value) % 2:
            raise ValueError(value)
        return int(value)

    bench = DeliveryBench(even)
    bench.fetcher.add(P0, 11)
    assert take_offsets(bench, 1) == {}
    assert bench.finished == {P0: 12}
    bench.fetcher.add(P0, 12, 13, 14)
    assert take_offsets(bench, 2) == {P0: [12, 14]}


async def test_a_release_waits_for_records_and_drops_those_without_a_receiver() -> None:
    """A drain also looks at calls that ask for any topic."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10)
    call = ConsumeCall()
    take_offsets(bench, 1, call)
    assert bench.handler.stop([P0]) == {P0}
    await bench.handler.drained([P0])
    assert bench.finished == {}
    assert take_values(bench) == []
