"""
The "consumer" protocol: what members of a group of consumers send to their leader, and the leader to them.

Coordinators pass these bytes on without reading them. A group may have members of other clients, such as Java's, so
the bytes are those of Kafka's ConsumerProtocol, version 0. A later version appends fields, such as the partitions that
the member owns. The decoders read the fields of version 0, and ignore the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from kiel_groups.errors import ConfigError
from kiel_groups.wire.primitives import Buffer, Reader, Writer

__all__ = [
    "PROTOCOL_TYPE",
    "ConsumerAssignment",
    "ConsumerSubscription",
]


#: The protocol type of groups of consumers. A coordinator refuses a member whose type is not that of its group.
PROTOCOL_TYPE = "consumer"

_LEAST_TOPIC_BYTES = 2
_LEAST_ASSIGNED_TOPIC_BYTES = 2 + 4
_PARTITION_BYTES = 4


@dataclass(frozen=True, slots=True)
class ConsumerSubscription:
    """
    The topics that a member subscribes to, as it tells the leader when it joins.

    ``topics`` are in the member's own order. ``user_data`` belongs to the assignment strategy. ``version`` is that of
    the bytes that were parsed; only version 0 is encoded.
    """

    topics: tuple[str, ...]
    user_data: bytes | None = None
    version: int = 0

    def encode(self) -> bytes:
        """
        Encode the subscription as the metadata of a ``GroupProtocol``.

        Raises:
            ConfigError: The version is not 0, or a topic is too long.
        """
        writer = _writer(self.version)
        writer.int32(len(self.topics))
        for topic in self.topics:
            writer.string(topic)
        writer.optional_blob(self.user_data)
        return writer.getvalue()

    @classmethod
    def parse(cls, data: Buffer, what: str) -> Self:
        """
        Parse the subscription of any member.

        Args:
            data: The member's metadata.
            what: The name of the data in errors, such as "the subscription of member m-1".

        Raises:
            ProtocolError: The data is no subscription.
        """
        reader = Reader(data, what)
        version = _read_version(reader)
        topics = tuple(reader.string() for _ in reader.array(_LEAST_TOPIC_BYTES))
        return cls(topics, _read_user_data(reader, version), version)


@dataclass(frozen=True, slots=True)
class ConsumerAssignment:
    """
    The partitions that the leader assigns to one member.

    ``partitions`` are by topic, in the leader's order. ``user_data`` belongs to the assignment strategy. ``version`` is
    that of the bytes that were parsed; only version 0 is encoded.
    """

    partitions: Mapping[str, tuple[int, ...]]
    user_data: bytes | None = None
    version: int = 0

    def encode(self) -> bytes:
        """
        Encode the assignment as one of the assignments of a ``SyncGroupRequest``.

        Raises:
            ConfigError: The version is not 0, or a topic or partition does not fit its type in the protocol.
        """
        writer = _writer(self.version)
        writer.int32(len(self.partitions))
        for topic, partitions in self.partitions.items():
            writer.string(topic)
            writer.int32(len(partitions))
            for partition in partitions:
                writer.int32(partition)
        writer.optional_blob(self.user_data)
        return writer.getvalue()

    @classmethod
    def parse(cls, data: Buffer, what: str) -> Self:
        """
        Parse the assignment that any leader has made. No bytes at all are an assignment without partitions.

        A topic or partition that a leader names twice counts once, as it does for Java's members.

        Args:
            data: The member's assignment.
            what: The name of the data in errors, such as "the assignment of member m-1".

        Raises:
            ProtocolError: The data is no assignment.
        """
        if not data:
            # The coordinator sends this to a member that the leader has not named.
            return cls({})
        reader = Reader(data, what)
        version = _read_version(reader)
        # Dictionaries are sets that keep the order.
        partitions: dict[str, dict[int, None]] = {}
        for _ in reader.array(_LEAST_ASSIGNED_TOPIC_BYTES):
            numbers = partitions.setdefault(reader.string(), {})
            for _ in reader.array(_PARTITION_BYTES):
                numbers[_read_partition(reader)] = None
        user_data = _read_user_data(reader, version)
        return cls({topic: tuple(numbers) for topic, numbers in partitions.items()}, user_data, version)


def _writer(version: int) -> Writer:
    if version != 0:
        raise ConfigError(f"version {version} of the consumer protocol cannot be encoded; only version 0 can")
    writer = Writer()
    writer.int16(version)
    return writer


def _read_version(reader: Reader) -> int:
    version = reader.int16()
    if version < 0:
        raise reader.refuse(f"version {version} of the consumer protocol")
    return version


def _read_partition(reader: Reader) -> int:
    partition = reader.int32()
    if partition < 0:
        raise reader.refuse(f"partition {partition}")
    return partition


def _read_user_data(reader: Reader, version: int) -> bytes | None:
    user_data = reader.optional_blob()
    if version == 0:
        reader.end()
    return None if user_data is None else bytes(user_data)
