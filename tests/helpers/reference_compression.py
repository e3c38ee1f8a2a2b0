"""
A second implementation of gzip, snappy and lz4 in Python, written from the formats' specifications, for comparison.

Its snappy and lz4 encoders compress only runs of repeated bytes, so that their output has both literals and copies.
"""

from __future__ import annotations

import gzip
import re
import struct
import zlib
from collections.abc import Callable, Iterator

#: The numbers of codecs in a message's attributes.
NUMBERS = {"gzip": 1, "snappy": 2, "lz4": 3}

XERIAL = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
LZ4_MAGIC = struct.pack("<I", 0x184D2204)


class RefusedError(Exception):
    """A reference decoder found data that no broker of 0.8 sends."""


def packed(codec: str, data: bytes) -> bytes:
    """Compress ``data`` with a codec, in the framing that Java clients use."""
    packers: dict[str, Callable[[bytes], bytes]] = {
        "gzip": lambda data: gzip.compress(data, 6, mtime=0),
        "snappy": xerial,
        "lz4": lz4_frame,
    }
    return packers[codec](data)


def unpacked(number: int, data: bytes) -> bytes:
    """
    Decompress ``data`` with the codec ``number``.

    Raises:
        RefusedError: The data is invalid.
    """
    try:
        return {1: _gunzip, 2: _unsnappy, 3: _unlz4}[number](data)
    except (zlib.error, struct.error, IndexError) as error:
        raise RefusedError(f"codec {number}: {error}") from error


