"""
A second, simple implementation of message sets of magic 0 and of the primitive types, for comparison.

This implementation follows the protocol's specification, one message at a time. It is slow, and uses none of the
package's code. Its codecs are in ``reference_compression``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import TypeAlias

from tests.helpers.reference_compression import NUMBERS, RefusedError, packed, unpacked

#: Offset, key and value.
Message: TypeAlias = tuple[int, bytes | None, bytes | None]


def int16(value: int) -> bytes:
    return struct.pack(">h", value)


def int32(value: int) -> bytes:
    return struct.pack(">i", value)


def int64(value: int) -> bytes:
    return struct.pack(">q", value)


def string(text: str | None) -> bytes:
    return int16(-1) if text is None else int16(len(text.encode())) + text.encode()


def blob(value: bytes | None) -> bytes:
    return int32(-1) if value is None else int32(len(value)) + value


def array(*elements: bytes) -> bytes:
    return int32(len(elements)) + b"".join(elements)


def message(offset: int, key: bytes | None, value: bytes | None, *, magic: int = 0, attributes: int = 0) -> bytes:
    """Encode one message with its offset and size, as an entry of a message set."""
    return raw_message(offset, struct.pack(">bb", magic, attributes) + blob(key) + blob(value))


def raw_message(offset: int, body: bytes) -> bytes:
    """Encode a message whose bytes from the magic byte on are ``body``, with a valid CRC and size."""
    return int64(offset) + int32(4 + len(body)) + struct.pack(">I", zlib.crc32(body)) + body


def wrapper(messages: bytes, offset: int, *, codec: str = "gzip", key: bytes | None = None) -> bytes:
    """Encode a wrapper: a message whose value is the compressed message set ``messages``."""
    return message(offset, key, packed(codec, messages), attributes=NUMBERS[codec])


def encode(messages: Iterable[Message]) -> bytes:
    return b"".join(message(*one) for one in messages)


def decode(data: bytes, found: list[Message], *, nested: bool = False) -> bytes:
    """
    Append the decoded messages to ``found``, and return the bytes of a truncated last message.

    Raises:
        RefusedError: A message is invalid; the messages before it have been appended.
    """
    last = -1
    while len(data) >= 12:
        offset, size = struct.unpack_from(">qi", data)
        if offset == -1 and len(data) - 12 < size >= 14:
            # Filler: the beginning of a message that is no message.
            break
        if size < 14 or offset <= last:
            raise RefusedError(f"size {size} at {offset} after {last}")
        if len(data) < 12 + size:
            break
        found += _decode_one(offset, data[12 : 12 + size], last, nested)
        data, last = data[12 + size :], offset
    return data


def _decode_one(offset: int, body: bytes, last: int, nested: bool) -> list[Message]:
    crc, magic, attributes = struct.unpack_from(">Ibb", body)
    if crc != zlib.crc32(body[4:]) or magic != 0:
        raise RefusedError(f"crc or magic at {offset}")
    key, rest = _take_blob(body[6:])
    value, rest = _take_blob(rest)
    codec = attributes & 7
    if codec == 0:
        return [(offset, key, value)]
    if codec not in NUMBERS.values() or nested or rest or value is None:
        raise RefusedError(f"wrapper at {offset}")
    inner: list[Message] = []
    left = decode(unpacked(codec, value), inner, nested=True)
    if left or not inner or inner[-1][0] != offset or inner[0][0] <= last:
        raise RefusedError(f"content of {offset}")
    return inner


def _take_blob(data: bytes) -> tuple[bytes | None, bytes]:
    if len(data) < 4:
        raise RefusedError("no length")
    (size,) = struct.unpack_from(">i", data)
    if size == -1:
        return None, data[4:]
    if size < 0 or size > len(data) - 4:
        raise RefusedError(f"length {size}")
    return data[4 : 4 + size], data[4 + size :]
