"""
Run members of kiel-groups in a group that brokers coordinate.

They join at a line of input, and leave at its end. Arguments: broker, group, topics with commas between them, the
number of members, settings of the consumer as JSON. The lines of output are those of ``event_lines``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Collection
from typing import Any

from benchmarks.members.event_lines import report
from kiel_groups import GroupedConsumer
from kiel_groups.errors import KielGroupsError
from kiel_groups.model import TopicPartition


class Reporter:
    """A listener that reports what its member is notified of."""

    def __init__(self, member: int) -> None:
        self._member = member

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        report(self._member, "assigned", words(partitions))

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        report(self._member, "revoked", words(partitions))

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        report(self._member, "lost", words(partitions))


def words(partitions: Collection[TopicPartition]) -> list[str]:
    return [f"{topic}:{number}" for topic, number in sorted(partitions)]


async def run(number: int, topics: list[str], consumer: GroupedConsumer, over: asyncio.Event) -> None:
    """Be one member until ``over`` is set."""
    report(number, "joining")
    await consumer.subscribe(topics)
    await consumer.connect()
    consuming = asyncio.create_task(consume(number, consumer))
    await asyncio.wait({consuming, asyncio.create_task(over.wait())}, return_when=asyncio.FIRST_COMPLETED)
    if not consuming.done():
        report(number, "leaving")
        await consumer.close()
        report(number, "left")
    await consuming


async def consume(number: int, consumer: GroupedConsumer) -> None:
    async for record in consumer:
        report(number, "record", [f"{record.topic}:{record.partition}", record.offset])


async def main(broker: str, group: str, topics: str, count: int, settings: dict[str, Any]) -> None:
    over = asyncio.Event()
    consumers = [
        GroupedConsumer([broker], group, coordination="brokers", listener=Reporter(number), **settings)
        for number in range(count)
    ]
    for number in range(count):
        report(number, "prepared")
    await asyncio.to_thread(sys.stdin.readline)
    running = [asyncio.create_task(run(n, topics.split(","), each, over)) for n, each in enumerate(consumers)]
    ending = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    ending.add_done_callback(lambda _: over.set())
    try:
        await asyncio.gather(*running)
    except KielGroupsError as error:
        report(0, "failed", [type(error).__name__, *str(error).split()])
        # The thread that reads standard input would keep the process from ending.
        os._exit(1)


if __name__ == "__main__":
    given = sys.argv[1:]
    asyncio.run(main(*given[:3], int(given[3]), json.loads(given[4])))
