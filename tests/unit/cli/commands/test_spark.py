"""``kiel-groups spark archive`` reports mistakes before Spark starts, in the terms of the command line."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from pyspark.sql.types import StringType, StructType

from kiel_groups.cli.app import run

pytestmark = pytest.mark.unit


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run ``spark archive`` with these arguments, assert that they are refused, and return the line of the error."""
    assert run(["spark", "archive", "--brokers", "127.0.0.1:9", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--output out", "error: Name topics, or give --pattern, and not both."),
        ("views --pattern v.* --output out", "error: Name topics, or give --pattern, and not both."),
        ("--pattern ( --output out", "error: --pattern: '(' is no regular expression"),
        ("vi/ews --output out", "error: TOPIC: 'vi/ews'"),
        ("views --output out --group lake", "error: --group: whether group lake has live members"),
        (
            "views --output out --start group",
            "error: --start: 'group' is where a group has got to; name it with --group",
        ),
        ("views --output out --every soon", "error: --every: 'soon' given"),
        ("views --output out --every 0s", "error: --every: 0 given"),
        ("views --output out --checkpoint out/done", "error: --checkpoint: out/done is among the records"),
        ("views --output out --time-field at:", "error: --time-field: 'at:' given"),
        (
            "views --output out --schema bad.json",
            "error: Invalid value for '--schema': 'bad.json' given; expected TOPIC=",
        ),
        ("views --output out --schema views=nosuch.json", "error: Invalid value for '--schema': 'nosuch.json'"),
        ("views --output out --schema views=bad.json", "error: --schema: '{}' is no schema"),
        ("views --output out --schema views=taken.json", "error: --schema: the table has a column key already"),
        ("views --output out --schema other=taken.json", "error: --schema: given for 'other', which is not among the"),
        ("views", "error: Missing option '--output'"),
    ],
)
def test_invalid_options_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str, message: str
) -> None:
    """The error is one line with exit status 2, printed before any request or write."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KIEL_GROUPS_ZOOKEEPER", raising=False)
    Path("bad.json").write_text("{}")
    Path("taken.json").write_text(StructType().add("key", StringType()).json())
    assert refused(capsys, *words.split()).startswith(message)
    assert {path.name for path in tmp_path.iterdir()} == {"bad.json", "taken.json"}


def test_a_missing_library_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyspark" else found(name))
    assert "pyspark missing" in (line := refused(capsys, "views", "--output", "out"))
    assert "kiel-groups[spark]" in line
