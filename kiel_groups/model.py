"""The values that every room speaks in: frozen, comparable, picklable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

__all__ = ["TopicPartition", "Record", "Slot", "MemberId", "Allocation"]

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
