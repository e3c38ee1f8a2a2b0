"""The lines of a file, and the proof that a file is the one that was read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kiel_groups.workers.shipped.followed_file import FileLines, FileReplacedError, Line, LinePosition, LongLineError

pytestmark = pytest.mark.unit


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.log"
    path.write_bytes(b"one\ntwo\r\n\nfour")
    return path


def opened(path: Path, start: LinePosition | None = None, longest: int = 1000) -> FileLines:
    return FileLines(path, start or LinePosition(), longest)


def read_again(path: Path, start: LinePosition, most: int) -> list[Line]:
    lines = opened(path, start)
    try:
        return lines.take(most)
    finally:
        lines.close()


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_lines_have_positions_after_them(path: Path) -> None:
    """Lines lose their ends, an empty line is a line, and the last one waits for its end."""
    lines = opened(path)
    found = lines.take(10)
    assert [line.value for line in found] == [b"one", b"two", b""]
    assert [line.after.position for line in found] == [4, 9, 10]
    assert (lines.take(10), lines.waiting, lines.after) == ([], 4, found[-1].after)
    append(path, b"th\nfive\n")
    assert [line.value for line in lines.take(10)] == [b"fourth", b"five"]
    assert (lines.take(10), lines.waiting) == ([], 0)
    lines.close()


def test_few_lines_are_taken_at_a_time(path: Path) -> None:
    """A caller gets at most as many lines as it asks for, and the others next."""
    lines = opened(path)
    assert [[line.value for line in lines.take(2)] for _ in range(3)] == [[b"one", b"two"], [b""], []]
    lines.close()


def test_lines_continue_after_each_position(path: Path) -> None:
    """A file that is opened again continues after any line."""
    append(path, b"\n")
    path.write_bytes(path.read_bytes() * 40)
    lines = opened(path)
    every = lines.take(1000)
    assert len(every) == 160
    for number, line in enumerate(every, 1):
        again = opened(path, line.after)
        assert again.after == line.after
        assert again.take(1000) == every[number:]
        again.close()
    lines.close()


@pytest.mark.parametrize(
    ("content", "fits"),
    [
        (b"one\ntwo\n", True),
        (b"one\ntwo\nthree\n", True),
        (b"one\nTWO\n", False),
        (b"one\n", False),
        (b"", False),
    ],
)
def test_a_file_must_have_the_bytes_that_were_read(path: Path, content: bytes, fits: bool) -> None:
    """A file fits a position only if it has the bytes before it, whatever follows them."""
    path.write_bytes(b"one\ntwo\n")
    lines = opened(path)
    after = lines.take(2)[-1].after
    lines.close()
    path.write_bytes(content)
    if fits:
        again = opened(path, after)
        assert again.after._replace(modified_ns=after.modified_ns) == after
        again.close()
    else:
        with pytest.raises(FileReplacedError, match="does not have the 8 bytes that were read"):
            opened(path, after)


def test_a_position_without_a_check_sum_needs_enough_bytes(path: Path) -> None:
    """A position alone, as Kafka Connect stores it, fits every file that is long enough."""
    lines = opened(path, LinePosition(4))
    assert lines.take(1)[0].value == b"two"
    lines.close()
    with pytest.raises(FileReplacedError):
        opened(path, LinePosition(15))


@pytest.mark.parametrize("content", [b"", b"one\n", b"ONE\ntwo\r\n\nfour and more\n", b"one\ntwo\r\n\nFOUR\n"])
def test_a_change_of_what_was_read_is_noticed(path: Path, content: bytes) -> None:
    """A file that was truncated, or whose bytes have changed, is not read on, also if it is longer again."""
    lines = opened(path)
    lines.take(10)
    path.write_bytes(content)
    with pytest.raises(FileReplacedError, match="does not have the 14 bytes any more that were read"):
        lines.take(10)
    lines.close()


@pytest.mark.parametrize(("offset", "noticed"), [(0, True), (255, True), (256, False), (543, False), (799, True)])
def test_the_first_and_last_bytes_are_compared(path: Path, offset: int, noticed: bool) -> None:
    """The first 256 bytes and the last 256 that were read are compared; others may change."""
    path.write_bytes((b"x" * 99 + b"\n") * 8 + b"y" * 66)
    lines = opened(path)
    after = lines.take(10)[-1].after
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"Z")
        file.seek(0, 2)
        file.write(b"next\n")
    for read in (lines.take, lambda most: read_again(path, after, most)):
        if noticed:
            with pytest.raises(FileReplacedError):
                read(10)
        else:
            assert [line.value for line in read(10)] == [b"y" * 66 + b"next"]
    lines.close()


def test_a_long_line_of_one_character_does_not_hide_a_truncation(path: Path) -> None:
    """The bytes before the end may be the same in the new file; then those at its start differ."""
    path.write_bytes(b"one\n" + b"x" * 600)
    lines = opened(path)
    lines.take(10)
    path.write_bytes(b"two\n" + b"x" * 600)
    with pytest.raises(FileReplacedError):
        lines.take(10)
    lines.close()


def test_a_long_line_is_an_error(path: Path) -> None:
    """A line beyond the limit is an error after the lines before it, with or without an end."""
    append(path, b"x" * 20 + b"\nlast\n")
    lines = opened(path, longest=10)
    assert len(lines.take(10)) == 3
    for _ in range(2):
        with pytest.raises(LongLineError, match="the line at byte 10 has more than 10 bytes"):
            lines.take(10)
    lines.close()
    path.write_bytes(b"x" * 11)
    lines = opened(path, longest=10)
    with pytest.raises(LongLineError, match="the line at byte 0"):
        lines.take(1)
    lines.close()


def test_lines_may_be_longer_than_a_read(path: Path) -> None:
    """A line of several reads is one line."""
    path.write_bytes(b"a" * 3_000_000 + b"\nb\n")
    lines = opened(path, longest=4_000_000)
    assert [len(line.value) for line in lines.take(1)] == [3_000_000]
    assert [line.value for line in lines.take(1)] == [b"b"]
    lines.close()


def test_an_unfinished_line_can_be_taken(path: Path) -> None:
    """A caller that knows the file to be finished takes what follows the last line end."""
    lines = opened(path)
    lines.take(10)
    (line,) = lines.take_unfinished()
    assert (line.value, line.after.position) == (b"four", 14)
    assert lines.take_unfinished() == []
    assert lines.take(10) == []
    lines.close()


def test_nothing_stays_open_after_an_error(path: Path) -> None:
    """A file that does not fit is closed at once."""
    with pytest.raises(FileReplacedError):
        opened(path, LinePosition(1000, 1))
    assert os.path.realpath(path) not in map(os.path.realpath, Path("/proc/self/fd").iterdir())
