"""
Codecs of compressed message sets, by the number in a message's attributes.

One table entry is all that another codec takes. What is unpacked is bounded *while* it is unpacked: 290 kB of gzip can
stand for 300 MB.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

from kiel_groups.errors import ConfigError, MessageTooLargeError, ProtocolError

__all__ = ["Codec", "codec_named", "codec_numbered"]

#: As the protocol numbers them; those without an entry in the table below cannot be read or written yet.
_NAMES = {1: "gzip", 2: "snappy", 3: "lz4"}

_GZIP_FORMAT = 16 + zlib.MAX_WBITS
# Measured on JSON lines: as small as cramjam's level 4 and as zlib's own level 6, at 1.5 and 2 times their speed.
_GZIP_LEVEL = 4


@dataclass(frozen=True, slots=True)
class Codec:
    """
    One way to pack a message set.

    ``decompress`` takes the packed bytes and the most that they may unpack to, in bytes; it raises
    MessageTooLargeError beyond that, and ProtocolError for anything that is not one whole packed stream.
    """

    number: int
    name: str
    compress: Callable[[bytes], bytes]
    decompress: Callable[[bytes, int], bytes]


def codec_named(name: str) -> Codec:
    """
    Raises:
        ConfigError: No codec has this name.
    """
    for codec in _CODECS.values():
        if codec.name == name:
            return codec
    known = ", ".join(repr(codec.name) for codec in _CODECS.values())
    raise ConfigError(f"compression: {name!r} is not supported; expected {known} or None")


def codec_numbered(number: int) -> Codec:
    """
    Raises:
        ProtocolError: The number stands for no codec, or for one that is not supported yet.
    """
    codec = _CODECS.get(number)
    if codec is not None:
        return codec
    if number in _NAMES:
        raise ProtocolError(f"compressed with {_NAMES[number]}, which is not supported yet")
    raise ProtocolError(f"compressed with codec {number}, which does not exist in Kafka 0.8")


def _gzip(data: bytes) -> bytes:
    return zlib.compress(data, _GZIP_LEVEL, _GZIP_FORMAT)


def _gunzip(data: bytes, limit: int) -> bytes:
    stream = zlib.decompressobj(_GZIP_FORMAT)
    try:
        # One byte more than allowed tells "too large" from "exactly as large as allowed".
        unpacked = stream.decompress(data, limit + 1)
    except zlib.error as error:
        raise ProtocolError(f"its gzip stream is damaged ({error})") from error
    if len(unpacked) > limit:
        raise MessageTooLargeError(f"unpacks to more than {limit} bytes; raise max_decompressed_bytes to read it")
    if not stream.eof:
        raise ProtocolError(f"its gzip stream of {len(data)} bytes is truncated")
    if stream.unused_data:
        raise ProtocolError(f"{len(stream.unused_data)} bytes follow its gzip stream")
    return unpacked


_CODECS = {codec.number: codec for codec in (Codec(1, _NAMES[1], _gzip, _gunzip),)}
