"""
Produce to a topic with kafka-python, and check the outcome of each record.

Arguments: broker, topic, the number of records, the bytes of a value, the codec. The producer has its defaults, except
that the leader alone acknowledges.
"""

from __future__ import annotations

import sys

from kafka import KafkaProducer

from benchmarks.members.produced import chunks, report


def main(broker: str, topic: str, count: int, size: int, codec: str) -> None:
    compression = None if codec == "none" else codec
    producer = KafkaProducer(bootstrap_servers=[broker], api_version=(0, 8, 2), acks=1, compression_type=compression)
    values = chunks(count, size)
    producer.send(topic, values[0][0]).get(30)
    report(0, size)
    futures = [producer.send(topic, value) for chunk in values for value in chunk]
    report(sum(future.get(60).offset >= 0 for future in futures), size)


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:5]), sys.argv[5])
