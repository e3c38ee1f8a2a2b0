"""
Read a topic with kafka-python, and touch each value.

Arguments: broker, topic, the number of its partitions, the most records, the most seconds. The consumer has its
defaults, but no group: kafka-python needs brokers of 0.9 for that.
"""

from __future__ import annotations

import sys

from kafka import KafkaConsumer, TopicPartition

from benchmarks.members.progress import Progress


def main(broker: str, topic: str, partitions: str, count: str, limit_s: str) -> None:
    consumer = KafkaConsumer(bootstrap_servers=[broker], api_version=(0, 8, 2), group_id=None)
    consumer.assign([TopicPartition(topic, number) for number in range(int(partitions))])
    consumer.seek_to_beginning()
    progress = Progress(int(count), float(limit_s))
    size, step, left = 0, 1, 1
    for record in consumer:
        size += len(record.value)
        left -= 1
        if not left:
            step = left = progress.add(step, size)
            size = 0
            if not step:
                break
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
