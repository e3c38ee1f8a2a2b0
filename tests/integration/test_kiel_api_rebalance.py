"""Rebalances between members that call ``consume()``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tornado import gen

from kiel_groups.clients.delivery import in_flight as values_in_flight
from kiel_groups.embedded import Cluster
from tests.helpers.kiel_api import consumer_of, offsets, produce
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

#: How long the slow coroutine processes its values, in seconds: longer than the rebalance would take without it.
WORK_S = 3.0


async def test_a_drain_waits_for_values_in_flight_after_undelivered_ones(
    cluster_39: Cluster, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    If a value in flight follows a value that no caller received, neither is committed. The next owner gets both, but
    not before the slow coroutine has finished.
    """
    # How long values may wait for their caller, in seconds: until the rebalance has started, even on a slow computer.
    monkeypatch.setattr(values_in_flight, "UNCLAIMED_S", 60.0)
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    events: list[tuple[str, Any]] = []

    def to_the_other(members: list[str], partitions: list[str]) -> dict[str, dict[str, list[int]]]:
        others = [member for member in members if member != first.member_id]
        return {(others or members)[0]: {topic: [0]}}

    first = consumer_of(cluster_39, group, partition_allocator=to_the_other, max_wait_time=5_000)
    second = consumer_of(cluster_39, group, partition_allocator=to_the_other)
    await first.connect()
    await first.subscribe(topic)
    await eventually(lambda: first.allocation, "the partition is owned")

    async def work() -> None:
        events.append(("processing", await first.consume(topic)))
        await asyncio.sleep(WORK_S)
        events.append(("processed", None))
        await first.commit_offsets()

    async def take(member: str) -> None:
        consumer = {"first": first, "second": second}[member]
        while (found := await consumer.consume(topic)) is not None:
            if found:
                events.append((member, found))

    async def give_up() -> object:
        # The future is kept: a caller might still receive its values.
        return await asyncio.wait({first.consume(topic)})

    giving_up = asyncio.ensure_future(give_up())
    await asyncio.sleep(0)
    await produce(cluster_39, topic, 1)
    await giving_up
    working = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    await produce(cluster_39, topic, 2)
    await eventually(lambda: events, "the slow coroutine has its value")
    taking = [asyncio.ensure_future(take("second"))]
    await eventually(lambda: not first.settled, "the partition is revoked")
    monkeypatch.setattr(values_in_flight, "UNCLAIMED_S", 0.0)
    taking.append(asyncio.ensure_future(take("first")))
    await eventually(lambda: len(events) == 3, "the other member has the values")
    await working
    assert events == [("processing", [2]), ("processed", None), ("second", [1, 2])]
    await asyncio.gather(first.close(), second.close())
    await asyncio.gather(*taking)
    assert await offsets(cluster_39, group, topic) == {0: 2}


async def test_a_drain_gives_up_undelivered_values(cluster_39: Cluster, unique: Unique) -> None:
    """
    If the caller of values has given up and its program does not ask again, the drain ends all the same, and the next
    owner gets the values.
    """
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 2)
    first = consumer_of(cluster_39, group, max_wait_time=5_000)
    await first.connect()
    await first.subscribe(topic)
    await eventually(lambda: len(first.allocation[topic]) == 2, "all partitions are owned")
    given_up = first.consume(topic)
    with pytest.raises(gen.TimeoutError):
        await gen.with_timeout(timedelta(seconds=0.1), given_up)
    await produce(cluster_39, topic, *range(20))
    await asyncio.wait({given_up})
    second = consumer_of(cluster_39, group)
    found: list[Any] = []

    async def take() -> None:
        while (values := await second.consume(topic)) is not None:
            found.extend(values)

    taking = asyncio.ensure_future(take())
    await eventually(lambda: len(second.allocation[topic]) == 1, "a partition has moved")
    await first.close()
    await eventually(lambda: sorted(found) == [*range(20)], "nothing is lost")
    await second.close()
    await taking
