"""
Count views per visitor, with a count for each partition that this member owns.

All views of a visitor are in one partition, so the owner of that partition has the whole count. ::

    python examples/listen.py 127.0.0.1:9092 127.0.0.1:2181 page-views
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Collection

from kiel_groups import GroupedConsumer, TopicPartition


class Views:
    """Counts by partition. The class is a RebalanceListener, which needs no base class."""

    def __init__(self) -> None:
        self.counts: dict[TopicPartition, Counter[bytes]] = {}

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Start new counts. This hook is called before the first record of these partitions is delivered."""
        self.counts |= {partition: Counter() for partition in partitions}
        print("assigned", *partitions, flush=True)

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Save the counts. The last record is finished, and no other member owns the partitions yet."""
        for partition in partitions:
            views = self.counts.pop(partition)
            print("revoked", partition, "with", views.total(), "views of", len(views), "visitors", flush=True)

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the counts. Another member may own the partitions already, so nothing may be saved."""
        for partition in partitions:
            self.counts.pop(partition, None)
        print("lost", *partitions, flush=True)


async def main(broker: str, zookeeper: str, topic: str) -> None:
    views = Views()
    async with GroupedConsumer([broker], "views", [zookeeper], listener=views) as consumer:
        await consumer.subscribe([topic])
        async for record in consumer:
            views.counts[record.topic_partition][record.key or b"nobody"] += 1


if len(sys.argv) != 4:
    sys.exit("usage: listen.py BROKER ZOOKEEPER TOPIC")
try:
    asyncio.run(main(*sys.argv[1:]))
except KeyboardInterrupt:
    print("left the group", file=sys.stderr)
