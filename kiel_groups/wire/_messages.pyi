"""
What ``_messages.c`` offers.

A run is ``(data, start, stop)``: bytes that hold whole plain messages from start to stop. Runs that hold anything else
are a ValueError.
"""

from kiel_groups.model import Record
from kiel_groups.wire.primitives import Buffer

#: Verdicts of ``check``: something else than a plain message with a higher offset follows, or nothing; a plain message
#: beyond the last one wanted; one whose key or value has a length that makes no sense; one that does not match its CRC.
STOPPED: int
STOPPED_BEHIND: int
STOPPED_BY_LENGTH: int
STOPPED_BY_CRC: int

Run = tuple[Buffer, int, int]
#: Values, where each one ends (int32, a 0 first), a bitmap of those that are not null (None: all), how many are null.
Column = tuple[bytes, bytes, bytes | None, int]

def check(data: Buffer, start: int, last_offset: int, last_wanted: int, /) -> tuple[int, int, int]:
    """Verify plain messages whose offsets ascend; the byte after them, the offset of the last one, and a verdict."""

def columns(runs: tuple[Run, ...], first: int, last: int, /) -> tuple[bytes, Column, Column]:
    """Offsets (int64), keys and values of the messages with ``first <= offset <= last``."""

def records(
    runs: tuple[Run, ...], first: int, last: int, kind: type[Record], topic: str, partition: int, /
) -> list[Record]:
    """The same messages as records."""
