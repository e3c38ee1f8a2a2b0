"""
Produce messages at a steady rate with kiel-groups, each with its time, until standard input ends.

Arguments and output are those of ``timed_producer``. The producer has its defaults.
"""

from __future__ import annotations

import asyncio
import select
import sys
import time

from benchmarks.members.latencies import TICK_S, stamped
from kiel_groups import Producer


async def main(broker: str, topic: str, partitions: int, rate: int, size: int) -> None:
    async with Producer([broker]) as producer:
        await producer.produce(topic, stamped(size))
        print("producing", flush=True)  # noqa: T201
        sent, began_s = 0, time.monotonic()
        while not select.select([sys.stdin], [], [], 0)[0]:
            due = round((time.monotonic() - began_s) * rate)
            while sent < due:
                producer.produce(topic, stamped(size), partition=sent % partitions)
                sent += 1
            await asyncio.sleep(TICK_S)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])))
