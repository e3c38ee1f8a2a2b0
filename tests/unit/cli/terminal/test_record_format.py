"""Records by a template of the user."""

from __future__ import annotations

import pytest

from kiel_groups.cli.terminal.record_printer import parse_format
from kiel_groups.errors import ConfigError
from kiel_groups.model import Record

pytestmark = pytest.mark.unit

RECORD = Record("t", 3, 7, "schlüssel".encode(), b"value")


@pytest.mark.parametrize(
    ("template", "line"),
    [
        (r"%t:%p %o %k %s\n", "t:3 7 schlüssel value\n"),
        ("%K,%S", "10,5"),
        ("%T|%h|%%", "-1||%"),
        ("%%s", "%s"),
        (r"\r\t\\n\x41\x0a", "\r\t\\nA\n"),
        ("grün\n", "grün\n"),
    ],
)
def test_a_template_is_filled_in(template: str, line: str) -> None:
    """Tokens and escapes mean what they mean for kcat. Other text stays, and no newline is added."""
    assert parse_format(template)(RECORD) == line.encode()


def test_null_is_empty_and_has_length_minus_one() -> None:
    """So a reader can tell null from an empty text."""
    line = parse_format("%k|%K|%s|%S|%R")
    assert line(RECORD._replace(key=None, value=None)) == b"|-1||-1|\xff\xff\xff\xff"
    assert line(RECORD._replace(key=b"", value=b"")) == b"|0||0|\0\0\0\0"


def test_bytes_are_not_decoded() -> None:
    """A key or value need not be text."""
    assert parse_format(r"%k\xff%s")(RECORD._replace(key=b"\xfe", value=b"\0")) == b"\xfe\xff\0"


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("", "nothing given"),
        ("%t %x", "'%x' at character 4 of '%t %x'; expected a token (%s, %S, "),
        ("100%", "'%' at character 4"),
        (r"%s\q", r"'\\q' at character 3"),
        ("%s\\", r"'\\' at character 3"),
        (r"\x4", r"'\\x' at character 1"),
    ],
)
def test_a_wrong_template_is_refused(template: str, problem: str) -> None:
    """The error names the wrong part and its place."""
    with pytest.raises(ConfigError) as refused:
        parse_format(template)
    assert str(refused.value).startswith("--format: ")
    assert problem in str(refused.value)
