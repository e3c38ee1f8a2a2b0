"""Input lines that arrive in pieces, positions on the command line, and records as text."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kiel_groups.cli.parameters.shared_options import separator_bytes
from kiel_groups.cli.parameters.start_option import Offset, parse_position
from kiel_groups.cli.records import line_input
from kiel_groups.cli.records.line_input import LineInput, open_input
from kiel_groups.cli.records.line_sender import ranges
from kiel_groups.cli.records.record_lines import json_line, plain_line
from kiel_groups.clients import BEGINNING, END
from kiel_groups.errors import ConfigError
from kiel_groups.model import Record
from tests.helpers.waiting import run_ready_tasks

pytestmark = pytest.mark.unit


@pytest.fixture
def pipe() -> Iterator[tuple[LineInput, int]]:
    """Yield a line input, and the writing end of its pipe."""
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
    """
    Lines do not depend on the pieces in which they are read. The last line may lack its line end, and an empty line is
    a line.
    """
    monkeypatch.setattr(line_input, "_CHUNK_BYTES", chunk)
    (tmp_path / "file").write_bytes(text)
    source = open_input(tmp_path / "file")
    assert await lines_of(source) == (text.removesuffix(b"\n").split(b"\n") if text else [])
    assert source.read_bytes == len(text)


async def test_lines_of_a_pipe_are_returned_as_they_are_written(pipe: tuple[LineInput, int]) -> None:
    """
    Lines of a pipe are returned before the end of the input, without blocking the event loop. An incomplete line waits
    for its rest.
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
    """A line without an end is refused before it fills the memory. The error has the line's number."""
    monkeypatch.setattr(line_input, "_CHUNK_BYTES", 16)
    monkeypatch.setattr(line_input, "_LONGEST_LINE_BYTES", 64)
    (tmp_path / "file").write_bytes(b"short\n" + b"x" * 1000)
    with pytest.raises(ConfigError, match="line 2 is longer than"):
        await lines_of(open_input(tmp_path / "file"))


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", BEGINNING),
        ("latest", END),
        ("90s", timedelta(seconds=90)),
        ("10m", timedelta(minutes=10)),
        ("2h", timedelta(hours=2)),
        ("7d", timedelta(days=7)),
        ("2026-11-21", datetime(2026, 11, 21)),
        ("2026-11-21T17:45:58+00:00", datetime(2026, 11, 21, 17, 45, 58, tzinfo=UTC)),
    ],
)
def test_a_position_is_a_word_a_time_or_an_age(text: str, position: object) -> None:
    """``--from`` accepts ``earliest`` and ``latest``, an age such as ``10m``, and a date or time."""
    assert parse_position(text) == position
    assert not isinstance(parse_position(text), Offset)


def test_a_number_is_an_offset() -> None:
    """A number in ``--from`` is parsed as an Offset."""
    assert isinstance(parse_position("0"), Offset)
    assert parse_position("4711") == 4711


@pytest.mark.parametrize("text", ["", "-1", "10 m", "10y", "99999999999999d", "yesterday", "2026-13-01", "１０"])
def test_an_invalid_position_is_refused(text: str) -> None:
    """An invalid position is refused with an error that lists the valid forms."""
    with pytest.raises(ConfigError, match=r"^--from: .* given; expected 'earliest', 'latest', an offset, a time"):
        parse_position(text)


def test_a_record_is_a_line() -> None:
    """
    A record is printed as one line: its value, its key and value, or JSON. A null value is an empty text, or null in
    JSON.
    """
    record = Record("t", 3, 7, "schlüssel".encode(), b"value")
    assert plain_line()(record) == b"value\n"
    assert plain_line(b"\t")(record) == "schlüssel\tvalue\n".encode()
    assert plain_line(b"\t")(record._replace(key=None, value=None)) == b"\t\n"
    assert json.loads(json_line(record)) == {
        "topic": "t",
        "partition": 3,
        "offset": 7,
        "key": "schlüssel",
        "value": "value",
    }
    assert json.loads(json_line(record._replace(key=b"\xff", value=None))) == {
        "topic": "t",
        "partition": 3,
        "offset": 7,
        "key_base64": "/w==",
        "value": None,
    }


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([3], "3"),
        ([3, 4, 5], "3 to 5"),
        ([1, 3, 4, 9], "1, 3 to 4, 9"),
        (list(range(0, 30, 2)), "0, 2, 4, 6, 8, 10, 12, 14, 16, 18 and 5 more ranges"),
    ],
)
def test_consecutive_numbers_are_a_range(numbers: list[int], text: str) -> None:
    """
    Consecutive numbers are printed as a range, and only the first ranges are listed. The numbers of a million failed
    lines must fit into one line.
    """
    assert ranges(numbers) == text


def test_a_separator_may_be_an_escape() -> None:
    r"""The two characters ``\t``, as a shell passes them, become a tab. An empty separator is refused."""
    assert (separator_bytes(None), separator_bytes(":"), separator_bytes("\\t")) == (None, b":", b"\t")
    with pytest.raises(ConfigError, match="--key-separator: nothing given"):
        separator_bytes("")
