"""
Handle what is not a plain message in a message set: wrappers, unfinished messages, and invalid data.

A wrapper is a message whose attributes name a codec; its value is a whole compressed set. Offsets inside are absolute,
and the wrapper has the offset of its last message.
"""

from __future__ import annotations

import zlib
from struct import Struct
from typing import NamedTuple

from kiel_groups.errors import MessageTooLargeError, ProtocolError
from kiel_groups.model import TopicPartition
from kiel_groups.wire.codecs.compression import Codec, codec_by_number
from kiel_groups.wire.primitives import Buffer

__all__ = [
    "BAD_CRC",
    "BAD_LENGTH",
    "CODEC_BITS",
    "LEAST_SIZE",
    "OVERHEAD_BYTES",
    "PartialMessage",
    "Run",
    "check_content",
    "check_wrapper",
    "offset_at",
    "partial",
    "refusal",
    "unwrap",
    "wrap",
]

#: Offset and size, which precede a message and do not count in its size.
OVERHEAD_BYTES = 8 + 4
#: CRC, magic, attributes, and the lengths of a null key and a null value.
LEAST_SIZE = 4 + 1 + 1 + 4 + 4
_MAGIC_START = 16
_KEY_START = 18

_PLACE = Struct(">qi")
_WRAPPER = Struct(">qiIbbii")
_LENGTH = Struct(">i")

#: The bits of the attributes that name a codec; all zero means plain.
CODEC_BITS = 0x07

#: Faults of a plain message, as errors name them.
BAD_CRC = "a message that does not match its CRC"
BAD_LENGTH = "a message whose key or value has a length that makes no sense"


class PartialMessage(MessageTooLargeError):  # noqa: N818 - a signal: fetch again with more bytes
    """
    A fetch returned only the beginning of one message: its ``max_bytes`` is smaller than that message.

    ``needed_bytes`` is the size of the whole message; None if the fetch did not include that size.
    """

    def __init__(self, message: str, *, needed_bytes: int | None) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes


class Run(NamedTuple):
    """
    Consecutive plain messages.

    ``end`` is the position after them, ``last_offset`` the offset of the last one. If a wrapper follows,
    ``wrapper_end`` is the position after that; if it is None, the set ends, perhaps with an unfinished message.
    """

    end: int
    last_offset: int
    wrapper_end: int | None


def offset_at(data: Buffer, position: int) -> int:
    """Return the offset of the message at ``position``."""
    offset: int = _PLACE.unpack_from(data, position)[0]
    return offset


def check_wrapper(data: Buffer, position: int, last_offset: int, source: TopicPartition) -> int | None:
    """Check the wrapper at ``position`` and return its end; None if the data ends there, or inside the message."""
    if len(data) - position < OVERHEAD_BYTES:
        return None
    offset, length = _PLACE.unpack_from(data, position)
    if length < LEAST_SIZE:
        raise refusal(source, offset, f"a message of {length} bytes; the smallest has {LEAST_SIZE}")
    if offset <= last_offset:
        raise refusal(source, offset, f"an offset that does not ascend, after {last_offset}")
    end: int = position + OVERHEAD_BYTES + length
    if end > len(data):
        return None
    magic = data[position + _MAGIC_START]
    if magic:
        raise refusal(source, offset, f"a message of magic {magic}; Kafka 0.8 has magic 0 only")
    return end


def wrap(value: bytes, codec: Codec, offset: int) -> bytes:
    """Compress a set into one message without a key."""
    packed = codec.compress(value)
    size = LEAST_SIZE + len(packed)
    unchecked = bytearray(_WRAPPER.pack(offset, size, 0, 0, codec.number, -1, len(packed)) + packed)
    unchecked[OVERHEAD_BYTES:_MAGIC_START] = zlib.crc32(memoryview(unchecked)[_MAGIC_START:]).to_bytes(4, "big")
    return bytes(unchecked)


def unwrap(wrapper: bytes, source: TopicPartition, limit: int) -> bytes:
    """Check a compressed message, and unpack its content, at most ``limit`` bytes."""
    offset, _, crc, _, attributes, key_length, _ = _WRAPPER.unpack_from(wrapper)
    if zlib.crc32(memoryview(wrapper)[_MAGIC_START:]) != crc:
        raise refusal(source, offset, "a compressed message that does not match its CRC")
    value_start = _KEY_START + _LENGTH.size + max(key_length, 0) + _LENGTH.size
    if key_length < -1 or value_start > len(wrapper):
        raise refusal(source, offset, f"a compressed message with a key of {key_length} bytes")
    value_length = _LENGTH.unpack_from(wrapper, value_start - _LENGTH.size)[0]
    if value_length != len(wrapper) - value_start:
        raise refusal(source, offset, f"a compressed message with a value of {value_length} bytes")
    try:
        return codec_by_number(attributes & CODEC_BITS).decompress(wrapper[value_start:], limit)
    except ProtocolError as error:
        raise type(error)(f"{source} at offset {offset}: a compressed message: {error}") from error


def check_content(content: bytes, run: Run, wrapper_offset: int, source: TopicPartition) -> None:
    """Check that a wrapper has whole plain messages only, the last one with the wrapper's own offset."""
    if run.wrapper_end is not None:
        raise refusal(source, wrapper_offset, "a compressed message inside a compressed message")
    if run.end != len(content):
        raise refusal(source, wrapper_offset, "a compressed message whose content is truncated")
    if run.last_offset != wrapper_offset:
        raise refusal(source, wrapper_offset, f"a compressed message whose content ends at offset {run.last_offset}")


def partial(data: Buffer, start: int, source: TopicPartition, position: int) -> PartialMessage:
    """Return the error for a fetch from ``position`` that returned only the beginning of the message at ``start``."""
    needed = None
    if len(data) - start >= OVERHEAD_BYTES:
        needed = OVERHEAD_BYTES + _PLACE.unpack_from(data, start)[1]
    size = f"{needed} bytes" if needed is not None else "more bytes"
    return PartialMessage(
        f"{source} at offset {position}: the message takes {size}, only {len(data) - start} were fetched; "
        "fetch with a larger max_bytes",
        needed_bytes=needed,
    )


def refusal(source: TopicPartition, offset: int, found: str) -> ProtocolError:
    """Return the error for a message at an offset that cannot be read."""
    return ProtocolError(f"{source} at offset {offset}: {found}")
