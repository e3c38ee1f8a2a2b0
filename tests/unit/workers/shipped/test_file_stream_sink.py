"""``FileStreamSink`` appends values to a file."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import resource
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kiel_groups.errors import ConfigError, TaskStoppedError
from kiel_groups.model import Record, TopicPartition
from kiel_groups.workers.shipped.file_stream_sink import FileStreamSinkConnector, FileStreamSinkTask
from tests.helpers.connector_contexts import RecordingConnectorContext, RecordingTaskContext, one_task_settings, typed

pytestmark = pytest.mark.unit


def records(*values: bytes | None) -> list[Record]:
    return [Record("t", 0, offset, None, value) for offset, value in enumerate(values)]


def started(path: Path) -> FileStreamSinkTask:
    task = FileStreamSinkTask()
    task.start(RecordingTaskContext(), one_task_settings(FileStreamSinkConnector, {"file": str(path), "topics": "t"}))
    return task


def test_values_are_appended(tmp_path: Path) -> None:
    """Each value is a line after those that are there; a null value is an empty line."""
    path = tmp_path / "out"
    path.write_bytes(b"before\n")
    task = started(path)
    task.put(records(b"one", None, b"\xff"))
    task.put([])
    task.flush({TopicPartition("t", 0): 3})
    task.stop()
    task = started(path)
    task.put(records(b"two"))
    task.stop()
    task.stop()
    assert path.read_bytes() == b"before\none\n\n\xff\ntwo\n"


def test_a_flush_makes_what_was_put_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``flush`` calls fsync after all writes, and a failure of it is the task's, and names the file."""
    calls: list[str] = []
    write, sync = os.write, os.fsync
    monkeypatch.setattr(os, "write", lambda fd, data: (calls.append("write"), write(fd, data))[1])
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append("fsync"), sync(fd))[1])
    task = started(tmp_path / "out")
    calls.clear()
    task.put(records(b"one", b"two"))
    task.put(records(b"three"))
    task.flush({})
    assert calls == ["write", "write", "fsync"]

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path / 'out'}'"):
        task.flush({})
    monkeypatch.undo()
    task.stop()


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the system writes only a part, the rest follows."""
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
    task = started(tmp_path / "out")
    task.put(records(b"a long line", b"x"))
    task.stop()
    assert (tmp_path / "out").read_bytes() == b"a long line\nx\n"


def test_an_unfinished_line_is_ended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What a process that died has left does not become a part of the next record."""
    path = tmp_path / "out"
    path.write_bytes(b"one\ntw")
    task = started(path)
    task.put(records(b"two"))
    task.stop()
    assert path.read_bytes() == b"one\ntw\ntwo\n"
    assert "ends with an unfinished line; ending it" in caplog.text


def test_a_file_that_was_moved_away_is_created_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Records go to the file of the path, also after a rotation; the moved one has all earlier records."""
    caplog.set_level(logging.INFO)
    path = tmp_path / "out"
    task = started(path)
    task.put(records(b"one"))
    path.rename(tmp_path / "out.1")
    task.put(records(b"two"))
    path.unlink()
    task.put(records(b"three"))
    task.flush({})
    task.stop()
    assert ((tmp_path / "out.1").read_bytes(), path.read_bytes()) == (b"one\n", b"three\n")
    assert caplog.text.count("was moved away; creating it") == 2


def test_tasks_share_a_file(tmp_path: Path) -> None:
    """Tasks on one machine append to one file: no record is written over another's."""
    tasks = [started(tmp_path / "out") for _ in range(3)]
    for number in range(30):
        tasks[number % 3].put(records(str(number).encode()))
    for task in tasks:
        task.stop()
    assert (tmp_path / "out").read_text().split() == [str(number) for number in range(30)]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Have the system write a part of what exceeds a size, and refuse the rest, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_partial_write_is_undone(tmp_path: Path) -> None:
    """On a full disk, no half record is left that the next line of another task would be appended to."""
    path = tmp_path / "out"
    first, second = started(path), started(path)
    first.put(records(b"one"))
    with largest_file(7), pytest.raises(OSError, match=f"'{path}'"):
        first.put(records(b"two", b"three"))
    assert path.read_bytes() == b"one\n"
    second.put(records(b"four"))
    for task in (first, second):
        task.stop()
    assert path.read_bytes() == b"one\nfour\n"


