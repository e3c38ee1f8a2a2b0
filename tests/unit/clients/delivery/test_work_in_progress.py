"""What an application is busy with, as its watchdog sees it: the same object for as long as it does not get on."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import pytest

from kiel_groups.clients.calls.callers import new_consume_call
from kiel_groups.clients.delivery.listener_calls import ListenerCalls
from kiel_groups.listeners import Stall
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from tests.unit.clients.delivery.test_record_delivery import P0, P1, Bench, patience, settled  # noqa: F401 -- patience is a fixture

pytestmark = pytest.mark.unit

STALL = Stall("loop", frozenset(), 1.0, 2.0)


async def test_nothing_in_hand_is_nothing_in_progress() -> None:
    """Whoever waits for records is not slow."""
    assert Bench().out.in_progress() == []


async def test_each_record_is_a_work_of_its_own() -> None:
    """The next record is another one, and after the last one there is none."""
    bench = Bench()
    bench.fetcher.add(P0, 10, 11)
    bench.take()
    (first,) = bench.out.in_progress()
    assert (first.kind, first.partitions) == ("processing", {P0})
    assert bench.out.in_progress()[0].token is first.token
    bench.take()
    (second,) = bench.out.in_progress()
    assert second.token is not first.token
    assert bench.take() is None
    assert bench.out.in_progress() == []


async def test_a_record_that_was_lost_is_still_in_progress() -> None:
    """A member must not claim anew while its application does not get on, or those partitions stand still, too."""
    bench = Bench()
    bench.fetcher.add(P0, 10)
    bench.take()
    bench.subscription.unassign([P0])
    bench.out.lost([P0])
    assert len(bench.out.in_progress()) == 1


async def test_who_asks_for_values_gets_on() -> None:
    """Of whichever topic: programs that take several in turns are busy with none for long."""
    bench = Bench()
    other = TopicPartition("u", 0)
    bench.claim(other)
    bench.fetcher.add(P0, 10)
    bench.out.take_topic("t", 1 << 20, new_consume_call(bench, "t"))
    (first,) = bench.out.in_progress()
    assert first.partitions == {P0}
    bench.out.take_topic("u", 1 << 20, new_consume_call(bench, "u"))
    (second,) = bench.out.in_progress()
    assert second.token is not first.token


async def test_who_asks_for_values_does_not_get_on_for_another() -> None:
    """A coroutine that is stuck with its values is seen, although others take turns with it; unless it is gone."""
    bench = Bench()
    may_end = asyncio.Event()

    async def stuck() -> None:
        bench.fetcher.add(P0, 10)
        taker = new_consume_call(bench, "t")
        bench.out.take_topic("t", 1 << 20, taker)
        taker.got = True
        await may_end.wait()

    stopping = asyncio.ensure_future(stuck())
    await settled()
    (first,) = bench.out.in_progress()
    bench.fetcher.add(P1, 10)
    bench.out.take_topic("t", 1 << 20, new_consume_call(bench, "t"))
    works = {work.token: work.partitions for work in bench.out.in_progress()}
    assert len(works) == 2
    assert works[first.token] == {P0}
    may_end.set()
    await asyncio.wait_for(stopping, 5)
    del stopping
    assert first.token not in [work.token for work in bench.out.in_progress()]


async def test_a_hook_that_runs_is_in_progress() -> None:
    """With what it was told of, until it has ended."""
    bench = Bench()
    bench.listener.ready.clear()
    assigning = asyncio.ensure_future(bench.out.assigned([P0, P1]))
    await settled()
    (hook,) = bench.out.in_progress()
    assert (hook.kind, hook.partitions) == ("listener", {P0, P1})
    bench.listener.ready.set()
    await assigning
    assert bench.out.in_progress() == []


class Plain:
    """A listener as all of them are."""

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None: ...
    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None: ...
    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None: ...


class Hurrying(Plain):
    """One that can be told to hurry."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.told: list[Stall] = []
        self._error = error

    def on_stalled(self, stall: Stall) -> None:
        self.told.append(stall)
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize("listener", [None, Plain()])
def test_a_listener_without_that_hook_is_told_nothing(listener: Any) -> None:
    """It is optional."""
    ListenerCalls(listener, Metrics()).stalled(STALL)


def test_a_listener_with_that_hook_is_told() -> None:
    """Once, with what there is to know."""
    listener = Hurrying()
    ListenerCalls(listener, Metrics()).stalled(STALL)
    assert listener.told == [STALL]


@pytest.mark.parametrize("error", [RuntimeError("of the application"), SystemExit("of the application")])
def test_a_hook_that_fails_is_contained(caplog: pytest.LogCaptureFixture, error: BaseException) -> None:
    """It is told of as loudly where it wants to end the process, which a thread cannot."""
    metrics = Metrics()
    ListenerCalls(Hurrying(error), metrics).stalled(STALL)
    assert metrics.total("listener_failures") == 1
    assert "of the application" in caplog.text
