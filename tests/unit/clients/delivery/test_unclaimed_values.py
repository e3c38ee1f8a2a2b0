"""Values that no caller of ``consume()`` has received are fetched again, or dropped by a drain."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kiel_groups.clients.calls.callers import ConsumeCall
from kiel_groups.clients.calls.eager_methods import start_consume_call
from kiel_groups.clients.delivery import in_flight as values_in_flight
from kiel_groups.clients.delivery import record_reader
from tests.helpers.delivery_bench import P0, P1, DeliveryBench, received_call, take_values
from tests.helpers.waiting import run_ready_tasks, throughout

pytestmark = pytest.mark.unit


async def test_unclaimed_values_are_fetched_again_while_earlier_ones_are_in_flight() -> None:
    """
    Unclaimed values are fetched again although earlier values are still in flight. Their offsets are committed only
    after the earlier values.
    """
    bench = DeliveryBench()
    slow, abandoned = received_call(), ConsumeCall()
    for offset, call in ((10, slow), (11, abandoned)):
        bench.fetcher.add(P0, offset)
        take_values(bench, call=call)
    abandoned.superseded = True
    assert not bench.values.redeliver_unclaimed("t")
    assert bench.fetcher.positions == {P0: 11}
    assert bench.finished == {}
    slow.superseded = True
    bench.values.finish(["t"], ())
    assert bench.finished == {P0: 11}


async def test_unclaimed_values_are_fetched_again() -> None:
    """
    Values are fetched again if their caller has made another call without receiving them. Neither these values nor
    later ones are finished.
    """
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10, 11)
    bench.fetcher.add(P1, 10)
    abandoned = ConsumeCall()
    take_values(bench, call=abandoned)
    bench.fetcher.add(P0, 12)
    take_values(bench)
    abandoned.superseded = True
    bench.values.finish(["t"])
    assert bench.finished == {}
    assert bench.fetcher.positions == {P0: 10, P1: 10}
    assert bench.state().position == 10
    assert bench.metrics.counter("values_unclaimed") == 2
    assert bench.handler.stop([P0, P1]) == frozenset(), "nothing is in flight"


async def test_a_drain_waits_for_values_in_flight_after_unclaimed_ones() -> None:
    """
    A drain waits for the coroutine that processes values after unclaimed values, although these values are fetched
    again and not finished.
    """
    bench = DeliveryBench()
    abandoned, slow = ConsumeCall(), received_call()
    bench.fetcher.add(P0, 10)
    take_values(bench, call=abandoned)
    bench.fetcher.add(P0, 11)
    take_values(bench, call=slow)
    abandoned.superseded = True
    assert not bench.values.redeliver_unclaimed("t")
    assert bench.fetcher.positions == {P0: 10}
    assert bench.handler.stop([P0]) == {P0}
    draining = asyncio.ensure_future(bench.handler.drained([P0]))
    await run_ready_tasks()
    assert not draining.done()
    slow.superseded = True
    bench.values.finish(["t"], ())
    await asyncio.wait_for(draining, 5)
    assert bench.finished == {}, "the values before them are fetched again"


async def test_a_drain_waits_for_a_caller_that_receives_values_after_unclaimed_ones() -> None:
    """A drain waits for a caller that receives its values after unclaimed values before them were dropped."""
    bench = DeliveryBench()
    abandoned, late = ConsumeCall(), ConsumeCall()
    bench.fetcher.add(P0, 10)
    take_values(bench, call=abandoned)
    bench.fetcher.add(P0, 11)
    take_values(bench, call=late)
    abandoned.superseded = True
    assert bench.values.redeliver_unclaimed("t")
    late.received = True
    assert not bench.values.redeliver_unclaimed("t")
    assert bench.handler.stop([P0]) == {P0}
    late.superseded = True
    bench.values.finish(["t"], ())
    assert bench.handler.stop([P0]) == frozenset()
    assert bench.finished == {}


def give_up_within(monkeypatch: pytest.MonkeyPatch, unclaimed_s: float) -> None:
    """Have a drain drop values that no caller has received within this time."""
    monkeypatch.setattr(record_reader, "UNCLAIMED_S", unclaimed_s)
    monkeypatch.setattr(values_in_flight, "UNCLAIMED_S", unclaimed_s)


async def test_a_drain_drops_unclaimed_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A drain drops values that no coroutine has received. Received values stay in flight even if the coroutine that
    received them has ended, because another coroutine may process them.
    """
    give_up_within(monkeypatch, 0.01)
    bench = DeliveryBench()
    helper, abandoned = received_call(), ConsumeCall()
    bench.fetcher.add(P0, 10)
    take_values(bench, call=helper)
    bench.fetcher.add(P1, 10)
    take_values(bench, call=abandoned)
    helper.known()
    assert helper.ended
    bench.handler.stop([P0, P1])
    busy = asyncio.ensure_future(bench.handler.drained([P0]))
    await asyncio.wait_for(bench.handler.drained([P1]), 5)
    assert not busy.done()
    assert bench.finished == {}
    bench.values.finish(["t"], ())
    await asyncio.wait_for(busy, 5)
    assert bench.finished == {P0: 11}


