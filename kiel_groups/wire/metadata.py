"""Metadata v0: the live brokers, the partitions of topics and their leaders. Metadata v10: the ids of topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from kiel_groups.wire.error_codes import NO_ERROR, ErrorCode, error_code
from kiel_groups.wire.primitives import Buffer, Reader, Writer

__all__ = [
    "MetadataRequest",
    "MetadataResponse",
    "BrokerAddress",
    "TopicMetadata",
    "PartitionMetadata",
    "TopicIdsRequest",
]


_LEAST_BROKER_BYTES = 4 + 2 + 4
_LEAST_TOPIC_BYTES = 2 + 2 + 4
_LEAST_PARTITION_BYTES = 2 + 4 + 4 + 4 + 4
_REPLICA_BYTES = 4


class BrokerAddress(NamedTuple):
    """A live broker, as it advertises itself."""

    node_id: int
    host: str
    port: int


class PartitionMetadata(NamedTuple):
    """One partition. ``leader``, ``replicas`` and ``isr`` are node ids. ``leader`` is -1 while there is no leader."""

    error: ErrorCode
    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class TopicMetadata(NamedTuple):
    """One topic and its partitions, in the broker's order."""

    error: ErrorCode
    topic: str
    partitions: tuple[PartitionMetadata, ...]


@dataclass(frozen=True, slots=True)
class MetadataResponse:
    """
    A broker's view of the cluster. A fresh 0.8.1 cluster without topics lists no broker at all.

    ``brokers`` are those that have a host, so a leader may be missing.
    """

    brokers: tuple[BrokerAddress, ...]
    topics: tuple[TopicMetadata, ...]


@dataclass(frozen=True, slots=True)
class MetadataRequest:
    """Ask about some topics, or about all if none is given. A broker may be set to create a topic that is named."""

    API_KEY: ClassVar[int] = 3
    API_VERSION: ClassVar[int] = 0

    topics: tuple[str, ...] = ()

    @property
    def expects_response(self) -> bool:
        return True

    def encode_body(self) -> bytes:
        writer = Writer()
        writer.int32(len(self.topics))
        for topic in self.topics:
            writer.string(topic)
        return writer.getvalue()

    def decode_response(self, payload: Buffer) -> MetadataResponse:
        reader = Reader(payload, "a metadata response")
        brokers = [
            BrokerAddress(reader.int32(), reader.optional_string(), reader.int32())
            for _ in reader.array(_LEAST_BROKER_BYTES)
        ]
        topics = tuple(_read_topic(reader) for _ in reader.array(_LEAST_TOPIC_BYTES))
        reader.end()
        # A broker of 0.9 or later without a listener in plain text registers no host, and those of 0.8 pass that on.
        return MetadataResponse(tuple(broker for broker in brokers if broker.host), topics)


def _read_topic(reader: Reader) -> TopicMetadata:
    error = error_code(reader.int16())
    topic = reader.string()
    return TopicMetadata(error, topic, tuple(_read_partition(reader) for _ in reader.array(_LEAST_PARTITION_BYTES)))


def _read_partition(reader: Reader) -> PartitionMetadata:
    error = error_code(reader.int16())
    partition, leader = reader.int32(), reader.int32()
    replicas = tuple(reader.int32() for _ in reader.array(_REPLICA_BYTES))
    isr = tuple(reader.int32() for _ in reader.array(_REPLICA_BYTES))
    return PartitionMetadata(error, partition, leader, replicas, isr)


# Metadata v10: ask for the ids of topics, which brokers have from 2.8 on. A topic that is created again has another id.
#
# This is the only request here in the flexible format of later versions: lengths are varints, plus one, and each
# structure ends with tagged fields. The headers of request and response have these, too; here they are part of the
# body.


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
        found = dict(filter(None, (_read_topic_id(reader) for _ in range(_length(reader)))))
        reader.int32()
        _skip_tags(reader)
        reader.end()
        return found


def _read_topic_id(reader: Reader) -> tuple[str, str] | None:
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
