"""
Count the colours of the messages of ``maker.py``, from the beginning of the topic, without a group. ::

    python examples/counter.py 127.0.0.1:9092 colours
"""

import asyncio
import json
import sys
from collections import Counter

from kiel_groups import SingleConsumer
from kiel_groups.clients import BEGINNING


async def main(broker: str, topic: str) -> None:
    counts: Counter[str] = Counter()
    async with SingleConsumer([broker], deserializer=json.loads) as consumer:
        await consumer.subscribe(topic, start=BEGINNING)
        async for record in consumer:
            counts[record.value["color"]] += 1
            if counts.total() % 100 == 0:
                print(", ".join(f"{color}: {count}" for color, count in counts.most_common()), flush=True)


if len(sys.argv) != 3:
    sys.exit("usage: counter.py BROKER TOPIC")
try:
    asyncio.run(main(*sys.argv[1:]))
except KeyboardInterrupt:
    print("stopped", file=sys.stderr)
