"""
The functions of the compiled module ``_messages``. Its C sources are in this folder.

A plain message is not compressed; a wrapper is a message whose value is a compressed message set. A run is ``(data,
start, stop)``: bytes with whole plain messages from ``start`` to ``stop``. Other content raises ValueError.
"""

from kiel_groups.model import Record
from kiel_groups.wire.primitives import Buffer

#: The verdicts of ``check``: why it stopped. STOPPED: at the end, or at data that is not a plain message with an
#: ascending offset. STOPPED_BEHIND: at a plain message above ``last_wanted``. STOPPED_BY_LENGTH: at a plain message
#: with an impossible length of key or value. STOPPED_BY_CRC: at a plain message with a wrong CRC.
STOPPED: int
STOPPED_BEHIND: int
STOPPED_BY_LENGTH: int
STOPPED_BY_CRC: int

Run = tuple[Buffer, int, int]
#: The values, the position where each value ends (int32, after a first 0), a bitmap of the values that are not null
#: (None if no value is null), and the number of null values.
Column = tuple[bytes, bytes, bytes | None, int]

#: The position where a wrapper stops, its offset, the number of its codec, and the position of its value from the start
#: of the wrapper. The latter is -1 if the value, by its length, does not end with the wrapper.
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

def encode(keys: list[bytes | None], values: list[bytes | None], /) -> bytes:
    """
    Return the messages as a message set with offsets from 0.

    Raises:
        TypeError: A key or value is neither bytes nor None.
        OverflowError: The set takes more than 2 GiB.
    """
