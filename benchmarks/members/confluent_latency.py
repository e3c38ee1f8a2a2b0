"""
Measure the time from produce to delivery by ``poll()`` of confluent-kafka.

Arguments: broker, topic, the number of its partitions, seconds. The consumer has its defaults, and starts at the end of
the logs.
"""

from __future__ import annotations

import sys

from confluent_kafka import OFFSET_END, Consumer, TopicPartition

from benchmarks.members.confluent_reader import SETTINGS, TIMEOUT_S
from benchmarks.members.latencies import Latencies


def main(broker: str, topic: str, partitions: str, duration_s: str) -> None:
    consumer = Consumer({**SETTINGS, "bootstrap.servers": broker})
    consumer.assign([TopicPartition(topic, number, OFFSET_END) for number in range(int(partitions))])
    latencies = Latencies(float(duration_s))
    while True:
        message = consumer.poll(TIMEOUT_S)
        if message is not None and not latencies.add(message.value()):
            break
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
