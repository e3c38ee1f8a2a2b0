"""Effects of a rebalance on delivery: claims, drains, losses and resets."""

from __future__ import annotations

import asyncio

import pytest

from kiel_groups.errors import ConfigError
from kiel_groups.model import Record, TopicPartition
from tests.helpers.delivery_bench import P0, P1, DeliveryBench
from tests.helpers.waiting import run_ready_tasks

pytestmark = pytest.mark.unit


async def test_claimed_partitions_are_fetched_after_the_assigned_hook() -> None:
    """Claimed partitions are fetched after the assigned hook, each from the position of its claim."""
    bench = DeliveryBench()
    bench.listener.ready.clear()
    assigning = asyncio.ensure_future(bench.handler.assigned([P0, P1]))
    await run_ready_tasks()
    assert bench.listener.calls == ["assigned"]
    assert bench.fetcher.positions == {}
    bench.listener.ready.set()
    await assigning
    assert bench.fetcher.positions == {P0: 10, P1: 10}


async def test_partitions_stopped_or_lost_during_the_assigned_hook_are_not_fetched() -> None:
    """The end of the assigned hook starts only partitions that are still owned and not revoked."""
    bench = DeliveryBench()
    third = TopicPartition("t", 2)
    bench.claim(third)
    bench.listener.ready.clear()
    assigning = asyncio.ensure_future(bench.handler.assigned([P0, P1, third]))
    await run_ready_tasks()
    bench.handler.stop([P0])
    bench.subscription.offsets.end([P1])
    bench.listener.ready.set()
    await assigning
    assert bench.fetcher.positions == {third: 10}


async def test_a_stopped_partition_is_fetched_again_after_a_new_claim() -> None:
    """
    A partition that was revoked and is claimed again, as after a move to another member and back, is fetched again.
    """
    bench = DeliveryBench()
    bench.handler.stop([P0])
    bench.subscription.offsets.end([P0])
    bench.claim(P0)
    await bench.handler.assigned([P0])
    assert bench.fetcher.positions == {P0: 10}


async def test_a_stop_drops_records_that_were_not_delivered() -> None:
    """When a partition is revoked, its records that were not delivered are dropped. Other partitions continue."""
    bench = DeliveryBench()
    await bench.handler.assigned([P0, P1])
    bench.fetcher.add(P0, 10, 11)
    bench.fetcher.add(P1, 10)
    assert bench.take() == 10
    assert bench.handler.stop([P0]) == {P0}
    assert bench.fetcher.positions == {P1: 10}
    assert bench.records.take() == Record("t", 1, 10, None, b"10")
    assert bench.finished == {P0: 11}


async def test_a_drain_waits_for_the_record_in_flight() -> None:
    """
    A drain waits for the record in flight. It ends when the next record is requested, and then the revoked hook is
    called.
    """
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10, 11)
    bench.fetcher.add(P1, 10, 11)
    bench.take()
    bench.handler.stop([P0])
    draining = asyncio.ensure_future(bench.handler.drained([P0]))
    await run_ready_tasks()
    assert not draining.done()
    assert bench.listener.calls == []
    bench.take()
    await draining
    assert bench.listener.calls == ["revoked"]
    assert bench.finished == {P0: 11}


async def test_a_drain_does_not_wait_for_records_of_other_partitions() -> None:
    """A record in flight from another partition does not delay the drain."""
    bench = DeliveryBench()
    bench.fetcher.add(P1, 10, 11)
    bench.take()
    assert bench.handler.stop([P0]) == frozenset()
    await asyncio.wait_for(bench.handler.drained([P0]), 5)
    assert bench.listener.calls == ["revoked"]


async def test_drains_end_independently() -> None:
    """A partition with a record in flight does not delay the drain of another one."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10)
    bench.take()
    both = [asyncio.ensure_future(bench.handler.drained([partition])) for partition in (P0, P1)]
    await run_ready_tasks()
    assert [draining.done() for draining in both] == [False, True]
    bench.records.put_back()
    await asyncio.wait_for(asyncio.gather(*both), 5)


@pytest.mark.parametrize("end", ["put_back", "finish"])
async def test_a_drain_ends_when_the_record_is_no_longer_in_flight(end: str) -> None:
    """A drain ends when the application has finished the record in flight or put it back."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10)
    bench.take()
    draining = asyncio.ensure_future(bench.handler.drained([P0]))
    await run_ready_tasks()
    getattr(bench.records, end)()
    await asyncio.wait_for(draining, 5)
    assert bench.finished == ({P0: 11} if end == "finish" else {})


