"""Records between fetch and finish: which are delivered, which are in flight, and which are finished."""

from __future__ import annotations

import asyncio

import pytest

from kiel_groups.clients.calls.callers import ConsumeCall
from kiel_groups.clients.delivery import record_loop as record_delivery
from kiel_groups.clients.delivery.record_reader import VALUES
from kiel_groups.clients.fetch.fetch_requests import Selection
from kiel_groups.errors import NoOffsetsError, ProtocolError
from kiel_groups.model import Record
from tests.helpers.delivery_bench import P0, P1, DeliveryBench
from tests.helpers.waiting import run_ready_tasks

pytestmark = pytest.mark.unit


async def test_a_record_is_finished_when_the_next_one_is_requested() -> None:
    """
    A record is finished when the next record is requested. While it is in flight, the position is already after it.
    """
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10, 11)
    assert bench.take() == 10
    assert bench.finished == {}
    assert bench.state().position == 11
    assert bench.take() == 11
    assert bench.finished == {P0: 11}
    assert bench.take() is None
    assert bench.finished == {P0: 12}


async def test_batches_of_all_partitions_are_delivered_in_order() -> None:
    """
    Records are delivered in the order of the batches. Only one record is in flight at a time, across all partitions.
    """
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10)
    bench.fetcher.add(P1, 10, 12)
    bench.fetcher.add(P0, 15)
    assert [bench.take() for _ in range(5)] == [10, 10, 12, 15, None]
    assert bench.metrics.counter("records_handed_out") == 4, "the last batch, too"
    assert bench.finished == {P0: 16, P1: 13}


async def test_a_commit_includes_the_record_in_flight() -> None:
    """A commit includes the record in flight, which remains in flight after the commit."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10)
    bench.take()
    bench.records.in_flight.count()
    assert bench.finished == {P0: 11}
    assert bench.handler.stop([P0]) == {P0}


async def test_a_record_that_is_put_back_is_delivered_again() -> None:
    """
    A record that is put back, because its processing raised an exception, is not finished, and is delivered by the next
    request.
    """
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10, 11)
    bench.take()
    bench.records.put_back()
    assert bench.finished == {}
    assert bench.state().position == 10
    bench.records.finish()
    assert bench.finished == {}
    assert [bench.take(), bench.take()] == [10, 11]
    assert bench.finished == {P0: 11}


async def test_a_record_of_a_lost_partition_is_not_put_back() -> None:
    """A record of a lost partition is dropped instead of being put back."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10, 11)
    bench.take()
    bench.handler.lost([P0])
    bench.subscription.offsets.end([P0])
    bench.records.put_back()
    assert bench.take() is None


async def test_finishing_a_record_in_flight_does_not_undo_a_reset() -> None:
    """An operator's reset is kept if a record delivered before the reset is finished after it."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10, 11)
    assert bench.take() == 10
    bench.subscription.offsets.seek(P0, 3)
    bench.handler.offset_changed(P0, 3)
    bench.records.finish()
    assert bench.state().finished == 3
    assert bench.fetcher.positions == {P0: 3}


async def test_delivery_pauses_for_other_tasks_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Delivery pauses now and then for other tasks of the event loop. An application that never awaits anything else must
    not delay rebalances.
    """
    bench = DeliveryBench()
    bench.fetcher.add(P0, *range(10, 20))
    bench.records.begin_loop()
    assert bench.take() == 10
    monkeypatch.setattr(record_delivery, "QUANTUM_S", 0.0)
    await asyncio.wait_for(bench.records.wait(), 5)
    assert bench.take() is None, "the time is up"
    assert bench.finished == {P0: 11}
    monkeypatch.setattr(record_delivery, "QUANTUM_S", 3_600.0)
    await asyncio.wait_for(bench.records.wait(), 5)
    assert bench.take() == 11


async def test_nothing_is_delivered_after_the_end() -> None:
    """After the end of delivery, no record is delivered, but the record in flight can still be finished."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10, 11)
    bench.fetcher.add(P1, 10)
    bench.take()
    bench.owned.end()
    assert bench.take() is None
    assert bench.finished == {P0: 11}


async def test_a_finished_record_is_finished_once() -> None:
    """No record is in flight after the record in flight was finished."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10)
    bench.take()
    bench.records.finish()
    assert bench.finished == {P0: 11}
    assert bench.handler.stop([P0]) == frozenset()


