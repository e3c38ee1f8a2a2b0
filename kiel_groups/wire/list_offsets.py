"""ListOffsets v0 and v1: look up where the log of a partition begins, ends, or was at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from kiel_groups.model import TopicPartition
from kiel_groups.wire.error_codes import ErrorCode, error_code
from kiel_groups.wire.fetch import CLIENT_REPLICA_ID
from kiel_groups.wire.primitives import Buffer, Reader, Writer, read_partitions, write_partitions

__all__ = [
    "ListOffsetsRequest",
    "ListOffsetsResponse",
    "OffsetQuery",
    "ListedOffsets",
    "EARLIEST",
    "LATEST",
    "NO_MESSAGE",
    "WITHOUT_TIMES",
    "FoundOffset",
    "ListOffsetsRequestV1",
]


#: In place of a time: the first offset that the log still has.
EARLIEST: Final = -2
#: In place of a time: the offset that the next message will get.
LATEST: Final = -1

_OFFSET_BYTES = 8
_LEAST_RESULT_BYTES = 2 + 4


class OffsetQuery(NamedTuple):
    """
    What to look up in one partition.

    ``time`` is EARLIEST, LATEST, or milliseconds since the epoch. For a time the broker answers with the first offsets
    of segments last written before it, so the answer is as coarse as a log segment.
    """

    time: int
    max_offsets: int = 1


class ListedOffsets(NamedTuple):
    """Offsets in descending order, at most ``max_offsets``, or none if no segment is older than the requested time."""

    error: ErrorCode
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ListOffsetsResponse:
    """The answer, partition by partition."""

    partitions: Mapping[TopicPartition, ListedOffsets]


@dataclass(frozen=True, slots=True)
class ListOffsetsRequest:
    """Look up offsets in partitions that the broker leads."""

    API_KEY: ClassVar[int] = 2
    API_VERSION: ClassVar[int] = 0

    partitions: Mapping[TopicPartition, OffsetQuery]

    @property
    def expects_response(self) -> bool:
        return True

    def encode_body(self) -> bytes:
        writer = Writer()
        writer.int32(CLIENT_REPLICA_ID)
        write_partitions(writer, self.partitions.items(), _write_query)
        return writer.getvalue()

    def decode_response(self, payload: Buffer) -> ListOffsetsResponse:
        reader = Reader(payload, "a list-offsets response")
        return ListOffsetsResponse(read_partitions(reader, _read_result, _LEAST_RESULT_BYTES))


def _write_query(writer: Writer, query: OffsetQuery) -> None:
    writer.int64(query.time)
    writer.int32(query.max_offsets)


def _read_result(reader: Reader) -> ListedOffsets:
    error = error_code(reader.int16())
    return ListedOffsets(error, tuple(reader.int64() for _ in reader.array(_OFFSET_BYTES)))


#: In place of an offset: no message has the requested time or a later one.
NO_MESSAGE: Final = -1

#: The number of the error of a topic whose ``message.format.version`` is older than 0.10: its messages have no times.
WITHOUT_TIMES: Final = 43

_RESULT_BYTES = 2 + 8 + 8


class FoundOffset(NamedTuple):
    """
    The first offset whose message has the requested time or a later one, and that message's time.

    Without such a message, ``offset`` is NO_MESSAGE. For EARLIEST and LATEST, ``timestamp`` is -1.
    """

    error: ErrorCode
    timestamp: int
    offset: int


@dataclass(frozen=True, slots=True)
class ListOffsetsRequestV1:
    """Look up offsets in partitions that the broker leads, each by EARLIEST, LATEST or a time in epoch milliseconds."""

    API_KEY: ClassVar[int] = 2
    API_VERSION: ClassVar[int] = 1

    partitions: Mapping[TopicPartition, int]

    @property
    def expects_response(self) -> bool:
        return True

    def encode_body(self) -> bytes:
        writer = Writer()
        writer.int32(CLIENT_REPLICA_ID)
        write_partitions(writer, self.partitions.items(), Writer.int64)
        return writer.getvalue()

    def decode_response(self, payload: Buffer) -> Mapping[TopicPartition, FoundOffset]:
        return read_partitions(Reader(payload, "a list-offsets response"), _read_result_v1, _RESULT_BYTES)


def _read_result_v1(reader: Reader) -> FoundOffset:
    return FoundOffset(error_code(reader.int16()), reader.int64(), reader.int64())
