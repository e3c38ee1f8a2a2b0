"""Read and write the shape of most requests and responses: an array of topics, each with an array of partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from kiel_groups.model import TopicPartition
from kiel_groups.wire.primitives import Reader, Writer

__all__ = ["write_partitions", "read_partitions"]

T = TypeVar("T")

_LEAST_TOPIC_BYTES = 2 + 4
_PARTITION_BYTES = 4


def write_partitions(
    writer: Writer, values: Iterable[tuple[TopicPartition, T]], write: Callable[[Writer, T], None]
) -> None:
    """Write values topic by topic. ``write`` writes one value, after the partition's number."""
    topics: dict[str, list[tuple[int, T]]] = {}
    for (topic, partition), value in values:
        topics.setdefault(topic, []).append((partition, value))
    writer.int32(len(topics))
    for topic, partitions in topics.items():
        writer.string(topic)
        writer.int32(len(partitions))
        for partition, value in partitions:
            writer.int32(partition)
            write(writer, value)


def read_partitions(reader: Reader, read: Callable[[Reader], T], least_bytes: int) -> Mapping[TopicPartition, T]:
    """
    Read a whole response of this shape.

    Args:
        reader: Positioned at the array of topics, which is the rest of the response.
        read: Reads one value, after the partition's number.
        least_bytes: The least size of a value in bytes.

    Raises:
        ProtocolError: The response is truncated, too long, or has a partition twice.
    """
    values: dict[TopicPartition, T] = {}
    for _ in reader.array(_LEAST_TOPIC_BYTES):
        topic = reader.string()
        for _ in reader.array(_PARTITION_BYTES + least_bytes):
            topic_partition = TopicPartition(topic, reader.int32())
            if topic_partition in values:
                raise reader.refuse(f"partition {topic_partition} twice")
            values[topic_partition] = read(reader)
    reader.end()
    return values
