"""The calls of a connected consumer that wait for records or values: who may take, and what ends the wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kiel_groups.clients.calls.callers import ConsumeCall
from kiel_groups.clients.delivery.connected_consumer import ConnectedConsumer, ConsumerSettings
from kiel_groups.config import BrokerConfig, FetchConfig, GroupConfig, HostPort, ZooKeeperConfig
from kiel_groups.coordination.session.delivery_gate import DeliveryGate
from kiel_groups.coordination.zookeeper.runtime import Runtime
from kiel_groups.errors import NoOffsetsError, SessionLostError
from kiel_groups.group.member.subscription import SubscriptionState
from kiel_groups.model import Batch, PartitionBatch, TopicPartition
from tests.helpers.waiting import run_ready_tasks

pytestmark = pytest.mark.unit

VALUES = Batch([PartitionBatch(TopicPartition("t", 0), 1, [1], [])])


@asynccontextmanager
async def consumer_without_servers(max_wait_ms: int = 3_600_000) -> AsyncIterator[ConnectedConsumer]:
    """Yield a consumer of the topic t that has not joined its group, but whose gate is open."""
    subscription = SubscriptionState()
    subscription.subscribe(["t"])
    settings = ConsumerSettings(
        brokers=BrokerConfig(hosts=(HostPort("127.0.0.1", 1),)),
        fetching=FetchConfig(max_wait_ms=max_wait_ms),
        group=GroupConfig(group="g"),
        zookeeper=ZooKeeperConfig(hosts="127.0.0.1:1"),
    )
    connected = ConnectedConsumer(settings, subscription)
    gate = DeliveryGate()
    now_s = Runtime().boot_time_s()
    gate.grant(3_600_000, now_s)
    gate.renew(now_s)
    connected.member._handler.gate_changed(gate)
    try:
        yield connected
    finally:
        connected.fetcher.close()
        connected.cluster.close()


@pytest.mark.parametrize("error", [None, SessionLostError("over")])
async def test_the_end_of_the_consumer_ends_each_wait(error: SessionLostError | None) -> None:
    """When the consumer ends, each waiting call returns None, or raises the error that has ended the consumer."""
    async with consumer_without_servers() as connected:
        calls = asyncio.gather(
            connected.next_record(), connected.next_values("t", ConsumeCall()), return_exceptions=True
        )
        await run_ready_tasks()
        assert not calls.done()
        connected.end(error)
        async with asyncio.timeout(5):
            assert await calls == [error, error]


async def test_a_call_returns_no_values_when_its_time_is_over() -> None:
    """A call for values returns an empty batch after ``max_wait_ms``."""
    async with consumer_without_servers(max_wait_ms=1) as connected, asyncio.timeout(5):
        assert await connected.next_values("t", ConsumeCall()) == []


async def test_only_the_newest_call_of_a_topic_takes_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several calls for a topic, the newest one gets the values, since the caller of another may have given up."""
    async with consumer_without_servers() as connected:
        fetched: list[Batch] = []
        monkeypatch.setattr(connected.values, "take", lambda *_: fetched.pop() if fetched else Batch())
        older, newer = ConsumeCall(), ConsumeCall()
        waiting = [asyncio.ensure_future(connected.next_values("t", call)) for call in (older, newer)]
        await run_ready_tasks()
        fetched.append(VALUES)
        connected.fetcher.ready.notify("t")
        async with asyncio.timeout(5):
            assert await waiting[1] == [1]
        connected.end(None)
        assert await waiting[0] is None


async def test_a_call_ends_when_its_coroutine_calls_again() -> None:
    """A call whose coroutine has called again returns an empty batch at its next wake-up."""
    async with consumer_without_servers() as connected:
        call = ConsumeCall()
        waiting = asyncio.ensure_future(connected.next_values("t", call))
        await run_ready_tasks()
        call.superseded = True
        connected.fetcher.ready.notify("t")
        async with asyncio.timeout(5):
            assert await waiting == []


async def test_a_refused_topic_is_raised_by_a_waiting_loop() -> None:
    """The error of a topic whose start position is unknown ends the wait of a loop."""
    async with consumer_without_servers() as connected:
        waiting = asyncio.ensure_future(connected.next_record())
        await run_ready_tasks()
        connected.member._handler.start_unknown("t", NoOffsetsError("no offsets of t"))
        async with asyncio.timeout(5):
            with pytest.raises(NoOffsetsError, match="no offsets of t"):
                await waiting
