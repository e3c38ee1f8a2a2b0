"""The OffsetCommit, OffsetFetch and OffsetDelete requests. v0 stores offsets in ZooKeeper, later versions in Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from kiel_groups.model import OffsetAndMetadata, TopicPartition
from kiel_groups.wire.error_codes import ERROR, ErrorCode
from kiel_groups.wire.framing import Request
from kiel_groups.wire.primitives import (
    INT32,
    INT64,
    NULLABLE_STRING,
    STRING,
    FieldType,
    by_partition,
    fields,
    structure,
    throttled,
    tuple_of,
)

#: The topic in which coordinators keep offsets and groups. It does not exist before the first coordinator is asked for.
OFFSETS_TOPIC: Final = "__consumer_offsets"


class FetchedOffset(NamedTuple):
    """
    A committed offset, as a broker returns it.

    In the response to v0, ``offset`` is -1 with the error UNKNOWN_TOPIC_OR_PARTITION if no offset was committed, and
    *also* if the broker has just started and does not know the topic yet. So this result alone does not justify a reset
    of the position. In the response to v1, ``offset`` is -1 without an error if no offset was committed.
    """

    offset: int
    metadata: str
    error: ErrorCode


_OFFSETS = by_partition(structure(OffsetAndMetadata, INT64, STRING))
_NO_VALUES = by_partition(FieldType[None](lambda reader: None, lambda writer, value: None, 0))
_PARTITIONS = FieldType[tuple[TopicPartition, ...]](
    lambda reader: tuple(_NO_VALUES.read(reader)),
    lambda writer, partitions: _NO_VALUES.write(writer, dict.fromkeys(partitions)),
    _NO_VALUES.least_bytes,
)


class _CommitRequest(Request[Mapping[TopicPartition, ErrorCode]]):
    """The base class of offset commits. The commit of each partition succeeds or fails independently."""

    __slots__ = ()

    API_KEY, ANSWER_NAME, ANSWER, NAMED = 8, "an offset-commit response", by_partition(ERROR), "offsets"


@dataclass(frozen=True, slots=True)
class OffsetCommitRequest(_CommitRequest):
    """
    Store offsets in ZooKeeper, through any broker of 0.8.1 or later. Each partition succeeds or fails independently.

    A broker of 0.8.0 closes the connection instead of answering. Brokers do not check that a partition exists, so an
    offset for a missing partition creates a useless znode. Brokers check the length of the metadata, but do not store
    it.
    """

    API_VERSION = 0
    BODY = fields(group=STRING, offsets=_OFFSETS)

    group: str
    offsets: Mapping[TopicPartition, OffsetAndMetadata]


# OffsetCommit v1 and v2, and OffsetFetch v1: store and read a group's offsets in Kafka, through the group's
# coordinator.
#
# Of these commits, 0.8.2 takes v1, 0.9 to 3.9 take both, and 4.x takes v2. 0.8.1 answers v1 and stores nothing.


@dataclass(frozen=True, slots=True)
class OffsetCommitRequestV1(_CommitRequest):
    """
    Store offsets in Kafka, through the group's coordinator, a broker of 0.8.2 to 3.9.

    Each partition succeeds or fails independently. A client that is not a member sends the generation -1 and an empty
    member id. ``timestamp_ms`` is the time of the commit, from which the offset's retention counts. -1 means the
    broker's own time.
    """

    API_VERSION = 1
    BODY = fields(
        group=STRING,
        generation=INT32,
        member_id=STRING,
        offsets_with_times=by_partition(tuple_of(INT64, INT64, STRING)),
    )

    group: str
    generation: int
    member_id: str
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    timestamp_ms: int = -1

    @property
    def offsets_with_times(self) -> Mapping[TopicPartition, tuple[int, int, str]]:
        """The offset, commit time and metadata of each partition, as the request sends them."""
        return {key: (value.offset, self.timestamp_ms, value.metadata) for key, value in self.offsets.items()}


@dataclass(frozen=True, slots=True)
class OffsetCommitRequestV2(_CommitRequest):
    """
    Store offsets in Kafka, through the group's coordinator, a broker of 0.9 or later.

    Each partition succeeds or fails independently. A client that is not a member sends the generation -1 and an empty
    member id. The coordinator accepts such a commit only while the group has no members. The coordinator checks the
    generation of a member, but not that the member owns the partitions. ``retention_ms`` is how long the offsets are
    kept. -1 means the broker's ``offsets.retention.minutes``.
    """

    API_VERSION = 2
    BODY = fields(group=STRING, generation=INT32, member_id=STRING, retention_ms=INT64, offsets=_OFFSETS)

    group: str
    generation: int
    member_id: str
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    retention_ms: int = -1


@dataclass(frozen=True, slots=True)
class OffsetFetchRequest(Request[Mapping[TopicPartition, FetchedOffset]]):
    """Read the committed offsets of some partitions from ZooKeeper, through any broker of 0.8.1 or later."""

    API_KEY, API_VERSION, ANSWER_NAME, NAMED = 9, 0, "an offset-fetch response", "partitions"
    BODY = fields(group=STRING, partitions=_PARTITIONS)
    ANSWER = by_partition(structure(FetchedOffset, INT64, NULLABLE_STRING, ERROR))

    group: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class OffsetFetchRequestV1(OffsetFetchRequest):
    """
    Read the committed offsets of some partitions from Kafka.

    The bytes are the same as in v0. The version makes the coordinator read the offsets from Kafka instead of ZooKeeper.
    A partition without a committed offset has the offset -1 and no error.
    """

    API_VERSION = 1


class DeletedOffsets(NamedTuple):
    """
    The outcome of a deletion of offsets: the error of the group and, if that is no error, the error of each partition.
    """

    error: ErrorCode
    partitions: Mapping[TopicPartition, ErrorCode]


@dataclass(frozen=True, slots=True)
class OffsetDeleteRequest(Request[DeletedOffsets]):
    """
    Delete offsets of a group in Kafka, through the group's coordinator. Brokers support this request from 2.4 on.

    The coordinator refuses partitions of topics to which live members subscribe. It reports no error for a partition
    without an offset.
    """

    API_KEY, API_VERSION, ANSWER_NAME = 47, 0, "an offset-delete response"
    BODY = fields(group=STRING, partitions=_PARTITIONS)
    # Unlike in other answers, the throttle time comes second.
    ANSWER = structure(DeletedOffsets, ERROR, throttled(by_partition(ERROR)))

    group: str
    partitions: tuple[TopicPartition, ...]
