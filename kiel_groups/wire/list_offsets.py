"""The ListOffsets request, versions 0 and 1. It looks up where a partition's log begins, ends, or reaches a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from kiel_groups.model import TopicPartition
from kiel_groups.wire.error_codes import ERROR, ErrorCode
from kiel_groups.wire.fetch import CLIENT_REPLICA_ID
from kiel_groups.wire.framing import Request
from kiel_groups.wire.primitives import INT32, INT64, array, by_partition, fields, numbers, structure

#: In place of a time: the first offset that the log still has.
EARLIEST: Final = -2
#: In place of a time: the offset that the next message will get.
LATEST: Final = -1
#: In place of an offset: no message has the requested time or a later one.
NO_MESSAGE: Final = -1

#: The number of the error of a topic whose ``message.format.version`` is older than 0.10: its messages have no times.
WITHOUT_TIMES: Final = 43


class OffsetQuery(NamedTuple):
    """
    The offset to look up in one partition.

    ``time`` is EARLIEST, LATEST, or milliseconds since the epoch. For a time, the broker returns the first offsets of
    log segments that were last written before that time. So the result is accurate to one log segment.
    """

    time: int
    max_offsets: int = 1


class ListedOffsets(NamedTuple):
    """
    The offsets that were found in one partition: at most ``max_offsets``, in descending order.

    There are no offsets if no segment is older than the requested time.
    """

    error: ErrorCode
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ListOffsetsRequest(Request[Mapping[TopicPartition, ListedOffsets]]):
    """Look up offsets by position or time in partitions that the broker leads, accurate to one log segment."""

    API_KEY, API_VERSION, ANSWER_NAME, NAMED = 2, 0, "a list-offsets response", "partitions"
    BODY = fields(replica_id=INT32, partitions=by_partition(numbers(OffsetQuery, "qi")))
    ANSWER = by_partition(structure(ListedOffsets, ERROR, array(INT64)))

    replica_id: ClassVar[int] = CLIENT_REPLICA_ID
    partitions: Mapping[TopicPartition, OffsetQuery]


class FoundOffset(NamedTuple):
    """
    The first offset whose message has the requested time or a later time, and the time of that message.

    If there is no such message, ``offset`` is NO_MESSAGE. For EARLIEST and LATEST, ``timestamp`` is -1.
    """

    error: ErrorCode
    timestamp: int
    offset: int


@dataclass(frozen=True, slots=True)
class ListOffsetsRequestV1(Request[Mapping[TopicPartition, FoundOffset]]):
    """
    Look up one offset in each of these partitions, which the broker leads.

    For each partition, ``partitions`` has EARLIEST, LATEST, or a time in milliseconds since the epoch.
    """

    API_KEY, API_VERSION, ANSWER_NAME, NAMED = 2, 1, "a list-offsets response", "partitions"
    BODY = fields(replica_id=INT32, partitions=by_partition(INT64))
    ANSWER = by_partition(structure(FoundOffset, ERROR, INT64, INT64))

    replica_id: ClassVar[int] = CLIENT_REPLICA_ID
    partitions: Mapping[TopicPartition, int]
