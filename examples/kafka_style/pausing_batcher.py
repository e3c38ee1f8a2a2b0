"""Write batches of records on another thread; partitions are paused while a batch is written."""

import os
import sys
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from kiel_groups import KielGroupsError, Record, TopicPartition
from kiel_groups.errors import IllegalStateError
from kiel_groups.sync import GroupedConsumer

BATCH = 100


def write(file: str, batch: list[Record]) -> list[Record]:
    with open(file, "ab") as sink:
        sink.writelines(record.value + b"\n" for record in batch)
        sink.flush()
        os.fsync(sink.fileno())
    return batch


def commit(consumer: GroupedConsumer, batch: list[Record]) -> None:
    owned = consumer.assignment()
    try:
        consumer.commit({each.topic_partition: each.offset + 1 for each in batch if each.topic_partition in owned})
    except KielGroupsError as error:
        print("not committed, so records may come again:", error, file=sys.stderr)


def for_each(call: Callable[[TopicPartition], None], partitions: Collection[TopicPartition]) -> None:
    for partition in partitions:
        with suppress(IllegalStateError):  # A rebalance may have revoked it since.
            call(partition)


def main(broker: str, zookeeper: str, topic: str, group: str, file: str) -> None:
    rows: list[Record] = []
    writing: Future[list[Record]] | None = None
    with ThreadPoolExecutor(1) as pool, GroupedConsumer(broker, group, zookeeper, autocommit=False) as consumer:
        consumer.subscribe(topic)
        while True:
            found = consumer.getmany(timeout_ms=100, max_records=BATCH)
            rows += [record for records in found.values() for record in records]
            if writing is not None and writing.done():
                commit(consumer, writing.result())
                print("stored", len(writing.result()), flush=True)
                writing = None
                for_each(consumer.resume, consumer.paused())
            if writing is None and (len(rows) >= BATCH or (rows and not found)):
                for_each(consumer.pause, consumer.assignment())
                print("paused", len(consumer.paused()), flush=True)
                writing, rows = pool.submit(write, file, rows), []


if len(sys.argv) != 6:
    sys.exit("usage: pausing_batcher.py BROKER ZOOKEEPER TOPIC GROUP FILE")
try:
    main(*sys.argv[1:])
except KeyboardInterrupt:
    print("left the group", file=sys.stderr)
