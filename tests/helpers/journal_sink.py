"""
A sink whose tasks write the journal of ``journal_connector``, a line for each put, and the records to another file.

A task keeps records until it has to flush, so a commit without a flush, or before one, is seen from outside: its
records are not in the file. Like the sources, a task with the order ``block`` is slow in its next put.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from kiel_groups.model import Record, TopicPartition
from kiel_groups.workers.plugins.config_definition import ConfigDefinition, ConfigKey, Settings
from kiel_groups.workers.plugins.interfaces import ConnectorContext, SinkConnector, SinkTask, SinkTaskContext
from tests.helpers.journal_connector import JournalPen

__all__ = ["JOURNAL_SINK", "read_written"]

JOURNAL_SINK = f"{__name__}:JournalSink"


class JournalSinkTask(SinkTask):
    """Writes a line for each call, and a line for each record when it flushes."""

    def start(self, context: SinkTaskContext, settings: Settings) -> None:
        self._pen = JournalPen(context, settings)
        self._file = os.open(settings["written"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._kept: dict[TopicPartition, list[int]] = {}
        self._pen.write("start")

    def put(self, records: Sequence[Record]) -> None:
        self._pen.write("poll")
        self._pen.block()
        for record in records:
            self._kept.setdefault(TopicPartition(record.topic, record.partition), []).append(record.offset)

    def flush(self, offsets: Mapping[TopicPartition, int]) -> None:
        for (topic, number), kept in self._kept.items():
            for offset in kept:
                # One short write to a file that is opened for appending is atomic.
                os.write(self._file, f"{topic} {number} {offset}\n".encode())
        self._kept.clear()

    def close(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            self._kept.pop(partition, None)

    def stop(self) -> None:
        self._pen.write("stop")
        self._pen.write("stopped")


class JournalSink(SinkConnector):
    """Has ``tasks.max`` tasks."""

    task_class = JournalSinkTask
    config = ConfigDefinition(ConfigKey("journal"), ConfigKey("written"), ConfigKey("topic"), ConfigKey("fault"))

    def start(self, context: ConnectorContext, settings: Settings) -> None:
        self._config = context.config

    def task_configs(self, most: int) -> Sequence[Mapping[str, str]]:
        return [self._config] * most


def read_written(path: Path) -> dict[int, set[int]]:
    """Return the offsets of the records of a topic that tasks have written, by partition."""
    found: dict[int, set[int]] = {}
    # A line that is being written has no end yet.
    for line in path.read_text().split("\n")[:-1] if path.exists() else ():
        _, number, offset = line.split()
        found.setdefault(int(number), set()).add(int(offset))
    return found
