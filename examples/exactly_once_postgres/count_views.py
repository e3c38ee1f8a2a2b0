"""
Count page views in PostgreSQL, each record exactly once.

One transaction stores the counts of some records and the offset after these records. The member that gets a partition
continues at that offset. It also stores its fencing token there, so that PostgreSQL refuses the transactions of a
former owner that does not know yet that it has lost the partition.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections import Counter
from collections.abc import Collection
from contextlib import suppress

import psycopg
from kiel_groups import GroupedConsumer, KielGroupsError, RecordColumns, TopicPartition
from kiel_groups.errors import CommitFailedError, SessionLostError

log = logging.getLogger("count_views")

RETRY_PAUSE_S = 1.0
#: How long the end may take, in seconds. Choose less than the supervisor waits before it kills the process.
SHUTDOWN_S = 8.0

#: Makes this member the owner, unless a later claim of the partition is stored. A new partition starts at ``start``.
CLAIM = """
INSERT INTO positions AS stored (topic, part, next_offset, token)
VALUES (%(topic)s, %(part)s, %(start)s, %(token)s)
ON CONFLICT (topic, part) DO UPDATE SET token = excluded.token WHERE stored.token <= excluded.token
RETURNING next_offset
"""
#: Locks the position until the end of the transaction.
POSITION = "SELECT next_offset, token FROM positions WHERE topic = %(topic)s AND part = %(part)s FOR UPDATE"
#: The work of the example: replace it. The pages come sorted: two members that change the same rows in different orders
#: could wait for each other.
COUNT = """
INSERT INTO page_views AS stored (page, views) SELECT * FROM unnest(%(pages)s::text[], %(views)s::bigint[])
ON CONFLICT (page) DO UPDATE SET views = stored.views + excluded.views
"""
ADVANCE = "UPDATE positions SET next_offset = %(next)s WHERE topic = %(topic)s AND part = %(part)s"


class PositionError(Exception):
    """The records do not follow those that are counted."""


class PageViews:
    """
    The tables in PostgreSQL. As the consumer's RebalanceListener, it claims a partition there before its first record.

    Args:
        address: PostgreSQL's connection string, such as ``postgresql://127.0.0.1/shop``.
        session_timeout_ms: The session timeout of the group's members.
    """

    def __init__(self, address: str, session_timeout_ms: int) -> None:
        self._address = address
        self._session_timeout_ms = session_timeout_ms
        self.consumer: GroupedConsumer | None = None
        self.stopping = asyncio.Event()
        self._connection: psycopg.AsyncConnection | None = None

    async def open(self) -> None:
        """Connect, and check that the tables exist."""
        self._connection = await self.connect()
        await self._connection.execute("SELECT FROM page_views, positions LIMIT 0")

    async def connect(self) -> psycopg.AsyncConnection:
        """
        Connect, again and again until PostgreSQL answers. Each statement outside of a transaction is one of its own.

        Once the program is being stopped, raise the error.
        """
        while True:
            try:
                connection = await psycopg.AsyncConnection.connect(self._address, connect_timeout=10, autocommit=True)
                # A process that freezes within a transaction keeps its locks, and the next owner waits for them. So
                # PostgreSQL ends a transaction in which nothing happens for as long as a session in the group lasts.
                await connection.execute(f"SET idle_in_transaction_session_timeout = {self._session_timeout_ms:d}")
            except psycopg.OperationalError as error:
                await self._pause_after(error)
            else:
                return connection

    async def _pause_after(self, error: psycopg.Error) -> None:
        if self.stopping.is_set():
            raise error
        log.warning("PostgreSQL: %s; next try in %g s", str(error).strip(), RETRY_PAUSE_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(RETRY_PAUSE_S):
                await self.stopping.wait()

    # ------------------------------------------------------------------ claims

    async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Claim partitions in PostgreSQL, and seek to the positions there. No record is delivered before the end."""
        assert self.consumer is not None
        for partition in sorted(partitions):
            token, start = self.consumer.fencing_token(partition), await self.consumer.position(partition)
            # The other connection may be in a transaction.
            async with await self.connect() as connection:
                place = {"topic": partition.topic, "part": partition.partition, "start": start, "token": token}
                row = await (await connection.execute(CLAIM, place)).fetchone()
            if row is None:
                # The consumer logs this. Nothing of the partition is stored under this claim.
                raise PositionError(f"{partition}: PostgreSQL has a larger fencing token than {token}")
            log.info("%s: continues at %d", partition, row[0])
            self.consumer.seek(partition, row[0])

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Do nothing: what is finished is stored."""

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        """Do nothing: PostgreSQL refuses what is not stored yet."""

    # ------------------------------------------------------------------ records

    async def store(self, records: RecordColumns) -> bool:
        """
        Count records of one partition. Return False, and store nothing, if another member has claimed the partition.

        If PostgreSQL fails, try again, until the program is being stopped.

        Raises:
            PositionError: The records do not follow those that are counted.
            psycopg.Error: A statement is wrong, or the program is being stopped.
        """
        tries = 0
        while True:
            self._connection = self._connection or await self.connect()
            tries += 1
            try:
                return await self._store(self._connection, records, is_repeated=tries > 1)
            except psycopg.Error as error:
                # A broken connection has several classes of errors. OperationalError: also a deadlock, for example.
                if not (self._connection.closed or isinstance(error, psycopg.OperationalError)):
                    raise
                await self.close()
                await self._pause_after(error)

    async def _store(self, connection: psycopg.AsyncConnection, records: RecordColumns, *, is_repeated: bool) -> bool:
        partition = records.topic_partition
        place = {"topic": partition.topic, "part": partition.partition}
        async with connection.transaction():
            row = await (await connection.execute(POSITION, place)).fetchone()
            counted, token = row or (None, None)
            if token != records.fencing_token:
                log.warning(
                    "%s: offsets %d to %d refused: token %s has claimed the partition, and this process had token %s",
                    *(partition, records.first_offset, records.next_offset - 1, token, records.fencing_token),
                )
                return False
            if is_repeated and counted == records.next_offset:
                # The connection broke when the transaction before was committed.
                return True
            if counted > records.first_offset:
                raise PositionError(
                    f"{partition}: offset {records.first_offset} was delivered, but {counted} is next: if the topic was"
                    " created again, or if you have moved the offsets of the group, set its position in PostgreSQL"
                )
            views = Counter(page_of(value) for value in records.values.to_list())
            pages = sorted(views)
            await connection.execute(COUNT, {"pages": pages, "views": [views[page] for page in pages]})
            await connection.execute(ADVANCE, {**place, "next": records.next_offset})
        return True

    async def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            await self._connection.close()
            self._connection = None


def page_of(value: bytes | None) -> str:
    """Return the page of a record. PostgreSQL stores no NUL in texts."""
    return (value or b"").decode(errors="replace").replace("\0", "�")


async def main(options: argparse.Namespace) -> None:
    views = PageViews(options.postgres, options.session_timeout_ms)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, views.stopping.set)
    consumer = views.consumer = GroupedConsumer(
        options.brokers,
        "count-views",
        options.zookeeper,
        autocommit=False,
        session_timeout_ms=options.session_timeout_ms,
        listener=views,
    )
    try:
        await views.open()
        async with consumer:
            await consumer.subscribe(options.topic)
            while not views.stopping.is_set():
                for parts in (await consumer.consume_batches(timeout_ms=500, max_records=1_000)).values():
                    for records in parts:
                        if await views.store(records):
                            await commit(consumer, records)
            await consumer.close(timeout_s=SHUTDOWN_S)
    finally:
        await views.close()
    log.info("left the group")


async def commit(consumer: GroupedConsumer, records: RecordColumns) -> None:
    """Commit the offset to the group, too, for tools that show the lag. Only the one in PostgreSQL counts."""
    try:
        await consumer.commit({records.topic_partition: records.next_offset})
    except (CommitFailedError, SessionLostError) as error:
        log.warning("not committed to the group: %s", error)


def run() -> None:
    parser = argparse.ArgumentParser(description="Count page views in PostgreSQL, each record exactly once.")
    environment = os.environ.get
    parser.add_argument("topic")
    parser.add_argument("postgres", help="connection string, such as postgresql://127.0.0.1/shop")
    parser.add_argument("--brokers", default=environment("KIEL_GROUPS_BROKERS", "127.0.0.1:9092"))
    parser.add_argument("--zookeeper", default=environment("KIEL_GROUPS_ZOOKEEPER", "127.0.0.1:2181"))
    parser.add_argument("--session-timeout-ms", type=int, default=10_000)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(main(options))
    except (KielGroupsError, PositionError, psycopg.Error) as error:
        sys.exit(f"error: {str(error).strip()}")


if __name__ == "__main__":
    run()
