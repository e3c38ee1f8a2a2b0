"""
Run a member of kiel-groups that consumes, and reports its deliveries with their times.

Arguments: ZooKeeper, broker, group, topic. At each line of its input, the process prints a line of JSON with the
deliveries since the previous line: lists of milliseconds since 1970, partition and offset. At the end of its input, the
member leaves, and the process prints a last line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from kiel_groups import GroupedConsumer


async def consume(consumer: GroupedConsumer, seen: list[tuple[int, int, int]]) -> None:
    async for record in consumer:
        seen.append((time.time_ns() // 1_000_000, record.partition, record.offset))


async def main(zookeeper: str, broker: str, group: str, topic: str) -> None:
    seen: list[tuple[int, int, int]] = []
    async with GroupedConsumer([broker], group, [zookeeper], max_wait_time=100) as consumer:
        await consumer.subscribe(topic)
        consuming = asyncio.create_task(consume(consumer, seen))
        while await asyncio.to_thread(sys.stdin.readline):
            deliveries, seen[:] = list(seen), []
            print(json.dumps(deliveries), flush=True)  # noqa: T201
        await consumer.close()
        await consuming
    print(json.dumps(seen), flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
