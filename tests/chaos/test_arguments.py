"""Wrong arguments give status 2 and one line, before any server is started."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos import __main__ as chaos
from tests.chaos.schedule import make_schedule
from tests.helpers.commands import environment

pytestmark = pytest.mark.unit


class RefusingRun:
    """Replaces ``Run``, and fails if a run is started."""

    def __init__(self, *_: object, **__: object) -> None:
        raise AssertionError("a run starts")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with a schedule and with a file that is not a schedule."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(chaos, "Run", RefusingRun)
    # The command changes the package's logger, to write the log to a file; the fixture restores the logger.
    logger = logging.getLogger("kiel_groups")
    monkeypatch.setattr(logger, "propagate", logger.propagate)
    monkeypatch.setattr(logger, "handlers", list(logger.handlers))
    (tmp_path / "schedule.json").write_text(make_schedule(1, 2).to_json())
    (tmp_path / "binary").write_bytes(b"\xff\xfe abc")
    return tmp_path


def status(monkeypatch: pytest.MonkeyPatch, arguments: str) -> object:
    """Run the command in this process, and return its exit status."""
    monkeypatch.setattr(sys, "argv", ["chaos", *arguments.split()])
    try:
        return chaos.main()
    except SystemExit as left:
        return left.code


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--faults x", "--faults: x given; expected a whole number of at least 1"),
        ("--faults 1.5", "--faults: 1.5 given; expected a whole number of at least 1"),
        ("--faults 0", "--faults: 0 given; expected a whole number of at least 1"),
        ("--tolerance nan", "--tolerance: nan given; expected a number of more than 0"),
        ("--tolerance inf", "--tolerance: inf given; expected a number of more than 0"),
        ("--tolerance x", "--tolerance: x given; expected a number of more than 0"),
        ("--other .", "is no checkout of this project; it has no tests/chaos/member.py"),
        ("--rate 0", "--rate: 0 given; expected a number of more than 0"),
        ("--rate -3", "--rate: -3 given; expected a number of more than 0"),
        ("--rate nan", "--rate: nan given; expected a number of more than 0"),
        ("--replay schedule.json --seed 0", "expected neither --faults nor --seed beside it"),
        ("--replay schedule.json --faults 3", "expected neither --faults nor --seed beside it"),
        ("--replay missing", "No such file or directory: 'missing'"),
        ("--replay binary", "error: binary: 'utf-8' codec can't decode byte 0xff"),
        ("--json missing/report.json", "No such file or directory: 'missing/report.json'"),
        ("--json .", "Is a directory: '.'"),
        ("--keep .", "File exists: '.'"),
        ("--keep schedule.json/run", "Not a directory: 'schedule.json/run'"),
    ],
)
def test_wrong_arguments_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: str, expected: str, folder: Path
) -> None:
    """Wrong arguments give status 2, because status 1 means findings. No file is created."""
    assert status(monkeypatch, arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert expected in err
    assert "Traceback" not in err
    assert sorted(path.name for path in folder.iterdir()) == ["binary", "schedule.json"]


def test_an_unexpected_error_is_not_a_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unexpected error gives status 2 and a traceback."""
    assert status(monkeypatch, "--replay schedule.json --keep run") == 2
    assert "AssertionError: a run starts" in capsys.readouterr().err


def test_a_file_that_is_not_a_schedule_is_refused(folder: Path) -> None:
    """A line on standard error names the file, the field and what is wrong."""
    (folder / "empty.json").write_text("{}")
    command = [sys.executable, "-m", "tests.chaos", "--replay", "empty.json"]
    refused = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == "error: empty.json: schedule.version: missing\n"
