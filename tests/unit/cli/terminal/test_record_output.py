"""The standard output of a consumer does not block the event loop, and neither loses nor repeats bytes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kiel_groups.cli.terminal.record_printer import Output, standard_output
from kiel_groups.errors import KielGroupsError
from tests.helpers.waiting import run_ready_tasks

pytestmark = pytest.mark.unit

#: More bytes than fit into the buffer of a pipe.
LARGE = bytes(range(256)) * 4096


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Yield both ends of a pipe, and close the ends that the test has left open."""
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            continue


async def test_a_slow_reader_gets_everything_without_blocking_the_loop(pipe: tuple[int, int]) -> None:
    """A slow reader gets every byte. The writer waits for space in the full pipe while the event loop continues."""
    reader, writer = pipe
    writing = asyncio.ensure_future(Output(writer).write(LARGE))
    await run_ready_tasks()
    assert not writing.done()
    received = b""
    while len(received) < len(LARGE):
        received += await asyncio.to_thread(os.read, reader, 65536)
    await writing
    assert received == LARGE


async def test_a_waiting_write_can_be_cancelled(pipe: tuple[int, int]) -> None:
    """A write that waits for space in the pipe can be cancelled. The next write succeeds."""
    reader, writer = pipe
    output = Output(writer)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await output.write(LARGE)
    written = len(os.read(reader, len(LARGE)))
    assert 0 < written < len(LARGE)
    await output.write(b"next\n")
    assert os.read(reader, 100).endswith(b"next\n")


async def test_the_end_of_the_reader_is_noticed_without_a_write(pipe: tuple[int, int]) -> None:
    """
    The output notices without a write that the reader of a pipe has ended, and calls the callback once. A later write
    raises BrokenPipeError.
    """
    reader, writer = pipe
    output, closed, calls = Output(writer), asyncio.Event(), []

    def callback() -> None:
        calls.append("closed")
        closed.set()

    output.when_reader_goes(callback)
    await output.write(b"read\n")
    await run_ready_tasks()
    assert calls == []
    os.close(reader)
    async with asyncio.timeout(5):
        await closed.wait()
    await run_ready_tasks()
    assert calls == ["closed"]
    with pytest.raises(BrokenPipeError):
        await output.write(b"unread\n")


async def test_a_file_is_written_completely(tmp_path: Path) -> None:
    """A write to a file writes every byte. The callback is never called, because a file has no reader."""
    with (tmp_path / "file").open("wb") as file:
        output = Output(file.fileno())
        output.when_reader_goes(lambda: pytest.fail("a file has no reader"))
        await output.write(LARGE)
        await output.write(b"")
    assert (tmp_path / "file").read_bytes() == LARGE


async def test_a_full_disk_is_an_error_of_one_line() -> None:
    """A full disk raises a KielGroupsError, which commands print without a traceback."""
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(KielGroupsError, match="standard output cannot be written: No space left"):
            await Output(full).write(b"x")
    finally:
        os.close(full)


def test_a_closed_standard_output_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed standard output is refused. Descriptor 1 may then be a connection, to which no record may be written."""
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(KielGroupsError, match="standard output is closed"):
        standard_output()
