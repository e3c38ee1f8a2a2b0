"""The layout of messages of magic 0: sizes, positions of fields, and runs of plain messages."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from kiel_groups.wire.primitives import Buffer

__all__ = [
    "CODEC_BITS",
    "FILLER_OFFSET",
    "KEY_START",
    "LEAST_SIZE",
    "MAGIC_START",
    "OVERHEAD_BYTES",
    "Run",
    "message_at",
    "offset_and_size_at",
    "offset_at",
]

#: Offset and size, which precede a message and do not count in its size.
OVERHEAD_BYTES = 8 + 4
#: CRC, magic, attributes, and the lengths of a null key and a null value.
LEAST_SIZE = 4 + 1 + 1 + 4 + 4
#: Where the magic byte and the key are, in bytes from the offset of the message.
MAGIC_START = 16
KEY_START = 18

#: The bits of the attributes that name a codec; all zero means plain.
CODEC_BITS = 0x07

#: The offset of filler. Brokers from 2.0 on write batches of later formats in magic 0 one by one, while they send the
#: set. They have announced its size before that, so they fill the rest with the beginning of a message that has this
#: offset, and is longer than the rest.
FILLER_OFFSET = -1

_PLACE = Struct(">qi")


class Run(NamedTuple):
    """
    Consecutive plain messages.

    ``end`` is the position after these messages, ``last_offset`` the offset of the last message. If a wrapper follows,
    ``wrapper_end`` is the position after the wrapper. If ``wrapper_end`` is None, the set ends after the run, perhaps
    with an unfinished message.
    """

    end: int
    last_offset: int
    wrapper_end: int | None


def offset_at(data: Buffer, position: int) -> int:
    """Return the offset of the message at ``position``."""
    offset: int = _PLACE.unpack_from(data, position)[0]
    return offset


def offset_and_size_at(data: Buffer, position: int) -> tuple[int, int]:
    """Return the offset of the message at ``position``, and its size without ``OVERHEAD_BYTES``."""
    offset, size = _PLACE.unpack_from(data, position)
    return offset, size


def message_at(data: Buffer, position: int) -> Buffer:
    """Return the whole message at ``position``, with its offset and size."""
    return data[position : position + OVERHEAD_BYTES + offset_and_size_at(data, position)[1]]
