"""A partition is delivered after the assigned hook of its current claim, while its topic is subscribed to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from kiel_groups.clients.calls.callers import ConsumeCall
from kiel_groups.errors import NoOffsetsError
from kiel_groups.group.partition_offsets import PendingReset, StartPosition
from tests.helpers.delivery_bench import P0, P1, U0, DeliveryBench, received_call, take_values
from tests.helpers.waiting import run_ready_tasks

pytestmark = pytest.mark.unit


def bench_of_one() -> DeliveryBench:
    """Return a bench on which only partition 0 of topic t is owned."""
    bench = DeliveryBench()
    bench.handler.stop([P1])
    return bench


def operator_resets(bench: DeliveryBench, offset: int) -> None:
    """Reset the position, as a member does when another writer has changed the offset."""
    bench.subscription.offsets.seek(P0, offset)
    bench.handler.offset_changed(P0, offset)


def topic_is_recreated(bench: DeliveryBench, offset: int) -> None:
    """Reset the position, as a member does after a topic was created again."""
    bench.subscription.offsets.restart(P0, offset, 7, 1)
    bench.handler.offset_changed(P0, offset)


async def start_assigned_hook(bench: DeliveryBench) -> asyncio.Task[None]:
    """Start the assigned hook for partition 0. The hook runs until ``bench.listener.ready`` is set."""
    bench.listener.ready.clear()
    assigning = asyncio.ensure_future(bench.handler.assigned([P0]))
    await run_ready_tasks()
    assert bench.listener.calls == ["assigned"]
    return assigning


@pytest.mark.parametrize("reset", [operator_resets, topic_is_recreated])
async def test_a_reset_during_the_assigned_hook_takes_effect(reset: Callable[[DeliveryBench, int], None]) -> None:
    """A reset during the assigned hook takes effect: after the hook, fetching starts at the reset's offset."""
    bench = bench_of_one()
    assigning = await start_assigned_hook(bench)
    reset(bench, 17)
    assert bench.fetcher.positions == {}
    bench.listener.ready.set()
    await assigning
    assert bench.fetcher.positions == {P0: 17}
    bench.fetcher.add(P0, 17)
    assert bench.take() == 17


async def test_records_fetched_before_a_reset_are_not_delivered_after_it() -> None:
    """A reset drops the rest of the current batch. Finishing the record in flight does not undo the reset."""
    bench = bench_of_one()
    await bench.handler.assigned([P0])
    bench.fetcher.add(P0, 10, 11, 12)
    assert bench.take() == 10
    operator_resets(bench, 40)
    assert bench.take() is None
    assert bench.fetcher.positions == {P0: 40}
    assert bench.state().finished == 40


async def test_a_partition_that_is_stopped_during_the_assigned_hook_is_not_fetched() -> None:
    """If a partition is revoked during its assigned hook, neither the end of the hook nor a reset starts it."""
    bench = bench_of_one()
    assigning = await start_assigned_hook(bench)
    assert bench.handler.stop([P0]) == frozenset()
    operator_resets(bench, 17)
    bench.listener.ready.set()
    await assigning
    operator_resets(bench, 18)
    assert bench.fetcher.positions == {}


async def test_a_partition_that_is_lost_during_the_assigned_hook_is_not_fetched() -> None:
    """If a partition is lost during its assigned hook, the hook is cancelled, and the partition is not fetched."""
    bench = bench_of_one()
    assigning = await start_assigned_hook(bench)
    bench.subscription.offsets.end([P0])
    bench.handler.lost([P0])
    await assigning
    await run_ready_tasks()
    assert bench.listener.calls == ["assigned", "lost"]
    assert bench.fetcher.positions == {}


async def test_a_claim_during_the_hook_of_an_earlier_claim_waits_for_its_own_hook() -> None:
    """
    If a partition is claimed again during the hook of an earlier claim, the hooks of both claims run one after the
    other. Fetching starts at the end of the second hook.
    """
    bench = bench_of_one()
    first = await start_assigned_hook(bench)
    bench.handler.stop([P0])
    bench.subscription.offsets.end([P0])
    bench.subscription.offsets.open({P0: StartPosition(30, 2, 2)})
    second = asyncio.ensure_future(bench.handler.assigned([P0]))
    await run_ready_tasks()
    assert bench.listener.calls == ["assigned"]
    bench.listener.ready.set()
    await first
    bench.listener.ready.clear()
    await run_ready_tasks()
    assert bench.listener.calls == ["assigned", "assigned"]
    assert bench.fetcher.positions == {}
    bench.listener.ready.set()
    await second
    assert bench.fetcher.positions == {P0: 30}


async def test_nothing_of_a_dropped_topic_is_delivered() -> None:
    """
    When a topic is dropped from the subscription, its buffered records are dropped. Its record in flight is finished as
    usual.
    """
    bench = bench_of_one()
    bench.claim(U0)
    await bench.handler.assigned([P0, U0])
    bench.fetcher.add(P0, 10, 11)
    bench.fetcher.add(P0, 12)
    assert bench.take() == 10
    bench.subscription.subscribe(["u"])
    bench.owned.follow_subscription()
    bench.fetcher.add(U0, 10)
    assert bench.fetcher.positions == {U0: 10}
    in_progress = [work.partitions for work in bench.handler.in_progress()]
    assert in_progress == [{P0}], "a drain waits for the record in flight"
    assert bench.take() == 10
    assert bench.take() is None
    assert bench.finished == {P0: 11, U0: 11}


