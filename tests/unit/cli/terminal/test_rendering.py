"""The output of commands on standard output."""

from __future__ import annotations

import pytest

from kiel_groups.cli.terminal.messages import Lines
from kiel_groups.cli.terminal.rendering import plain_table, rendered

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