async def test_a_drain_ends_with_values_that_were_declared_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A drain ends if ``commit_offsets()`` has marked the later values as finished, and only earlier, unclaimed values
    remain. The drain drops the unclaimed values.
    """
    # A busy machine may need more than 10 ms until the drain begins.
    give_up_within(monkeypatch, 0.3)
    bench = DeliveryBench()
    finished = received_call()
    bench.fetcher.add(P0, 10)
    take_values(bench, call=ConsumeCall())
    bench.fetcher.add(P0, 11)
    take_values(bench, call=finished)
    bench.values.finish(None, {finished})
    assert bench.handler.stop([P0]) == {P0}
    await asyncio.wait_for(bench.handler.drained([P0]), 5)
    assert bench.finished == {}


async def test_values_that_a_drain_dropped_are_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A call does not return values that a drain has dropped, because the next owner may already have them. ``gather`` may
    read a call's result later than it arrived, when its other calls have ended.
    """
    give_up_within(monkeypatch, 0.01)
    bench = DeliveryBench()
    call = ConsumeCall()

    async def values() -> list[Any]:
        await asyncio.sleep(0.01)
        return [1]

    bench.fetcher.add(P0, 10)
    take_values(bench, call=call)
    result = start_consume_call(values(), call, "a call", list)
    awaited = start_consume_call(values(), call, "another", list)
    bench.handler.stop([P0])
    await asyncio.wait_for(bench.handler.drained([P0]), 5)
    await asyncio.wait({result, awaited})
    assert (result.result(), await awaited) == ([], [])


async def test_a_drain_waits_for_values_that_a_caller_is_about_to_receive(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A drain waits for values that a caller may still receive within ``UNCLAIMED_S``, and then until the caller has
    finished them.
    """
    monkeypatch.setattr(record_reader, "UNCLAIMED_S", 0.01)
    monkeypatch.setattr(values_in_flight, "UNCLAIMED_S", 3_600.0)
    bench = DeliveryBench()
    late = ConsumeCall()
    bench.fetcher.add(P0, 10)
    take_values(bench, call=late)
    bench.handler.stop([P0])
    draining = asyncio.ensure_future(bench.handler.drained([P0]))
    await throughout(lambda: not draining.done(), "the drain waits", 0.05)
    late.received = True
    late.superseded = True
    bench.values.finish(["t"], ())
    await asyncio.wait_for(draining, 5)
    assert bench.finished == {P0: 11}


async def test_values_before_unclaimed_ones_are_finished() -> None:
    """Each partition is finished up to the first value that no caller has received."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10, 11)
    bench.fetcher.add(P1, 10)
    take_values(bench)
    bench.fetcher.add(P0, 12)
    abandoned = ConsumeCall()
    take_values(bench, call=abandoned)
    abandoned.superseded = True
    bench.values.finish()
    assert bench.finished == {P0: 12, P1: 11}
    assert bench.fetcher.positions == {P0: 12}


async def test_values_that_a_caller_is_about_to_receive_stay_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Values stay in flight for ``UNCLAIMED_S``, because their caller may still receive them. After that, they are
    unclaimed.
    """
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10)
    other = ConsumeCall()
    take_values(bench, call=other)
    bench.fetcher.add(P0, 11)
    take_values(bench)
    bench.values.finish(["t"])
    assert bench.finished == {}
    assert bench.handler.stop([P0]) == {P0}
    other.received = True
    bench.values.finish(["t"])
    assert bench.finished == {P0: 12}
    await bench.handler.assigned([P0])
    late = ConsumeCall()
    bench.fetcher.add(P0, 12)
    take_values(bench, call=late)
    monkeypatch.setattr(values_in_flight, "UNCLAIMED_S", -1.0)
    bench.values.finish(["t"])
    assert bench.finished == {P0: 12}
    assert bench.fetcher.positions == {P0: 12}
    assert bench.state().position == 12
    assert bench.metrics.counter("values_unclaimed") == 1


async def test_unclaimed_values_of_a_revoked_partition_are_not_fetched_again() -> None:
    """Unclaimed values of a lost or revoked partition are not fetched again, because its next owner delivers them."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10)
    bench.fetcher.add(P1, 10)
    abandoned = ConsumeCall()
    take_values(bench, call=abandoned)
    abandoned.superseded = True
    bench.handler.lost([P0])
    bench.handler.stop([P1])
    bench.values.finish(["t"])
    assert bench.fetcher.positions == {}
    assert bench.finished == {}