def runs(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Split ``data`` into literals, each with the number of further repetitions of its last byte."""
    end = 0
    for found in re.finditer(rb"(.)\1{7,}", data, re.DOTALL):
        start = found.start() + 1
        yield data[end:start], found.end() - start
        end = found.end()
    yield data[end:], 0


def _gunzip(data: bytes) -> bytes:
    stream = zlib.decompressobj(31)
    content = stream.decompress(data)
    if not stream.eof or stream.unused_data:
        raise RefusedError("gzip")
    return content


# --- snappy ---


def raw_snappy(data: bytes) -> bytes:
    """Encode one block of snappy: the length, literals of at most 60 bytes, and copies of at most 64 bytes."""
    block, length = bytearray(), len(data)
    while length > 127:
        block.append(length & 127 | 128)
        length >>= 7
    block.append(length)
    for literal, repeats in runs(data):
        for start in range(0, len(literal), 60):
            piece = literal[start : start + 60]
            block += bytes((len(piece) - 1 << 2,)) + piece
        for start in range(0, repeats, 64):
            block += struct.pack("<BH", min(repeats - start, 64) - 1 << 2 | 2, 1)
    return bytes(block)


def xerial(data: bytes, block_bytes: int = 100) -> bytes:
    """Encode a snappy stream in Java's framing. Its blocks are short, so that small data has several blocks."""
    blocks = [raw_snappy(data[start : start + block_bytes]) for start in range(0, len(data), block_bytes)]
    return XERIAL + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def _unsnappy(data: bytes) -> bytes:
    if not data.startswith(XERIAL[:8]):
        return _unsnappy_block(data)
    content, at = b"", 16
    if len(data) < at:
        raise RefusedError("snappy header")
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        if size < 0 or at + 4 + size > len(data):
            raise RefusedError("snappy block size")
        content += _unsnappy_block(data[at + 4 : at + 4 + size])
        at += 4 + size
    return content


def _unsnappy_block(data: bytes) -> bytes:
    length = shift = at = 0
    while data[at] & 128:
        length, shift, at = length | (data[at] & 127) << shift, shift + 7, at + 1
    length, at = length | data[at] << shift, at + 1
    content = bytearray()
    while at < len(data):
        tag, at = data[at], at + 1
        kind, size = tag & 3, (tag >> 2) + 1
        if kind == 0:
            wide = max(0, size - 60)
            size = size if not wide else int.from_bytes(data[at : at + wide], "little") + 1
            at += wide
            if at + size > len(data):
                raise RefusedError("snappy literal")
            content += data[at : at + size]
            at += size
        elif kind == 1:
            _repeat(content, (tag >> 5) << 8 | data[at], (tag >> 2 & 7) + 4)
            at += 1
        else:
            wide = 2 if kind == 2 else 4
            _repeat(content, struct.unpack_from("<H" if wide == 2 else "<I", data, at)[0], size)
            at += wide
        if len(content) > length:
            raise RefusedError("snappy length")
    if len(content) != length:
        raise RefusedError("snappy length")
    return bytes(content)


def _repeat(content: bytearray, distance: int, size: int) -> None:
    if not 0 < distance <= len(content):
        raise RefusedError("a copy from before the beginning")
    for _ in range(size):
        content.append(content[-distance])


# --- lz4 ---


def lz4_frame(data: bytes, *, kafka: bool = True, flags: int = 0x60, sizes: int = 0x40) -> bytes:
    """
    Encode an lz4 frame with blocks of at most 100 bytes, much shorter than the block size code ``sizes`` allows.

    ``kafka`` selects Kafka's wrong header checksum. ``flags`` may request block checksums (0x10), the content's size
    (0x08) and the content's checksum (0x04).
    """
    header = LZ4_MAGIC + bytes((flags, sizes)) + (struct.pack("<Q", len(data)) if flags & 8 else b"")
    frame = header + bytes((xxh32(header if kafka else header[4:]) >> 8 & 255,))
    for start in range(0, len(data), 100):
        block = data[start : start + 100]
        # Every second block is stored uncompressed.
        body, stored = (block, 1 << 31) if start // 100 % 2 else (raw_lz4(block), 0)
        frame += struct.pack("<I", len(body) | stored) + body
        frame += struct.pack("<I", xxh32(body)) if flags & 16 else b""
    return frame + bytes(4) + (struct.pack("<I", xxh32(data)) if flags & 4 else b"")


def raw_lz4(data: bytes) -> bytes:
    """Encode one block of lz4. Its last 12 bytes are literals, as the format requires."""
    block, literal = bytearray(), b""
    for part, repeats in runs(data[:-12]):
        literal += part
        if repeats:
            block += _lz4_sequence(literal, repeats - 4) + struct.pack("<H", 1) + _lz4_length(repeats - 4)
            literal = b""
    return bytes(block + _lz4_sequence(literal + data[-12:], 0))


def _lz4_sequence(literal: bytes, match: int) -> bytes:
    return bytes((min(len(literal), 15) << 4 | min(match, 15),)) + _lz4_length(len(literal)) + literal


def _lz4_length(length: int) -> bytes:
    return b"" if length < 15 else b"\xff" * ((length - 15) // 255) + bytes(((length - 15) % 255,))


def _unlz4(data: bytes) -> bytes:
    flags, sizes = data[4], data[5]
    at = 14 if flags & 8 else 6
    checksums = [xxh32(data[start:at]) >> 8 & 255 for start in (0, 4)]
    if data[:4] != LZ4_MAGIC or flags & 0xC3 != 0x40 or sizes & 0x8F or sizes < 0x40 or data[at] not in checksums:
        raise RefusedError("lz4 header")
    largest, content, at = 1 << 2 * (sizes >> 4) + 8, bytearray(), at + 1
    while True:
        (size,) = struct.unpack_from("<I", data, at)
        stored, size, at = size >> 31, size & 0x7FFFFFFF, at + 4
        if not size and not stored:
            break
        body, at = data[at : at + size], at + size
        if at > len(data) or size > largest:
            raise RefusedError("lz4 block size")
        if flags & 16:
            if struct.unpack_from("<I", data, at)[0] != xxh32(body):
                raise RefusedError("lz4 block checksum")
            at += 4
        before = len(content)
        if stored:
            content += body
        else:
            _unlz4_block(body, content, 0 if not flags & 0x20 else before)
        if len(content) - before > largest:
            raise RefusedError("lz4 block content")
    if flags & 4:
        if struct.unpack_from("<I", data, at)[0] != xxh32(bytes(content)):
            raise RefusedError("lz4 content checksum")
        at += 4
    if at != len(data) or (flags & 8 and struct.unpack_from("<Q", data, 6)[0] != len(content)):
        raise RefusedError("lz4 end")
    return bytes(content)


def _unlz4_block(data: bytes, content: bytearray, beginning: int) -> None:
    at = 0
    while True:
        token, at = data[at], at + 1
        size, at = _unlz4_length(token >> 4, data, at)
        if at + size > len(data):
            raise RefusedError("lz4 literal")
        content += data[at : at + size]
        at += size
        if at == len(data):
            return
        (distance,), at = struct.unpack_from("<H", data, at), at + 2
        size, at = _unlz4_length(token & 15, data, at)
        if distance > len(content) - beginning:
            raise RefusedError("lz4 copy")
        _repeat(content, distance, size + 4)


def _unlz4_length(size: int, data: bytes, at: int) -> tuple[int, int]:
    more = 255 if size == 15 else 0
    while more == 255:
        more, at = data[at], at + 1
        size += more
    return size, at


def xxh32(data: bytes) -> int:
    """Return xxHash-32 with the seed 0."""
    mask, primes = 0xFFFFFFFF, (2654435761, 2246822519, 3266489917, 668265263, 374761393)

    def rotate(value: int, bits: int) -> int:
        return (value << bits | (value & mask) >> 32 - bits) & mask

    word, at = primes[4], 0
    if len(data) >= 16:
        lanes = [primes[0] + primes[1] & mask, primes[1], 0, -primes[0] & mask]
        while len(data) - at >= 16:
            given = struct.unpack_from("<4I", data, at)
            lanes = [
                rotate(lane + one * primes[1] & mask, 13) * primes[0] & mask
                for lane, one in zip(lanes, given, strict=True)
            ]
            at += 16
        word = sum(rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True))
    word = word + len(data) & mask
    while len(data) - at >= 4:
        word = rotate(word + struct.unpack_from("<I", data, at)[0] * primes[2] & mask, 17) * primes[3] & mask
        at += 4
    for byte in data[at:]:
        word = rotate(word + byte * primes[4] & mask, 11) * primes[0] & mask
    word = (word ^ word >> 15) * primes[1] & mask
    word = (word ^ word >> 13) * primes[2] & mask
    return word ^ word >> 16
