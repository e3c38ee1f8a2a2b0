"""Produce v0: append message sets to partitions that the broker leads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from kiel_groups.model import TopicPartition
from kiel_groups.wire.error_codes import ErrorCode, error_code
from kiel_groups.wire.primitives import Buffer, Reader, Writer, read_partitions, write_partitions

__all__ = [
    "ProduceRequest",
    "ProduceResponse",
    "ProducedPartition",
]


_RESULT_BYTES = 2 + 8


class ProducedPartition(NamedTuple):
    """The outcome of one message set. ``base_offset`` is the offset of its first message, or -1 after an error."""

    error: ErrorCode
    base_offset: int


@dataclass(frozen=True, slots=True)
class ProduceResponse:
    """The outcome of every message set. Some message sets may fail while others are stored."""

    partitions: Mapping[TopicPartition, ProducedPartition]


@dataclass(frozen=True, slots=True)
class ProduceRequest:
    """
    Append message sets, one for each partition.

    ``acks`` is how many replicas must have the messages before the broker answers: 0 (the broker sends no answer), 1
    (the leader), another number, or -1 (all in-sync replicas). The broker waits ``timeout_ms`` for the replicas.
    """

    API_KEY: ClassVar[int] = 0
    API_VERSION: ClassVar[int] = 0

    acks: int
    timeout_ms: int
    message_sets: Mapping[TopicPartition, bytes]

    @property
    def expects_response(self) -> bool:
        return self.acks != 0

    def encode_body(self) -> bytes:
        writer = Writer()
        writer.int16(self.acks)
        writer.int32(self.timeout_ms)
        write_partitions(writer, self.message_sets.items(), Writer.blob)
        return writer.getvalue()

    def decode_response(self, payload: Buffer) -> ProduceResponse:
        return ProduceResponse(read_partitions(Reader(payload, "a produce response"), _read_result, _RESULT_BYTES))


def _read_result(reader: Reader) -> ProducedPartition:
    return ProducedPartition(error_code(reader.int16()), reader.int64())
