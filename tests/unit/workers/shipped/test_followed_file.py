"""A file is followed over truncations and rotations."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kiel_groups.errors import ConfigError
from kiel_groups.workers.shipped.followed_file import FollowedFile, Line, LinePosition

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


class Clock:
    """The clock that old files are timed by."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("kiel_groups.workers.shipped.followed_file.time.monotonic", clock)
    return clock


@pytest.fixture
def patient(path: Path, clock: Clock) -> Iterator[FollowedFile]:
    """A file whose old ones have to be quiet for five seconds, of which a first line was read."""
    append(path, "a")
    file = FollowedFile(path, None, 1000, 5.0)
    assert values(file) == ["a"]
    yield file
    file.close()


def rotate(path: Path, number: int, *lines: str) -> Path:
    """Rename the file, create a new one with lines, and return the old one's path."""
    old = path.with_name(f"{path.name}.{number}")
    path.rename(old)
    path.touch()
    if lines:
        append(path, *lines)
    return old


def test_an_old_file_is_read_until_its_writer_has_left_it(path: Path, patient: FollowedFile, clock: Clock) -> None:
    """A daemon writes on to a renamed file until it opens the new one, which is read after that."""
    old = rotate(path, 1, "new")
    assert values(patient) == []
    clock.now_s += 0.75
    append(old, "last")
    assert values(patient) == ["last"]
    clock.now_s += 4.9
    assert values(patient) == []
    clock.now_s += 0.1
    assert values(patient) == ["new"]


def test_lines_that_come_after_the_end_of_an_old_file_are_read(
    path: Path, patient: FollowedFile, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """A daemon that takes longer loses nothing; its lines come between those of the new file, whose position stays."""
    caplog.set_level(logging.INFO)
    old = rotate(path, 1, "new")
    assert values(patient) == []
    clock.now_s += 5
    assert values(patient) == ["new"]
    append(old, "late", "later")
    append(path, "next")
    late = taken(patient)
    assert [line.value for line in late] == [b"next", b"late", b"later"]
    assert f"{path}: 2 lines more in the old file, after its end was read" in caplog.text
    append(path, "newer")
    assert restarted(path, late[-1].after) == ["newer"]
    assert values(patient) == ["newer"]


def test_a_deleted_old_file_is_closed(path: Path, patient: FollowedFile, clock: Clock) -> None:
    """The space of an old file is free when logrotate has compressed and deleted it."""
    old = rotate(path, 1)
    assert values(patient) == []
    clock.now_s += 5
    assert values(patient) == []
    status = old.stat()
    append(old, "last")
    old.unlink()
    assert values(patient) == ["last"]
    opened = [os.fstat(int(name)) for name in os.listdir("/proc/self/fd") if Path(f"/proc/self/fd/{name}").exists()]
    assert not any(os.path.samestat(status, each) for each in opened)


def test_each_of_two_rotations_is_read(path: Path, patient: FollowedFile, clock: Clock) -> None:
    """A file that loses the path while the one before it is waited for is read between the two."""
    first = rotate(path, 1, "b")
    assert values(patient) == []
    rotate(path, 2, "c")
    append(first, "a2")
    assert values(patient) == ["a2", "b"]
    clock.now_s += 5
    assert values(patient) == ["c"]


@pytest.mark.parametrize("name", ["app-error.log", "app.log.err", "application.log", "app2.log"])
def test_another_log_with_the_same_first_line_is_not_the_old_file(
    path: Path, followed: FollowedFile, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Logs of one folder often begin with the same line. Without the old file, the new one is read from its start."""
    append(path, "started")
    assert values(followed) == ["started"]
    append(path.with_name(name), "started", "of another program")
    path.write_text("anew\n")
    assert values(followed) == ["anew"]
    assert "no file beside it is; starting with its first line" in caplog.text


def test_an_earlier_rotation_with_the_same_first_line_is_not_the_old_file(path: Path, followed: FollowedFile) -> None:
    """The log of yesterday was not written any more when that of today was read."""
    append(path.with_name("app.log.1"), "started", "yesterday")
    os.utime(path.with_name("app.log.1"), ns=(1, 1))
    append(path, "started")
    (line,) = taken(followed)
    path.write_text("anew\n")
    assert values(followed) == ["anew"]
    assert restarted(path, line.after) == ["anew"]


def test_a_new_file_with_the_same_first_line_is_not_the_old_one(path: Path) -> None:
    """What was written to the old file while no task ran is read before the new file, and the new one as a whole."""
    append(path, "started")
    file = FollowedFile(path, None, 1000)
    (line,) = taken(file)
    file.close()
    append(path, "unread")
    shutil.copy(path, path.with_name("app.log.bak"))
    old = rotate(path, 1, "started", "new")
    append(old, "last")
    assert restarted(path, line.after) == ["unread", "last", "started", "new"]
    old.unlink()
    path.with_name("app.log.bak").unlink()
    assert restarted(path, line.after) == ["started", "new"]


def test_a_file_that_was_copied_to_another_machine_continues(path: Path) -> None:
    """If enough was read to recognise the file by its bytes, another inode does not have it read again."""
    append(path, "x" * 300, "next")
    file = FollowedFile(path, None, 1000)
    after = taken(file)[0].after
    file.close()
    path.rename(path.with_name("elsewhere"))
    shutil.copy(path.with_name("elsewhere"), path)
    assert restarted(path, after) == ["next"]


def test_a_new_file_of_which_nothing_was_read_is_found_again(path: Path, patient: FollowedFile, clock: Clock) -> None:
    """After late lines of the old file, a restart begins with the first line of the new one, also if it was rotated."""
    first = rotate(path, 1)
    assert values(patient) == []
    clock.now_s += 5
    assert values(patient) == []
    append(first, "late")
    (late,) = taken(patient)
    patient.close()
    append(path, "b")
    rotate(path, 2, "c")
    assert restarted(path, late.after) == ["b", "c"]


@pytest.mark.parametrize("start", [None, LinePosition(5)])
@pytest.mark.parametrize(
    ("make", "kind"),
    [(os.mkfifo, "a FIFO"), (os.mkdir, "a folder"), (lambda path: path.symlink_to("/dev/null"), "a device")],
)
def test_only_regular_files_are_read(path: Path, make: Any, kind: str, start: LinePosition | None) -> None:
    """A FIFO without a writer is an error, too: to open it would block the task, and its worker's end."""
    make(path)
    file = FollowedFile(path, start, 1000)
    with pytest.raises(ConfigError, match=f"file: {path} is {kind}; expected a regular file"):
        file.take(100)
    file.close()
