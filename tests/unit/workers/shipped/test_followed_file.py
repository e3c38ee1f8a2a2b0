"""A file is followed over truncations and rotations."""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kiel_groups.workers.shipped.file_lines import Line, LinePosition
from kiel_groups.workers.shipped.followed_file import FollowedFile

pytestmark = pytest.mark.unit


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.log"


@pytest.fixture
def followed(path: Path) -> Iterator[FollowedFile]:
    file = FollowedFile(path, None, 1000)
    yield file
    file.close()


def append(path: Path, *lines: str, end: str = "\n") -> None:
    with path.open("a") as file:
        file.write("\n".join(lines) + end)


def values(followed: FollowedFile) -> list[str]:
    """Return the lines until three calls in a row find none: an old file ends after two."""
    return [line.value.decode() for line in taken(followed)]


def taken(followed: FollowedFile) -> list[Line]:
    found: list[Line] = []
    empty = 0
    while empty < 3:
        lines = followed.take(100)
        found += lines
        empty = 0 if lines else empty + 1
    return found


def restarted(path: Path, after: LinePosition) -> list[str]:
    file = FollowedFile(path, after, 1000)
    try:
        return values(file)
    finally:
        file.close()


def test_a_file_does_not_have_to_exist(path: Path, followed: FollowedFile, caplog: pytest.LogCaptureFixture) -> None:
    """The file is waited for, with one line in the log, and read as soon as it exists."""
    caplog.set_level(logging.INFO)
    assert values(followed) == []
    append(path, "a")
    assert values(followed) == ["a"]
    assert [record.getMessage() for record in caplog.records] == [f"{path} does not exist; waiting for it"]


def test_a_rotated_file_is_read_to_its_end(
    path: Path, followed: FollowedFile, caplog: pytest.LogCaptureFixture
) -> None:
    """What was written before and after a rotation is read, also by a program that keeps the old file open."""
    caplog.set_level(logging.INFO)
    append(path, "a")
    assert values(followed) == ["a"]
    with path.open("a") as writer:
        writer.write("b\nc")
        path.rename(path.with_suffix(".log.1"))
        append(path, "new")
        writer.flush()
        assert [line.value for line in followed.take(10)] == [b"b"]
        assert followed.take(10) == []
        writer.write("c")
        writer.flush()
        assert followed.take(10) == []
    assert values(followed) == ["cc", "new"]
    assert "was rotated: the old file is read to its end at byte 6 (its last line has no line end)" in caplog.text


def test_a_file_that_is_gone_is_read_to_its_end(path: Path, followed: FollowedFile) -> None:
    """A deleted file is followed until there is a new one."""
    append(path, "a")
    assert [line.value for line in followed.take(1)] == [b"a"]
    append(path, "b")
    path.unlink()
    assert values(followed) == ["b"]
    append(path, "c")
    assert values(followed) == ["c"]


def test_a_truncated_file_is_read_from_its_start(
    path: Path, followed: FollowedFile, caplog: pytest.LogCaptureFixture
) -> None:
    """A truncation is noticed and logged, also if the file is longer than before when it is looked at."""
    append(path, "a", "unfinished", end="")
    assert values(followed) == ["a"]
    path.write_text("b\n")
    assert values(followed) == ["b"]
    assert f"{path} was truncated or written anew after byte 2; 10 bytes of an unfinished line" in caplog.text
    assert "starting with its first line: lines between may be lost" in caplog.text
    path.write_text("much longer than before\n")
    assert values(followed) == ["much longer than before"]


def test_a_copied_and_truncated_file_loses_nothing(path: Path, followed: FollowedFile) -> None:
    """Lines between the last look and the truncation are read from the copy, as of logrotate's copytruncate."""
    append(path, "a")
    assert values(followed) == ["a"]
    append(path, "b", "c", end="")
    shutil.copy(path, path.with_name("app-1.log"))
    path.write_text("d\n")
    assert values(followed) == ["b", "c", "d"]


def test_a_restart_finds_a_file_that_was_rotated(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The old file is found beside the new one by its content, although other files are there."""
    caplog.set_level(logging.INFO)
    append(path, "a", "b", "c")
    file = FollowedFile(path, None, 1000)
    after = taken(file)[0].after
    file.close()
    for name in ("app.log.0", "application", "other"):
        append(path.with_name(name), "x", "y", "z")
    path.with_name("app.d").mkdir()
    path.rename(path.with_name("app.log.1"))
    assert restarted(path, after) == ["b", "c"]
    append(path, "d")
    assert restarted(path, after) == ["b", "c", "d"]
    assert f"{path} was rotated to {path}.1; reading that from byte 2" in caplog.text


def test_files_between_are_reported(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If a file was rotated twice, the one between is not read, and a warning names it."""
    append(path, "a", "b")
    file = FollowedFile(path, None, 1000)
    after = taken(file)[0].after
    file.close()
    path.rename(path.with_name("app.log.2"))
    append(path.with_name("app.log.1"), "between")
    os.utime(path.with_name("app.log.2"), ns=(1, 1))
    append(path, "c")
    assert restarted(path, after) == ["b", "c"]
    assert f"{path}: lines of later files are not read: {path}.1" in caplog.text


def test_a_restart_without_the_old_file_begins_with_the_new_one(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If no file has the bytes that were read, the file of the path is read from its start, with a warning."""
    append(path, "b", "c")
    assert restarted(path, LinePosition(2, 12345)) == ["b", "c"]
    assert "is not the file that was read up to byte 2, and no file beside it is" in caplog.text
    assert restarted(path, LinePosition(100, None)) == ["b", "c"]


def test_a_restart_continues_at_each_position(path: Path) -> None:
    """A file that was only appended to continues exactly after the position, with or without its check sum."""
    append(path, *"abcdef")
    file = FollowedFile(path, None, 1000)
    positions = [line.after for line in taken(file)]
    file.close()
    for number, after in enumerate(positions, 1):
        assert restarted(path, after) == list("abcdef"[number:])
        assert restarted(path, LinePosition(after.position)) == list("abcdef"[number:])


def test_a_closed_file_continues(path: Path, followed: FollowedFile) -> None:
    """After a close, which may come at any time, lines continue where they were."""
    append(path, "a", "b")
    assert [line.value for line in followed.take(1)] == [b"a"]
    followed.close()
    followed.close()
    assert values(followed) == ["b"]


@pytest.mark.parametrize("start", [None, LinePosition(5)])
def test_an_error_names_the_file(tmp_path: Path, start: LinePosition | None) -> None:
    """A folder can be opened, but not read."""
    file = FollowedFile(tmp_path, start, 1000)
    with pytest.raises(IsADirectoryError, match=re.escape(f"Is a directory: '{tmp_path}'")):
        file.take(100)
    file.close()
