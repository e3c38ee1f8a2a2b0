"""
Compress and decompress LZ4 frames, with the wrong header checksum of Kafka before 0.10.

A frame is ``magic, flags, block sizes, checksum of the header, [size int32, block]*, 0``. By the format the checksum
covers the header without the magic. Kafka before 0.10 hashes the magic too, and refuses the right checksum. So this
module writes the wrong checksum, and reads frames with either. To read a frame, it corrects the checksum for liblz4, a
strict decoder, which checks the rest.

Sources: "LZ4 Frame Format Description"; KIP-57 for the wrong checksum and the versions that expect it.
"""

from __future__ import annotations

from functools import lru_cache
from mmap import MAP_PRIVATE, mmap
from struct import Struct

import cramjam

from kiel_groups.errors import ProtocolError
from kiel_groups.wire.codecs.size_limit import too_large
from kiel_groups.wire.primitives import Buffer

__all__ = ["pack", "unpack"]

_MAGIC = bytes.fromhex("04224d18")
_UINT32 = Struct("<I")
_UINT64 = Struct("<Q")

_VERSION_MASK, _VERSION_1 = 0xC0, 0x40
_INDEPENDENT_BLOCKS = 0x20
_BLOCK_CHECKSUMS = 0x10
_CONTENT_SIZE = 0x08
_CONTENT_CHECKSUM = 0x04
_DICTIONARY = 0x01

#: The highest bit of a block's size: the block is not compressed.
_STORED = 1 << 31

#: The largest block in bytes, by its number in the header.
_BLOCK_BYTES = {4: 64 << 10, 5: 256 << 10, 6: 1 << 20, 7: 4 << 20}
_WRITTEN_BLOCKS = 4

# The most that a byte of a block can unpack to: a byte that lengthens a match adds 255 bytes.
_MOST_PER_BYTE = 255

_SMALL_BYTES, _LARGE_BYTES = 64 << 10, 1 << 20


#: Memory for small frames, while it is not in use: one for each thread that has unpacked a frame at the same time. A
#: frame does not say how much it unpacks to, and new memory for the most possible would cost more than the content.
_small_rooms: list[memoryview] = []


def pack(data: bytes) -> bytes:
    """Write a frame as Java's producer writes it: independent blocks of 64 KiB, no optional field."""
    largest = _BLOCK_BYTES[_WRITTEN_BLOCKS]
    header = _MAGIC + bytes((_VERSION_1 | _INDEPENDENT_BLOCKS, _WRITTEN_BLOCKS << 4))
    frame = [header, _checksum(header)]
    for start in range(0, len(data), largest):
        block = data[start : start + largest]
        packed = bytes(cramjam.lz4.compress_block(block, store_size=False))
        if len(packed) < len(block):
            frame += (_UINT32.pack(len(packed)), packed)
        else:
            frame += (_UINT32.pack(len(block) | _STORED), block)
    frame.append(_UINT32.pack(0))
    return b"".join(frame)


def unpack(data: Buffer, limit: int) -> Buffer:
    """
    Read one frame that unpacks to at most ``limit`` bytes.

    Raises:
        MessageTooLargeError: The frame unpacks to more, or is damaged and its blocks could unpack to more.
        ProtocolError: The frame is damaged, truncated, or followed by other bytes.
    """
    header_bytes = _header_bytes(data)
    most = _most_content(data, header_bytes)
    room_bytes = min(most, limit)
    frame = _with_right_checksum(data, header_bytes)
    try:
        return _unpack_small(frame, room_bytes) if room_bytes <= _SMALL_BYTES else _unpack_large(frame, room_bytes)
    except cramjam.DecompressionError as error:
        if most > limit:
            raise too_large(limit) from error
        raise ProtocolError(f"its lz4 frame is damaged ({error})") from error


def _unpack_small(frame: Buffer, room_bytes: int) -> bytes:
    try:
        # A list gives each item to one thread only.
        room = _small_rooms.pop()
    except IndexError:
        room = memoryview(bytearray(_SMALL_BYTES))
    try:
        return bytes(room[: cramjam.lz4.decompress_into(frame, room[:room_bytes])])
    finally:
        _small_rooms.append(room)


