"""Metadata requests: v0 for brokers, topics and leaders, v2 for the cluster and its controller, v10 for topic ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

from kiel_groups.wire.error_codes import ERROR, NO_ERROR, ErrorCode
from kiel_groups.wire.framing import Request
from kiel_groups.wire.primitives import (
    INT8,
    INT16,
    INT32,
    NULLABLE_STRING,
    STRING,
    FieldType,
    Reader,
    Writer,
    array,
    fields,
    structure,
    tuple_of,
)

T = TypeVar("T")


class BrokerAddress(NamedTuple):
    """A broker's node id, and the address that the broker advertises to clients."""

    node_id: int
    host: str
    port: int


_BROKER = structure(BrokerAddress, INT32, NULLABLE_STRING, INT32)


class PartitionMetadata(NamedTuple):
    """A partition with the node ids of its leader and replicas. ``leader`` is -1 while the partition has no leader."""

    error: ErrorCode
    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class TopicMetadata(NamedTuple):
    """A topic and its partitions, in the broker's order. After an error, there may be no partitions."""

    error: ErrorCode
    topic: str
    partitions: tuple[PartitionMetadata, ...]


class MetadataResponse(NamedTuple):
    """
    A broker's view of the cluster.

    ``brokers`` leaves out brokers without a host, so this field may lack the leader of a partition. A new cluster of
    0.8.1 without topics lists no brokers.
    """

    brokers: tuple[BrokerAddress, ...]
    topics: tuple[TopicMetadata, ...]

    @classmethod
    def of(cls, brokers: tuple[BrokerAddress, ...], topics: tuple[TopicMetadata, ...]) -> MetadataResponse:
        """Create a response with these topics, and with the given brokers that have a host."""
        # A broker of 0.9 or later without a listener in plain text registers no host, and those of 0.8 pass that on.
        return cls(tuple(broker for broker in brokers if broker.host), topics)


_PARTITION = structure(PartitionMetadata, ERROR, INT32, INT32, array(INT32), array(INT32))


@dataclass(frozen=True, slots=True)
class MetadataRequest(Request[MetadataResponse]):
    """
    Ask for the brokers, and for the topics in ``topics``, or for all topics if ``topics`` is empty.

    If ``topics`` names a topic that does not exist, a broker with ``auto.create.topics.enable`` creates the topic.
    """

    API_KEY, API_VERSION, ANSWER_NAME = 3, 0, "a metadata response"
    BODY = fields(topics=array(STRING))
    ANSWER = structure(
        MetadataResponse.of, array(_BROKER), array(structure(TopicMetadata, ERROR, STRING, array(_PARTITION)))
    )

    topics: tuple[str, ...] = ()


class ClusterAnswer(NamedTuple):
    """
    The cluster's id ("" if the broker has none) and the controller's node id (-1 if there is no controller).

    In KRaft mode, ``controller`` is the id of any broker.
    """

    cluster_id: str
    controller: int


@dataclass(frozen=True, slots=True)
class ClusterRequest(Request[ClusterAnswer]):
    """
    Ask for the ids of the cluster and its controller, with Metadata v2. Brokers support this version from 0.10.1 on.
    """

    API_KEY, API_VERSION, ANSWER_NAME = 3, 2, "a cluster response"
    BODY = fields(topics=array(STRING))
    # The brokers with their racks, the ids, and no topics, because none is asked for.
    ANSWER = structure(
        lambda _brokers, cluster_id, controller, _topics: ClusterAnswer(cluster_id, controller),
        *(array(tuple_of(INT32, STRING, INT32, NULLABLE_STRING)), NULLABLE_STRING, INT32, array(INT32)),
    )

    topics: ClassVar[tuple[str, ...]] = ()


# Metadata v10: ask for the ids of topics, which brokers have from 2.8 on. A topic that is created again has another id.
#
# This is the only request here in the flexible format of later versions: lengths are varints, plus one, and each
# structure ends with tagged fields. The headers of request and response have these, too; here they are part of the
# body.


#: The id 0 means no id: the cluster's brokers are set to the protocol of an earlier release.
_NO_ID = bytes(16)


def _write_varint(writer: Writer, number: int) -> None:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    writer.raw(bytes([*encoded, number]))


def _read_varint(reader: Reader) -> int:
    number = 0
    for shift in range(0, 35, 7):
        byte = reader.take(1)[0]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number
    raise reader.refuse("a number of more than five bytes")


def _read_length(reader: Reader) -> int:
    """Read and return the length of a text or an array in the flexible format. Null gives the length 0."""
    return max(0, _read_varint(reader) - 1)


def _write_text(writer: Writer, text: str) -> None:
    encoded = text.encode()
    _write_varint(writer, len(encoded) + 1)
    writer.raw(encoded)


def _skip_tags(reader: Reader) -> None:
    for _ in range(_read_varint(reader)):
        _read_varint(reader)
        reader.take(_read_varint(reader))


_TEXT = FieldType(lambda reader: reader.text(_read_length(reader)), _write_text, 1)
_TAGS = FieldType(_skip_tags, lambda writer, _: writer.int8(0), 1)
_ID = FieldType(lambda reader: bytes(reader.take(len(_NO_ID))), Writer.raw, len(_NO_ID))


def _array(element: FieldType[T]) -> FieldType[tuple[T, ...]]:
    def read(reader: Reader) -> tuple[T, ...]:
        return tuple([element.read(reader) for _ in reader.elements(_read_length(reader), element.least_bytes)])

    def write(writer: Writer, values: tuple[T, ...]) -> None:
        _write_varint(writer, len(values) + 1)
        for value in values:
            element.write(writer, value)

    return FieldType(read, write, 1)


def _topic_id(error: int, name: str, topic_id: bytes, *_: object) -> tuple[str, str] | None:
    return (name, topic_id.hex()) if error == NO_ERROR.number and topic_id != _NO_ID else None


def _topic_ids(*answer: Any) -> Mapping[str, str]:
    return dict(filter(None, answer[5]))


_NAMED = tuple_of(_ID, _TEXT, _TAGS)
_LISTED_BROKER = tuple_of(INT32, _TEXT, INT32, _TEXT, _TAGS)
_LISTED_PARTITION = tuple_of(INT16, *(INT32,) * 3, *(_array(INT32),) * 3, _TAGS)
_LISTED_TOPIC = structure(_topic_id, INT16, _TEXT, _ID, INT8, _array(_LISTED_PARTITION), INT32, _TAGS)


@dataclass(frozen=True, slots=True)
class TopicIdsRequest(Request[Mapping[str, str]]):
    """Ask for the id of each topic. The response leaves out topics that have an error or no id."""

    API_KEY, API_VERSION, ANSWER_NAME = 3, 10, "a topic-ids response"
    # Tags of the header, a delay, the brokers, the cluster's id and controller, the topics, rights, and tags.
    ANSWER = structure(
        _topic_ids, _TAGS, INT32, _array(_LISTED_BROKER), _TEXT, INT32, _array(_LISTED_TOPIC), INT32, _TAGS
    )

    topics: tuple[str, ...]

    def write_body(self, writer: Writer) -> None:
        """Write the request, after the tagged fields that end its header."""
        topics = _array(_NAMED).encode(tuple((_NO_ID, topic, None) for topic in self.topics))
        # No topic is created, and no rights are asked for.
        writer.raw(b"\0" + topics + b"\0\0\0" + b"\0")
