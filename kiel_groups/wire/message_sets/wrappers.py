"""
Compress a message set into a wrapper, and unpack one.

A wrapper is a message whose attributes name a codec, and whose value is a whole compressed set. Offsets inside are
absolute, and the wrapper has the offset of its last message.
"""

from __future__ import annotations

import zlib
from struct import Struct

from kiel_groups.errors import MessageTooLargeError, ProtocolError
from kiel_groups.model import TopicPartition
from kiel_groups.wire.codecs.compression import Codec, codec_by_number
from kiel_groups.wire.message_sets.message_layout import (
    CODEC_BITS,
    KEY_START,
    LEAST_SIZE,
    MAGIC_START,
    OVERHEAD_BYTES,
    refusal,
)
from kiel_groups.wire.primitives import Buffer

__all__ = ["unpack", "unwrap", "value_start_of", "wrap"]

_WRAPPER = Struct(">qiIbbii")
_LENGTH = Struct(">i")


def wrap(value: bytes, codec: Codec, offset: int) -> bytes:
    """Compress a set into one message without a key."""
    packed = codec.compress(value)
    size = LEAST_SIZE + len(packed)
    unchecked = bytearray(_WRAPPER.pack(offset, size, 0, 0, codec.number, -1, len(packed)) + packed)
    unchecked[OVERHEAD_BYTES:MAGIC_START] = zlib.crc32(memoryview(unchecked)[MAGIC_START:]).to_bytes(4, "big")
    return bytes(unchecked)


def unwrap(wrapper: Buffer, source: TopicPartition, limit: int) -> Buffer:
    """
    Check a compressed message, and unpack its content.

    Raises:
        MessageTooLargeError: The content unpacks to more than ``limit`` bytes.
        ProtocolError: The message is damaged.
    """
    value_start = value_start_of(wrapper, source)
    offset, _, _, _, attributes, _, _ = _WRAPPER.unpack_from(wrapper)
    return unpack(memoryview(wrapper), value_start, attributes & CODEC_BITS, source, offset, limit)


def value_start_of(wrapper: Buffer, source: TopicPartition) -> int:
    """
    Check a compressed message, and return where its value starts, which is all that follows.

    Raises:
        ProtocolError: The CRC does not match, or a length makes no sense.
    """
    offset, _, crc, _, _, key_length, _ = _WRAPPER.unpack_from(wrapper)
    if zlib.crc32(memoryview(wrapper)[MAGIC_START:]) != crc:
        raise refusal(source, offset, "a compressed message that does not match its CRC")
    value_start: int = KEY_START + _LENGTH.size + max(key_length, 0) + _LENGTH.size
    if key_length < -1 or value_start > len(wrapper):
        raise refusal(source, offset, f"a compressed message with a key of {key_length} bytes")
    value_length = _LENGTH.unpack_from(wrapper, value_start - _LENGTH.size)[0]
    if value_length != len(wrapper) - value_start:
        raise refusal(source, offset, f"a compressed message with a value of {value_length} bytes")
    return value_start


def unpack(
    wrapper: memoryview, value_start: int, codec_number: int, source: TopicPartition, offset: int, limit: int
) -> Buffer:
    """
    Unpack the value of a compressed message that was checked.

    Raises:
        MessageTooLargeError: The content unpacks to more than ``limit`` bytes.
        ProtocolError: The value is damaged, or its codec is unknown.
    """
    try:
        return codec_by_number(codec_number).decompress(wrapper[value_start:], limit)
    except MessageTooLargeError as error:
        found = f"a compressed message of {len(wrapper)} bytes {error}"
        raise MessageTooLargeError(
            f"{source} at offset {offset}: {found}, or seek to {offset + 1} to pass all of it"
        ) from error
    except ProtocolError as error:
        raise type(error)(f"{source} at offset {offset}: a compressed message: {error}") from error
