"""
Find the codec of a compressed message set, by the number in a message's attributes or by name.

Another codec needs only an entry in the table. The unpacked size is limited *before* it fills memory: 290 kB of gzip
can unpack to 300 MB.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kiel_groups.errors import ConfigError, ProtocolError
from kiel_groups.wire.codecs import gzip, lz4, snappy
from kiel_groups.wire.primitives import Buffer

__all__ = ["Codec", "codec_by_name", "codec_by_number"]


@dataclass(frozen=True, slots=True)
class Codec:
    """
    One way to compress a message set.

    ``decompress`` takes the packed bytes and the limit of the unpacked size, in bytes. It raises MessageTooLargeError
    above the limit, and ProtocolError for data that is not one whole packed stream.
    """

    number: int
    name: str
    compress: Callable[[bytes], bytes]
    decompress: Callable[[Buffer, int], Buffer]


def codec_by_name(name: str) -> Codec:
    """
    Return the codec of a name.

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
    Return the codec of a number.

    Raises:
        ProtocolError: No codec has this number.
    """
    codec = _CODECS.get(number)
    if codec is None:
        raise ProtocolError(f"codec {number} does not exist in Kafka 0.8")
    return codec


_CODECS = {
    codec.number: codec
    for codec in (
        Codec(1, "gzip", gzip.pack, gzip.unpack),
        Codec(2, "snappy", snappy.pack, snappy.unpack),
        Codec(3, "lz4", lz4.pack, lz4.unpack),
    )
}
