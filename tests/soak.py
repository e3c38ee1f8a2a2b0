"""
Let members join and leave groups for an hour, and fail if this process needs more and more.

    python -m tests.soak --minutes 60

One group is coordinated through ZooKeeper, on Kafka 0.8.2.2, and one by brokers, on Kafka 3.9.1. Each has a member that
stays. Others join one after the other, read records, and leave: on this event loop, or as blocking consumers. A minute
after the start, and then after each minute, the memory, the file descriptors and the threads of this process are
measured. In CI, ``tests/integration/test_hasty_closes.py`` has such members for some seconds.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import click

from kiel_groups.clients import GroupedConsumer, Producer
from kiel_groups.embedded import Cluster
from tests.helpers.group_backends import GroupBackend
from tests.helpers.waiting import eventually

TOPIC, PARTITIONS = "soak", 6
#: What the process may need more at the end than after the first third of the time: Python does not return all memory.
_MORE_MIB = 8.0


class Sample(NamedTuple):
    """What this process needs at one moment."""

    minute: float
    memory_mib: float
    descriptors: int
    threads: int
    rebalances: int


def sample(started_s: float, rebalances: int) -> Sample:
    """Measure this process after a garbage collection."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return Sample(
        round((time.monotonic() - started_s) / 60, 1),
        round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1),
        len(os.listdir("/proc/self/fd")),
        threading.active_count(),
        rebalances,
    )


class VisitedGroup:
    """
    A group that reads a topic of six partitions, with a member that stays and others that join and leave.

    Args:
        backend: The cluster, and what coordinates the group.
        name: The name of the group.
        topic: The topic.
        ends_s: When the last member leaves, on the monotonic clock.
    """

    def __init__(self, backend: GroupBackend, name: str, topic: str, ends_s: float) -> None:
        self._backend, self.name, self._topic, self._ends_s = backend, name, topic, ends_s
        self.counts: Counter[str] = Counter()
        #: Set while no member joins or leaves, so that samples compare like with like.
        self.rests = asyncio.Event()
        self.may_run = asyncio.Event()
        self.may_run.set()

    async def run(self) -> None:
        """Let members join and leave until the time is over, three of them at least."""
        async with Producer(self._backend.cluster.brokers) as producer, self._backend.consumer(self.name) as stays:
            await stays.subscribe([self._topic])
            reading = asyncio.create_task(self._read(stays))
            feeding = asyncio.create_task(self._feed(producer))
            while not self.counts["rebalances"] or time.monotonic() < self._ends_s:
                for visit in (self._visit, self._visit, self._visit_blocking):
                    self.rests.set()
                    await self.may_run.wait()
                    self.rests.clear()
                    await visit()
                    await eventually(lambda: len(stays.assignment()) == PARTITIONS, f"{self.name}: all partitions", 60)
                    self.counts["rebalances"] += 2
            self.rests.set()
            for task in (reading, feeding):
                task.cancel()
            await asyncio.wait([reading, feeding])

    async def _visit(self) -> None:
        async with self._backend.consumer(self.name) as member:
            await member.subscribe([self._topic])
            async with asyncio.timeout(60):
                async for _ in member:
                    self.counts["read by visitors"] += 1
                    break

    async def _visit_blocking(self) -> None:
        def read() -> None:
            with self._backend.blocking(self.name) as member:
                member.subscribe([self._topic])
                self.counts["read by visitors"] += len(member.getmany(timeout_ms=30_000))

        await asyncio.to_thread(read)

    async def _read(self, member: GroupedConsumer) -> None:
        async for _ in member:
            self.counts["read by members that stay"] += 1

    async def _feed(self, producer: Producer) -> None:
        while True:
            for partition in range(PARTITIONS):
                producer.produce(self._topic, b"x" * 100, partition=partition)
            self.counts["written"] += PARTITIONS
            await asyncio.sleep(0.05)


async def soak(minutes: float, say: Callable[[str], object]) -> list[Sample]:
    """Run both groups, and return the samples."""
    async with AsyncExitStack() as stack:
        started_s = time.monotonic()
        early = await stack.enter_async_context(Cluster(kafka="0.8.2.2"))
        late = await stack.enter_async_context(Cluster(zookeeper=None, kafka="3.9.1"))
        for cluster in (early, late):
            await cluster.create_topic(TOPIC, PARTITIONS)
        ends_s = time.monotonic() + minutes * 60
        backends = {"early": GroupBackend(early), "late": GroupBackend(late, "brokers")}
        groups = [VisitedGroup(backend, name, TOPIC, ends_s) for name, backend in backends.items()]
        tasks = [asyncio.create_task(group.run()) for group in groups]
        samples: list[Sample] = []
        while not any(task.done() for task in tasks):
            await asyncio.wait(tasks, timeout=min(60.0, max(1.0, ends_s - time.monotonic() + 5)))
            if any(task.done() for task in tasks):
                break
            for group in groups:
                group.may_run.clear()
            resting = asyncio.gather(*(group.rests.wait() for group in groups))
            await asyncio.wait([resting, *tasks], return_when=asyncio.FIRST_COMPLETED)
            # Connections that a visitor has closed are gone from both sides.
            await asyncio.sleep(2)
            samples.append(sample(started_s, sum(group.counts["rebalances"] for group in groups)))
            say(" ".join(f"{name}={value}" for name, value in samples[-1]._asdict().items()))
            for group in groups:
                group.may_run.set()
        await asyncio.gather(*tasks)
        for group in groups:
            say(f"{group.name}: {dict(group.counts)}")
    return samples


def growth(samples: list[Sample]) -> list[str]:
    """Return what has grown between the sample after a third of the time and the last one."""
    first, last = samples[len(samples) // 3], samples[-1]
    found = []
    if last.memory_mib > first.memory_mib + _MORE_MIB:
        found.append(f"memory: {first.memory_mib} to {last.memory_mib} MiB")
    for name in ("descriptors", "threads"):
        before, after = getattr(first, name), getattr(last, name)
        found += [f"{name}: {before} to {after}"] if after > before + 2 else []
    return found


@click.command(help=__doc__)
@click.option("--minutes", type=float, default=60.0, show_default=True)
def main(minutes: float) -> None:
    samples = asyncio.run(soak(minutes, click.echo))
    found = growth(samples)
    click.echo(f"grown: {'; '.join(found)}" if found else "flat")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
