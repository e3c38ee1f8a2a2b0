"""The demo's input: 100,000 page views of a shop, one a line, each beginning with its number; or lines of one's own."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from kiel_groups.errors import ConfigError
from kiel_groups.model import Record

__all__ = ["Input", "lines_of", "load_records", "number_of", "received_number", "shipped", "visitor_of"]

_FILE = "records.txt.gz"

#: All of them are in memory at once, and each leaves a receipt.
_MOST_LINES = 1_000_000


@dataclass(frozen=True, slots=True)
class Input:
    """
    What is sent, in the order of the records' numbers, 0 first.

    ``keys`` stand beside ``values``. Shipped values begin with their number; lines of somebody's own do not, and carry
    it as their key.
    """

    values: list[bytes]
    keys: list[bytes]
    number_in_key: bool


def shipped() -> Input:
    """The records that come with the package, keyed by visitor."""
    values = load_records()
    return Input(values, [visitor_of(value) for value in values], number_in_key=False)


def lines_of(path: Path) -> Input:
    """
    The lines of a file, without their ends.

    Raises:
        ConfigError: It cannot be read, has no line, or too many.
    """
    try:
        values = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"--records: {path} cannot be read: {error.strerror}") from error
    if not 0 < len(values) <= _MOST_LINES:
        raise ConfigError(f"--records: {path} has {len(values):,} lines; expected 1 to {_MOST_LINES:,}")
    return Input(values, [b"%d" % number for number in range(len(values))], number_in_key=True)


def load_records() -> list[bytes]:
    """The shipped records in the order of their numbers, 0 first."""
    packed = (files(__package__) / _FILE).read_bytes()
    return gzip.decompress(packed).splitlines()


def number_of(value: bytes) -> int:
    """The number that a shipped record begins with."""
    return int(value.partition(b" ")[0])


def visitor_of(value: bytes) -> bytes:
    """Whose page view it is: the key, so that the views of one visitor stay in order, in one partition."""
    return value.split(b" ")[2]


def received_number(record: Record, *, number_in_key: bool) -> int | None:
    """The number of a record that was consumed; None of one that the demo has not sent."""
    value = record.value or b""
    if not number_in_key and (len(value.split(b" ")) < 3 or record.key != visitor_of(value)):
        return None
    try:
        return int(record.key or b"") if number_in_key else number_of(value)
    except ValueError:
        return None