def test_bytes_of_other_programs_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a program without the lock has appended to a partial write, nothing is undone, and the line is ended."""
    path = tmp_path / "out"
    task, write = started(path), os.write

    def fail(descriptor: int, data: bytes) -> int:
        write(descriptor, data[:3])
        with path.open("ab") as other:
            other.write(b"other")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(OSError, match="No space left"):
        task.put(records(b"half of this"))
    monkeypatch.undo()
    task.put(records(b"next"))
    task.stop()
    assert path.read_bytes() == b"halother\nnext\n"


def test_partial_writes_of_tasks_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that needs several writes for its records has the file for itself meanwhile."""
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:5]))
    tasks = {letter: started(tmp_path / "out") for letter in (b"a", b"b")}

    def put(letter: bytes) -> None:
        for _ in range(20):
            tasks[letter].put(records(letter * 30))

    with ThreadPoolExecutor() as threads:
        list(threads.map(put, tasks))
    for task in tasks.values():
        task.stop()
    assert sorted((tmp_path / "out").read_bytes().split()) == [b"a" * 30] * 20 + [b"b" * 30] * 20


def test_a_frozen_writer_does_not_keep_a_task_from_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task waits for a write of another one; if it has to stop, only for a moment."""
    task = FileStreamSinkTask()
    context = RecordingTaskContext(stop_after=0)
    task.start(context, one_task_settings(FileStreamSinkConnector, {"file": str(tmp_path / "out"), "topics": "t"}))
    monkeypatch.setattr("kiel_groups.workers.shipped.file_stream_sink._LOCK_WAIT_S", 0.05)
    with (tmp_path / "out").open("ab") as frozen:
        fcntl.flock(frozen, fcntl.LOCK_EX)
        with pytest.raises(TaskStoppedError, match="stopped while another process keeps"):
            task.put(records(b"one"))
        context.stop_after = None
        waited: list[float] = []
        monkeypatch.setattr(time, "sleep", lambda pause_s: (waited.append(pause_s), fcntl.flock(frozen, fcntl.LOCK_UN)))
        task.put(records(b"two"))
    task.stop()
    assert ((tmp_path / "out").read_bytes(), len(waited)) == (b"two\n", 1)
    assert context.problems == []


def test_a_frozen_writer_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the other process keeps the file locked, the status of the task says so until it writes again."""
    task, context = FileStreamSinkTask(), RecordingTaskContext()
    task.start(context, one_task_settings(FileStreamSinkConnector, {"file": str(tmp_path / "out"), "topics": "t"}))
    monkeypatch.setattr("kiel_groups.workers.shipped.file_stream_sink._LOCK_WAIT_S", -1.0)
    with (tmp_path / "out").open("ab") as frozen:
        fcntl.flock(frozen, fcntl.LOCK_EX)
        monkeypatch.setattr(time, "sleep", lambda pause_s: fcntl.flock(frozen, fcntl.LOCK_UN))
        task.put(records(b"one"))
    task.stop()
    assert context.problems == [f"another process keeps {tmp_path / 'out'} locked", ""]


def test_only_regular_files_are_written(tmp_path: Path) -> None:
    """A FIFO cannot be synced, and nothing may read it: the task fails when it starts."""
    os.mkfifo(tmp_path / "out")
    with pytest.raises(ConfigError, match="is a FIFO; expected a regular file"):
        started(tmp_path / "out")


def test_a_file_that_cannot_be_opened_fails_the_task(tmp_path: Path) -> None:
    """A folder that does not exist is an error of ``start``, after which ``stop`` is called."""
    task = FileStreamSinkTask()
    settings = typed(FileStreamSinkConnector, {"file": str(tmp_path / "no" / "out"), "topics": "t"})
    with pytest.raises(FileNotFoundError):
        task.start(RecordingTaskContext(), settings)
    task.stop()


def test_every_task_has_the_settings_of_the_connector() -> None:
    """There are as many tasks as are allowed."""
    config = {"name": "c", "connector.class": "x", "file": "f", "topics": "t"}
    connector = FileStreamSinkConnector()
    connector.start(RecordingConnectorContext(config), typed(FileStreamSinkConnector, config))
    configs: Sequence[Any] = connector.task_configs(3)
    assert configs == [config] * 3
