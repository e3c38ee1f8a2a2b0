"""
Compress and decompress message sets: gzip, snappy, and lz4 in the framing of Kafka 0.8.

``wire.message_sets`` compresses and decompresses with this module. The clients and ``constants`` look codecs up by
name. Decompression stops at a limit of the unpacked size. A result depends only on the arguments: no codec reads a
file, or keeps state between calls.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from mmap import MAP_PRIVATE, mmap
from struct import Struct

import cramjam

from kiel_groups.errors import ConfigError, MessageTooLargeError, ProtocolError
from kiel_groups.wire.primitives import Buffer


@dataclass(frozen=True, slots=True)
class Codec:
    """
    A way to compress message sets, with its number in message attributes.

    ``decompress`` takes the packed bytes and the limit of the unpacked size, in bytes. ``decompress`` raises
    MessageTooLargeError above the limit, and ProtocolError for data that is not one whole packed stream.
    """

    number: int
    name: str
    compress: Callable[[bytes], bytes]
    decompress: Callable[[Buffer, int], Buffer]


def _too_large(limit: int) -> MessageTooLargeError:
    """
    Return the error for data that unpacks to more than ``limit`` bytes.

    The caller prefixes the text with topic, partition and offset.
    """
    return MessageTooLargeError(f"unpacks to more than {limit} bytes; raise max_decompressed_bytes to read it")


# gzip: one member (RFC 1952).

_GZIP_FORMAT = 16 + zlib.MAX_WBITS
# Measured on JSON lines: the result is as small as with cramjam's level 4 and with zlib's own level 6, at 1.5 and 2
# times their speed.
_GZIP_LEVEL = 4
#: zlib releases the interpreter's lock while it works, but not while it copies the rest of its input, or joins its
#: output. So zlib gets and returns at most this many bytes at a time.
_GZIP_STEP_BYTES = 1 << 20


def _gzip_pack(data: bytes) -> bytes:
    """Compress data into one gzip member, and return the member."""
    return zlib.compress(data, _GZIP_LEVEL, _GZIP_FORMAT)


def _gzip_unpack(data: Buffer, limit: int) -> bytes:
    """
    Unpack one gzip member to at most ``limit`` bytes.

    Raises:
        MessageTooLargeError: The member unpacks to more than ``limit`` bytes.
        ProtocolError: The member is damaged, truncated, or followed by other bytes.
    """
    stream = zlib.decompressobj(_GZIP_FORMAT)
    rest, parts = memoryview(data), []
    # One byte more than allowed distinguishes "too large" from "exactly as large as allowed".
    left = limit + 1
    try:
        while left and not stream.eof:
            packed: Buffer = stream.unconsumed_tail
            if not packed:
                packed, rest = rest[:_GZIP_STEP_BYTES], rest[_GZIP_STEP_BYTES:]
            part = stream.decompress(packed, min(left, _GZIP_STEP_BYTES))
            if not part and not packed:
                raise ProtocolError(f"its gzip stream of {len(data)} bytes is truncated")
            parts.append(part)
            left -= len(part)
    except zlib.error as error:
        raise ProtocolError(f"its gzip stream is damaged ({error})") from error
    if not left:
        raise _too_large(limit)
    following = len(stream.unused_data) + len(rest)
    if following:
        raise ProtocolError(f"{following} bytes follow its gzip stream")
    return b"".join(parts)


# snappy, in the stream format of Java's library, xerial: ``82 "SNAPPY" 00, version int32, oldest reader int32, [size
# int32, block]*``.
#
# Some clients wrote one bare block without that header. Java reads such blocks too, and so does this decoder.

_SNAPPY_MAGIC = b"\x82SNAPPY\0"
_INT32 = Struct(">i")
# The version and the oldest version that can read it: xerial has only version 1.
_SNAPPY_HEADER = _SNAPPY_MAGIC + _INT32.pack(1) + _INT32.pack(1)

# xerial's default. 64 KiB saves 2 % (measured on JSON lines), not enough to differ from Java.
_SNAPPY_BLOCK_BYTES = 32 << 10

# The densest element of the format unpacks 3 bytes to 64; a block that claims more than this per byte is damaged.
_SNAPPY_MOST_PER_BYTE = 22

_SNAPPY_MUCH_BYTES = 256 << 10


def _snappy_pack(data: bytes) -> bytes:
    """Compress data into a snappy stream in xerial's format, and return the stream."""
    stream = [_SNAPPY_HEADER]
    for start in range(0, len(data), _SNAPPY_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _SNAPPY_BLOCK_BYTES]))
        stream += (_INT32.pack(len(block)), block)
    return b"".join(stream)


