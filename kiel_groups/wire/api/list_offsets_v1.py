"""ListOffsets v1: look up where the log of a partition begins, ends, or was at a time, exactly. It came with 0.10.1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from kiel_groups.model import TopicPartition
from kiel_groups.wire.api.fetch_v0 import CLIENT_REPLICA_ID
from kiel_groups.wire.error_codes import ErrorCode, error_code
from kiel_groups.wire.primitives import Buffer, Reader, Writer
from kiel_groups.wire.topic_arrays import read_partitions, write_partitions

__all__ = ["NO_MESSAGE", "WITHOUT_TIMES", "FoundOffset", "ListOffsetsRequestV1"]

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
        return read_partitions(Reader(payload, "a list-offsets response"), _read_result, _RESULT_BYTES)


def _read_result(reader: Reader) -> FoundOffset:
    return FoundOffset(error_code(reader.int16()), reader.int64(), reader.int64())
