"""
A query that joins a group, in a process without a JVM. Its arguments are ``bootstrap.servers zookeeper topic group``.

The process prints the number of records in its first batch, plans a second batch, and prints ``done``. Then it waits
until it is ended. Like Spark's runner, it calls the reader's ``stop`` in a ``finally`` block.
"""

import sys
import time

from kiel_groups.spark import KielDataSource

brokers, zookeeper, topic, group = sys.argv[1:]
source = KielDataSource(
    {
        "kafka.bootstrap.servers": brokers,
        "kiel.zookeeper.connect": zookeeper,
        "subscribe": topic,
        "kafka.group.id": group,
        "membership": "join",
        "startingoffsets": "earliest",
    }
)
reader = source.streamReader(source.schema())
try:
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    print(sum(entry["to"] for entry in end[topic].values()), flush=True)  # noqa: T201
    reader.latestOffset(end, reader.getDefaultReadLimit())
    print("done", flush=True)  # noqa: T201
    while True:
        time.sleep(0.1)
finally:
    reader.stop()