async def test_values_of_a_dropped_topic_are_not_delivered() -> None:
    """
    When a topic is dropped from the subscription, its unclaimed values are not delivered again. Values that a caller
    processes are finished as usual.
    """
    bench = bench_of_one()
    await bench.handler.assigned([P0])
    received, abandoned = received_call(), ConsumeCall()
    bench.fetcher.add(P0, 10)
    take_values(bench, call=received)
    bench.fetcher.add(P0, 11)
    take_values(bench, call=abandoned)
    bench.fetcher.add(P0, 12)
    bench.subscription.subscribe(["u"])
    bench.owned.follow_subscription()
    abandoned.superseded = received.superseded = True
    bench.values.finish(["t"], ())
    assert take_values(bench) == []
    assert bench.finished == {P0: 11}
    assert bench.fetcher.positions == {}
    bench.subscription.subscribe(["t"])
    bench.owned.follow_subscription()
    assert bench.fetcher.positions == {P0: 11}, "the unclaimed values come first"


async def test_a_topic_that_is_subscribed_to_again_resumes_at_its_position() -> None:
    """
    A topic that is subscribed to again resumes after its delivered records. Topics that remained subscribed keep their
    fetch positions.
    """
    bench = bench_of_one()
    bench.claim(U0)
    await bench.handler.assigned([P0, U0])
    bench.fetcher.add(P0, 10, 11)
    assert bench.take() == 10
    bench.subscription.subscribe(["u"])
    bench.owned.follow_subscription()
    bench.fetcher.positions[U0] = 99
    bench.subscription.subscribe(["t", "u"])
    bench.owned.follow_subscription()
    assert bench.fetcher.positions == {P0: 11, U0: 99}


async def test_a_topic_that_is_subscribed_to_again_keeps_a_reset_that_was_not_stored() -> None:
    """
    A topic that is subscribed to again continues its pending reset, because the log may have grown past the lost
    position meanwhile.
    """
    bench = bench_of_one()
    await bench.handler.assigned([P0])
    bench.state().reset = reset = PendingReset(lost=10, start=20, end=30, position=20)
    bench.subscription.subscribe(["u"])
    bench.owned.follow_subscription()
    assert bench.state().reset is reset
    bench.subscription.subscribe(["t"])
    bench.owned.follow_subscription()
    assert bench.state().reset is reset
    assert (bench.fetcher.positions, bench.fetcher.lost) == ({P0: 10}, {P0})


async def test_a_topic_that_is_subscribed_to_again_drops_a_reset_if_its_position_is_in_the_log() -> None:
    """
    A topic that is subscribed to again drops its pending reset if the log has its position. Records buffered after the
    position were dropped with the topic, and fetching from the position returns them.
    """
    bench = bench_of_one()
    await bench.handler.assigned([P0])
    bench.state().position, bench.state().finished = 5, 8
    bench.state().reset = PendingReset(lost=10, start=0, end=7, position=7)
    for topic in ("u", "t"):
        bench.subscription.subscribe([topic])
        bench.owned.follow_subscription()
    assert (bench.state().reset, bench.state().finished) == (None, 7)
    assert (bench.fetcher.positions, bench.fetcher.lost) == ({P0: 5}, set())


@pytest.mark.parametrize("again", [True, False], ids=["subscribed again before", "subscribed again after"])
async def test_a_record_of_a_dropped_topic_that_is_put_back_is_not_skipped(again: bool) -> None:
    """
    If an exception ends the loop before or after the topic is subscribed to again, the record in flight is the next one
    to deliver.
    """
    bench = bench_of_one()
    await bench.handler.assigned([P0])
    bench.fetcher.add(P0, 10, 11)
    assert bench.take() == 10
    bench.subscription.subscribe(["u"])
    bench.owned.follow_subscription()
    if again:
        bench.subscription.subscribe(["t"])
        bench.owned.follow_subscription()
    bench.records.put_back()
    bench.subscription.subscribe(["t"])
    bench.owned.follow_subscription()
    assert bench.fetcher.positions == {P0: 10}
    assert bench.finished == {}


async def test_a_topic_that_is_dropped_during_the_assigned_hook_is_not_fetched() -> None:
    """
    If a topic is dropped during the assigned hook, its partition is not fetched until the topic is subscribed to again.
    """
    bench = bench_of_one()
    assigning = await start_assigned_hook(bench)
    bench.subscription.subscribe(["u"])
    bench.owned.follow_subscription()
    bench.listener.ready.set()
    await assigning
    assert bench.fetcher.positions == {}
    bench.subscription.subscribe(["t"])
    bench.owned.follow_subscription()
    assert bench.fetcher.positions == {P0: 10}


async def test_an_error_of_a_dropped_topic_is_not_raised() -> None:
    """An error about the start offsets of a topic is not raised after the topic was dropped from the subscription."""
    bench = bench_of_one()
    bench.handler.start_unknown("t", NoOffsetsError("no offsets"))
    bench.subscription.subscribe(["u"])
    bench.owned.follow_subscription()
    assert bench.take() is None