def _snappy_unpack(data: Buffer, limit: int) -> bytes:
    """
    Unpack a snappy stream in xerial's format, or a bare snappy block, to at most ``limit`` bytes.

    Every block states its unpacked size. The function checks this size before it allocates memory for the content.

    Raises:
        MessageTooLargeError: The data unpacks to more than ``limit`` bytes.
        ProtocolError: The data is damaged or truncated.
    """
    parts, left = [], limit
    # Python joins much data without the interpreter's lock, if the parts are bytes. Copies of small data would not pay.
    is_much = len(data) > _SNAPPY_MUCH_BYTES
    for block in _snappy_blocks(data):
        try:
            size = cramjam.snappy.decompress_raw_len(block)
            if size > _SNAPPY_MOST_PER_BYTE * len(block):
                raise ProtocolError(f"its snappy block of {len(block)} bytes claims to hold {size}")
            if size > left:
                raise _too_large(limit)
            part = cramjam.snappy.decompress_raw(block)
            parts.append(bytes(part) if is_much else part)
        except cramjam.DecompressionError as error:
            raise ProtocolError(f"its snappy block of {len(block)} bytes is damaged ({error})") from error
        left -= size
    return b"".join(parts)


def _snappy_blocks(data: Buffer) -> Iterator[memoryview]:
    view = memoryview(data)
    if view[: len(_SNAPPY_MAGIC)] != _SNAPPY_MAGIC:
        yield view
        return
    position = len(_SNAPPY_HEADER)
    if len(data) < position:
        raise _truncated_snappy(data)
    while position < len(data):
        start = position + _INT32.size
        if start > len(data):
            raise _truncated_snappy(data)
        size = _INT32.unpack_from(data, position)[0]
        if size < 0:
            raise ProtocolError(f"its snappy stream holds a block of {size} bytes")
        position = start + size
        if position > len(data):
            raise _truncated_snappy(data)
        yield view[start:position]


def _truncated_snappy(data: Buffer) -> ProtocolError:
    return ProtocolError(f"its snappy stream of {len(data)} bytes is truncated")


# lz4 frames, with the wrong header checksum of Kafka before 0.10: ``magic, flags, block sizes, checksum of the header,
# [size int32, block]*, 0``.
#
# By the format the checksum covers the header without the magic. Kafka before 0.10 hashes the magic too, and refuses
# the right checksum. So frames are written with the wrong checksum, and are read with either. Before a frame
# is read, its checksum is corrected for liblz4, a strict decoder, which checks the rest.
#
# Sources: "LZ4 Frame Format Description"; KIP-57 for the wrong checksum and the versions that expect it.

_LZ4_MAGIC = bytes.fromhex("04224d18")
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
_LZ4_BLOCK_BYTES = {4: 64 << 10, 5: 256 << 10, 6: 1 << 20, 7: 4 << 20}
_WRITTEN_BLOCKS = 4

# The most that a byte of a block can unpack to: a byte that lengthens a match adds 255 bytes.
_LZ4_MOST_PER_BYTE = 255

_SMALL_BYTES, _LARGE_BYTES = 64 << 10, 1 << 20


#: Memory for small frames, while it is not in use: one for each thread that has unpacked a frame at the same time. A
#: frame does not say how much it unpacks to, and new memory for the most possible would cost more than the content.
_small_rooms: list[memoryview] = []


def _lz4_pack(data: bytes) -> bytes:
    """Compress data into an lz4 frame as Java's producer writes it: independent blocks of 64 KiB, no optional field."""
    largest = _LZ4_BLOCK_BYTES[_WRITTEN_BLOCKS]
    header = _LZ4_MAGIC + bytes((_VERSION_1 | _INDEPENDENT_BLOCKS, _WRITTEN_BLOCKS << 4))
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


