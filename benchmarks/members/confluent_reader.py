"""
Read a topic with confluent-kafka, and touch each value.

Arguments: way, broker, topic, the number of its partitions, the most records, the most seconds. The consumer has its
defaults, except that it does not ask the broker for its version, commits nothing, and accepts answers of any size.
``crc`` checks each message, as kiel-groups always does.
"""

from __future__ import annotations

import sys
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from benchmarks.members.progress import Progress

TIMEOUT_S = 1.0
#: The most messages of one ``consume()``, which waits for as many.
AT_ONCE = 10_000

#: Brokers of 0.8 do not limit an answer as a whole: for 200 partitions it has up to 200 MiB. By default librdkafka
#: refuses that again and again. Its log would warn of brokers before 0.10.
SETTINGS: dict[str, Any] = {
    "api.version.request": False,
    "broker.version.fallback": "0.8.2.2",
    "enable.auto.commit": False,
    "group.id": "confluent",
    "log_level": 3,
    "receive.message.max.bytes": 1 << 30,
}


def by_consume(consumer: Any, progress: Progress) -> None:
    # The first delivery starts the clock: it must not wait until thousands of messages have been fetched.
    at_once = 1
    while not progress.done:
        messages = consumer.consume(min(at_once, progress.left), TIMEOUT_S)
        progress.add(len(messages), sum(len(message.value()) for message in messages))
        at_once = AT_ONCE


def by_poll(consumer: Any, progress: Progress) -> None:
    poll = consumer.poll
    size, step, left = 0, 1, 1
    while step:
        message = poll(TIMEOUT_S)
        if message is None:
            continue
        size += len(message.value())
        left -= 1
        if not left:
            step = left = progress.add(step, size)
            size = 0


WAYS = {"consume()": by_consume, "poll()": by_poll}


def main(way: str, broker: str, topic: str, partitions: str, count: str, limit_s: str) -> None:
    name, _, check = way.partition(" ")
    consumer = Consumer({**SETTINGS, "bootstrap.servers": broker, "check.crcs": check == "crc"})
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(int(partitions))])
    WAYS[name](consumer, Progress(int(count), float(limit_s)))
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
