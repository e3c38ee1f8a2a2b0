"""Write records to a file, ten at a time, and commit the offsets of those that are on disk."""

import asyncio
import os
import sys

from kiel_groups import GroupedConsumer, Record
from kiel_groups.errors import CommitFailedError, SessionLostError


def store(file: str, records: list[Record]) -> None:
    with open(file, "ab") as sink:
        sink.writelines(record.value + b"\n" for record in records)
        sink.flush()
        os.fsync(sink.fileno())


async def main(broker: str, zookeeper: str, topic: str, group: str, file: str) -> None:
    async with GroupedConsumer(broker, group, zookeeper, autocommit=False) as consumer:
        await consumer.subscribe(topic)
        while True:
            found = await consumer.getmany(timeout_ms=1_000, max_records=10)
            for partition, records in found.items():
                store(file, records)
                offset = records[-1].offset + 1
                try:
                    await consumer.commit({partition: offset})
                except (CommitFailedError, SessionLostError) as error:
                    print("not committed, so records may come again:", error, file=sys.stderr)
                else:
                    print("committed", partition, offset, flush=True)


if len(sys.argv) != 6:
    sys.exit("usage: manual_committer.py BROKER ZOOKEEPER TOPIC GROUP FILE")
try:
    asyncio.run(main(*sys.argv[1:]))
except KeyboardInterrupt:
    print("left the group", file=sys.stderr)
