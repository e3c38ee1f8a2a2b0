"""The output of commands on standard output."""

from __future__ import annotations

import io
import sys

import pytest

from kiel_groups.cli import app as _app  # noqa: F401 -- registers how characters are replaced
from kiel_groups.cli.terminal.messages import Lines
from kiel_groups.cli.terminal.rendering import has_bar, plain_table, rendered
from kiel_groups.ops.views.checks import Finding
from kiel_groups.ops.views.report import Column, Sentences, finding_rows, report_table

pytestmark = pytest.mark.unit

#: Clears the screen, changes the title of a terminal, and begins its line again.
HOSTILE = "\x1b[2Jgone\x1b]0;title\x07 \x9b1mbold\rerror: forged"


def test_texts_from_outside_do_not_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Tables, texts and messages show a question mark in place of each control character."""
    table = plain_table(("problem",), [(HOSTILE,)])
    Lines().say("error", HOSTILE)
    for text in ("\n".join(rendered(HOSTILE, table)), capsys.readouterr().err):
        assert "gone" in text
        assert not [character for character in text if character != "\n" and not character.isprintable()]


def test_lines_fit_a_terminal_whose_encoding_lacks_the_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arrow becomes two characters, before the sentence is divided."""
    for length in range(60, 90):
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "latin-1", errors="kiel_groups.printable"))
        lines = rendered(Sentences(finding_rows([Finding("gone", "nothing", f"x{' x' * length}")])))
        assert max(map(len, lines)) <= 80
        assert lines[1].strip().startswith("-> x")


def test_sentences_wrap_in_a_file_and_tables_do_not() -> None:
    """A quoted command and a long path stay whole, so that they can be copied; a heading is one line."""
    command, path = "'kiel-groups offsets delete a-group --topic a-topic:9'", "/" + "z" * 90
    text = f"nothing reads {path} any more, as was said before"
    finding = Finding("gone", text, f"run {command}, and look {'again ' * 9}")
    heading = ("heading " * 20).rstrip()
    lines = rendered(heading, report_table([Column("c", str)], ["x" * 100]), Sentences(finding_rows([finding])))
    assert [line.strip() for line in lines if line] == [
        heading,
        "c",
        "─" * 100,
        "x" * 100,
        "wrong  nothing reads",
        path,
        "any more, as was said before",
        f"→ run {command}, and look",
        f"{'again ' * 8}again",
    ]


def test_no_bar_without_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python has no ``sys.stderr`` in a process that was started with it closed, as by ``produce topic 2>&-``."""
    monkeypatch.setattr(sys, "stderr", None)
    assert not has_bar()
