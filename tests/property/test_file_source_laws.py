"""
``FileStreamSource`` loses no line and repeats none, relative to the stored offsets.

Generated histories write a file in any pieces, rotate it, copy and truncate it, truncate it, and restart the task after
any record. The result is compared with the bytes that were written.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiel_groups.workers.plugins.interfaces import SourceRecord
from kiel_groups.workers.shipped.file_stream_source import FileStreamSourceConnector, FileStreamSourceTask
from tests.helpers.connector_contexts import RecordingTaskContext, one_task_settings

pytestmark = pytest.mark.property


def lines() -> Iterator[bytes]:
    """Yield lines that all differ, of many lengths and both line ends; some are followed by an empty line."""
    for number in count():
        filler = b"x" * (number * 37 % 50 if number % 11 else 400)
        yield b"%06d" % number + filler + (b"\r\n" if number % 3 == 0 else b"\n") + (b"\n" if number % 5 == 0 else b"")


class History:
    """A file and its task. ``files`` has the bytes of each file that the path has named, and how each ended."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "app.log"
        self.files: list[bytes] = [b""]
        self.ends: list[str] = []
        self.records: list[SourceRecord] = []
        self._lines = lines()
        self._rest = b""
        self.path.touch()
        self._start(RecordingTaskContext())
        self.write(500)
        self.drain()

    def _start(self, context: RecordingTaskContext) -> None:
        self._task = FileStreamSourceTask()
        settings = one_task_settings(
            FileStreamSourceConnector, {"file": str(self.path), "topic": "t", "rotation.wait.ms": "0"}
        )
        asyncio.run(self._task.start(context, settings))

    def write(self, size: int, path: Path | None = None) -> None:
        # A file that begins with all bytes of the old one, such as the first digit, would be taken for it.
        size = size if self.files[-1] else max(size, 7)
        while len(self._rest) < size:
            self._rest += next(self._lines)
        data, self._rest = self._rest[:size], self._rest[size:]
        self.files[-1] += data
        with (path or self.path).open("ab") as file:
            file.write(data)

    def poll(self) -> bool:
        records = self._task.poll()
        self.records += records
        return bool(records)

    def drain(self) -> None:
        """Poll until nothing is new, and compare."""
        empty = 0
        while empty < 4:
            empty = 0 if self.poll() else empty + 1
        assert [record.value for record in self.records] == [value for values in self.values() for value in values]

    def values(self) -> list[list[bytes]]:
        """Return the lines that have to be delivered, of each file."""
        found = []
        for data, end in zip(self.files, [*self.ends, "present"], strict=True):
            whole, newline, unfinished = data.rpartition(b"\n")
            split = [line.removesuffix(b"\r") for line in whole.split(b"\n")] if newline else []
            # A writer cannot finish the last line of a file that is not at its path any more.
            found.append(split + ([unfinished.removesuffix(b"\r")] if end == "kept" and unfinished else []))
        return found

    def restart(self, back: int) -> None:
        """Restart after one of the last records, in the file of the path or, if that is kept, in the one before."""
        counts = [len(values) for values in self.values()]
        begin = sum(counts[:-1])
        if self.ends and self.ends[-1] == "kept" and counts[-2]:
            begin += 1 - counts[-2]
        if len(self.records) < begin:
            self.drain()
        after = max(len(self.records) - back, begin, 1)
        self.records = self.records[:after]
        self._task.stop()
        last = self.records[-1]
        self._start(RecordingTaskContext([json.loads(json.dumps([last.source_partition, last.source_offset]))]))

    def rotate(self, size: int) -> None:
        """Rename the file after some more was written; its writer opens the new one after some more again."""
        self.drain()
        self.write(size)
        old = self.path.rename(self.path.with_name(f"app.log.{len(self.files)}"))
        self.path.touch()
        self.poll()
        self.write(size, old)
        self._begin("kept")

    def copy_and_truncate(self, size: int) -> None:
        """Copy the file after some more was written, and truncate it. Some line of it must have been read."""
        self.drain()
        if self.values()[-1]:
            self.write(size)
            shutil.copy(self.path, self.path.with_name(f"app-{len(self.files)}.log"))
            self.path.write_bytes(b"")
            self._begin("kept")

    def truncate(self, size: int) -> None:
        """Truncate the file, of which every whole line was read, and write it anew."""
        self.drain()
        self.path.write_bytes(b"")
        self._begin("truncated")
        self.write(size)

    def _begin(self, end: str) -> None:
        """Continue with an empty file, and a whole line."""
        self.files.append(b"")
        self.ends.append(end)
        self._rest = b""

    def close(self) -> None:
        self._task.stop()


SIZES = st.integers(1, 900)
STEPS = st.one_of(
    st.tuples(st.just("write"), SIZES),
    st.tuples(st.just("write"), st.integers(1, 9)),
    st.tuples(st.just("poll"), st.none()),
    st.tuples(st.just("restart"), st.integers(0, 30)),
    st.tuples(st.sampled_from(["rotate", "copy_and_truncate", "truncate"]), SIZES),
)


@given(st.lists(STEPS, max_size=25))
def test_no_line_is_lost_or_repeated(steps: list[tuple[str, int | None]]) -> None:
    """
    After each history, the records up to each stored offset, and those after it, are the lines that were written.

    A truncation without a copy loses what was not read by then. A file that was rotated twice while the task was
    stopped is out of reach. Histories have neither.
    """
    with tempfile.TemporaryDirectory() as folder:
        history = History(Path(folder))
        try:
            for name, argument in steps:
                method = getattr(history, name)
                method() if argument is None else method(argument)
            history.drain()
            assert len(history.records) == sum(map(len, history.values()))
        finally:
            history.close()
