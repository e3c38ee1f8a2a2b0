"""The Fetch request, version 0. It reads message sets of partitions that the broker leads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from typing import ClassVar, NamedTuple

from kiel_groups.model import TopicPartition
from kiel_groups.wire.error_codes import ErrorCode, error_code
from kiel_groups.wire.framing import Request
from kiel_groups.wire.primitives import INT32, FieldType, Reader, Writer, by_partition, fields, numbers

#: The replica id of a client, in a field where brokers put their own id.
CLIENT_REPLICA_ID = -1

#: Error, high watermark and the size of the message set, which are read at once: an answer may have a thousand of each.
_RESULT = Struct(">hqi")


class FetchPosition(NamedTuple):
    """The offset at which to read one partition, and the largest size of the returned message set, in bytes."""

    offset: int
    max_bytes: int


class FetchedPartition(NamedTuple):
    """
    The fetched messages of one partition, and the error of the partition.

    ``high_watermark`` is the offset after the last message that consumers may see, or -1 after an error.
    ``message_set`` is a view into the response. The set may begin before the requested position. It may end with an
    unfinished message, or with filler (see ``FetchRequest``).
    """

    error: ErrorCode
    high_watermark: int
    message_set: memoryview


def _read_result(reader: Reader) -> FetchedPartition:
    error, high_watermark, size = reader.fields(_RESULT)
    return FetchedPartition(error_code(error), high_watermark, reader.blob_of(size))


def _write_result(writer: Writer, result: FetchedPartition) -> None:
    writer.fields(_RESULT, (result.error.number, result.high_watermark, len(result.message_set)))
    writer.raw(result.message_set)


@dataclass(frozen=True, slots=True)
class FetchRequest(Request[Mapping[TopicPartition, FetchedPartition]]):
    """
    Read message sets. The broker answers when it has ``min_bytes`` in total, or after ``max_wait_ms``.

    The sets of a response together have at most the sum of all ``max_bytes``. If the next message of a partition is
    larger than the partition's ``max_bytes``, the set has only the beginning of that message. Brokers of 3.x return an
    empty set instead. Newer brokers convert later formats of their logs to magic 0. These brokers may fill the rest of
    a set with an unfinished message of offset -1 (filler).
    """

    API_KEY, API_VERSION, ANSWER_NAME, NAMED = 1, 0, "a fetch response", "partitions"
    BODY = fields(
        replica_id=INT32, max_wait_ms=INT32, min_bytes=INT32, partitions=by_partition(numbers(FetchPosition, "qi"))
    )
    ANSWER = by_partition(FieldType(_read_result, _write_result, _RESULT.size))

    replica_id: ClassVar[int] = CLIENT_REPLICA_ID
    max_wait_ms: int
    min_bytes: int
    partitions: Mapping[TopicPartition, FetchPosition]
