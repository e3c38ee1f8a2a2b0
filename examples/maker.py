"""
Send a number of messages with a counter and a colour; the counter is the key, which chooses the partition. ::

    python examples/maker.py 127.0.0.1:9092 colours 1000
"""

import asyncio
import random
import sys

from kiel_groups import KielGroupsError, Producer
from kiel_groups.clients import hash_partitioner

COLORS = ["amber", "blue", "green", "red"]


async def main(broker: str, topic: str, count: str) -> None:
    settings = {"partitioner": hash_partitioner, "batch_size": 500, "linger_ms": 5, "compression": "gzip"}
    async with Producer([broker], key_maker=lambda message: message["counter"], **settings) as producer:
        for number in range(int(count)):
            producer.produce(topic, {"counter": number, "color": random.choice(COLORS)})
            await producer.drain()
        await producer.flush()
        print(producer.metrics.counter("records_produced"), "messages are stored")


if len(sys.argv) != 4 or not sys.argv[3].isdecimal():
    sys.exit("usage: maker.py BROKER TOPIC COUNT")
try:
    asyncio.run(main(*sys.argv[1:]))
except KielGroupsError as error:
    sys.exit(f"error: {error}")