async def test_a_shut_gate_delivers_nothing_and_loses_nothing() -> None:
    """
    While the connection is suspended, no record is delivered, not even from the current batch. Afterwards, delivery
    continues without a gap.
    """
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10, 11)
    bench.gate.suspended = True
    assert bench.take() is None
    assert bench.state().position == 10
    bench.gate.suspended = False
    assert bench.take() == 10
    bench.gate.suspended = True
    assert bench.take() is None
    assert bench.finished == {P0: 11}
    bench.gate.suspended = False
    assert bench.take() == 11


async def test_an_error_of_the_fetcher_is_raised_after_the_records_before_it() -> None:
    """
    An error of the fetcher is raised after the records before it. The request that raises the error finishes the last
    of these records.
    """
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10)
    bench.fetcher.batches.append(ProtocolError("t:0 at offset 11: broken"))
    assert bench.take() == 10
    with pytest.raises(ProtocolError, match="broken"):
        bench.take()
    assert bench.finished == {P0: 11}


async def test_a_batch_of_a_partition_that_is_not_owned_is_dropped() -> None:
    """A batch is dropped if its partition is no longer owned."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10)
    bench.fetcher.add(P1, 10)
    bench.subscription.offsets.end([P0])
    assert bench.records.take() == Record("t", 1, 10, None, b"10")


def even_number(value: bytes) -> int:
    """Deserialize an even number; raise an error for an odd one."""
    if int(value) % 2:
        raise ValueError(value)
    return int(value)


async def test_a_message_that_cannot_be_deserialized_is_skipped() -> None:
    """
    A message that cannot be deserialized is counted and skipped. It is finished together with the record before it.
    """
    bench = DeliveryBench(even_number)
    bench.fetcher.add(P0, 10, 11, 12)
    assert bench.records.take() == Record("t", 0, 10, None, 10)
    assert bench.records.take() == Record("t", 0, 12, None, 12)
    assert bench.finished == {P0: 12}
    assert bench.metrics.counter("deserializer_failures") == 1


async def test_the_last_message_is_finished_if_it_cannot_be_deserialized() -> None:
    """
    The last message is finished even if it cannot be deserialized. Otherwise, it would be fetched again after each
    restart, and the lag would never be zero.
    """
    bench = DeliveryBench(even_number)
    bench.fetcher.add(P0, 10, 11)
    bench.fetcher.add(P1, 11)
    assert bench.take() == 10
    assert bench.take() is None
    assert bench.finished == {P0: 12, P1: 12}


async def test_a_null_value_is_delivered_without_the_deserializer() -> None:
    """A null value, which marks a deleted key, is delivered without a call of the deserializer."""
    bench = DeliveryBench(even_number)
    bench.fetcher.put(P0, [Record("t", 0, 10, b"k", None)])
    assert bench.records.take() == Record("t", 0, 10, b"k", None)


async def test_a_deserializer_may_return_none() -> None:
    """A record is delivered even if the deserializer returns None."""
    bench = DeliveryBench(lambda _value: None)
    bench.fetcher.add(P0, 10)
    assert bench.records.take() == Record("t", 0, 10, None, None)


async def test_waiting_ends_when_a_batch_arrives() -> None:
    """A caller's wait ends when a batch arrives. While records of the last batch remain, a caller does not wait."""
    bench = DeliveryBench()
    waiting = asyncio.ensure_future(bench.records.wait())
    await run_ready_tasks()
    assert not waiting.done()
    bench.fetcher.add(P0, 10, 11)
    await asyncio.wait_for(waiting, 5)
    bench.take()
    bench.fetcher.has_batch.clear()
    await asyncio.wait_for(bench.records.wait(), 5)


async def test_waiting_at_a_shut_gate_ends_after_an_interval() -> None:
    """
    A wait while the connection is suspended ends after an interval, because the end of the suspension wakes no caller.
    """
    bench = DeliveryBench()
    bench.gate.suspended = True
    await asyncio.wait_for(bench.records.wait(), 5)


