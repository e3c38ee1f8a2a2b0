"""The values that all packages share, such as partitions and records: comparable and picklable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

__all__ = [
    "TopicPartition",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "Record",
    "Batch",
    "PartitionBatch",
    "Slot",
    "MemberId",
    "Allocation",
]

#: The id of a member in exactly one ZooKeeper session, in the charset of Java consumer ids.
MemberId: TypeAlias = str

#: The key of a member in the plan: its instance id if it has one, so that the key survives a restart, or its member id.
Slot: TypeAlias = str


class TopicPartition(NamedTuple):
    """One partition of one topic; its text form is ``topic:partition``, as allocator functions see it."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}"

    @classmethod
    def parse(cls, text: str) -> TopicPartition:
        """
        Parse ``topic:partition``, split at the last colon; topic names of Kafka 0.8 have none.

        Raises:
            ValueError: There is no colon, the topic is empty, or the partition is not a decimal number of 0 or more.
        """
        topic, colon, number = text.rpartition(":")
        if not colon or not topic or not (number.isascii() and number.isdigit()):
            raise ValueError(f"not of the form 'topic:partition': {text!r}")
        return cls(topic, int(number))


class OffsetAndMetadata(NamedTuple):
    """
    The *next* offset to read, and a text about it.

    Kafka 0.8 keeps no such text: it is accepted for programs written for later brokers, and read back as "".
    """

    offset: int
    metadata: str = ""


class OffsetAndTimestamp(NamedTuple):
    """
    An offset that was looked up by time.

    Messages of Kafka 0.8 have no timestamp, so ``timestamp`` is Kafka's -1 for "none".
    """

    offset: int
    timestamp: int = -1


#: The partitions that each slot must own. Every slot of the generation has an entry, even without partitions.
Allocation: TypeAlias = Mapping[Slot, frozenset[TopicPartition]]


class Record(NamedTuple):
    """
    One message as a consumer delivers it.

    ``offset`` is the message's position in its partition's log; a commit of the record stores ``offset + 1``, the
    *next* offset. ``key`` and ``value`` are bytes or None; with a deserializer, they are its results. Messages of Kafka
    0.8 (magic 0) have no timestamp.
    """

    topic: str
    partition: int
    offset: int
    key: Any
    value: Any

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition that the record belongs to."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class PartitionBatch:
    """
    The values of one partition in a batch, and the fencing token of the claim under which they were delivered.

    ``fencing_token`` grows with every claim of the partition, by any member; it is the czxid of the owner znode. It
    never changes, even if the claim is lost or another member claims the partition. A store is safe from late writes
    if it refuses any write with a smaller token than the largest one that it has seen for ``topic_partition``.
    """

    topic_partition: TopicPartition
    fencing_token: int
    values: Sequence[Any]
    #: The records as they were fetched, one for each value.
    fetched: Sequence[Record] = field(repr=False)

    @property
    def records(self) -> list[Record]:
        """The records with the batch's values, by ascending offset; each access builds a new list."""
        return [
            Record(fetched.topic, fetched.partition, fetched.offset, fetched.key, value)
            for fetched, value in zip(self.fetched, self.values, strict=True)
        ]


class Batch(list[Any]):
    """
    The values of one topic, as ``consume()`` of a grouped consumer returns them: a list that also records their origin.

    Each of the ``parts`` has values of one partition, in the order of the list; a partition may have several parts.
    Changing the list does not change ``parts``.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Iterable[PartitionBatch] = ()) -> None:
        self.parts: tuple[PartitionBatch, ...] = tuple(parts)
        super().__init__()
        for part in self.parts:
            self += part.values
