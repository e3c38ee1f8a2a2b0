"""
Connectors between topics and SQLite: rows of tables become records, and records become rows.

A worker finds them by ``sqlite_connectors:TableSourceConnector`` and ``sqlite_connectors:RecordSinkConnector`` if this
folder is on its Python path. A table must have an integer column ``id`` that grows with each row. ::

    {"name": "shop", "connector.class": "sqlite_connectors:TableSourceConnector", "tasks.max": "2",
     "database": "/srv/shop.db", "tables": "orders,customers", "topic.prefix": "shop-"}
"""

import json
import sqlite3
from collections.abc import Collection, Mapping, Sequence

from kiel_groups import Record, TopicPartition
from kiel_groups.workers import (
    ConfigDefinition,
    ConfigKey,
    ConnectorContext,
    SinkConnector,
    SinkTask,
    SinkTaskContext,
    SourceConnector,
    SourceRecord,
    SourceTask,
    SourceTaskContext,
    Validator,
    at_least,
    each,
)
from kiel_groups.workers.plugins.config_definition import Settings

DATABASE = ConfigKey("database", documentation="The file of the SQLite database.", importance="high")


def connected(database: str) -> sqlite3.Connection:
    # The methods of a task run on different threads, but never at the same time.
    return sqlite3.connect(database, timeout=30, isolation_level=None, check_same_thread=False)


class TableSourceTask(SourceTask):
    """Reads the rows of some tables in the order of their ids."""

    def start(self, context: SourceTaskContext, settings: Settings) -> None:
        self._context = context
        self._settings = settings
        self._db = connected(settings["database"])
        self._db.row_factory = sqlite3.Row
        # Where the last task has stopped: the worker has stored the offset of the last record that is in its topic.
        self._ids: dict[str, int] = {}
        for table in settings["tables"]:
            offset = context.run(context.offset({"table": table}))
            self._ids[table] = offset["id"] if offset else 0

    def poll(self) -> Sequence[SourceRecord]:
        records = [record for table in self._ids for record in self._rows(table)]
        if not records:
            self._context.run(self._context.pause(self._settings["poll.interval.ms"] / 1000))
        return records

    def stop(self) -> None:
        # After an error in ``start``, there may be no connection.
        if hasattr(self, "_db"):
            self._db.close()

    def _rows(self, table: str) -> Sequence[SourceRecord]:
        # The name of the table was checked, so it cannot be another statement.
        query = f'SELECT * FROM "{table}" WHERE id > ? ORDER BY id LIMIT ?'
        rows = self._db.execute(query, (self._ids[table], self._settings["batch.size"])).fetchall()
        if rows:
            self._ids[table] = rows[-1]["id"]
        return [
            SourceRecord(
                {"table": table},
                {"id": row["id"]},
                self._settings["topic.prefix"] + table,
                json.dumps(dict(row)).encode(),
                key=str(row["id"]).encode(),
            )
            for row in rows
        ]


class TableSourceConnector(SourceConnector):
    """Divides tables among tasks."""

    version = "1.0"
    task_class = TableSourceTask
    config = ConfigDefinition(
        DATABASE,
        ConfigKey(
            "tables",
            "list",
            documentation="The tables to copy.",
            importance="high",
            validator=each(Validator(str.isidentifier, "the name of a table")),
        ),
        ConfigKey("topic.prefix", default="", documentation="What precedes the table in the name of its topic."),
        ConfigKey("batch.size", "int", 500, "The most rows of a table in one batch.", "low", at_least(1)),
        ConfigKey("poll.interval.ms", "int", 500, "How often tables are read, in milliseconds.", "low", at_least(1)),
    )

    def start(self, context: ConnectorContext, settings: Settings) -> None:
        self._config = context.config
        self._tables: list[str] = settings["tables"]

    def task_configs(self, most: int) -> Sequence[Mapping[str, str]]:
        count = min(most, len(self._tables))
        return [{**self._config, "tables": ",".join(self._tables[first::count])} for first in range(count)]


class RecordSinkTask(SinkTask):
    """
    Stores records under their places, in a transaction that ends with the commit of their offsets.

    A record that comes again, because its offset was not committed, replaces itself.
    """

    def start(self, context: SinkTaskContext, settings: Settings) -> None:
        self._db = connected(settings["database"])
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS records"
            " (topic, part, position, key, value, PRIMARY KEY (topic, part, position))"
        )

    def put(self, records: Sequence[Record]) -> None:
        if not self._db.in_transaction:
            self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany("REPLACE INTO records VALUES (?, ?, ?, ?, ?)", records)

    def flush(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._db.commit()

    def close(self, partitions: Collection[TopicPartition]) -> None:
        # Records that were not flushed are another task's by now.
        self._db.rollback()

    def stop(self) -> None:
        if hasattr(self, "_db"):
            self._db.close()


class RecordSinkConnector(SinkConnector):
    """Stores records in a database. SQLite lets one task write at a time, so more tasks would only wait."""

    version = "1.0"
    task_class = RecordSinkTask
    config = ConfigDefinition(DATABASE)

    def start(self, context: ConnectorContext, settings: Settings) -> None:
        self._config = context.config

    def task_configs(self, most: int) -> Sequence[Mapping[str, str]]:
        return [self._config]
