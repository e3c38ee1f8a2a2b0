"""
Read a topic with pykafka's simple consumer, and touch each value.

Arguments: broker, topic, the most records, the most seconds. The consumer has its defaults, and no group.
"""

from __future__ import annotations

import sys

from pykafka import KafkaClient
from pykafka.common import OffsetType

from benchmarks.members.progress import Progress


def main(broker: str, topic: str, count: str, limit_s: str) -> None:
    client = KafkaClient(hosts=broker, broker_version="0.8.2")
    consumer = client.topics[topic].get_simple_consumer(
        auto_offset_reset=OffsetType.EARLIEST, reset_offset_on_start=True
    )
    progress = Progress(int(count), float(limit_s))
    size, step, left = 0, 1, 1
    for message in consumer:
        size += len(message.value)
        left -= 1
        if not left:
            step = left = progress.add(step, size)
            size = 0
            if not step:
                break
    consumer.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
