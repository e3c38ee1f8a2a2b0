"""When a partition is delivered: after its assigned hook, under that very claim, while its topic is subscribed to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from kiel_groups.clients.calls.callers import ConsumeCall
from kiel_groups.errors import NoOffsetsError
from kiel_groups.group.member.pending_reset import PendingReset
from kiel_groups.group.member.subscription import StartPosition
from tests.unit.clients.delivery.test_record_delivery import P0, P1, Bench, settled
from tests.unit.clients.delivery.test_value_delivery import U0, take, who_gets

pytestmark = pytest.mark.unit


def bench_of_one() -> Bench:
    """Partition 0 of the topic t is held, and no other."""
    bench = Bench()
    bench.out.stop([P1])
    return bench


def operator_sets(bench: Bench, offset: int) -> None:
    """As the member does when it follows an offset that somebody else wrote."""
    bench.subscription.seek(P0, offset)
    bench.out.moved(P0, offset)


def topic_starts_over(bench: Bench, offset: int) -> None:
    """As the member does when a topic was created again."""
    bench.subscription.reset_recreated(P0, offset, 7, 1)
    bench.out.moved(P0, offset)


async def assigned_slowly(bench: Bench) -> asyncio.Task[None]:
    """The hook for the partition 0 runs until ``bench.listener.ready`` is set."""
    bench.listener.ready.clear()
    assigning = asyncio.ensure_future(bench.out.assigned([P0]))
    await settled()
    assert bench.listener.told == ["assigned"]
    return assigning


@pytest.mark.parametrize("move", [operator_sets, topic_starts_over])
async def test_a_position_that_moves_during_the_assigned_hook(move: Callable[[Bench, int], None]) -> None:
    """Nothing is fetched before the hook has ended; then the partition starts where it was moved to."""
    bench = bench_of_one()
    assigning = await assigned_slowly(bench)
    move(bench, 17)
    assert bench.fetcher.positions == {}
    bench.listener.ready.set()
    await assigning
    assert bench.fetcher.positions == {P0: 17}
    bench.fetcher.add(P0, 17)
    assert bench.take() == 17


async def test_what_was_fetched_before_a_move_is_not_delivered_after_it() -> None:
    """Also not the rest of the batch that is being delivered; a record in flight does not take ``finished`` back."""
    bench = bench_of_one()
    await bench.out.assigned([P0])
    bench.fetcher.add(P0, 10, 11, 12)
    assert bench.take() == 10
    operator_sets(bench, 40)
    assert bench.take() is None
    assert bench.fetcher.positions == {P0: 40}
    assert bench.state().finished == 40


async def test_a_stop_during_the_assigned_hook_stands() -> None:
    """The partition is being handed over: a position that moves does not start it either."""
    bench = bench_of_one()
    assigning = await assigned_slowly(bench)
    assert bench.out.stop([P0]) == frozenset()
    operator_sets(bench, 17)
    bench.listener.ready.set()
    await assigning
    operator_sets(bench, 18)
    assert bench.fetcher.positions == {}


async def test_a_loss_during_the_assigned_hook_stands() -> None:
    """The hook is cut short, and the partition is not fetched for that."""
    bench = bench_of_one()
    assigning = await assigned_slowly(bench)
    bench.subscription.unassign([P0])
    bench.out.lost([P0])
    await assigning
    await settled()
    assert bench.listener.told == ["assigned", "lost"]
    assert bench.fetcher.positions == {}


async def test_a_partition_that_is_claimed_again_during_the_hook_waits_for_its_own_hook() -> None:
    """The hooks of both claims run one after the other; the end of the first one starts nothing."""
    bench = bench_of_one()
    first = await assigned_slowly(bench)
    bench.out.stop([P0])
    bench.subscription.unassign([P0])
    bench.subscription.assign_from_subscribed({P0: StartPosition(30, 2, 2)})
    second = asyncio.ensure_future(bench.out.assigned([P0]))
    await settled()
    assert bench.listener.told == ["assigned"]
    bench.listener.ready.set()
    await first
    bench.listener.ready.clear()
    await settled()
    assert bench.listener.told == ["assigned", "assigned"]
    assert bench.fetcher.positions == {}
    bench.listener.ready.set()
    await second
    assert bench.fetcher.positions == {P0: 30}


async def test_nothing_of_a_dropped_topic_is_delivered() -> None:
    """Neither the rest of its batch nor what is buffered; the record in flight is finished as ever."""
    bench = bench_of_one()
    bench.claim(U0)
    await bench.out.assigned([P0, U0])
    bench.fetcher.add(P0, 10, 11)
    bench.fetcher.add(P0, 12)
    assert bench.take() == 10
    bench.subscription.subscribe(["u"])
    bench.out.follow_subscription()
    bench.fetcher.add(U0, 10)
    assert bench.fetcher.positions == {U0: 10}
    assert [work.partitions for work in bench.out.in_progress()] == [{P0}], "a drain waits for the record in flight"
    assert bench.take() == 10
    assert bench.take() is None
    assert bench.finished == {P0: 11, U0: 11}


async def test_values_of_a_dropped_topic_are_not_delivered() -> None:
    """Nor do those come again that nobody got; those that somebody processes are finished as ever."""
    bench = bench_of_one()
    await bench.out.assigned([P0])
    busy, abandoned = who_gets(), ConsumeCall()
    bench.fetcher.add(P0, 10)
    take(bench, taker=busy)
    bench.fetcher.add(P0, 11)
    take(bench, taker=abandoned)
    bench.fetcher.add(P0, 12)
    bench.subscription.subscribe(["u"])
    bench.out.follow_subscription()
    abandoned.passed = busy.passed = True
    bench.out.finish_topics(["t"], ())
    assert take(bench) == []
    assert bench.finished == {P0: 11}
    assert bench.fetcher.positions == {}
    bench.subscription.subscribe(["t"])
    bench.out.follow_subscription()
    assert bench.fetcher.positions == {P0: 11}, "what nobody got comes first"


async def test_a_topic_that_comes_back_goes_on_at_its_position() -> None:
    """After what was delivered, and without what was only fetched; topics that stayed are not fetched anew."""
    bench = bench_of_one()
    bench.claim(U0)
    await bench.out.assigned([P0, U0])
    bench.fetcher.add(P0, 10, 11)
    assert bench.take() == 10
    bench.subscription.subscribe(["u"])
    bench.out.follow_subscription()
    bench.fetcher.positions[U0] = 99
    bench.subscription.subscribe(["t", "u"])
    bench.out.follow_subscription()
    assert bench.fetcher.positions == {P0: 11, U0: 99}


async def test_a_topic_that_comes_back_keeps_a_reset_that_was_not_stored() -> None:
    """The fetch resumes with it: the log may have grown past the lost position by now."""
    bench = bench_of_one()
    await bench.out.assigned([P0])
    bench.state().reset = reset = PendingReset(lost=10, start=20, end=30, position=20)
    bench.subscription.subscribe(["u"])
    bench.out.follow_subscription()
    assert bench.state().reset is reset
    bench.subscription.subscribe(["t"])
    bench.out.follow_subscription()
    assert bench.state().reset is reset
    assert (bench.fetcher.positions, bench.fetcher.lost) == ({P0: 10}, {P0})


async def test_a_topic_that_comes_back_where_the_log_has_its_position_needs_no_reset() -> None:
    """What was buffered beyond it was lost; fetched from its position, the log leads to all that has come since."""
    bench = bench_of_one()
    await bench.out.assigned([P0])
    bench.state().position, bench.state().finished = 5, 8
    bench.state().reset = PendingReset(lost=10, start=0, end=7, position=7)
    for topic in ("u", "t"):
        bench.subscription.subscribe([topic])
        bench.out.follow_subscription()
    assert (bench.state().reset, bench.state().finished) == (None, 7)
    assert (bench.fetcher.positions, bench.fetcher.lost) == ({P0: 5}, set())


@pytest.mark.parametrize("back", [True, False], ids=["comes back", "stays away"])
async def test_a_record_of_a_dropped_topic_that_is_put_back_is_not_skipped(back: bool) -> None:
    """Its loop was left by an exception, before or after the topic came back: it is the next one again."""
    bench = bench_of_one()
    await bench.out.assigned([P0])
    bench.fetcher.add(P0, 10, 11)
    assert bench.take() == 10
    bench.subscription.subscribe(["u"])
    bench.out.follow_subscription()
    if back:
        bench.subscription.subscribe(["t"])
        bench.out.follow_subscription()
    bench.out.put_back()
    bench.subscription.subscribe(["t"])
    bench.out.follow_subscription()
    assert bench.fetcher.positions == {P0: 10}
    assert bench.finished == {}


async def test_a_topic_that_is_dropped_during_the_assigned_hook() -> None:
    """It is not fetched when the hook has ended, but when it is subscribed to again."""
    bench = bench_of_one()
    assigning = await assigned_slowly(bench)
    bench.subscription.subscribe(["u"])
    bench.out.follow_subscription()
    bench.listener.ready.set()
    await assigning
    assert bench.fetcher.positions == {}
    bench.subscription.subscribe(["t"])
    bench.out.follow_subscription()
    assert bench.fetcher.positions == {P0: 10}


async def test_an_error_of_a_dropped_topic_is_not_raised() -> None:
    """Where to start in it does not matter any more."""
    bench = bench_of_one()
    bench.out.refused("t", NoOffsetsError("no offsets"))
    bench.subscription.subscribe(["u"])
    bench.out.follow_subscription()
    assert bench.take() is None
