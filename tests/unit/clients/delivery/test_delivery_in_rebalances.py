"""What the group does to what is handed out: claims that come, drains, losses, offsets that are moved."""

from __future__ import annotations

import asyncio

import pytest

from kiel_groups.errors import ConfigError
from kiel_groups.model import Record, TopicPartition
from tests.unit.clients.delivery.test_record_delivery import P0, P1, Bench, patience, settled  # noqa: F401 -- patience is a fixture

pytestmark = pytest.mark.unit


async def test_what_is_assigned_is_fetched_after_the_listener_was_told() -> None:
    """From the positions of the claims."""
    bench = Bench()
    bench.listener.ready.clear()
    assigning = asyncio.ensure_future(bench.out.assigned([P0, P1]))
    await settled()
    assert bench.listener.told == ["assigned"]
    assert bench.fetcher.positions == {}
    bench.listener.ready.set()
    await assigning
    assert bench.fetcher.positions == {P0: 10, P1: 10}


async def test_what_was_stopped_or_lost_while_the_listener_was_told_is_not_fetched() -> None:
    """The listener may take long."""
    bench = Bench()
    third = TopicPartition("t", 2)
    bench.claim(third)
    bench.listener.ready.clear()
    assigning = asyncio.ensure_future(bench.out.assigned([P0, P1, third]))
    await settled()
    bench.out.stop([P0])
    bench.subscription.unassign([P1])
    bench.listener.ready.set()
    await assigning
    assert bench.fetcher.positions == {third: 10}


async def test_what_was_stopped_once_is_fetched_again_after_a_new_claim() -> None:
    """A hand-over there and back."""
    bench = Bench()
    bench.out.stop([P0])
    bench.subscription.unassign([P0])
    bench.claim(P0)
    await bench.out.assigned([P0])
    assert bench.fetcher.positions == {P0: 10}


async def test_a_stop_drops_what_was_not_handed_out() -> None:
    """What is left of the batch belongs to the next owner; other partitions flow on."""
    bench = Bench()
    await bench.out.assigned([P0, P1])
    bench.fetcher.add(P0, 10, 11)
    bench.fetcher.add(P1, 10)
    assert bench.take() == 10
    assert bench.out.stop([P0]) == {P0}
    assert bench.fetcher.positions == {P1: 10}
    assert bench.out.take() == Record("t", 1, 10, None, b"10")
    assert bench.finished == {P0: 11}


async def test_a_drain_waits_for_the_record_in_hand() -> None:
    """It ends when the next one is asked for, and then the listener is told."""
    bench = Bench()
    bench.fetcher.add(P0, 10, 11)
    bench.fetcher.add(P1, 10, 11)
    bench.take()
    bench.out.stop([P0])
    draining = asyncio.ensure_future(bench.out.drained([P0]))
    await settled()
    assert not draining.done()
    assert bench.listener.told == []
    bench.take()
    await draining
    assert bench.listener.told == ["revoked"]
    assert bench.finished == {P0: 11}


async def test_a_drain_does_not_wait_for_records_of_other_partitions() -> None:
    """They go on being processed."""
    bench = Bench()
    bench.fetcher.add(P1, 10, 11)
    bench.take()
    assert bench.out.stop([P0]) == frozenset()
    await asyncio.wait_for(bench.out.drained([P0]), 5)
    assert bench.listener.told == ["revoked"]


async def test_two_drains_end_each_in_its_time() -> None:
    """One busy partition keeps nobody else waiting, and nobody is forgotten."""
    bench = Bench()
    bench.fetcher.add(P0, 10)
    bench.take()
    both = [asyncio.ensure_future(bench.out.drained([partition])) for partition in (P0, P1)]
    await settled()
    assert [draining.done() for draining in both] == [False, True]
    bench.out.put_back()
    await asyncio.wait_for(asyncio.gather(*both), 5)


@pytest.mark.parametrize("end", ["put_back", "finish"])
async def test_a_drain_ends_when_nobody_has_the_record(end: str) -> None:
    """Finished or not."""
    bench = Bench()
    bench.fetcher.add(P0, 10)
    bench.take()
    draining = asyncio.ensure_future(bench.out.drained([P0]))
    await settled()
    getattr(bench.out, end)()
    await asyncio.wait_for(draining, 5)
    assert bench.finished == ({P0: 11} if end == "finish" else {})


