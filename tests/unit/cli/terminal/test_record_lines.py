"""Records as lines of text."""

from __future__ import annotations

import json

import pytest

from kiel_groups.cli.terminal.record_printer import json_line, plain_line
from kiel_groups.model import Record

pytestmark = pytest.mark.unit


def test_a_record_is_a_line() -> None:
    """The line has the value, key and value, or JSON. A null value is an empty text, or null in JSON."""
    record = Record("t", 3, 7, "schlüssel".encode(), b"value")
    assert plain_line()(record) == b"value\n"
    assert plain_line(b"\t")(record) == "schlüssel\tvalue\n".encode()
    assert plain_line(b"\t")(record._replace(key=None, value=None)) == b"\t\n"
    assert json.loads(json_line(record)) == {
        "topic": "t",
        "partition": 3,
        "offset": 7,
        "key": "schlüssel",
        "value": "value",
    }
    assert json.loads(json_line(record._replace(key=b"\xff", value=None))) == {
        "topic": "t",
        "partition": 3,
        "offset": 7,
        "key_base64": "/w==",
        "value": None,
    }
