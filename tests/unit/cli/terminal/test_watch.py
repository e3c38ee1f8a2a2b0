"""``--watch``: messages between readings, and the part of a report that fits the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import pytest
from rich.console import RenderableType

from kiel_groups.cli.terminal import rendering as watching
from kiel_groups.cli.terminal.messages import Lines
from kiel_groups.cli.terminal.rendering import show_next, watch
from kiel_groups.errors import CoordinationError, KielGroupsError
from kiel_groups.ops.loaded_groups import LoadedGroups
from kiel_groups.ops.views.report import Listed
from kiel_groups.ops.views.znodes import view_group

pytestmark = pytest.mark.unit

LOADED = LoadedGroups((view_group("g", {}),), brokers=1)
OUTAGE = CoordinationError("the connection broke")
Rows = Callable[[int], None]


def watched(*readings: LoadedGroups | KielGroupsError) -> list[bool]:
    """Watch these readings, and return a bool for each reading that is shown: whether it was the first one."""
    first_ones: list[bool] = []
    with pytest.raises(StopIteration):
        watch(Lines(), iter(readings), lambda loaded, first: first_ones.append(first), 0)
    return first_ones


def test_each_outage_is_reported_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """
    ``--watch`` reports each outage once, and a later outage with the same text again. The lines have the time, because
    users may read them later.
    """
    times = iter(["14:03:05", "14:04:05"])
    monkeypatch.setattr(watching, "clock", lambda: next(times))
    assert watched(LOADED, OUTAGE, OUTAGE, LOADED, OUTAGE, OUTAGE, LOADED) == [True, False, False]
    assert capsys.readouterr().err.splitlines() == [
        "error: 14:03:05, trying again: the connection broke",
        "error: 14:04:05, trying again: the connection broke",
    ]


def test_an_error_of_the_first_reading_ends_the_command() -> None:
    """An error of the first reading ends ``--watch``. The address may be mistyped, which is no outage."""
    with pytest.raises(CoordinationError, match="the connection broke"):
        watch(Lines(), iter([OUTAGE]), lambda loaded, first: None, 0)


def test_an_error_is_not_cut(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its end says what to do; two rows below a report are free for it."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    watched(LOADED, CoordinationError(text := "no ZooKeeper answered at h:2181; " + "is it running? " * 5))
    assert capsys.readouterr().err.endswith(f", trying again: {text}\n".replace(" \n", "\n"))


def report(listed: Listed) -> Sequence[RenderableType]:
    """
    Return a report of 40 lines with all partitions, of 5 lines without partitions, or of 8 lines and one for each
    listed partition.
    """
    lines = {"all": 40, "none": 5}
    return [f"{listed} {number}" for number in range(5 + 3 + listed if isinstance(listed, int) else lines[listed])]


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Rows:
    """Return a function that makes standard output a terminal with ``count`` rows."""

    def set_rows(count: int) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setenv("LINES", str(count))

    return set_rows


@pytest.mark.parametrize(
    ("count", "first", "last"),
    [
        (43, "all 0", "all 39"),
        (42, "31 0", "31 38"),
        (12, "1 0", "1 8"),
        (11, "none 0", "none 4"),
        (7, "none 0", "… and 2 lines that do not fit here"),
    ],
)
def test_a_report_fits_the_terminal(
    rows: Rows, capsys: pytest.CaptureFixture[str], count: int, first: str, last: str
) -> None:
    """A report has as many partitions as fit, and leaves two rows for an error and one for the cursor."""
    rows(count)
    show_next(report, None, first=True)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= count - 3
    assert (lines[0].rpartition("\x1b[1;1H")[2], lines[-1]) == (first, last)


def test_all_partitions_are_shown_on_request(rows: Rows, capsys: pytest.CaptureFixture[str]) -> None:
    """If the user requests all partitions, the report may be longer than the terminal, which then scrolls."""
    rows(10)
    show_next(report, "all", first=True)
    assert len(capsys.readouterr().out.splitlines()) == 40


@pytest.mark.parametrize("terminal", [True, False], ids=["dumb terminal", "pipe"])
def test_a_line_separates_reports_on_output_that_cannot_be_cleared(
    rows: Rows, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    """
    On output that cannot be cleared, complete reports follow each other, separated by a line and without escape codes.
    """
    if terminal:
        rows(10)
        monkeypatch.setenv("TERM", "dumb")
    for first in (True, False):
        show_next(report, None, first=first)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert [line for line in out.splitlines() if not line.startswith("all ")] == ["-" * 78]
    assert len(out.splitlines()) == 81
