"""OffsetCommit and OffsetFetch: v0 stores a group's offsets in ZooKeeper through any broker, later ones in Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from kiel_groups.model import OffsetAndMetadata, TopicPartition
from kiel_groups.wire.error_codes import ErrorCode, error_code
from kiel_groups.wire.primitives import Buffer, Reader, Writer, read_partitions, write_partitions

__all__ = [
    "OffsetCommitRequest",
    "OffsetFetchRequest",
    "FetchedOffset",
    "read_commit_errors",
    "write_offset",
    "OFFSETS_TOPIC",
    "OffsetCommitRequestV1",
    "OffsetCommitRequestV2",
    "OffsetFetchRequestV1",
]


# OffsetCommit and OffsetFetch v0: store and read a group's offsets in ZooKeeper, through any broker of 0.8.1 or later.
#
# A broker of 0.8.0 closes the connection instead of answering.


_ERROR_BYTES = 2
_LEAST_OFFSET_BYTES = 8 + 2 + 2


class FetchedOffset(NamedTuple):
    """
    A committed offset as a broker read it.

    ``offset`` is -1, with the error UNKNOWN_TOPIC_OR_PARTITION, if no offset was committed, and *also* if the broker
    has just started and does not know the topic yet. So this answer alone is no reason to reset a position. In the
    answer to v1, the offset is -1 without an error if no offset was committed.
    """

    offset: int
    metadata: str
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class OffsetCommitRequest:
    """
    Store offsets. Each partition succeeds or fails on its own.

    Brokers do not check that a partition exists: an offset for a missing partition leaves a junk znode. They check the
    metadata for its length, and then discard it.
    """

    API_KEY: ClassVar[int] = 8
    API_VERSION: ClassVar[int] = 0

    group: str
    offsets: Mapping[TopicPartition, OffsetAndMetadata]

    @property
    def expects_response(self) -> bool:
        return True

    def encode_body(self) -> bytes:
        writer = Writer()
        writer.string(self.group)
        write_partitions(writer, self.offsets.items(), write_offset)
        return writer.getvalue()

    def decode_response(self, payload: Buffer) -> Mapping[TopicPartition, ErrorCode]:
        return read_commit_errors(payload)


@dataclass(frozen=True, slots=True)
class OffsetFetchRequest:
    """Read the committed offsets of some partitions."""

    API_KEY: ClassVar[int] = 9
    API_VERSION: ClassVar[int] = 0

    group: str
    partitions: tuple[TopicPartition, ...]

    @property
    def expects_response(self) -> bool:
        return True

    def encode_body(self) -> bytes:
        writer = Writer()
        writer.string(self.group)
        write_partitions(writer, ((partition, None) for partition in self.partitions), _write_nothing)
        return writer.getvalue()

    def decode_response(self, payload: Buffer) -> Mapping[TopicPartition, FetchedOffset]:
        return read_partitions(Reader(payload, "an offset-fetch response"), _read_offset, _LEAST_OFFSET_BYTES)


def read_commit_errors(payload: Buffer) -> Mapping[TopicPartition, ErrorCode]:
    """
    Decode the response to a commit of v0, v1 or v2: the outcome of each partition.

    Raises:
        ProtocolError: The payload is no such response.
    """
    return read_partitions(Reader(payload, "an offset-commit response"), _read_error, _ERROR_BYTES)


def write_offset(writer: Writer, value: OffsetAndMetadata) -> None:
    """Write the offset of a partition, as commits of v0 and v2 have it."""
    writer.int64(value.offset)
    writer.string(value.metadata)


def _write_nothing(writer: Writer, value: None) -> None:
    """Write nothing: the request has only the partition's number."""


def _read_error(reader: Reader) -> ErrorCode:
    return error_code(reader.int16())


def _read_offset(reader: Reader) -> FetchedOffset:
    return FetchedOffset(reader.int64(), reader.optional_string(), error_code(reader.int16()))


# OffsetCommit v1 and v2, and OffsetFetch v1: store and read a group's offsets in Kafka, through the group's
# coordinator.
#
# Of these commits, 0.8.2 takes v1, 0.9 to 3.9 take both, and 4.x takes v2. 0.8.1 answers v1 and stores nothing.


#: The topic in which coordinators keep offsets and groups. It does not exist before the first coordinator is asked for.
OFFSETS_TOPIC: Final = "__consumer_offsets"


@dataclass(frozen=True, slots=True)
class OffsetCommitRequestV1:
    """
    Store offsets in Kafka, as brokers of 0.8.2 do. Each partition succeeds or fails on its own.

    A client that is no member of a group that brokers coordinate gives the generation -1 and an empty member id.
    ``timestamp_ms`` is the time of the commit, from which an offset's retention counts; -1 is the broker's own time.
    """

    API_KEY: ClassVar[int] = 8
    API_VERSION: ClassVar[int] = 1

    group: str
    generation: int
    member_id: str
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    timestamp_ms: int = -1

    @property
    def expects_response(self) -> bool:
        return True

    def encode_body(self) -> bytes:
        writer = Writer()
        writer.string(self.group)
        writer.int32(self.generation)
        writer.string(self.member_id)
        write_partitions(writer, self.offsets.items(), self._write_offset)
        return writer.getvalue()

    def decode_response(self, payload: Buffer) -> Mapping[TopicPartition, ErrorCode]:
        return read_commit_errors(payload)

    def _write_offset(self, writer: Writer, value: OffsetAndMetadata) -> None:
        writer.int64(value.offset)
        writer.int64(self.timestamp_ms)
        writer.string(value.metadata)


@dataclass(frozen=True, slots=True)
class OffsetCommitRequestV2:
    """
    Store offsets in Kafka, as brokers from 0.9 on do. Each partition succeeds or fails on its own.

    A client that is no member gives the generation -1 and an empty member id, which the coordinator takes only while
    the group has no members. The coordinator checks the member's generation, but not that the member owns the
    partitions. ``retention_ms`` is how long the offsets are kept; -1 is the broker's ``offsets.retention.minutes``.
    """

    API_KEY: ClassVar[int] = 8
    API_VERSION: ClassVar[int] = 2

    group: str
    generation: int
    member_id: str
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    retention_ms: int = -1

    @property
    def expects_response(self) -> bool:
        return True

    def encode_body(self) -> bytes:
        writer = Writer()
        writer.string(self.group)
        writer.int32(self.generation)
        writer.string(self.member_id)
        writer.int64(self.retention_ms)
        write_partitions(writer, self.offsets.items(), write_offset)
        return writer.getvalue()

    def decode_response(self, payload: Buffer) -> Mapping[TopicPartition, ErrorCode]:
        return read_commit_errors(payload)


@dataclass(frozen=True, slots=True)
class OffsetFetchRequestV1(OffsetFetchRequest):
    """
    Read the committed offsets of some partitions from Kafka.

    The bytes are those of v0, and the version has the coordinator read them from Kafka instead of ZooKeeper. A
    partition without a committed offset has the offset -1 and no error.
    """

    API_VERSION: ClassVar[int] = 1
