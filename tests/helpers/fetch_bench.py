"""A test bench for the fetcher, with a scripted broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from kiel_groups.clients.fetch.fetcher import Fetcher
from kiel_groups.clients.fetch.partition_fetch import FetchedBatch
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.config import FetchConfig
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wire.message_sets.decoder import MessageRun
from kiel_groups.zookeeper.runtime import Runtime
from tests.helpers.fake_broker import FakeBroker

T0, T1, T2 = (TopicPartition("t", p) for p in range(3))


@dataclass
class FetchBench:
    """A fetcher and its broker. ``resets`` has the partitions and positions for which the fetcher called ``reset``."""

    broker: FakeBroker
    fetcher: Fetcher
    metrics: Metrics
    resets: list[tuple[TopicPartition, int]]
    cluster: ClusterMetadata

    def lag(self, partition: TopicPartition) -> int:
        """Return the number of undelivered messages of an assigned partition, as last reported."""
        state = self.fetcher._partitions[partition]
        assert state.high_watermark is not None
        return state.high_watermark - state.next_offset

    async def next_batch(self) -> FetchedBatch:
        """Wait for the next batch, and return it. Raise the error if ``poll`` raises one."""
        async with asyncio.timeout(5):
            while (batch := self.fetcher.poll()) is None:
                await self.fetcher.ready.wait()
            return batch

    async def next_error(self) -> Exception:
        """Wait for an error that ``poll`` raises instead of returning a batch, and return the error."""
        with pytest.raises(Exception) as caught:
            await self.next_batch()
        return caught.value


def run_of(batch: FetchedBatch) -> MessageRun | None:
    """Return the checked messages of a batch, or None once their records were made."""
    messages = batch._content.messages
    return None if isinstance(messages, list) else messages


@asynccontextmanager
async def fetch_bench(
    broker: FakeBroker | None = None,
    reset_to: int | Exception = 0,
    runtime: Runtime | None = None,
    **settings: int,
) -> AsyncIterator[FetchBench]:
    """
    Run a fetcher on ``broker``, by default on one with a topic t of three partitions.

    The fetcher's ``reset`` returns ``reset_to``, or raises it if it is an exception.
    """
    resets: list[tuple[TopicPartition, int]] = []
    runtime = runtime or Runtime()

    async def reset(tp: TopicPartition, position: int) -> int:
        resets.append((tp, position))
        if isinstance(reset_to, Exception):
            raise reset_to
        return reset_to

    async with broker or FakeBroker({"t": 3}) as running:
        metrics = Metrics()
        cluster = ClusterMetadata(running.config(), metrics)
        await cluster.refresh(["t"], "test")
        fetcher = Fetcher(
            cluster,
            FetchConfig(**{"max_wait_ms": 1_000, **settings}),
            metrics,
            reset=reset,
            runtime=runtime,
        )
        try:
            yield FetchBench(running, fetcher, metrics, resets, cluster)
        finally:
            fetcher.close()
            cluster.close()


def values(batch: FetchedBatch) -> list[bytes]:
    """Return the values of the records of a batch."""
    return [record.value for record in batch.records]
