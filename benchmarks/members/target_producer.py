"""
Produce to a topic of a new release with confluent-kafka, with the settings of a mirror and a callback for each record.

Arguments: broker, topic, the number of its partitions, the number of records, the bytes of a value.
"""

from __future__ import annotations

import sys
from typing import Any

from confluent_kafka import Producer

from benchmarks.members.produced import chunks, report

#: The settings with which a mirror writes, whose other settings concern errors.
SETTINGS: dict[str, Any] = {
    "enable.idempotence": True,
    "compression.type": "lz4",
    "linger.ms": 20,
    "batch.size": 943_718,
    "queue.buffering.max.messages": 200_000,
    "log_level": 3,
}


class Stored:
    """Counts the records that are stored. An error ends the program."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, error: Any, _: Any) -> None:
        if error is not None:
            raise SystemExit(str(error))
        self.count += 1


def produce(producer: Any, topic: str, value: bytes, key: bytes | None, partition: int, stored: Stored) -> None:
    """Produce a record, and wait while the producer is full."""
    while True:
        try:
            producer.produce(topic, value, key, partition, stored.add)
            return
        except BufferError:
            producer.poll(0.1)


def main(broker: str, topic: str, partitions: int, count: int, size: int) -> None:
    producer, stored, values = Producer({**SETTINGS, "bootstrap.servers": broker}), Stored(), chunks(count, size)
    produce(producer, topic, values[0][0], None, 0, stored)
    producer.flush()
    report(stored.count, size, is_last=False)
    for number, chunk in enumerate(values):
        for value in chunk:
            produce(producer, topic, value, None, number % partitions, stored)
        producer.poll(0)
    producer.flush()
    report(stored.count, size)


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))
