"""
Read a topic with a consumer of kiel-groups that is alone in its group, and touch each value.

Arguments: way, broker, ZooKeeper, topic, group, the most records, the most seconds. The program imports kiel-groups
from where ``PYTHONPATH`` says, which may be another checkout. It exits with status 3 if the consumer lacks the way.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from benchmarks.members.progress import Progress
from kiel_groups import GroupedConsumer

TIMEOUT_MS = 1_000
FLOOR: dict[str, Any] = {"debounce_quiet_ms": 0, "debounce_initial_delay_ms": 0}
LEFT_OUT = 3


async def by_loop(consumer: GroupedConsumer, topic: str, progress: Progress) -> None:
    await consumer.subscribe([topic])
    size, step, left = 0, 1, 1
    async for record in consumer:
        size += len(record.value)
        left -= 1
        if not left:
            step = left = progress.add(step, size)
            size = 0
            if not step:
                break


async def by_consume(consumer: GroupedConsumer, topic: str, progress: Progress) -> None:
    while not progress.done:
        values = await consumer.consume(topic) or ()
        progress.add(len(values), sum(map(len, values)))


async def by_getmany(consumer: GroupedConsumer, topic: str, progress: Progress) -> None:
    await consumer.subscribe([topic])
    while not progress.done:
        found = await consumer.getmany(timeout_ms=TIMEOUT_MS)
        size = sum(len(record.value) for records in found.values() for record in records)
        progress.add(sum(map(len, found.values())), size)


async def by_batches(consumer: Any, topic: str, progress: Progress) -> None:
    """Read columns, and have Arrow look at each value. Other versions of kiel-groups may not have the method."""
    if not hasattr(consumer, "consume_batches"):
        sys.exit(LEFT_OUT)
    from pyarrow import compute

    await consumer.subscribe([topic])
    while not progress.done:
        found = await consumer.consume_batches(timeout_ms=TIMEOUT_MS)
        runs = [run.to_pyarrow() for runs in found.values() for run in runs]
        size = sum(compute.sum(compute.binary_length(run.column("value"))).as_py() for run in runs)
        progress.add(sum(run.num_rows for run in runs), size)


ASYNCHRONOUS = {
    "async for": by_loop,
    "consume()": by_consume,
    "getmany()": by_getmany,
    "consume_batches()": by_batches,
}


async def read(way: str, broker: str, zookeeper: str, topic: str, group: str, progress: Progress) -> None:
    # Like the other clients, all ways deliver bytes. Without a deserializer, ``consume()`` would parse JSON.
    deserializer = bytes if way == "consume()" else None
    async with GroupedConsumer([broker], group, [zookeeper], deserializer, **FLOOR) as consumer:
        await ASYNCHRONOUS[way](consumer, topic, progress)


def read_blocking(broker: str, zookeeper: str, topic: str, group: str, progress: Progress) -> None:
    from kiel_groups import sync

    with sync.GroupedConsumer([broker], group, [zookeeper], **FLOOR) as consumer:
        consumer.subscribe([topic])
        size, step, left = 0, 1, 1
        for record in consumer:
            size += len(record.value)
            left -= 1
            if not left:
                step = left = progress.add(step, size)
                size = 0
                if not step:
                    break


def main(way: str, broker: str, zookeeper: str, topic: str, group: str, count: str, limit_s: str) -> None:
    progress = Progress(int(count), float(limit_s))
    if way == "sync":
        read_blocking(broker, zookeeper, topic, group, progress)
    else:
        asyncio.run(read(way, broker, zookeeper, topic, group, progress))


if __name__ == "__main__":
    main(*sys.argv[1:])
