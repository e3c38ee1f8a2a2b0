"""The values that every room speaks in: frozen, comparable, picklable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

__all__ = ["TopicPartition", "Record", "Batch", "PartitionBatch", "Slot", "MemberId", "Allocation"]

#: A member's name: one consumer, exactly one ZooKeeper session, in the charset of Java consumer ids.
MemberId: TypeAlias = str

#: The stable place of a member in the plan: its instance id if it has one, else its member id.
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
        Read ``topic:partition``; splits on the last colon, since topics of 0.8 hold none.

        Raises:
            ValueError: There is no colon, an empty topic, or no partition number (decimal, 0 or more).
        """
        topic, colon, number = text.rpartition(":")
        if not colon or not topic or not (number.isascii() and number.isdigit()):
            raise ValueError(f"not of the form 'topic:partition': {text!r}")
        return cls(topic, int(number))


#: What each slot is to own. Every slot of the generation has an entry, an empty one too.
Allocation: TypeAlias = Mapping[Slot, frozenset[TopicPartition]]


class Record(NamedTuple):
    """
    One message as a consumer hands it out.

    ``offset`` is its place in the log of its partition; committing it means storing ``offset + 1``, the *next* offset.
    ``key`` and ``value`` are bytes or None, unless a deserialiser made something else of the value. Messages of 0.8
    (magic 0) carry no timestamp.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: Any

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class PartitionBatch:
    """
    What a batch brought of one partition, and the claim under which it was handed out.

    ``fencing_token`` is the czxid of the owner znode by which the partition was held at that moment; it stays what it
    is, whatever becomes of the claim, or who claims the partition again. A store that refuses what comes with a smaller
    token than it has seen for ``topic_partition`` is safe from late writes.
    """

    topic_partition: TopicPartition
    fencing_token: int
    values: Sequence[Any]
    #: What the values were made of, one for each.
    fetched: Sequence[Record] = field(repr=False)

    @property
    def records(self) -> list[Record]:
        """The records, by ascending offset, with ``values`` for values; made anew at each look."""
        return [
            Record(fetched.topic, fetched.partition, fetched.offset, fetched.key, value)
            for fetched, value in zip(self.fetched, self.values, strict=True)
        ]


class Batch(list[Any]):
    """
    Values of one topic, as ``consume()`` of a grouped consumer returns them: a list, which also knows where from.

    ``parts`` are what it is made of, in the order of the values; a partition may come several times. They stay as they
    were when the list itself is changed.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Iterable[PartitionBatch] = ()) -> None:
        self.parts: tuple[PartitionBatch, ...] = tuple(parts)
        super().__init__()
        for part in self.parts:
            self += part.values
