"""
Send each line of standard input; its first word is the key, so that lines with equal keys stay in order. ::

    python examples/produce_lines.py 127.0.0.1:9092 page-views < lines.txt
"""

import asyncio
import sys

from kiel_groups import KielGroupsError, Producer
from kiel_groups.clients import hash_partitioner


async def main(broker: str, topic: str) -> None:
    async with Producer([broker], partitioner=hash_partitioner) as producer:
        # produce() returns a future at once. Batches form because the futures are awaited together.
        stored = await asyncio.gather(
            *(producer.produce(topic, line.rstrip(b"\n"), key=line.partition(b" ")[0]) for line in sys.stdin.buffer)
        )
    for partition in sorted({place.partition for place in stored}):
        offsets = [place.offset for place in stored if place.partition == partition]
        print(f"partition {partition}: offsets {min(offsets)} to {max(offsets)}, records: {len(offsets)}")


if len(sys.argv) != 3:
    sys.exit("usage: produce_lines.py BROKER TOPIC < lines.txt")
try:
    asyncio.run(main(*sys.argv[1:]))
except KielGroupsError as error:
    sys.exit(f"error: {error}")
