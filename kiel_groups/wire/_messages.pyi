"""
Declare the functions of the compiled module ``_messages``, whose sources are beside this file.

A run is ``(data, start, stop)``: bytes that hold whole plain messages from start to stop. A run with any other content
is a ValueError.
"""

from kiel_groups.model import Record
from kiel_groups.wire.primitives import Buffer

#: Verdicts of ``check``. It stopped at the end, or at anything but a plain message with a higher offset; at a plain
#: message beyond the last one wanted; at one with an impossible length of key or value; at one with a wrong CRC.
STOPPED: int
STOPPED_BEHIND: int
STOPPED_BY_LENGTH: int
STOPPED_BY_CRC: int

Run = tuple[Buffer, int, int]
#: Values, where each one ends (int32, a 0 first), a bitmap of those that are not null (None: all), the number of nulls.
Column = tuple[bytes, bytes, bytes | None, int]

#: Where a wrapper stops, its offset, the number of its codec, and where its value starts, counted from the start of the
#: wrapper, or -1 if the value is not all that follows, as its lengths say.
Place = tuple[int, int, int, int]

def check(data: Buffer, start: int, stop: int, last_offset: int, last_wanted: int, /) -> tuple[int, int, int]:
    """Verify plain messages; return the position after them, the offset of the last one, and a verdict."""

def wrapper(data: Buffer, start: int, last_offset: int, /) -> Place | None:
    """Return the place of the wrapper at ``start``, or None if no whole wrapper with a higher offset is there."""

def crc_matches(message: Buffer, /) -> bool:
    """Return whether a message, with its offset and size, is long enough and matches its CRC."""

def span(runs: tuple[Run, ...], first: int, last: int, /) -> tuple[int, int, int]:
    """Return the number of messages with ``first <= offset <= last``, and their first and last offset (-1: none)."""

def columns(runs: tuple[Run, ...], first: int, last: int, /) -> tuple[bytes, Column, Column]:
    """Return offsets (int64), keys and values of the messages with ``first <= offset <= last``."""

def records(
    runs: tuple[Run, ...], first: int, last: int, kind: type[Record], topic: str, partition: int, /
) -> list[Record]:
    """Return the same messages as records."""

def values(
    runs: tuple[Run, ...], first: int, last: int, /
) -> tuple[list[bytes | None], list[bytes | None] | None, list[int] | None]:
    """
    Return the values, keys and offsets of the same messages.

    The keys are None if all of them are null, the offsets are None if each is one more than the one before.
    """