async def test_the_error_of_a_topic_without_offsets_is_raised_once() -> None:
    """
    The error of a topic without offsets is raised once, after the current batch was delivered and finished. Then other
    topics are delivered.
    """
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10, 11)
    assert bench.take() == 10
    bench.handler.start_unknown("u", NoOffsetsError("no offsets of u"))
    assert bench.take() == 11, "the rest of the batch comes first"
    with pytest.raises(NoOffsetsError, match="no offsets of u"):
        bench.take()
    assert bench.finished == {P0: 12}
    bench.fetcher.add(P1, 10)
    assert bench.take() == 10


async def test_no_error_is_raised_for_a_topic_that_left_the_subscription() -> None:
    """
    No error is raised about the start offsets of a topic outside of the subscription. They are requested until a plan
    revokes the topic's partitions.
    """
    bench = DeliveryBench()
    bench.subscription.subscribe("u")
    bench.handler.start_unknown("t", NoOffsetsError("no offsets of t"))
    assert bench.take() is None


async def test_a_topic_without_offsets_wakes_the_callers_that_wait_for_it() -> None:
    """
    The error of a topic without offsets wakes the callers that wait for this topic. Callers that request other topics
    get no error.
    """
    bench = DeliveryBench()
    waiting = asyncio.ensure_future(bench.owned.wait("u"))
    await run_ready_tasks()
    bench.handler.start_unknown("u", NoOffsetsError("no offsets of u"))
    await asyncio.wait_for(waiting, 5)
    bench.fetcher.add(P0, 10)
    assert bench.values.take(Selection("t"), VALUES, ConsumeCall(), most_bytes=1_000) == [10]
    with pytest.raises(NoOffsetsError, match="no offsets of u"):
        bench.values.take(Selection("u"), VALUES, ConsumeCall(), most_bytes=1_000)
    assert bench.values.take(Selection("u"), VALUES, ConsumeCall(), most_bytes=1_000) == []


async def test_a_reset_waits_for_the_rest_of_its_batch_only() -> None:
    """
    A reset waits until the rest of its partition's batch is finished. Records of another partition are delivered
    without a pause.
    """
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10, 11)
    bench.fetcher.add(P1, 10, 11)
    assert bench.take() == 10
    bench.records.finish()
    waiting = asyncio.ensure_future(bench.owned.wait_until_consumed(P0, lambda: True))
    await run_ready_tasks()
    assert not waiting.done(), "11 is not delivered yet"
    assert bench.take() == 11
    await run_ready_tasks()
    assert not waiting.done(), "11 is in flight"
    assert (bench.take(), bench.finished) == (10, {P0: 12})
    await asyncio.wait_for(waiting, 5)
    assert bench.take() == 11


async def test_a_reset_is_woken_although_the_next_request_raises_an_error() -> None:
    """
    A reset does not wait any longer once its partition's batch is finished, even if the request that finishes the last
    record raises the error of another topic. The application may ask for the next record much later.
    """
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10)
    assert bench.take() == 10
    waiting = asyncio.ensure_future(bench.owned.wait_until_consumed(P0, lambda: True))
    await run_ready_tasks()
    bench.handler.start_unknown("u", NoOffsetsError("no offsets of u"))
    with pytest.raises(NoOffsetsError):
        bench.take()
    async with asyncio.timeout(5):
        await waiting


async def test_a_reset_does_not_wait_for_the_batch_after_its_own() -> None:
    """
    A reset does not wait for the batch of another partition, even if the last record of its own batch cannot be
    deserialized.
    """

    def readable(raw: bytes) -> bytes:
        if raw == b"12":
            raise ValueError("bad")
        return raw

    bench = DeliveryBench(readable)
    bench.fetcher.add(P0, 10, 11, 12)
    bench.fetcher.add(P1, *range(10, 100))
    assert bench.take() == 10
    waiting = asyncio.ensure_future(bench.owned.wait_until_consumed(P0, lambda: True))
    await asyncio.sleep(0)
    assert bench.take() == 11
    assert bench.take() == 10
    await asyncio.wait_for(waiting, 5)
