"""Format a record as a line: its value, its key and value, or JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any, TypeAlias

from kiel_groups.model import Record

__all__ = ["RecordLine", "json_line", "plain_line"]

#: Formats a record as a line, with its newline.
RecordLine: TypeAlias = Callable[[Record], bytes]


def plain_line(key_separator: bytes | None = None) -> RecordLine:
    """Return a function that formats the value, after key and separator if one is given; null becomes empty."""

    def line(record: Record) -> bytes:
        key = b"" if key_separator is None else (record.key or b"") + key_separator
        return key + (record.value or b"") + b"\n"

    return line


def json_line(record: Record) -> bytes:
    """
    Format a record as a JSON object: topic, partition, offset, key and value.

    A key or value that is not UTF-8 is in ``key_base64`` or ``value_base64`` instead.
    """
    fields: dict[str, Any] = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
    fields |= _text("key", record.key) | _text("value", record.value)
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


def _text(name: str, data: bytes | None) -> dict[str, str | None]:
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data or b"").decode()}
