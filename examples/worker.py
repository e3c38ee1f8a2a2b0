"""
Print messages as a member of a group, which commits them automatically. ::

    python examples/worker.py 127.0.0.1:9092 127.0.0.1:2181 colours
"""

import asyncio
import json
import sys

from kiel_groups import GroupedConsumer


async def main(broker: str, zookeeper: str, topic: str, group: str = "worker-group") -> None:
    async with GroupedConsumer([broker], group, [zookeeper], json.loads) as consumer:
        await consumer.subscribe(topic)
        async for record in consumer:
            print(json.dumps(record.value), flush=True)


if len(sys.argv) not in (4, 5):
    sys.exit("usage: worker.py BROKER ZOOKEEPER TOPIC [GROUP]")
try:
    asyncio.run(main(*sys.argv[1:]))
except KeyboardInterrupt:
    print("left the group", file=sys.stderr)