def _lz4_unpack(data: Buffer, limit: int) -> Buffer:
    """
    Unpack one lz4 frame to at most ``limit`` bytes.

    Raises:
        MessageTooLargeError: The frame unpacks to more than ``limit`` bytes. Or the frame cannot be unpacked, and its
            block sizes allow more than ``limit`` bytes.
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
            raise _too_large(limit) from error
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
    """Check the header of an lz4 frame, and return the length of the header in bytes, including the checksum."""
    if len(data) <= len(_LZ4_MAGIC) + 2:
        raise _truncated_lz4(data)
    if data[: len(_LZ4_MAGIC)] != _LZ4_MAGIC:
        raise ProtocolError(f"no lz4 frame: it starts with {data[: len(_LZ4_MAGIC)].hex(' ')}")
    flags = data[len(_LZ4_MAGIC)]
    if flags & _VERSION_MASK != _VERSION_1 or flags & _DICTIONARY:
        raise ProtocolError(f"its lz4 frame has the flags {flags:#04x}; expected version 1 without a dictionary")
    length = len(_LZ4_MAGIC) + 3 + (_UINT64.size if flags & _CONTENT_SIZE else 0)
    if len(data) < length:
        raise _truncated_lz4(data)
    return length


def _most_content(data: Buffer, position: int) -> int:
    """
    Check the sizes of the blocks from ``position`` on. Return the largest number of bytes to which these blocks can
    unpack.
    """
    flags, largest = data[len(_LZ4_MAGIC)], _LZ4_BLOCK_BYTES.get(data[len(_LZ4_MAGIC) + 1] >> 4)
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
        most += stored if size & _STORED else min(largest, _LZ4_MOST_PER_BYTE * stored)
        position += stored + trailer
    raise _truncated_lz4(data)


def _expect_end(data: Buffer, end: int) -> None:
    if end > len(data):
        raise _truncated_lz4(data)
    if end < len(data):
        raise ProtocolError(f"{len(data) - end} bytes follow its lz4 frame")


def _with_right_checksum(data: Buffer, header_bytes: int) -> Buffer:
    """
    Return the frame with the header checksum that the lz4 format requires.

    Raises:
        ProtocolError: The frame has neither that checksum nor the wrong checksum of Kafka 0.8.
    """
    header, given, rest = bytes(data[: header_bytes - 1]), data[header_bytes - 1 : header_bytes], data[header_bytes:]
    right = _checksum(header[len(_LZ4_MAGIC) :])
    if given == right:
        return data
    if given != _checksum(header):
        raise ProtocolError("its lz4 frame has a header that matches neither checksum, right or as Kafka 0.8 has it")
    return b"".join((header, right, bytes(rest)))


@lru_cache(maxsize=16)
def _checksum(header: bytes) -> bytes:
    """
    Return the checksum of an lz4 frame's header: the second byte of its xxHash-32.

    The hash's main loop is left out, because it applies only to 16 bytes or more.
    """
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


def _truncated_lz4(data: Buffer) -> ProtocolError:
    return ProtocolError(f"its lz4 frame of {len(data)} bytes is truncated")


GZIP = Codec(1, "gzip", _gzip_pack, _gzip_unpack)
SNAPPY = Codec(2, "snappy", _snappy_pack, _snappy_unpack)
LZ4 = Codec(3, "lz4", _lz4_pack, _lz4_unpack)
_CODECS = {codec.number: codec for codec in (GZIP, SNAPPY, LZ4)}


def codec_by_name(name: str) -> Codec:
    """
    Return the codec with this name, such as "gzip".

    Raises:
        ConfigError: No codec has this name.
    """
    for codec in _CODECS.values():
        if codec.name == name:
            return codec
    known = ", ".join(repr(codec.name) for codec in _CODECS.values())
    raise ConfigError(f"compression: {name!r} is not supported; expected {known} or None")


def codec_by_number(number: int) -> Codec:
    """
    Return the codec with this number in message attributes.

    Raises:
        ProtocolError: No codec has this number.
    """
    codec = _CODECS.get(number)
    if codec is None:
        raise ProtocolError(f"codec {number} does not exist in Kafka 0.8")
    return codec
