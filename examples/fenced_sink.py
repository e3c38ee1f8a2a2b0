"""
A sink that refuses stale owners.

A process that was stopped during its work may continue after another member has claimed its partition, without knowing
of that claim. The sink detects this: each claim of a partition has a larger fencing token than the claim before, and
the sink refuses writes with a smaller token than it has seen. ::

    python examples/fenced_sink.py 127.0.0.1:9092 127.0.0.1:2181 colours colours.db
"""

import argparse
import asyncio
import sqlite3
import sys

from kiel_groups import GroupedConsumer, Record


class Sink:
    """
    Stores values in SQLite, each under the offset of its record, and the largest token of each partition.

    A value replaces the one that was stored under its offset. So a record that is delivered again after a crash is
    stored once. A replay (an operator has set the offsets back) is stored, too, and so are the records of a topic that
    was deleted and created again, whose offsets begin at 0 again. Rows at offsets that the new topic has not reached
    are still rows of the old topic: delete them with the topic.
    """

    def __init__(self, file: str) -> None:
        self._db = sqlite3.connect(file, timeout=30, isolation_level=None)
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS vals (topic, part, position, value, PRIMARY KEY (topic, part, position))"
        )
        self._db.execute("CREATE TABLE IF NOT EXISTS owners (topic, part, token, PRIMARY KEY (topic, part))")

    def store(self, record: Record, token: int) -> bool:
        """
        Store a value, and return True. If a later owner of its partition has written, store nothing and return False.
        """
        place = (record.topic, record.partition)
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            seen = self._db.execute("SELECT token FROM owners WHERE topic = ? AND part = ?", place).fetchone()
            if seen is not None and token < seen[0]:
                return False
            self._db.execute("REPLACE INTO owners VALUES (?, ?, ?)", (*place, token))
            self._db.execute("REPLACE INTO vals VALUES (?, ?, ?, ?)", (*place, record.offset, record.value))
            return True


async def main(broker: str, zookeeper: str, topic: str, file: str, work_s: float) -> None:
    sink = Sink(file)
    async with GroupedConsumer([broker], "sink", [zookeeper], session_timeout_ms=4_000) as consumer:
        await consumer.subscribe(topic)
        async for record in consumer:
            # The token of the claim under which this record was delivered. It is read before the work: this very
            # process may lose the partition, and claim it again with another token, before the work is done.
            token = consumer.fencing_token(record)
            print("working on", record.topic_partition, record.offset, flush=True)
            await asyncio.sleep(work_s)
            stored = token is not None and sink.store(record, token)
            print("stored" if stored else "refused", record.topic_partition, record.offset, flush=True)


def run() -> None:
    parser = argparse.ArgumentParser(description="Store values, unless a later owner of their partition has written.")
    for name in ("broker", "zookeeper", "topic", "file"):
        parser.add_argument(name)
    parser.add_argument("--work", type=float, default=0.05, help="how long the work on a record takes, in seconds")
    args = parser.parse_args()
    try:
        asyncio.run(main(args.broker, args.zookeeper, args.topic, args.file, args.work))
    except KeyboardInterrupt:
        print("left the group", file=sys.stderr)


if __name__ == "__main__":
    run()
