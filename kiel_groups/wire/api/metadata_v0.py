"""Metadata v0: ask for the live brokers, and for the partitions of topics and their leaders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from kiel_groups.wire.error_codes import ErrorCode, error_code
from kiel_groups.wire.primitives import Buffer, Reader, Writer

__all__ = ["MetadataRequest", "MetadataResponse", "BrokerAddress", "TopicMetadata", "PartitionMetadata"]

_LEAST_BROKER_BYTES = 4 + 2 + 4
_LEAST_TOPIC_BYTES = 2 + 2 + 4
_LEAST_PARTITION_BYTES = 2 + 4 + 4 + 4 + 4
_REPLICA_BYTES = 4


class BrokerAddress(NamedTuple):
    """A live broker, as it advertises itself."""

    node_id: int
    host: str
    port: int


class PartitionMetadata(NamedTuple):
    """One partition. ``leader``, ``replicas`` and ``isr`` are node ids. ``leader`` is -1 while there is no leader."""

    error: ErrorCode
    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class TopicMetadata(NamedTuple):
    """One topic and its partitions, in the broker's order."""

    error: ErrorCode
    topic: str
    partitions: tuple[PartitionMetadata, ...]


@dataclass(frozen=True, slots=True)
class MetadataResponse:
    """
    A broker's view of the cluster. A fresh 0.8.1 cluster without topics lists no broker at all.

    ``brokers`` are those that have a host, so a leader may be missing.
    """

    brokers: tuple[BrokerAddress, ...]
    topics: tuple[TopicMetadata, ...]


@dataclass(frozen=True, slots=True)
class MetadataRequest:
    """Ask about some topics, or about all if none is given. A broker may be set to create a topic that is named."""

    API_KEY: ClassVar[int] = 3
    API_VERSION: ClassVar[int] = 0

    topics: tuple[str, ...] = ()

    @property
    def expects_response(self) -> bool:
        return True

    def encode_body(self) -> bytes:
        writer = Writer()
        writer.int32(len(self.topics))
        for topic in self.topics:
            writer.string(topic)
        return writer.getvalue()

    def decode_response(self, payload: Buffer) -> MetadataResponse:
        reader = Reader(payload, "a metadata response")
        brokers = [
            BrokerAddress(reader.int32(), reader.optional_string(), reader.int32())
            for _ in reader.array(_LEAST_BROKER_BYTES)
        ]
        topics = tuple(_read_topic(reader) for _ in reader.array(_LEAST_TOPIC_BYTES))
        reader.end()
        # A broker of 0.9 or later without a listener in plain text registers no host, and those of 0.8 pass that on.
        return MetadataResponse(tuple(broker for broker in brokers if broker.host), topics)


def _read_topic(reader: Reader) -> TopicMetadata:
    error = error_code(reader.int16())
    topic = reader.string()
    return TopicMetadata(error, topic, tuple(_read_partition(reader) for _ in reader.array(_LEAST_PARTITION_BYTES)))


def _read_partition(reader: Reader) -> PartitionMetadata:
    error = error_code(reader.int16())
    partition, leader = reader.int32(), reader.int32()
    replicas = tuple(reader.int32() for _ in reader.array(_REPLICA_BYTES))
    isr = tuple(reader.int32() for _ in reader.array(_REPLICA_BYTES))
    return PartitionMetadata(error, partition, leader, replicas, isr)
