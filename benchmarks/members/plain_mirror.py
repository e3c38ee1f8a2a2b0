"""
Copy a topic of 0.8 to a new release by a plain loop: kafka-python reads, and confluent-kafka writes.

Arguments: the source's broker, its topic, the number of its partitions, the target's broker and topic, the most
records, the most seconds. The loop stores no offsets. Its producer has the settings of a mirror.
"""

from __future__ import annotations

import sys
import time

from confluent_kafka import Producer
from kafka import KafkaConsumer, TopicPartition

from benchmarks.members.produced import AT_ONCE, report
from benchmarks.members.target_producer import SETTINGS, Stored, produce


def main(source: str, topic: str, partitions: str, target: str, copy: str, count: str, limit_s: str) -> None:
    consumer = KafkaConsumer(bootstrap_servers=[source], api_version=(0, 8, 2), group_id=None)
    consumer.assign([TopicPartition(topic, number) for number in range(int(partitions))])
    consumer.seek_to_beginning()
    producer, stored, ends_s = Producer({**SETTINGS, "bootstrap.servers": target}), Stored(), 0.0
    for copied, record in enumerate(consumer, start=1):
        produce(producer, copy, record.value, record.key, record.partition, stored)
        if copied == 1:
            producer.flush()
            size, ends_s = len(record.value), time.monotonic() + float(limit_s)
            report(1, size, is_last=False)
        elif not copied % AT_ONCE:
            producer.poll(0)
            if copied >= int(count) or time.monotonic() > ends_s:
                break
    producer.flush()
    report(stored.count, size)
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
