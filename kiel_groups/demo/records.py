"""The demo's input: 100,000 page views of a shop, one a line, each beginning with its number."""

from __future__ import annotations

import gzip
from importlib.resources import files

__all__ = ["load_records", "number_of", "visitor_of"]

_FILE = "records.txt.gz"


def load_records() -> list[bytes]:
    """The records in the order of their numbers, 0 first."""
    packed = (files(__package__) / _FILE).read_bytes()
    return gzip.decompress(packed).splitlines()


def number_of(record: bytes) -> int:
    """The number that a record carries."""
    return int(record.partition(b" ")[0])


def visitor_of(record: bytes) -> bytes:
    """Whose page view it is: the key, so that the views of one visitor stay in order, in one partition."""
    return record.split(b" ")[2]
