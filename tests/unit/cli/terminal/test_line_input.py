"""Input lines that arrive in pieces."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kiel_groups.cli.terminal import line_sender as line_input
from kiel_groups.cli.terminal.line_sender import LineInput, open_input
from kiel_groups.errors import ConfigError
from tests.helpers.waiting import run_ready_tasks

pytestmark = pytest.mark.unit


@pytest.fixture
def pipe() -> Iterator[tuple[LineInput, int]]:
    """Return a line input, and the writing end of its pipe."""
    reader, writer = os.pipe()
    yield LineInput(reader), writer
    os.close(reader)


async def lines_of(source: LineInput) -> list[bytes]:
    """Return all lines in one list."""
    return [line async for lines in source.lines() for line in lines]


@pytest.mark.parametrize("chunk", [1, 2, 3, 1 << 18])
@pytest.mark.parametrize("text", [b"", b"\n", b"a", b"a\n", b"a\nbc\n\n", b"\n\nabc\ndef"])
async def test_lines_do_not_depend_on_the_pieces_in_which_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, chunk: int
) -> None:
    """The last line may lack its line end, and an empty line is a line."""
    monkeypatch.setattr(line_input, "_CHUNK_BYTES", chunk)
    (tmp_path / "file").write_bytes(text)
    source = open_input(tmp_path / "file")
    assert await lines_of(source) == (text.removesuffix(b"\n").split(b"\n") if text else [])
    assert source.read_bytes == len(text)


async def test_lines_of_a_pipe_are_returned_as_they_are_written(pipe: tuple[LineInput, int]) -> None:
    """
    Lines are returned before the end of the input, without blocking the event loop. An incomplete line waits for its
    rest.
    """
    source, writer = pipe
    lines = source.lines()
    os.write(writer, b"one\ntwo\nthr")
    assert await anext(lines) == [b"one", b"two"]
    waiting = asyncio.ensure_future(anext(lines))
    await run_ready_tasks()
    assert not waiting.done()
    os.write(writer, b"ee\n")
    assert await waiting == [b"three"]
    os.close(writer)
    with pytest.raises(StopAsyncIteration):
        await anext(lines)


async def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is refused before it fills the memory. The error has the line's number."""
    monkeypatch.setattr(line_input, "_CHUNK_BYTES", 16)
    monkeypatch.setattr(line_input, "_LONGEST_LINE_BYTES", 64)
    (tmp_path / "file").write_bytes(b"short\n" + b"x" * 1000)
    with pytest.raises(ConfigError, match="line 2 is longer than"):
        await lines_of(open_input(tmp_path / "file"))
