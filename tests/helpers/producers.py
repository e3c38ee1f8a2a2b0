"""Producers with a scripted broker, and the records that the broker has stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from kiel_groups.clients.producer import Producer
from kiel_groups.model import TopicPartition
from tests.helpers.fake_broker import FakeBroker
from tests.helpers.message_sets import decode_message_set

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@asynccontextmanager
async def producing(broker: FakeBroker | None = None, **settings: Any) -> AsyncIterator[tuple[FakeBroker, Producer]]:
    """Run a producer with short back-offs on ``broker``, by default on one with a topic t of two partitions."""
    async with broker or FakeBroker({"t": 2}) as running:
        quick = {"linger_ms": 1, "batch_size": 1_000, "required_acks": 1, "backoff_ms": 2, "max_backoff_ms": 10}
        producer = Producer([str(running.address)], **(quick | settings))
        async with producer:
            yield running, producer


def cancel_tasks() -> None:
    """Cancel all tasks of the loop, as a program may do, except the running one and those of scripted brokers."""
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        if "FakeBroker" not in repr(task.get_coro()):
            task.cancel()


def stored(broker: FakeBroker, tp: TopicPartition) -> list[tuple[bytes | None, bytes | None]]:
    """Return the keys and values that the broker has stored in a partition."""
    data = b"".join(entry for _, entry in broker.logs[tp].entries)
    records = decode_message_set(data, tp, 0, max_decompressed_bytes=1 << 20)
    return [(record.key, record.value) for record in records]