@pytest.mark.parametrize("finished", [True, False])
async def test_a_drain_does_not_wait_for_a_loop_that_was_left(finished: bool) -> None:
    """Nobody processes its record any more; it counts where the loop was left in order."""
    bench = Bench()
    bench.fetcher.add(P0, 10)
    bench.out.enter()
    bench.take()
    draining = asyncio.ensure_future(bench.out.drained([P0]))
    await settled()
    assert not draining.done()
    bench.out.leave(finished=finished)
    await asyncio.wait_for(draining, 5)
    assert bench.finished == ({P0: 11} if finished else {})


async def test_a_second_loop_is_refused_while_one_goes_on() -> None:
    """Each would finish the other's records; once the first is left, the next may begin."""
    bench = Bench()
    bench.fetcher.add(P0, 10)
    bench.out.enter()
    bench.take()
    with pytest.raises(ConfigError, match="another loop over this consumer goes on"):
        bench.out.enter()
    assert bench.out.stop([P0]) == {P0}
    assert bench.finished == {}
    bench.out.leave(finished=True)
    bench.out.enter()


@pytest.mark.parametrize(("finished", "following"), [(True, 11), (False, 10)])
async def test_the_next_loop_goes_on_where_the_last_one_was_left(finished: bool, following: int) -> None:
    """With the record after the one that was finished, or once more with the one that was not."""
    bench = Bench()
    bench.fetcher.add(P0, 10, 11)
    bench.out.enter()
    bench.take()
    bench.out.leave(finished=finished)
    assert bench.out.stop([P1]) == frozenset()
    bench.out.enter()
    assert bench.take() == following
    assert bench.out.stop([P0]) == {P0}


async def test_what_is_lost_is_dropped_and_does_not_count() -> None:
    """Also the record in hand, and also where the partition is claimed anew at once."""
    bench = Bench()
    await bench.out.assigned([P0, P1])
    bench.fetcher.add(P0, 10, 11)
    bench.fetcher.add(P1, 10)
    bench.take()
    lost = bench.state()
    bench.subscription.unassign([P0])
    bench.out.lost([P0])
    bench.claim(P0)
    assert bench.fetcher.positions == {P1: 10}
    assert bench.out.take() == Record("t", 1, 10, None, b"10")
    assert bench.finished == {}
    assert lost.finished == 10
    await settled()
    assert bench.listener.told == ["assigned", "lost"]


async def test_a_loss_elsewhere_does_not_touch_the_record_in_hand() -> None:
    """Its partition is still held."""
    bench = Bench()
    bench.fetcher.add(P0, 10)
    bench.take()
    bench.out.lost([P1])
    bench.take()
    assert bench.finished == {P0: 11}


async def test_after_a_move_records_come_from_the_new_offset() -> None:
    """What was handed out before does not count any more: who moved it knew better."""
    bench = Bench()
    await bench.out.assigned([P0, P1])
    bench.fetcher.add(P0, 10, 11)
    bench.take()
    bench.subscription.seek(P0, 50)
    bench.subscription.mark_committed(P0, 50, 2)
    bench.out.moved(P0, 50)
    assert bench.fetcher.positions == {P0: 50, P1: 10}
    assert bench.take() is None
    assert bench.finished == {}
    bench.fetcher.add(P0, 50)
    assert bench.take() == 50


async def test_a_move_elsewhere_does_not_touch_the_record_in_hand() -> None:
    """Nor the rest of its batch."""
    bench = Bench()
    await bench.out.assigned([P0, P1])
    bench.fetcher.add(P0, 10, 11)
    bench.take()
    bench.out.moved(P1, 50)
    assert bench.take() == 11
    assert bench.finished == {P0: 11}


async def test_a_partition_that_is_handed_over_is_not_fetched_again_by_a_move() -> None:
    """It is stopped for good, until it is claimed anew."""
    bench = Bench()
    await bench.out.assigned([P0, P1])
    bench.out.stop([P0])
    bench.out.moved(P0, 50)
    assert bench.fetcher.positions == {P1: 10}
