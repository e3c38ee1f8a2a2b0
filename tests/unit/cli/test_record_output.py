"""Standard output under a consumer: never in the way of the event loop, and nothing lost or doubled in it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kiel_groups.cli.records.record_output import Output, standard_output
from kiel_groups.errors import KielGroupsError

pytestmark = pytest.mark.unit

#: More than a pipe holds.
LARGE = bytes(range(256)) * 4096


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The reading and the writing end of a pipe; what a test has not closed is closed."""
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            continue


async def test_a_slow_reader_gets_everything_and_blocks_nobody(pipe: tuple[int, int]) -> None:
    """The writer waits for room in a full pipe without holding up the event loop."""
    reader, writer = pipe
    writing = asyncio.ensure_future(Output(writer).write(LARGE))
    await asyncio.sleep(0)
    assert not writing.done()
    received = b""
    while len(received) < len(LARGE):
        received += await asyncio.to_thread(os.read, reader, 65536)
    await writing
    assert received == LARGE


async def test_a_write_that_waits_can_be_given_up(pipe: tuple[int, int]) -> None:
    """Cancelling it is enough, although nobody ever reads; the next write finds the loop in order."""
    reader, writer = pipe
    output = Output(writer)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await output.write(LARGE)
    written = len(os.read(reader, len(LARGE)))
    assert 0 < written < len(LARGE)
    await output.write(b"next\n")
    assert os.read(reader, 100).endswith(b"next\n")


async def test_a_reader_that_goes_is_noticed_without_a_write(pipe: tuple[int, int]) -> None:
    """The callback comes once; a write fails as it does everywhere."""
    reader, writer = pipe
    output, gone, calls = Output(writer), asyncio.Event(), []

    def callback() -> None:
        calls.append("gone")
        gone.set()

    output.when_reader_goes(callback)
    await output.write(b"read\n")
    await asyncio.sleep(0)
    assert calls == []
    os.close(reader)
    async with asyncio.timeout(5):
        await gone.wait()
    await asyncio.sleep(0)
    assert calls == ["gone"]
    with pytest.raises(BrokenPipeError):
        await output.write(b"unread\n")


async def test_a_file_takes_it_all(tmp_path: Path) -> None:
    """A file never waits, and has no reader to lose."""
    with (tmp_path / "file").open("wb") as file:
        output = Output(file.fileno())
        output.when_reader_goes(lambda: pytest.fail("a file has no reader"))
        await output.write(LARGE)
        await output.write(b"")
    assert (tmp_path / "file").read_bytes() == LARGE


async def test_a_full_disk_is_one_clear_error() -> None:
    """Not an OSError that ends in a traceback."""
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(KielGroupsError, match="standard output cannot be written: No space left"):
            await Output(full).write(b"x")
    finally:
        os.close(full)


def test_a_closed_standard_output_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Descriptor 1 may then be a connection, which must not be written to."""
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(KielGroupsError, match="standard output is closed"):
        standard_output()
