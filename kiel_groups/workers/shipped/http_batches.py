"""Write records as JSON: the bodies of HTTP requests, and dead letters."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from kiel_groups.model import Record

__all__ = ["BASE64", "TEXT", "Encoding", "HttpBatch", "batches", "dead_letter"]

#: How bytes are written as JSON strings.
Encoding: TypeAlias = Literal["text", "base64"]
TEXT: Encoding = "text"
BASE64: Encoding = "base64"


class HttpBatch(NamedTuple):
    """Records, and their JSON objects, that go into one request."""

    records: tuple[Record, ...]
    objects: tuple[bytes, ...]

    @property
    def body(self) -> bytes:
        """The JSON array of the objects."""
        return b"[%s]" % b",".join(self.objects)

    def halves(self) -> list[HttpBatch]:
        """Return two batches with half of the records each."""
        middle = len(self.records) // 2
        return [
            HttpBatch(self.records[:middle], self.objects[:middle]),
            HttpBatch(self.records[middle:], self.objects[middle:]),
        ]

    def __str__(self) -> str:
        first, last = self.records[0], self.records[-1]
        start = f"{first.topic_partition} offset {first.offset}"
        return start if len(self.records) == 1 else f"{start} to {last.topic_partition} offset {last.offset}"


def batches(
    records: Sequence[Record], encoding: Encoding, most_records: int, most_bytes: int
) -> tuple[list[HttpBatch], list[Record]]:
    """
    Divide records among requests, in their order.

    Args:
        records: The records, with keys and values as bytes or None.
        encoding: How keys and values are written.
        most_records: The largest number of records in a request.
        most_bytes: The largest body, except for a single record that is larger.

    Returns:
        The batches, and the records that are in none because they are not texts in UTF-8.
    """
    found: list[HttpBatch] = []
    unwritable: list[Record] = []
    taken: list[tuple[Record, bytes]] = []
    size = 2
    for record in records:
        try:
            written = _json(record, encoding)
        except UnicodeDecodeError:
            unwritable.append(record)
            continue
        if taken and (len(taken) == most_records or size + len(written) > most_bytes):
            found.append(_batch(taken))
            taken, size = [], 2
        taken.append((record, written))
        size += len(written) + 1
    if taken:
        found.append(_batch(taken))
    return found, unwritable


def dead_letter(record: Record, context: Mapping[str, Any]) -> bytes:
    """
    Return the value of a dead letter: the record, and why it was not delivered.

    Args:
        record: The record. Its key and value are texts if both are UTF-8, and base64 otherwise, as ``encoding`` says.
        context: What headers would say in later versions of Kafka, such as the error.
    """
    encoding = TEXT
    try:
        fields = _fields(record, encoding)
    except UnicodeDecodeError:
        encoding = BASE64
        fields = _fields(record, encoding)
    return _dumped({"context": dict(context), **fields, "encoding": encoding})


def _batch(taken: Sequence[tuple[Record, bytes]]) -> HttpBatch:
    records, objects = zip(*taken, strict=True)
    return HttpBatch(records, objects)


def _json(record: Record, encoding: Encoding) -> bytes:
    return _dumped(_fields(record, encoding))


def _fields(record: Record, encoding: Encoding) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "key": _text(record.key, encoding),
        "value": _text(record.value, encoding),
    }


def _text(data: bytes | None, encoding: Encoding) -> str | None:
    if data is None:
        return None
    return base64.b64encode(data).decode("ascii") if encoding == BASE64 else bytes(data).decode("utf-8")


def _dumped(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
