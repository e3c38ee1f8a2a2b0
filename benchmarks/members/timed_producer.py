"""
Produce messages at a steady rate with confluent-kafka, each with its time, until standard input ends.

Arguments: broker, topic, the number of its partitions, messages a second, the bytes of a value. The program prints a
line when the first message has been stored.
"""

from __future__ import annotations

import select
import sys
import time
from typing import Any

from confluent_kafka import Producer

from benchmarks.members.confluent_reader import SETTINGS
from benchmarks.members.latencies import TICK_S, stamped

LINGER_MS = 1


def main(broker: str, topic: str, partitions: int, rate: int, size: int) -> None:
    shared = {name: SETTINGS[name] for name in ("api.version.request", "broker.version.fallback", "log_level")}
    producer = Producer({**shared, "bootstrap.servers": broker, "linger.ms": LINGER_MS, "acks": 1})
    stored: list[Any] = []
    producer.produce(topic, stamped(size), on_delivery=lambda error, message: stored.append(error))
    while not stored:
        producer.poll(1.0)
    if stored[0] is not None:
        raise SystemExit(f"the first message was not stored: {stored[0]}")
    print("producing", flush=True)  # noqa: T201
    sent, began_s = 0, time.monotonic()
    while not select.select([sys.stdin], [], [], TICK_S)[0]:
        due = round((time.monotonic() - began_s) * rate)
        while sent < due:
            producer.produce(topic, stamped(size), partition=sent % partitions)
            sent += 1
        producer.poll(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
