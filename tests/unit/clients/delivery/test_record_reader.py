"""Values of ``consume()`` calls between fetch and finish."""

from __future__ import annotations

import asyncio
import json

import pytest

from kiel_groups.clients.calls.callers import ConsumeCall
from kiel_groups.clients.delivery.record_reader import VALUES
from kiel_groups.clients.fetch.fetch_requests import Selection
from kiel_groups.errors import ProtocolError
from kiel_groups.group.partition_offsets import StartPosition
from kiel_groups.model import Record
from tests.helpers.delivery_bench import CALL, P0, P1, U0, DeliveryBench, received_call, take_values
from tests.helpers.waiting import run_ready_tasks

pytestmark = pytest.mark.unit

OTHER_CALL = received_call()


async def test_values_are_finished_when_their_topic_is_requested_again() -> None:
    """
    The next request for a topic finishes the values of all its partitions. Values of other topics remain in flight.
    """
    bench = DeliveryBench()
    bench.claim(U0)
    bench.fetcher.add(P0, 10, 11)
    bench.fetcher.add(U0, 10)
    bench.fetcher.add(P1, 10)
    assert take_values(bench) == [10, 11, 10]
    assert take_values(bench, "u") == [10]
    assert bench.finished == {}
    assert bench.state().position == 12
    assert bench.values.finish(["t"])
    assert bench.finished == {P0: 12, P1: 11}
    assert not bench.values.finish(["t"])
    bench.values.finish()
    assert bench.finished == {P0: 12, P1: 11, U0: 11}


async def test_a_call_returns_a_bounded_number_of_bytes() -> None:
    """A call returns no further batch after the batch that reaches the bound. The next call returns the rest."""
    bench = DeliveryBench()
    for offset in (10, 11, 12):
        bench.fetcher.add(P0, offset)
    assert take_values(bench, most_bytes=2) == [10, 11]
    assert take_values(bench, most_bytes=2) == [12]


async def test_values_that_cannot_be_deserialized_are_finished_with_the_others() -> None:
    """
    Values that cannot be deserialized are finished with the other values of their call. If a call returns no values,
    they are finished at once, because no value is in flight.
    """
    bench = DeliveryBench(json.loads)
    bench.fetcher.put(P0, [Record("t", 0, 10, None, b"{")])
    assert take_values(bench) == []
    assert bench.finished == {P0: 11}
    assert bench.handler.stop([P0]) == frozenset()
    await bench.handler.assigned([P0])
    records = [Record("t", 0, 11, None, b"1"), Record("t", 0, 12, None, None)]
    bench.fetcher.put(P0, records)
    assert take_values(bench) == [1]
    assert bench.finished == {P0: 11}
    bench.values.finish()
    assert bench.finished == {P0: 13}
    assert bench.metrics.counter("deserializer_failures") == 2


async def test_a_call_that_skips_everything_has_received_nothing() -> None:
    """The call continues to wait. What it returns later is delivered again if its caller has given up meanwhile."""
    bench, call = DeliveryBench(json.loads), ConsumeCall()
    bench.fetcher.put(P0, [Record("t", 0, 10, None, b"{")])
    assert bench.values.take(Selection("t"), VALUES, call, most_bytes=1_000) == []
    assert bench.finished == {P0: 11}
    bench.fetcher.put(P0, [Record("t", 0, 11, None, b"1")])
    assert bench.values.take(Selection("t"), VALUES, call, most_bytes=1_000) == [1]
    assert not call.received
    bench.values.finish()
    assert bench.finished == {P0: 11}


async def test_an_error_does_not_drop_values_of_other_partitions() -> None:
    """An error of the fetcher drops no values: values fetched before the error are returned first."""
    bench = DeliveryBench()
    bench.fetcher.add(P1, 10)
    bench.fetcher.batches.append(ProtocolError("broken"))
    assert take_values(bench) == [10]
    with pytest.raises(ProtocolError, match="broken"):
        take_values(bench)


