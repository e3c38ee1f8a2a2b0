"""
Produce to a topic with confluent-kafka, with a callback for each record.

Arguments: broker, topic, the number of records, the bytes of a value, the codec. The producer has its defaults, except
that the leader alone acknowledges, and that it does not ask the broker for its version.
"""

from __future__ import annotations

import sys
from typing import Any

from confluent_kafka import Producer

from benchmarks.members.confluent_reader import SETTINGS
from benchmarks.members.produced import chunks, report


def main(broker: str, topic: str, count: int, size: int, codec: str) -> None:
    shared = {name: SETTINGS[name] for name in ("api.version.request", "broker.version.fallback", "log_level")}
    producer = Producer({**shared, "bootstrap.servers": broker, "acks": 1, "compression.type": codec})
    values, stored = chunks(count, size), 0

    def delivered(error: Any, message: Any) -> None:
        nonlocal stored
        if error is not None:
            raise SystemExit(str(error))
        stored += 1

    producer.produce(topic, values[0][0], on_delivery=delivered)
    producer.flush()
    stored = 0
    report(0, size)
    for chunk in values:
        for value in chunk:
            while True:
                try:
                    producer.produce(topic, value, on_delivery=delivered)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.poll(0)
    producer.flush()
    report(stored, size)


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:5]), sys.argv[5])