@pytest.mark.parametrize("finished", [True, False])
async def test_a_drain_ends_when_the_loop_is_left(finished: bool) -> None:
    """
    A drain ends when the application leaves its loop. The record in flight is finished only if the loop was left
    regularly.
    """
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10)
    bench.records.begin_loop()
    bench.take()
    draining = asyncio.ensure_future(bench.handler.drained([P0]))
    await run_ready_tasks()
    assert not draining.done()
    bench.records.end_loop(finished=finished)
    await asyncio.wait_for(draining, 5)
    assert bench.finished == ({P0: 11} if finished else {})


async def test_a_second_loop_is_refused_while_one_runs() -> None:
    """
    A second loop is refused while one runs, because each loop would finish the records of the other loop. After the
    first loop was left, another one may start.
    """
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10)
    bench.records.begin_loop()
    bench.take()
    with pytest.raises(ConfigError, match="another loop over this consumer is active"):
        bench.records.begin_loop()
    assert bench.handler.stop([P0]) == {P0}
    assert bench.finished == {}
    bench.records.end_loop(finished=True)
    bench.records.begin_loop()


@pytest.mark.parametrize(("finished", "following"), [(True, 11), (False, 10)])
async def test_the_next_loop_resumes_where_the_last_one_was_left(finished: bool, following: int) -> None:
    """The next loop starts after the last record if that was finished, and with the same record if it was not."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10, 11)
    bench.records.begin_loop()
    bench.take()
    bench.records.end_loop(finished=finished)
    assert bench.handler.stop([P1]) == frozenset()
    bench.records.begin_loop()
    assert bench.take() == following
    assert bench.handler.stop([P0]) == {P0}


async def test_records_of_a_lost_partition_are_dropped_and_not_finished() -> None:
    """
    When a partition is lost, its records are dropped. The record in flight is never finished, even if the partition is
    claimed again at once.
    """
    bench = DeliveryBench()
    await bench.handler.assigned([P0, P1])
    bench.fetcher.add(P0, 10, 11)
    bench.fetcher.add(P1, 10)
    bench.take()
    lost = bench.state()
    bench.subscription.offsets.end([P0])
    bench.handler.lost([P0])
    bench.claim(P0)
    assert bench.fetcher.positions == {P1: 10}
    assert bench.records.take() == Record("t", 1, 10, None, b"10")
    assert bench.finished == {}
    assert lost.finished == 10
    await run_ready_tasks()
    assert bench.listener.calls == ["assigned", "lost"]


async def test_a_loss_of_another_partition_does_not_affect_the_record_in_flight() -> None:
    """When one partition is lost, the record in flight of another partition is finished as usual."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10)
    bench.take()
    bench.handler.lost([P1])
    bench.take()
    assert bench.finished == {P0: 11}


async def test_records_after_a_reset_come_from_the_new_offset() -> None:
    """
    After an operator's reset, records come from the new offset. A record delivered before the reset does not change
    that offset when it is finished.
    """
    bench = DeliveryBench()
    await bench.handler.assigned([P0, P1])
    bench.fetcher.add(P0, 10, 11)
    bench.take()
    bench.subscription.offsets.seek(P0, 50)
    bench.subscription.offsets.stored(P0, 50, 2)
    bench.handler.offset_changed(P0, 50)
    assert bench.fetcher.positions == {P0: 50, P1: 10}
    assert bench.take() is None
    assert bench.finished == {}
    bench.fetcher.add(P0, 50)
    assert bench.take() == 50


async def test_a_reset_of_another_partition_does_not_affect_the_record_in_flight() -> None:
    """A reset of one partition affects neither the record in flight nor the batch of another partition."""
    bench = DeliveryBench()
    await bench.handler.assigned([P0, P1])
    bench.fetcher.add(P0, 10, 11)
    bench.take()
    bench.handler.offset_changed(P1, 50)
    assert bench.take() == 11
    assert bench.finished == {P0: 11}


async def test_a_reset_does_not_start_a_revoked_partition() -> None:
    """A reset does not start a revoked partition, which remains stopped until it is claimed again."""
    bench = DeliveryBench()
    await bench.handler.assigned([P0, P1])
    bench.handler.stop([P0])
    bench.handler.offset_changed(P0, 50)
    assert bench.fetcher.positions == {P1: 10}
