"""
Print messages as a member of a group; what was printed is committed by itself. ::

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


try:
    asyncio.run(main(*sys.argv[1:5]))
except KeyboardInterrupt:
    print("left the group", file=sys.stderr)
