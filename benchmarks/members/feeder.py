"""
Produce records at a steady rate, spread evenly over a topic's partitions, until the process is killed.

Arguments: broker, topic, the number of its partitions, records a second.
"""

from __future__ import annotations

import asyncio
import itertools
import sys

from kiel_groups import Producer

TICK_S = 0.01


async def main(broker: str, topic: str, partitions: int, rate: int) -> None:
    loop = asyncio.get_running_loop()
    numbers = itertools.count()
    async with Producer([broker], batch_size=1_000, linger_ms=1) as producer:
        due_s = loop.time()
        while True:
            sent = [
                producer.produce(topic, b"%d" % number, partition=number % partitions)
                for number in itertools.islice(numbers, round(rate * TICK_S))
            ]
            await asyncio.gather(*sent)
            due_s += TICK_S
            await asyncio.sleep(max(0.0, due_s - loop.time()))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3], *map(int, sys.argv[3:])))
