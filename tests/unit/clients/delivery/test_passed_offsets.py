"""Offsets without records: the position and the finished offset move behind them, but not past unfinished records."""

from __future__ import annotations

import pytest

from kiel_groups.clients.delivery.deserializer import Deserializer
from kiel_groups.clients.fetch.fetch_requests import ANY
from kiel_groups.group.partition_offsets import PendingReset
from tests.helpers.delivery_bench import P0, P1, DeliveryBench, take_values

pytestmark = pytest.mark.unit


def pass_to(bench: DeliveryBench, offset: int) -> None:
    """Have the fetcher pass the offsets of partition 0 before ``offset``."""
    bench.fetcher.positions[P0] = offset
    bench.fetcher.passed.add(P0)


async def test_the_position_passes_once_the_record_before_is_finished() -> None:
    """A loop's record in flight is not passed. When the loop asks for the next one, the passed offsets are finished."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10, 11)
    assert [bench.take(), bench.take()] == [10, 11]
    pass_to(bench, 13)
    assert bench.owned.poll(ANY, Deserializer.records) is None
    assert (bench.state().position, bench.finished) == (12, {P0: 11})
    assert bench.take() is None
    assert (bench.state().position, bench.finished) == (13, {P0: 13})
    assert not bench.fetcher.passed


async def test_a_partition_without_records_passes_at_the_next_call() -> None:
    """If the first offsets of a claim have no record, they are passed at the next call, and stored like records."""
    bench = DeliveryBench()
    pass_to(bench, 12)
    assert take_values(bench) == []
    assert (bench.state().position, bench.finished) == (12, {P0: 12})
    assert bench.state(P1).position == 10


async def test_values_in_flight_are_not_passed() -> None:
    """Values that a call returned are not passed before their coroutine has asked again."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10)
    assert take_values(bench) == [10]
    pass_to(bench, 12)
    assert bench.owned.poll(ANY, Deserializer.records) is None
    assert bench.finished == {}
    bench.values.finish(["t"])
    assert bench.owned.poll(ANY, Deserializer.records) is None
    assert bench.finished == {P0: 12}


async def test_buffered_records_move_the_position_by_their_delivery() -> None:
    """While records behind the passed offsets are buffered, nothing is passed: they may be dropped again."""
    bench = DeliveryBench()
    pass_to(bench, 13)
    bench.fetcher.add(P0, 12)
    assert bench.take() == 12
    assert (bench.state().position, bench.finished) == (13, {})
    assert bench.take() is None
    assert bench.finished == {P0: 13}


async def test_offsets_behind_buffered_records_pass_after_their_delivery() -> None:
    """The fetcher may be ahead: it passes offsets behind records that no call has taken yet."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10, 11)
    pass_to(bench, 13)
    assert [bench.take(), bench.take()] == [10, 11]
    assert bench.take() is None
    assert (bench.state().position, bench.finished) == (13, {P0: 13})
    assert not bench.fetcher.passed


async def test_neither_a_lost_claim_nor_a_reset_is_passed() -> None:
    """Offsets of a partition without a claim, or with a reset to store, are not passed."""
    bench = DeliveryBench()
    pass_to(bench, 13)
    bench.subscription.offsets.choose_reset(P0, PendingReset(10, 0, 5, 5))
    assert bench.owned.poll(ANY, Deserializer.records) is None
    assert bench.state().position == 10
    pass_to(bench, 13)
    bench.handler.lost([P0])
    bench.subscription.offsets.end([P0])
    assert bench.owned.poll(ANY, Deserializer.records) is None
    assert bench.finished == {}
