"""``FileStreamSource`` as a worker uses it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from kiel_groups.errors import ConfigError, KielGroupsError
from kiel_groups.workers.plugins.interfaces import SourceRecord
from kiel_groups.workers.shipped.file_stream_source import FileStreamSourceConnector, FileStreamSourceTask
from tests.helpers.connector_contexts import RecordingTaskContext, one_task_settings, typed

pytestmark = pytest.mark.unit


def started(path: Path, context: RecordingTaskContext, **config: str) -> FileStreamSourceTask:
    task = FileStreamSourceTask()
    settings = one_task_settings(FileStreamSourceConnector, {"file": str(path), "topic": "t"} | config)
    asyncio.run(task.start(context, settings))
    return task


def stored(record: SourceRecord) -> RecordingTaskContext:
    """Return a context with the offset of a record, which went through JSON."""
    return RecordingTaskContext([json.loads(json.dumps([record.source_partition, record.source_offset]))])


def test_lines_become_records(tmp_path: Path) -> None:
    """Each line is a record of the topic, in batches of a limited size. Without lines, the task pauses."""
    path = tmp_path / "a.log"
    path.write_bytes(b"one\ntwo\nthree\nfour")
    context = RecordingTaskContext()
    task = started(path, context, **{"batch.size": "2", "poll.interval.ms": "30"})
    first, second = task.poll(), task.poll()
    assert [record.value for record in (*first, *second)] == [b"one", b"two", b"three"]
    assert len(first) == 2
    assert first[0].source_partition == {"filename": str(path)}
    assert first[0].source_offset["position"] == 4
    assert (first[0].topic, first[0].key, first[0].partition) == ("t", None, None)
    assert (context.pauses, task.poll(), context.pauses) == ([0.03], [], [0.03])
    task.stop()


def test_a_restart_continues_after_the_stored_record(tmp_path: Path) -> None:
    """A task continues exactly after the record whose offset is stored."""
    path = tmp_path / "a.log"
    path.write_bytes(b"one\ntwo\nthree\n")
    task = started(path, RecordingTaskContext())
    records = task.poll()
    task.stop()
    assert len(records) == 3
    for number, record in enumerate(records, 1):
        task = started(path, stored(record))
        assert task.poll() == records[number:]
        task.stop()


def test_offsets_of_kafka_connect_are_accepted(tmp_path: Path) -> None:
    """An offset may lack the check sum; one that is no position fails the task."""
    path = tmp_path / "a.log"
    path.write_bytes(b"one\ntwo\n")
    task = started(path, RecordingTaskContext([({"filename": str(path)}, {"position": 4})]))
    assert [record.value for record in task.poll()] == [b"two"]
    task.stop()
    for offset in ({"position": -1}, {"position": "4"}, {"position": True}, {}, {"position": 4, "crc": "x"}):
        with pytest.raises(KielGroupsError, match=r"is not a position; expected {'position': N}"):
            started(path, RecordingTaskContext([({"filename": str(path)}, offset)]))


def test_a_file_that_does_not_exist_is_a_problem(tmp_path: Path) -> None:
    """Its path may be mistyped, so the status of the task names it, once, until the file exists."""
    path = tmp_path / "a.log"
    context = RecordingTaskContext()
    task = started(path, context)
    assert [task.poll(), task.poll()] == [[], []]
    assert context.problems == [f"{path} does not exist; waiting for it"]
    path.write_bytes(b"one\n")
    assert [record.value for record in task.poll()] == [b"one"]
    assert context.problems[1:] == [""]
    task.stop()


def test_a_task_that_did_not_start_can_stop() -> None:
    """``stop`` is called also if ``start`` has failed."""
    task = FileStreamSourceTask()
    task.stop()
    assert isinstance(task, FileStreamSourceTask)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"topic": "t"}, "file: required"),
        ({"file": "", "topic": "t"}, "file: '' given; expected a value that is not empty"),
        ({"file": "f", "topic": "a b"}, "topic: 'a b' given; expected the name of a topic"),
        ({"file": "f", "topic": "t", "batch.size": "0"}, "batch.size: '0' given; expected a number from 1"),
    ],
)
def test_settings_are_checked(config: dict[str, str], expected: str) -> None:
    """Wrong settings are refused before a task exists."""
    with pytest.raises(ConfigError, match=expected):
        typed(FileStreamSourceConnector, config)


def test_one_task_reads_the_file() -> None:
    """A file has one task, however many are allowed, with the settings of the connector."""
    settings = one_task_settings(FileStreamSourceConnector, {"file": "f", "topic": "t", "tasks.max": "5"})
    assert (settings["file"], settings["batch.size"], settings["tasks.max"]) == ("f", 2000, 5)
