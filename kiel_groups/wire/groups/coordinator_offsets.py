"""
OffsetCommit v1 and v2, and OffsetFetch v1: store and read a group's offsets in Kafka, through the group's coordinator.

Of these commits, 0.8.2 takes v1, 0.9 to 3.9 take both, and 4.x takes v2. 0.8.1 answers v1 and stores nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from kiel_groups.model import OffsetAndMetadata, TopicPartition
from kiel_groups.wire.api.offsets_v0 import OffsetFetchRequest, read_commit_errors, write_offset
from kiel_groups.wire.error_codes import ErrorCode
from kiel_groups.wire.primitives import Buffer, Writer
from kiel_groups.wire.topic_arrays import write_partitions

__all__ = ["OFFSETS_TOPIC", "OffsetCommitRequestV1", "OffsetCommitRequestV2", "OffsetFetchRequestV1"]

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
