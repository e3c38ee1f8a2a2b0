"""Work in progress, as the watchdog reads it: its token stays the same while the application makes no progress."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import pytest

from kiel_groups.clients.calls.callers import new_consume_call
from kiel_groups.clients.delivery.listener_calls import ListenerCalls
from kiel_groups.clients.delivery.record_reader import VALUES
from kiel_groups.clients.fetch.fetch_requests import Selection
from kiel_groups.listeners import Stall
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from tests.helpers.delivery_bench import P0, P1, DeliveryBench
from tests.helpers.waiting import run_ready_tasks

pytestmark = pytest.mark.unit

STALL = Stall("loop", frozenset(), 1.0, 2.0)


async def test_nothing_in_flight_is_no_work_in_progress() -> None:
    """An application that waits for records has no work in progress, so it is not slow."""
    assert DeliveryBench().handler.in_progress() == []


async def test_each_record_is_another_work_in_progress() -> None:
    """Each record in flight has its own token. Without a record in flight, there is no work in progress."""
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10, 11)
    bench.take()
    (first,) = bench.handler.in_progress()
    assert (first.kind, first.partitions) == ("processing", {P0})
    assert bench.handler.in_progress()[0].token is first.token
    bench.take()
    (second,) = bench.handler.in_progress()
    assert second.token is not first.token
    assert bench.take() is None
    assert bench.handler.in_progress() == []


async def test_a_lost_record_is_still_in_progress() -> None:
    """
    A lost record is still work in progress. A member must not claim partitions again while its application makes no
    progress, because it would not consume them.
    """
    bench = DeliveryBench()
    bench.fetcher.add(P0, 10)
    bench.take()
    bench.subscription.offsets.end([P0])
    bench.handler.lost([P0])
    assert len(bench.handler.in_progress()) == 1


async def test_a_coroutine_that_requests_values_makes_progress() -> None:
    """A coroutine's request for any topic is progress, so programs may alternate between topics."""
    bench = DeliveryBench()
    other = TopicPartition("u", 0)
    bench.claim(other)
    bench.fetcher.add(P0, 10)
    bench.values.take(Selection("t"), VALUES, new_consume_call(bench, "t"), most_bytes=1 << 20)
    (first,) = bench.handler.in_progress()
    assert first.partitions == {P0}
    bench.values.take(Selection("u"), VALUES, new_consume_call(bench, "u"), most_bytes=1 << 20)
    (second,) = bench.handler.in_progress()
    assert second.token is not first.token


async def test_a_coroutine_that_requests_values_does_not_hide_a_stuck_one() -> None:
    """
    The work of a stuck coroutine is reported until the coroutine ends, even while other coroutines request more values.
    """
    bench = DeliveryBench()
    may_end = asyncio.Event()

    async def stuck() -> None:
        bench.fetcher.add(P0, 10)
        call = new_consume_call(bench, "t")
        bench.values.take(Selection("t"), VALUES, call, most_bytes=1 << 20)
        call.received = True
        await may_end.wait()

    stuck_task = asyncio.ensure_future(stuck())
    await run_ready_tasks()
    (first,) = bench.handler.in_progress()
    bench.fetcher.add(P1, 10)
    bench.values.take(Selection("t"), VALUES, new_consume_call(bench, "t"), most_bytes=1 << 20)
    works = {work.token: work.partitions for work in bench.handler.in_progress()}
    assert len(works) == 2
    assert works[first.token] == {P0}
    may_end.set()
    await asyncio.wait_for(stuck_task, 5)
    del stuck_task
    # From Python 3.12 on, the step of the loop that has woken this test up has a reference to the task.
    await run_ready_tasks()
    assert first.token not in [work.token for work in bench.handler.in_progress()]


async def test_a_hook_that_runs_is_in_progress() -> None:
    """A hook of the listener is work in progress on its partitions until the hook has ended."""
    bench = DeliveryBench()
    bench.listener.ready.clear()
    assigning = asyncio.ensure_future(bench.handler.assigned([P0, P1]))
    await run_ready_tasks()
    (hook,) = bench.handler.in_progress()
    assert (hook.kind, hook.partitions) == ("listener", {P0, P1})
    bench.listener.ready.set()
    await assigning
    assert bench.handler.in_progress() == []


class PlainListener:
    """A listener without the optional hook."""

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None: ...
    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None: ...
    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None: ...


class StallListener(PlainListener):
    """A listener that is also notified of stalls."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.calls: list[Stall] = []
        self._error = error

    def on_stalled(self, stall: Stall) -> None:
        self.calls.append(stall)
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize("listener", [None, PlainListener()])
def test_a_listener_without_the_stalled_hook_is_not_called(listener: Any) -> None:
    """A listener need not have the hook ``on_stalled``, which is optional."""
    ListenerCalls(listener, Metrics()).stalled(STALL)


def test_a_listener_with_the_stalled_hook_is_called() -> None:
    """The hook ``on_stalled`` is called once, with the stall."""
    listener = StallListener()
    ListenerCalls(listener, Metrics()).stalled(STALL)
    assert listener.calls == [STALL]


@pytest.mark.parametrize("error", [RuntimeError("of the application"), SystemExit("of the application")])
def test_a_failure_of_the_stalled_hook_is_contained(caplog: pytest.LogCaptureFixture, error: BaseException) -> None:
    """
    A failure of the hook ``on_stalled`` is counted and logged, even if it is SystemExit, which would only end the
    hook's thread.
    """
    metrics = Metrics()
    ListenerCalls(StallListener(error), metrics).stalled(STALL)
    assert metrics.total("listener_failures") == 1
    assert "of the application" in caplog.text
