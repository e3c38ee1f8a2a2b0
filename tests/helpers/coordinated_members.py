"""Members of groups that brokers coordinate, which consume all records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from kiel_groups.clients import GroupedConsumer
from kiel_groups.embedded import Cluster
from kiel_groups.errors import ClosedError
from tests.helpers.waiting import eventually

__all__ = ["member_of", "members_of"]


@asynccontextmanager
async def member_of(cluster: Cluster, group: str, topics: Sequence[str], **settings: Any) -> AsyncIterator[Any]:
    """Run a member that consumes all records."""
    consumer = GroupedConsumer(cluster.brokers, group, coordination="brokers", **settings)

    async def consume() -> None:
        with suppress(ClosedError):  # The test may end before the loop starts.
            async for _ in consumer:
                pass

    async with consumer:
        await consumer.subscribe(topics)
        task = asyncio.get_running_loop().create_task(consume())
        try:
            yield consumer
        finally:
            await consumer.close()
            await task


@asynccontextmanager
async def members_of(
    cluster: Cluster, group: str, topic: str, count: int, *, partitions: int = 6, **settings: Any
) -> AsyncIterator[None]:
    """Run members that share a topic's partitions, and wait until each has its part."""
    async with AsyncExitStack() as stack:
        members = [
            await stack.enter_async_context(member_of(cluster, group, [topic], **settings)) for _ in range(count)
        ]
        share = partitions // count
        await eventually(lambda: all(len(each.assignment()) == share for each in members), "each has its part")
        yield
