"""Records as JSON: bodies of requests, and dead letters."""

from __future__ import annotations

import json

import pytest

from kiel_groups.model import Record
from kiel_groups.workers.shipped.http_sink import batches, dead_letter

pytestmark = pytest.mark.unit


def record(offset: int, value: bytes | None = b"v", key: bytes | None = None) -> Record:
    return Record("t", 1, offset, key, value)


def test_a_body_is_an_array_of_objects() -> None:
    """Each record is an object with its place, key and value; null stays null, and texts keep all characters."""
    (batch,), unwritable = batches([record(5, 'zwölf "\n'.encode(), b"k"), record(6, None)], "text", 10, 1000)
    assert json.loads(batch.body) == [
        {"topic": "t", "partition": 1, "offset": 5, "key": "k", "value": 'zwölf "\n'},
        {"topic": "t", "partition": 1, "offset": 6, "key": None, "value": None},
    ]
    assert unwritable == []
    assert str(batch) == "t:1 offset 5 to t:1 offset 6"


def test_bytes_may_be_written_as_base64() -> None:
    """With base64, keys and values may be any bytes."""
    (batch,), unwritable = batches([record(5, b"\xff\x00", b"k")], "base64", 10, 1000)
    assert json.loads(batch.body)[0] | {"offset": 0} == {
        "topic": "t",
        "partition": 1,
        "offset": 0,
        "key": "aw==",
        "value": "/wA=",
    }
    assert unwritable == []


def test_what_is_no_text_is_in_no_batch() -> None:
    """Records whose key or value is not UTF-8 are returned apart; the others keep their order."""
    bad = [record(1, b"\xff"), record(2, b"v", b"\xff")]
    found, unwritable = batches([record(0), *bad, record(3)], "text", 10, 1000)
    assert unwritable == bad
    assert [[each.offset for each, _ in batch] for batch in found] == [[0, 3]]


def test_batches_have_limits() -> None:
    """A batch has at most the allowed records, and bytes unless it has a single record."""
    many = [record(offset) for offset in range(7)]
    found, _ = batches(many, "text", 3, 1000)
    assert [len(batch) for batch in found] == [3, 3, 1]
    assert [each for batch in found for each, _ in batch] == many
    size = len(found[0].body)
    exact, _ = batches(many, "text", 100, size)
    assert [len(batch.body) for batch in exact] == [size, size, len(found[2].body)]
    smaller, _ = batches(many, "text", 100, size - 1)
    assert [len(batch) for batch in smaller] == [2, 2, 2, 1]
    alone, _ = batches(many, "text", 100, 1)
    assert [len(batch) for batch in alone] == [1] * 7
    assert batches([], "text", 3, 1000) == ([], [])


def test_a_batch_has_halves() -> None:
    """The halves of a batch have its records in order, down to single ones."""
    (batch,), _ = batches([record(offset) for offset in range(5)], "text", 10, 1000)
    halves = batch.halves()
    assert [len(half) for half in halves] == [2, 3]
    assert [each for half in halves for each in half] == batch
    assert json.loads(halves[0].body) + json.loads(halves[1].body) == json.loads(batch.body)
    assert str(halves[0].halves()[0]) == "t:1 offset 0"


@pytest.mark.parametrize(
    ("value", "key", "encoding", "written"),
    [(b"v", None, "text", "v"), (b"\xff", b"k", "base64", "/w=="), (None, b"\xff", "base64", None)],
)
def test_a_dead_letter_has_the_record_and_its_error(
    value: bytes | None, key: bytes | None, encoding: str, written: str | None
) -> None:
    """A dead letter has the record, whatever its bytes are, and the context of the error."""
    letter = json.loads(dead_letter(record(5, value, key), {"error": "no"}))
    assert (letter["context"], letter["encoding"], letter["value"]) == ({"error": "no"}, encoding, written)
    assert (letter["topic"], letter["partition"], letter["offset"]) == ("t", 1, 5)
