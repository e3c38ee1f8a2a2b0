"""Input of the demo: 100,000 page views of a shop, each starting with its number, or the lines of a given file."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from kiel_groups.errors import ConfigError
from kiel_groups.model import Record

__all__ = ["Input", "lines_of", "load_records", "number_of", "received_number", "shipped", "visitor_of"]

_FILE = "records.txt.gz"

#: All records are in memory at once, and so is a receipt of each.
_MOST_LINES = 1_000_000


@dataclass(frozen=True, slots=True)
class Input:
    """
    The records to send, in the order of their numbers, from 0.

    ``keys[n]`` belongs to ``values[n]``. Shipped values start with their number. Lines of the user's file do not, so
    their number is the key.
    """

    values: list[bytes]
    keys: list[bytes]
    number_in_key: bool


def shipped() -> Input:
    """Return the records that come with the package, with the visitor as key."""
    values = load_records()
    return Input(values, [visitor_of(value) for value in values], number_in_key=False)


def lines_of(path: Path) -> Input:
    """
    Return the lines of a file, without line ends, as records.

    Raises:
        ConfigError: The file cannot be read, is empty, or has too many lines.
    """
    try:
        values = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"--records: {path} cannot be read: {error.strerror}") from error
    if not 0 < len(values) <= _MOST_LINES:
        raise ConfigError(f"--records: {path} has {len(values):,} lines; expected 1 to {_MOST_LINES:,}")
    return Input(values, [b"%d" % number for number in range(len(values))], number_in_key=True)


def load_records() -> list[bytes]:
    """Return the shipped records in the order of their numbers, from 0."""
    packed = (files(__package__) / _FILE).read_bytes()
    return gzip.decompress(packed).splitlines()


def number_of(value: bytes) -> int:
    """Return the number at the start of a shipped record."""
    return int(value.partition(b" ")[0])


def visitor_of(value: bytes) -> bytes:
    """Return the visitor of a page view. As the key, it keeps the views of one visitor in one partition, in order."""
    return value.split(b" ")[2]


def received_number(record: Record, *, number_in_key: bool) -> int | None:
    """Return the number of a consumed record, or None if the demo did not send it."""
    value = record.value or b""
    if not number_in_key and (len(value.split(b" ")) < 3 or record.key != visitor_of(value)):
        return None
    try:
        return int(record.key or b"") if number_in_key else number_of(value)
    except ValueError:
        return None
