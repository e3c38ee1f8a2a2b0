"""Append the records of topics to a file: ``FileStreamSink``."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar

from kiel_groups.errors import TaskStoppedError
from kiel_groups.model import Record, TopicPartition
from kiel_groups.workers.plugins.config_definition import ConfigDefinition, ConfigKey, Settings, non_empty
from kiel_groups.workers.plugins.interfaces import ConnectorContext, SinkConnector, SinkTask, SinkTaskContext
from kiel_groups.workers.shipped.followed_file import named_errors, open_regular

log = logging.getLogger(__name__)

#: The pause before a file that another task writes to is locked again, in seconds, and how long a write of another task
#: may take before this task reports a problem, or, if it has to stop, ends without the lock. A write is short.
_LOCK_PAUSE_S, _LOCK_WAIT_S = 0.005, 1.0


class FileStreamSinkTask(SinkTask):
    """
    Appends the values of records to a file. Each value is followed by a line end; a null value is an empty line.

    The records of one ``put`` are written under a lock, and the file is restored if the write fails. So tasks on one
    machine may share a file. If the file is moved away, a new file is created.
    """

    def __init__(self) -> None:
        self._descriptor: int | None = None

    def start(self, context: SinkTaskContext, settings: Settings) -> None:
        self._context = context
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
        lines = b"".join(part for record in records for part in (record.value or b"", b"\n"))
        with named_errors(self._path), self._locked(self._descriptor):
            self._append(self._descriptor, lines)

    def _append(self, descriptor: int, lines: bytes) -> None:
        """Append lines. If the write fails, as on a full disk, remove the part that was written."""
        end = os.fstat(descriptor).st_size
        if end and os.pread(descriptor, 1, end - 1) != b"\n":
            # A process that died has left the line. The record is written again as a whole, because it was not
            # committed.
            log.warning("%s ends with an unfinished line; ending it", self._path)
            lines = b"\n" + lines
        left = memoryview(lines)
        try:
            while left:
                left = left[os.write(descriptor, left) :]
        except BaseException:
            # A program that takes no lock may have appended since. Its bytes stay, and the next write ends the line.
            if os.fstat(descriptor).st_size == end + len(lines) - len(left):
                os.ftruncate(descriptor, end)
            raise

    @contextmanager
    def _locked(self, descriptor: int) -> Iterator[None]:
        """
        Lock the file during the block, so that no other task writes, even a task in another process.

        Raises:
            TaskStoppedError: The task has to stop while another task still has the lock.
        """
        began_s, is_shown = time.monotonic(), False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # A process may be frozen while it writes. A call that blocks would prevent this worker from ending.
                is_late = time.monotonic() - began_s > _LOCK_WAIT_S
                if is_late and self._context.should_stop:
                    raise TaskStoppedError(f"stopped while another process keeps {self._path} locked") from None
                if is_late and not is_shown:
                    self._context.report_problem(f"another process keeps {self._path} locked")
                    is_shown = True
                time.sleep(_LOCK_PAUSE_S)
        if is_shown:
            self._context.report_problem("")
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)

    def flush(self, offsets: Mapping[TopicPartition, int]) -> None:
        if self._descriptor is not None:
            with named_errors(self._path):
                os.fsync(self._descriptor)

    def stop(self) -> None:
        if self._descriptor is not None:
            self._close()

    def _open(self) -> None:
        self._descriptor = open_regular(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        _sync_folder(self._path.parent)

    def _is_at_its_path(self) -> bool:
        assert self._descriptor is not None
        with suppress(FileNotFoundError):
            return os.path.samestat(os.stat(self._path), os.fstat(self._descriptor))
        return False

    def _close(self) -> None:
        """Sync the content to the disk, and close the file: a later ``flush`` does not reach a moved file."""
        assert self._descriptor is not None
        descriptor, self._descriptor = self._descriptor, None
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class FileStreamSinkConnector(SinkConnector):
    """Appends the values of records to a file, one line for each record. The connector's tasks share the file."""

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
    """Sync a folder to the disk, so that the name of a new file in it is durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
