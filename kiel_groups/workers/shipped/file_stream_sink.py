"""Append the records of topics to a file: ``FileStreamSink``."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from kiel_groups.model import Record, TopicPartition
from kiel_groups.workers.plugins.config_definition import ConfigDefinition, Settings
from kiel_groups.workers.plugins.config_key import ConfigKey
from kiel_groups.workers.plugins.config_validators import non_empty
from kiel_groups.workers.plugins.connector_interfaces import SinkConnector
from kiel_groups.workers.plugins.plugin_contexts import ConnectorContext, SinkTaskContext
from kiel_groups.workers.plugins.task_interfaces import SinkTask
from kiel_groups.workers.shipped.file_errors import named_errors

__all__ = ["FileStreamSinkConnector", "FileStreamSinkTask"]

log = logging.getLogger(__name__)


class FileStreamSinkTask(SinkTask):
    """
    Appends values to the file, each with a line end; a null value is an empty line.

    The records of one call are one write at the end of the file, so tasks on one machine may share a file. If the file
    is moved away, a new one is created.
    """

    def __init__(self) -> None:
        self._descriptor: int | None = None

    def start(self, context: SinkTaskContext, settings: Settings) -> None:
        self._path = Path(settings["file"]).absolute()
        self._open()

    def put(self, records: Sequence[Record]) -> None:
        if not records:
            return
        if not self._is_at_its_path():
            log.info("%s was moved away; creating it", self._path)
            self._close()
            self._open()
        assert self._descriptor is not None
        lines = memoryview(b"".join(part for record in records for part in (record.value or b"", b"\n")))
        with named_errors(self._path):
            while lines:
                lines = lines[os.write(self._descriptor, lines) :]

    def flush(self, offsets: Mapping[TopicPartition, int]) -> None:
        if self._descriptor is not None:
            with named_errors(self._path):
                os.fsync(self._descriptor)

    def stop(self) -> None:
        if self._descriptor is not None:
            self._close()

    def _open(self) -> None:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        _sync_folder(self._path.parent)
        size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            # A process that died has left it; the record follows again as a whole, because it was not committed.
            log.warning("%s ends with an unfinished line; ending it", self._path)
            os.write(self._descriptor, b"\n")

    def _is_at_its_path(self) -> bool:
        assert self._descriptor is not None
        with suppress(FileNotFoundError):
            return os.path.samestat(os.stat(self._path), os.fstat(self._descriptor))
        return False

    def _close(self) -> None:
        """Close the file, after its content is durable: a later ``flush`` no longer reaches a file that was moved."""
        assert self._descriptor is not None
        descriptor, self._descriptor = self._descriptor, None
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class FileStreamSinkConnector(SinkConnector):
    """Appends the values of records to a file, one line each. Its tasks share the file."""

    version: ClassVar[str] = "1.0"
    task_class = FileStreamSinkTask
    config = ConfigDefinition(
        ConfigKey(
            "file",
            documentation="The file to append to. It is created if it does not exist; its folder must exist.",
            importance="high",
            validator=non_empty(),
            group="File",
            width="long",
        ),
    )

    def start(self, context: ConnectorContext, settings: Settings) -> None:
        self._config = context.config

    def task_configs(self, most: int) -> Sequence[Mapping[str, str]]:
        return [self._config] * most


def _sync_folder(folder: Path) -> None:
    """Make the name of a new file durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