async def test_a_suspended_gate_delivers_no_values() -> None:
    """While the connection is suspended, values remain buffered. They are delivered afterwards."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10)
    bench.gate.suspended = True
    assert take_values(bench) == []
    bench.gate.suspended = False
    assert take_values(bench) == [10]


async def test_a_drain_waits_for_the_values_in_flight() -> None:
    """A drain waits for the values in flight of its own partitions only."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10)
    take_values(bench)
    assert bench.handler.stop([P0, P1]) == {P0}
    draining = asyncio.ensure_future(bench.handler.drained([P0]))
    await asyncio.wait_for(bench.handler.drained([P1]), 5)
    await run_ready_tasks()
    assert not draining.done()
    bench.values.finish(["t"])
    await asyncio.wait_for(draining, 5)


@pytest.mark.parametrize("event", ["lost", "moved"])
async def test_values_of_a_lost_or_reset_partition_are_not_finished(event: str) -> None:
    """
    Values of a lost or reset partition are not finished with the values of other partitions. A drain still waits for
    the caller that processes them.
    """
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10)
    bench.fetcher.add(P1, 10)
    take_values(bench)
    if event == "lost":
        bench.handler.lost([P0])
        bench.subscription.offsets.end([P0])
        bench.subscription.offsets.open({P0: StartPosition(10, 2, 2)})
    else:
        bench.handler.offset_changed(P0, 10)
    assert bench.handler.stop([P0]) == {P0}, "the caller still processes them"
    bench.values.finish()
    assert bench.finished == {P1: 11}


async def test_callers_of_one_topic_finish_their_own_values() -> None:
    """Callers of one topic finish only their own values, even if a call returns no values itself."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10)
    assert take_values(bench, call=CALL) == [10]
    bench.fetcher.add(P1, 10)
    assert take_values(bench, call=OTHER_CALL) == [10]
    assert take_values(bench, call=OTHER_CALL) == []
    bench.values.finish(["t"], ())
    assert bench.finished == {}
    bench.values.finish(calls=[CALL])
    assert bench.finished == {P0: 11}
    assert bench.handler.stop([P0, P1]) == {P1}
    bench.values.finish(calls=[OTHER_CALL])
    assert bench.finished == {P0: 11, P1: 11}


async def test_a_partition_is_finished_up_to_the_first_value_in_flight() -> None:
    """
    A partition is finished up to the first value in flight. If later values are finished first, they can be committed
    only after the earlier ones.
    """
    bench = DeliveryBench()
    slow, quick = received_call(), received_call()
    for offset, call in ((10, slow), (11, quick), (12, quick)):
        bench.fetcher.add(P0, offset)
        take_values(bench, call=call)
    bench.values.finish(["t"], [quick])
    assert bench.finished == {}
    bench.fetcher.add(P0, 13)
    later = received_call()
    take_values(bench, call=later)
    bench.values.finish(["t"], ())
    assert bench.finished == {}
    assert bench.handler.stop([P0]) == {P0}
    slow.superseded = True
    bench.values.finish(["t"], ())
    assert bench.finished == {P0: 13}, "all but what came last"
    assert bench.handler.stop([P0]) == {P0}
    later.superseded = True
    bench.values.finish(["t"], ())
    assert bench.finished == {P0: 14}
    assert bench.handler.stop([P0]) == frozenset()


async def test_values_of_a_lost_claim_do_not_delay_those_of_the_next_claim() -> None:
    """A caller that still processes values of the lost claim does not delay the commits of the next claim."""
    bench = DeliveryBench()
    slow = received_call()
    bench.fetcher.add(P0, 10)
    take_values(bench, call=slow)
    bench.handler.lost([P0])
    bench.subscription.offsets.end([P0])
    bench.subscription.offsets.open({P0: StartPosition(10, 2, 2)})
    bench.fetcher.add(P0, 10)
    take_values(bench)
    bench.values.finish(["t"], [CALL])
    assert bench.finished == {P0: 11}
    assert bench.handler.stop([P0]) == {P0}, "the caller still processes them"


async def test_dropped_values_are_not_finished() -> None:
    """Dropped values are not finished, and callers that wait for the end of all calls do not wait for them."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10)
    take_values(bench)
    waiting = asyncio.ensure_future(bench.values.all_finished())
    bench.values.drop([OTHER_CALL])
    await run_ready_tasks()
    assert not waiting.done()
    bench.values.drop([CALL])
    await asyncio.wait_for(waiting, 5)
    assert bench.finished == {}
