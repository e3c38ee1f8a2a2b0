"""The messages of a command on standard error: each is one line and is printed once."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime

import pytest

from kiel_groups.cli.terminal.messages import Lines, show_logs
from kiel_groups.errors import KielGroupsError
from tests.helpers.commands import logging_of_a_command

pytestmark = pytest.mark.unit

log = logging.getLogger("kiel_groups.test")


@pytest.fixture
def lines() -> Iterator[Lines]:
    """Return the lines of one command, and restore the logging of the test run afterwards."""
    with logging_of_a_command():
        yield Lines()


def test_a_text_of_several_lines_is_one_line(lines: Lines, capsys: pytest.CaptureFixture[str]) -> None:
    """A message of several lines is printed as one line, with blanks in place of line ends."""
    lines.say("error", "first\nsecond")
    assert capsys.readouterr().err == "error: first second\n"


def test_the_error_that_ends_a_command_is_not_printed_twice(lines: Lines, capsys: pytest.CaptureFixture[str]) -> None:
    """
    The error that ends a command is not printed if its text was just logged. An error with another text is printed.
    """
    show_logs(lines, verbose=False)
    log.error("group g: this member stops: it disagrees")
    lines.say("error", "it disagrees")
    lines.say("error", "something else")
    assert capsys.readouterr().err == "error: group g: this member stops: it disagrees\nerror: something else\n"


def test_an_error_that_a_log_line_refers_to_is_not_printed_again(
    lines: Lines, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    An error that a log line refers to is not printed again, even if the log line has another text, or other lines
    follow it.
    """
    show_logs(lines, verbose=False)
    error = KielGroupsError("group g: it disagrees")
    log.error("group g: this member stops: it disagrees", extra={"reports": error})
    log.error("another error")
    lines.say("error", str(error))
    assert capsys.readouterr().err == "error: group g: this member stops: it disagrees\nerror: another error\n"


def test_an_error_is_printed_after_a_warning_of_the_same_text(lines: Lines, capsys: pytest.CaptureFixture[str]) -> None:
    """
    An error is printed even after a warning of the same text. The warning was about a retry; the error says that the
    command has failed.
    """
    show_logs(lines, verbose=False)
    log.warning("asked again: no broker answered")
    lines.say("error", "no broker answered")
    assert capsys.readouterr().err == "warning: asked again: no broker answered\nerror: no broker answered\n"


def test_a_traceback_is_shortened_to_its_exception(lines: Lines, capsys: pytest.CaptureFixture[str]) -> None:
    """``log.exception`` prints one line, with the exception instead of its traceback."""
    show_logs(lines, verbose=False)
    try:
        raise ValueError("bad\nvalue")
    except ValueError:
        log.exception("t:0 offset %d: the deserializer failed", 7)
    assert capsys.readouterr().err == "error: t:0 offset 7: the deserializer failed: ValueError: bad value\n"


@pytest.mark.parametrize(
    ("verbose", "printed"), [(False, "warning: two\n"), (True, "info: one\nwarning: two\nwarning: three\n")]
)
def test_details_are_printed_on_request(
    lines: Lines, capsys: pytest.CaptureFixture[str], verbose: bool, printed: str
) -> None:
    """Info lines, and kazoo's warnings about refused connections, are printed only with ``--verbose``."""
    show_logs(lines, verbose=verbose)
    log.debug("nothing")
    log.info("one")
    log.warning("two")
    logging.getLogger("kiel_groups.kazoo").warning("three")
    assert capsys.readouterr().err == printed


def test_log_lines_of_a_service_start_with_their_time(lines: Lines, capsys: pytest.CaptureFixture[str]) -> None:
    """
    The log lines of a service start with their time. The final error is not printed again, although its text has no
    time.
    """
    show_logs(lines, verbose=False, timed=True)
    log.error("group g: this member stops: why")
    lines.say("error", "why")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d error: group g: this member stops: why\n", capsys.readouterr().err
    )


def test_log_lines_as_json(lines: Lines, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is a document with its time, level, logger, message and fields. A command's own messages have no logger."""
    lines.as_json = True
    show_logs(lines, verbose=True, timed=True)
    logging.getLogger("kiel_groups.service").info("a\nb", extra={"fields": {"moved": 2}})
    lines.say("error", 'the "end"')
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert datetime.fromisoformat(first.pop("time")).tzinfo is not None
    assert first == {"level": "info", "logger": "kiel_groups.service", "message": "a b", "moved": 2}
    second.pop("time")
    assert second == {"level": "error", "message": 'the "end"'}


@pytest.mark.parametrize("verbose", [False, True])
def test_log_lines_that_a_command_reports_itself_are_not_printed(
    lines: Lines, capsys: pytest.CaptureFixture[str], verbose: bool
) -> None:
    """
    Log lines about events that a command reports itself are printed only with ``--verbose``. For example, ``produce``
    reports the lines that were not stored, so the sender's log lines would repeat them.
    """
    show_logs(lines, verbose=verbose, reported_elsewhere=["kiel_groups.test"])
    log.error("a record was not stored")
    logging.getLogger("kiel_groups.another").error("another error")
    log_line = "error: a record was not stored\n" if verbose else ""
    assert capsys.readouterr().err == f"{log_line}error: another error\n"


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_before_the_start_of_a_command_sets_the_exit_status(name: str, status: int) -> None:
    """A signal before the start of a command sets the same exit status as during a command, and prints no traceback."""
    program = (
        "import os, signal, time\n"
        "from kiel_groups.cli import app, main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"app.run = lambda words: (os.kill(os.getpid(), signal.{name}), time.sleep(30))\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (status, "")
