"""
A worker that commits explicitly, without automatic commits.

The worker writes a hundred records at a time to its file, and only then commits them. After a crash, the records that
were not committed are delivered again. ::

    python examples/commit_by_hand.py 127.0.0.1:9092 127.0.0.1:2181 page-views out.txt
"""

import asyncio
import os
import sys

from kiel_groups import GroupedConsumer

BATCH = 100


async def main(broker: str, zookeeper: str, topic: str, file: str) -> None:
    consumer = GroupedConsumer([broker], "archive", [zookeeper], autocommit=False)
    with open(file, "ab") as archive:
        async with consumer:
            await consumer.subscribe([topic])
            written = 0
            async for record in consumer:
                archive.write(record.value + b"\n")
                written += 1
                if written % BATCH == 0:
                    archive.flush()
                    os.fsync(archive.fileno())
                    stored = await consumer.commit()
                    print(f"records written: {written}, partitions committed: {len(stored)}", flush=True)


if len(sys.argv) != 5:
    sys.exit("usage: commit_by_hand.py BROKER ZOOKEEPER TOPIC FILE")
try:
    asyncio.run(main(*sys.argv[1:]))
except KeyboardInterrupt:
    print("left the group", file=sys.stderr)
