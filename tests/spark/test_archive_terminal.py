"""The progress bar of an archive on terminals fits, makes room for other lines, and is removed."""

from __future__ import annotations

import re
import sys

import pytest

from tests.helpers.commands import at_a_terminal

pytestmark = pytest.mark.spark

#: Two batches with a warning in between, without Spark.
SHOWN = """
from types import SimpleNamespace
from kiel_groups.cli.commands.spark import progress
from kiel_groups.cli.terminal.messages import Lines
lines = Lines()
with progress(lines, {total}, quiet=False) as tell:
    tell(SimpleNamespace(number=0, records=1_234_567, left=8_765_433))
    lines.say("warning", "views:0 has no leader")
    tell(SimpleNamespace(number=1, records=5, left=None))
print("the summary")
"""
WARNING = "warning: views:0 has no leader\r\n"
HIDDEN_CURSOR = "\x1b[?25l"
COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-9]")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def shown(total: int | None, **variables: str) -> str:
    """Run the program on a terminal, and return its whole output."""
    return at_a_terminal([sys.executable, "-c", SHOWN.format(total=total)], **variables).decode()


@pytest.mark.parametrize(
    ("columns", "total", "text"),
    [
        (80, 10_000_000, "━ 12% 1,234,572 records, "),
        (80, None, "━ 1,234,572 records, "),
        (30, 10_000_000, "12% 1,234,572 records"),
    ],
)
def test_a_bar_fits_and_is_removed(columns: int, total: int | None, text: str) -> None:
    """The bar fits narrow terminals, with and without a total, and is removed at the end."""
    got = shown(total, COLUMNS=str(columns))
    drawn = [ESCAPES.sub("", line) for line in re.split(r"[\r\n]+|\x1b\[2K", got)]
    assert max(map(len, drawn)) <= columns
    assert any(text in " ".join(line.split()) for line in drawn), drawn
    assert WARNING.strip() in drawn
    # The bar never hides the cursor, because a killed process could not show the cursor again.
    assert HIDDEN_CURSOR not in got
    assert got.endswith("\x1b[2Kthe summary\r\n")


def test_a_bar_has_no_colours_with_no_color() -> None:
    """If NO_COLOR is set, the bar has no colours."""
    assert COLOUR.search(shown(10_000_000))
    assert not COLOUR.search(shown(10_000_000, NO_COLOR="1"))


def test_a_terminal_that_cannot_redraw_gets_lines() -> None:
    """On a dumb terminal, as in an editor, each batch gives a line."""
    first, warning, second, summary = shown(10_000_000, TERM="dumb").splitlines(keepends=True)
    assert re.fullmatch(r"info: 1,234,567 records, [\d,]+ records/s, 8,765,433 left\r\n", first)
    assert (warning, summary) == (WARNING, "the summary\r\n")
    assert re.fullmatch(r"info: 1,234,572 records, [\d,]+ records/s, 8,765,428 left\r\n", second)