def _unpack_large(frame: Buffer, room_bytes: int) -> Buffer:
    # A large bytearray is filled with zeros, and copied, with the interpreter's lock held. A mapping is neither.
    is_mapped = room_bytes > _LARGE_BYTES
    room = memoryview(mmap(-1, room_bytes, flags=MAP_PRIVATE) if is_mapped else bytearray(room_bytes))
    found = room[: cramjam.lz4.decompress_into(frame, room)]
    return found if is_mapped else bytes(found)


def _header_bytes(data: Buffer) -> int:
    """Check the header, and return its length in bytes, including the checksum."""
    if len(data) <= len(_MAGIC) + 2:
        raise _truncated(data)
    if data[: len(_MAGIC)] != _MAGIC:
        raise ProtocolError(f"no lz4 frame: it starts with {data[: len(_MAGIC)].hex(' ')}")
    flags = data[len(_MAGIC)]
    if flags & _VERSION_MASK != _VERSION_1 or flags & _DICTIONARY:
        raise ProtocolError(f"its lz4 frame has the flags {flags:#04x}; expected version 1 without a dictionary")
    length = len(_MAGIC) + 3 + (_UINT64.size if flags & _CONTENT_SIZE else 0)
    if len(data) < length:
        raise _truncated(data)
    return length


def _most_content(data: Buffer, position: int) -> int:
    """Walk the blocks from ``position`` to the end of the frame, and return the most that they can unpack to."""
    flags, largest = data[len(_MAGIC)], _BLOCK_BYTES.get(data[len(_MAGIC) + 1] >> 4)
    if largest is None:
        raise ProtocolError("its lz4 frame has blocks of a size that does not exist")
    trailer = _UINT32.size if flags & _BLOCK_CHECKSUMS else 0
    most = 0
    while position + _UINT32.size <= len(data):
        size = _UINT32.unpack_from(data, position)[0]
        position += _UINT32.size
        if not size:
            _expect_end(data, position + (_UINT32.size if flags & _CONTENT_CHECKSUM else 0))
            return most
        stored = size & ~_STORED
        most += stored if size & _STORED else min(largest, _MOST_PER_BYTE * stored)
        position += stored + trailer
    raise _truncated(data)


def _expect_end(data: Buffer, end: int) -> None:
    if end > len(data):
        raise _truncated(data)
    if end < len(data):
        raise ProtocolError(f"{len(data) - end} bytes follow its lz4 frame")


def _with_right_checksum(data: Buffer, header_bytes: int) -> Buffer:
    """Return the frame with the header checksum that the format requires."""
    header, given, rest = bytes(data[: header_bytes - 1]), data[header_bytes - 1 : header_bytes], data[header_bytes:]
    right = _checksum(header[len(_MAGIC) :])
    if given == right:
        return data
    if given != _checksum(header):
        raise ProtocolError("its lz4 frame has a header that matches neither checksum, right or as Kafka 0.8 has it")
    return b"".join((header, right, bytes(rest)))


@lru_cache(maxsize=16)
def _checksum(header: bytes) -> bytes:
    """Return the second byte of a header's xxHash-32. Headers under 16 bytes do not reach the hash's main loop."""
    word, mask = len(header) + 374761393, 0xFFFFFFFF
    whole = len(header) & ~3
    for (lane,) in _UINT32.iter_unpack(header[:whole]):
        word = _rotated(word + lane * 3266489917 & mask, 17) * 668265263 & mask
    for byte in header[whole:]:
        word = _rotated(word + byte * 374761393 & mask, 11) * 2654435761 & mask
    word = (word ^ word >> 15) * 2246822519 & mask
    word = (word ^ word >> 13) * 3266489917 & mask
    return bytes(((word ^ word >> 16) >> 8 & 0xFF,))


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> 32 - bits) & 0xFFFFFFFF


def _truncated(data: Buffer) -> ProtocolError:
    return ProtocolError(f"its lz4 frame of {len(data)} bytes is truncated")
