"""Keep totals by key, with a file for each partition that has the totals and the offset up to which they count."""

import asyncio
import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from kiel_groups import GroupedConsumer, Record, TopicPartition


class Totals:
    def __init__(self, consumer: GroupedConsumer, folder: str) -> None:
        self.consumer, self.folder = consumer, Path(folder)
        self.states: dict[TopicPartition, dict[str, Any]] = {}

    def file(self, partition: TopicPartition) -> Path:
        return self.folder / f"{partition.topic}-{partition.partition}.json"

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            file = self.file(partition)
            state: dict[str, Any] = {"offset": 0, "totals": {}}
            if file.exists():
                state = json.loads(file.read_text())
            self.states[partition] = state
            self.consumer.seek(partition, state["offset"])
            print("assigned", partition, "at", state["offset"], flush=True)

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            state = self.states.pop(partition)
            self.file(partition).write_text(json.dumps(state))
            print("revoked", partition, "at", state["offset"], flush=True)

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            self.states.pop(partition, None)

    def add(self, record: Record) -> None:
        state, key = self.states[record.topic_partition], record.key.decode()
        state["totals"][key] = state["totals"].get(key, 0) + int(record.value)
        state["offset"] = record.offset + 1


async def main(broker: str, zookeeper: str, topic: str, group: str, folder: str) -> None:
    async with GroupedConsumer(broker, group, zookeeper) as consumer:
        totals = Totals(consumer, folder)
        await consumer.subscribe(topic, listener=totals)
        async for record in consumer:
            totals.add(record)


if len(sys.argv) != 6:
    sys.exit("usage: aggregator.py BROKER ZOOKEEPER TOPIC GROUP FOLDER")
try:
    asyncio.run(main(*sys.argv[1:]))
except KeyboardInterrupt:
    print("left the group", file=sys.stderr)
