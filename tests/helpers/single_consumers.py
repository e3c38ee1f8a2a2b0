"""Consumers without a group, with a scripted broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from kiel_groups.clients import SingleConsumer
from kiel_groups.model import TopicPartition
from tests.helpers.fake_broker import FakeBroker, message_set

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@asynccontextmanager
async def consuming(*values: bytes, **settings: Any) -> AsyncIterator[tuple[FakeBroker, SingleConsumer]]:
    """Run a consumer on a broker with a topic t. Partition 0 has ``values``, and partition 1 is empty."""
    async with FakeBroker({"t": 2}) as broker:
        broker.append(T0, message_set(*values))
        quick = {"max_wait_time": 500, "backoff_ms": 2, "max_backoff_ms": 10}
        async with SingleConsumer([str(broker.address)], **(quick | settings)) as consumer:
            yield broker, consumer


async def take_values(consumer: SingleConsumer, count: int) -> list[Any]:
    """Return the values of the next ``count`` records."""
    async with asyncio.timeout(30):
        return [(await anext(consumer)).value for _ in range(count)]
