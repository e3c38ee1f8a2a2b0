"""Copy the lines of a file into a topic: ``FileStreamSource``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from kiel_groups.errors import KielGroupsError
from kiel_groups.workers.plugins.config_definition import (
    ConfigDefinition,
    ConfigKey,
    Settings,
    at_least,
    between,
    non_empty,
)
from kiel_groups.workers.plugins.interfaces import (
    ConnectorContext,
    SourceConnector,
    SourceRecord,
    SourceTask,
    SourceTaskContext,
)
from kiel_groups.workers.plugins.standard_keys import TOPIC_NAME
from kiel_groups.workers.shipped.followed_file import FollowedFile, Line, LinePosition

log = logging.getLogger(__name__)


class FileStreamSourceTask(SourceTask):
    """
    Reads the lines of a file. A source offset is a position in bytes, with data that identify the file.

    See ``LinePosition``. Offsets without such data are accepted, such as the offsets of Kafka Connect.
    """

    def __init__(self) -> None:
        self._file: FollowedFile | None = None

    async def start(self, context: SourceTaskContext, settings: Settings) -> None:
        path = _absolute(settings["file"])
        self._context = context
        self._topic: str = settings["topic"]
        self._batch_size: int = settings["batch.size"]
        self._pause_s: float = settings["poll.interval.ms"] / 1000
        self._partition = {"filename": str(path)}
        stored = await context.offset(self._partition)
        start = None if stored is None else _position(stored)
        log.info(
            "%s-%d: reading %s from byte %s",
            context.connector,
            context.task,
            path,
            f"{start.position if start else 0:,}",
        )
        self._file = FollowedFile(path, start, settings["line.max.bytes"], settings["rotation.wait.ms"] / 1000)

    def poll(self) -> Sequence[SourceRecord]:
        assert self._file is not None
        was_missing, lines = self._file.is_missing, self._file.take(self._batch_size)
        if self._file.is_missing is not was_missing:
            # The file need not exist yet, but its path may also be mistyped.
            self._context.report_problem("" if was_missing else f"{self._file.path} does not exist; waiting for it")
        if not lines:
            self._context.run(self._context.pause(self._pause_s))
        return [self._record(line) for line in lines]

    def stop(self) -> None:
        if self._file is not None:
            self._file.close()

    def _record(self, line: Line) -> SourceRecord:
        return SourceRecord(self._partition, line.after._asdict(), self._topic, line.value)


#: A key that most users leave as it is.
_tuning = partial(ConfigKey, group="File", importance="low", width="short")


class FileStreamSourceConnector(SourceConnector):
    """Copies the lines of a file into a topic, in their order, with one task."""

    version: ClassVar[str] = "1.0"
    task_class = FileStreamSourceTask
    config = ConfigDefinition(
        ConfigKey(
            "file",
            documentation="The file to read. It does not have to exist yet. Every worker must see it, for the task may "
            "move.",
            importance="high",
            validator=non_empty(),
            group="File",
            width="long",
        ),
        ConfigKey(
            "topic",
            documentation="The topic that the lines are written to.",
            importance="high",
            validator=TOPIC_NAME,
            group="File",
        ),
        _tuning(
            "batch.size",
            "int",
            2_000,
            documentation="The most lines of one batch.",
            validator=between(1, 1_000_000),
        ),
        _tuning(
            "line.max.bytes",
            "int",
            1_000_000,
            documentation="The most bytes of a line. The task fails at a longer one.",
            validator=at_least(1),
        ),
        _tuning(
            "poll.interval.ms",
            "int",
            250,
            documentation="How often the end of the file is looked at, in milliseconds.",
            validator=between(1, 60_000),
        ),
        _tuning(
            "rotation.wait.ms",
            "int",
            5_000,
            documentation="How long a file that was renamed has to be without new lines before the file that has its "
            "name is read, in milliseconds: a program may write to the old one until it opens the new one.",
            validator=between(0, 3_600_000),
        ),
    )

    def start(self, context: ConnectorContext, settings: Settings) -> None:
        self._config = context.config

    def task_configs(self, most: int) -> Sequence[Mapping[str, str]]:
        # Lines have an order, so one task reads the file.
        return [self._config]


def _absolute(file: str) -> Path:
    return Path(file).absolute()


def _position(stored: Mapping[str, Any]) -> LinePosition:
    """
    Return the position of a stored source offset. An offset of Kafka Connect has only the number of bytes.

    Raises:
        KielGroupsError: The offset is not a position.
    """
    fields: list[Any] = [stored.get(name) for name in LinePosition._fields]
    position = LinePosition(*fields)
    numbers = (position.crc, position.inode, position.modified_ns)
    if (
        type(position.position) is not int
        or position.position < 0
        or not all(number is None or type(number) is int for number in numbers)
    ):
        raise KielGroupsError(f"the stored offset {dict(stored)!r} is not a position; expected {{'position': N}}")
    return position
