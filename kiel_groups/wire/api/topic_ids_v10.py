"""
Metadata v10: ask for the ids of topics, which brokers have from 2.8 on. A topic that is created again has another id.

This is the only request here in the flexible format of later versions: lengths are varints, plus one, and each
structure ends with tagged fields. The headers of request and response have these, too; here they are part of the body.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from kiel_groups.wire.error_codes import NO_ERROR
from kiel_groups.wire.primitives import Buffer, Reader

__all__ = ["TopicIdsRequest"]

#: The id of a topic that has none, in a cluster whose brokers are set to the protocol of an earlier release.
_NO_ID = bytes(16)

_NO_TAGS = b"\x00"


@dataclass(frozen=True, slots=True)
class TopicIdsRequest:
    """Ask for the ids of topics, by their names. The answer leaves out topics that do not exist, or have no id."""

    API_KEY: ClassVar[int] = 3
    API_VERSION: ClassVar[int] = 10

    topics: tuple[str, ...]

    @property
    def expects_response(self) -> bool:
        return True

    def encode_body(self) -> bytes:
        parts = [_NO_TAGS, _varint(len(self.topics) + 1)]
        for topic in self.topics:
            name = topic.encode()
            parts += [_NO_ID, _varint(len(name) + 1), name, _NO_TAGS]
        # No topic is created, and no rights are asked for.
        return b"".join([*parts, b"\x00\x00\x00", _NO_TAGS])

    def decode_response(self, payload: Buffer) -> Mapping[str, str]:
        reader = Reader(payload, "a topic-ids response")
        _skip_tags(reader)
        reader.int32()
        for _ in range(_length(reader)):
            reader.int32()
            _text(reader)
            reader.int32()
            _text(reader)
            _skip_tags(reader)
        _text(reader)
        reader.int32()
        found = dict(filter(None, (_read_topic(reader) for _ in range(_length(reader)))))
        reader.int32()
        _skip_tags(reader)
        reader.end()
        return found


def _read_topic(reader: Reader) -> tuple[str, str] | None:
    error, name = reader.int16(), _text(reader)
    topic_id = bytes(reader.take(len(_NO_ID)))
    reader.take(1)
    for _ in range(_length(reader)):
        reader.take(2 + 4 + 4 + 4)
        for _ in range(3):
            reader.take(4 * _length(reader))
        _skip_tags(reader)
    reader.int32()
    _skip_tags(reader)
    return (name, topic_id.hex()) if error == NO_ERROR.number and topic_id != _NO_ID else None


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def _read_varint(reader: Reader) -> int:
    number = 0
    for shift in range(0, 35, 7):
        byte = reader.take(1)[0]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number
    raise reader.refuse("a number of more than five bytes")


def _length(reader: Reader) -> int:
    """Read the length of a text or an array; null, which is 0, becomes 0."""
    return max(0, _read_varint(reader) - 1)


def _text(reader: Reader) -> str:
    try:
        return str(reader.take(_length(reader)), "utf-8")
    except UnicodeDecodeError as error:
        raise reader.refuse("a text that is no UTF-8") from error


def _skip_tags(reader: Reader) -> None:
    for _ in range(_read_varint(reader)):
        _read_varint(reader)
        reader.take(_read_varint(reader))
