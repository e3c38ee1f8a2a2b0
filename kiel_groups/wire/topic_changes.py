"""
CreateTopics, DeleteTopics (brokers take both from 0.10.1 to 3.9) and CreatePartitions (from 1.0 on) v0.

In ZooKeeper mode only the controller takes them, and other brokers refuse. In KRaft mode each broker forwards them to
the controller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from typing import ClassVar, NamedTuple

from kiel_groups.wire.error_codes import ErrorCode, error_code
from kiel_groups.wire.primitives import Buffer, Reader, Writer

__all__ = [
    "CreateTopicsRequest",
    "CreatePartitionsRequest",
    "DeleteTopicsRequest",
    "NewTopic",
]


_NULL = -1
_BOOLEAN = Struct(">b")
_LEAST_RESULT_BYTES = 2 + 2


class NewTopic(NamedTuple):
    """The size of a topic. The controller assigns the replicas to brokers."""

    partitions: int
    replication: int


@dataclass(frozen=True, slots=True)
class CreateTopicsRequest:
    """Create topics. The broker answers when the controller knows them, at the latest after ``timeout_ms``."""

    API_KEY: ClassVar[int] = 19
    API_VERSION: ClassVar[int] = 0

    topics: Mapping[str, NewTopic]
    timeout_ms: int

    @property
    def expects_response(self) -> bool:
        return True

    def encode_body(self) -> bytes:
        writer = Writer()
        writer.int32(len(self.topics))
        for name, topic in self.topics.items():
            writer.string(name)
            writer.int32(topic.partitions)
            writer.int16(topic.replication)
            writer.int32(0)  # no assignment of replicas
            writer.int32(0)  # no settings
        writer.int32(self.timeout_ms)
        return writer.getvalue()

    def decode_response(self, payload: Buffer) -> Mapping[str, ErrorCode]:
        return _read_errors(Reader(payload, "a create-topics response"))


@dataclass(frozen=True, slots=True)
class CreatePartitionsRequest:
    """Increase the number of partitions of topics to the given numbers."""

    API_KEY: ClassVar[int] = 37
    API_VERSION: ClassVar[int] = 0

    partitions: Mapping[str, int]
    timeout_ms: int

    @property
    def expects_response(self) -> bool:
        return True

    def encode_body(self) -> bytes:
        writer = Writer()
        writer.int32(len(self.partitions))
        for name, count in self.partitions.items():
            writer.string(name)
            writer.int32(count)
            writer.int32(_NULL)  # no assignment of replicas
        writer.int32(self.timeout_ms)
        writer.fields(_BOOLEAN, False)  # not only a validation
        return writer.getvalue()

    def decode_response(self, payload: Buffer) -> Mapping[str, ErrorCode]:
        reader = Reader(payload, "a create-partitions response")
        reader.int32()  # how long the broker has delayed the answer, in ms
        return _read_errors(reader, with_texts=True)


@dataclass(frozen=True, slots=True)
class DeleteTopicsRequest:
    """Delete topics. The broker answers when the controller knows of it, and deletes the logs later."""

    API_KEY: ClassVar[int] = 20
    API_VERSION: ClassVar[int] = 0

    topics: tuple[str, ...]
    timeout_ms: int

    @property
    def expects_response(self) -> bool:
        return True

    def encode_body(self) -> bytes:
        writer = Writer()
        writer.int32(len(self.topics))
        for name in self.topics:
            writer.string(name)
        writer.int32(self.timeout_ms)
        return writer.getvalue()

    def decode_response(self, payload: Buffer) -> Mapping[str, ErrorCode]:
        return _read_errors(Reader(payload, "a delete-topics response"))


def _read_errors(reader: Reader, *, with_texts: bool = False) -> Mapping[str, ErrorCode]:
    errors = {}
    for _ in reader.array(_LEAST_RESULT_BYTES):
        topic = reader.string()
        errors[topic] = error_code(reader.int16())
        if with_texts:
            reader.optional_string()
    reader.end()
    return errors
