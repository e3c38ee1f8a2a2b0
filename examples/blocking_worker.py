"""
A worker without an event loop: a plain program that shares a topic with every other process that runs it.

It counts the words of its records, and commits after it has printed the counts. Ctrl-C leaves the group. ::

    python examples/blocking_worker.py 127.0.0.1:9092 127.0.0.1:2181 sentences
"""

import sys
from collections import Counter

from kiel_groups.sync import GroupedConsumer

words: Counter[str] = Counter()

if len(sys.argv) != 4:
    sys.exit("usage: blocking_worker.py BROKER ZOOKEEPER TOPIC")
broker, zookeeper, topic = sys.argv[1:]
try:
    with GroupedConsumer([broker], "word-count", [zookeeper], autocommit=False) as consumer:
        consumer.subscribe([topic])
        for record in consumer:
            words.update(record.value.decode().split())
            print(*(f"{word}: {count}" for word, count in words.most_common(3)), sep=", ", flush=True)
            consumer.commit()
except KeyboardInterrupt:
    print("left the group", file=sys.stderr)
