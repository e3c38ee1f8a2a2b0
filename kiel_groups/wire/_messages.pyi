"""
The functions of the compiled module ``_messages``. Its C sources are in this folder.

A plain message is not compressed; a wrapper is a message whose value is a compressed message set. A run is ``(data,
start, stop)``: bytes with whole plain messages from ``start`` to ``stop``. Other content raises ValueError.
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
    """
    Check plain messages from ``start`` on, up to the first message that is not valid or is above ``last_wanted``.

    Return the position after the last valid message, its offset (``last_offset`` if there is none), and a verdict.
    """

def wrapper(data: Buffer, start: int, last_offset: int, /) -> Place | None:
    """Return the place of the wrapper at ``start``, or None without a whole wrapper that is above ``last_offset``."""

def crc_matches(message: Buffer, /) -> bool:
    """Return whether a message, given with its offset and size, has the least length and matches its CRC."""

def span(runs: tuple[Run, ...], first: int, last: int, /) -> tuple[int, int, int]:
    """Return how many messages have ``first <= offset <= last``, and their first and last offset (-1 without any)."""

def columns(runs: tuple[Run, ...], first: int, last: int, /) -> tuple[bytes, Column, Column]:
    """Return the offsets (int64), keys and values of the messages with ``first <= offset <= last`` as columns."""

def records(
    runs: tuple[Run, ...], first: int, last: int, kind: type[Record], topic: str, partition: int, /
) -> list[Record]:
    """Return the messages with ``first <= offset <= last`` as records of class ``kind``."""

def values(
    runs: tuple[Run, ...], first: int, last: int, /
) -> tuple[list[bytes | None], list[bytes | None] | None, list[int] | None]:
    """
    Return lists of the values, keys and offsets of the messages with ``first <= offset <= last``.

    The list of keys is None if all keys are null. The list of offsets is None if the offsets have no gaps.
    """
