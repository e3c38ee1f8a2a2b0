"""
Measure the time from produce to delivery by ``async for``, with a consumer that is alone in its group.

Arguments: broker, ZooKeeper, topic, group, seconds. The consumer has its defaults, and starts at the end of the logs.
"""

from __future__ import annotations

import asyncio
import sys

from benchmarks.members.latencies import Latencies
from kiel_groups import GroupedConsumer


async def main(broker: str, zookeeper: str, topic: str, group: str, duration_s: str) -> None:
    latencies = Latencies(float(duration_s))
    async with GroupedConsumer([broker], group, [zookeeper], auto_offset_reset="latest") as consumer:
        await consumer.subscribe([topic])
        async for record in consumer:
            if not latencies.add(record.value):
                break


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
