"""The values that all packages share, such as partitions and records. The values are comparable and picklable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Final, NamedTuple, TypeAlias, overload

#: The topics in which brokers keep their own state: offsets from 0.8.2 on, transactions from 0.11 on, and share groups
#: from 4.0 on. They have no records for applications, so lists and patterns leave them out.
INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})

#: The id of a member in exactly one ZooKeeper session, in the charset of Java consumer ids.
MemberId: TypeAlias = str

#: The protocol type of a group of workers, which run connectors.
CONNECT_TYPE = "connect"

#: The key of a member in the plan: its instance id if it has one, so that the key survives a restart, or its member id.
Slot: TypeAlias = str


class TopicPartition(NamedTuple):
    """One partition of one topic. Its text form is ``topic:partition``, as allocator functions see it."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}"

    @classmethod
    def parse(cls, text: str) -> TopicPartition:
        """
        Parse ``topic:partition``, split at the last colon. Topic names of Kafka 0.8 have no colons.

        Raises:
            ValueError: There is no colon, the topic is empty, or the partition is not a decimal number of 0 or more.
        """
        topic, colon, number = text.rpartition(":")
        if not colon or not topic or not (number.isascii() and number.isdigit()):
            raise ValueError(f"not of the form 'topic:partition': {text!r}")
        return cls(topic, int(number))


def numbers_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the numbers of partitions by topic, in the given order."""
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    return topics


class GenerationToken(NamedTuple):
    """
    A membership in a group that brokers coordinate: the group's generation, and the coordinator's id of the member.

    The membership is the fencing token of the partitions that the member was assigned in this generation. Each
    rebalance of the group has a larger generation, even for partitions that do not move. But brokers of Kafka 0.9
    forget the generation when a group is empty. With these brokers, the token cannot protect other systems from late
    writes.
    """

    generation: int
    member_id: str


#: The token under which records are delivered: the czxid of the owner znode, or the membership in the group.
FencingToken: TypeAlias = int | GenerationToken


class OffsetAndMetadata(NamedTuple):
    """
    The *next* offset to read, and a text about this offset.

    Brokers store the text if the offset is stored in Kafka. Offsets in ZooKeeper have no text. Consumers of this
    package return committed offsets with the text "".
    """

    offset: int
    metadata: str = ""


class OffsetAndTimestamp(NamedTuple):
    """
    An offset that was looked up by time.

    ``timestamp`` is -1, Kafka's value for an unknown timestamp: consumers get messages in the format of Kafka 0.8,
    which has no timestamps.
    """

    offset: int
    timestamp: int = -1


#: The partitions that each slot must own. Every slot of the generation has an entry, even without partitions.
Allocation: TypeAlias = Mapping[Slot, frozenset[TopicPartition]]


class Record(NamedTuple):
    """
    One message as a consumer delivers it.

    ``offset`` is the message's position in its partition's log. A commit of the record stores ``offset + 1``, the
    *next* offset. ``key`` and ``value`` are bytes or None. With a deserializer, both are the deserializer's results.
    Messages of Kafka 0.8 (magic 0) have no timestamp.
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


_new = tuple.__new__


class FetchedRecords(Sequence[Record]):
    """
    The records of one partition, stored as one list for each field. Each access creates a new ``Record``.

    The sequence equals a list of the same records, and is pickled as such a list.

    Args:
        topic_partition: The partition.
        values: The value of each record.
        keys: The key of each record, or None if all of them are null.
        offsets: The offset of each record.
    """

    __slots__ = ("_keys", "_offsets", "_source", "_values")

    def __init__(
        self, topic_partition: TopicPartition, values: Sequence[Any], keys: Sequence[Any] | None, offsets: Sequence[int]
    ) -> None:
        self._source = topic_partition
        self._values = values
        self._keys = keys
        self._offsets = offsets

    def __len__(self) -> int:
        return len(self._values)

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> FetchedRecords: ...

    def __getitem__(self, index: int | slice) -> Record | FetchedRecords:
        if isinstance(index, slice):
            keys = None if self._keys is None else self._keys[index]
            return FetchedRecords(self._source, self._values[index], keys, self._offsets[index])
        key = None if self._keys is None else self._keys[index]
        return Record(*self._source, self._offsets[index], key, self._values[index])

    def __iter__(self) -> Iterator[Record]:
        return self._records(self._values)

    def with_values(self, values: Sequence[Any]) -> list[Record]:
        """
        Return a list of the records with these values in place of the records' own values.

        Raises:
            ValueError: There are more or fewer values than records.
        """
        if len(values) != len(self):
            raise ValueError(f"{len(values)} values for {len(self)} records of {self._source}")
        return list(self._records(values))

    def _records(self, values: Iterable[Any]) -> Iterator[Record]:
        topic, partition = self._source
        keys = repeat(None) if self._keys is None else self._keys
        # This takes a third of the time of ``Record(...)``.
        return map(_new, repeat(Record), zip(repeat(topic), repeat(partition), self._offsets, keys, values))

    def __eq__(self, other: object) -> bool:
        return list(self) == (list(other) if isinstance(other, FetchedRecords) else other)

    __hash__ = None  # type: ignore[assignment]  # as a list

    def __reduce__(self) -> tuple[type[list[Record]], tuple[list[Record]]]:
        return list, (list(self),)

    def __repr__(self) -> str:
        return repr(list(self))


@dataclass(frozen=True, slots=True)
class PartitionBatch:
    """
    The values of one partition in a batch, and the fencing token of the claim under which they were delivered.

    ``fencing_token`` is the czxid of the owner znode, or a ``GenerationToken`` if brokers coordinate the group. Each
    later claim of the partition, by any member, has a larger token. The token of a batch never changes, even if the
    claim is lost. A store is safe from late writes if it refuses any write with a token that is smaller than the
    largest token that the store has seen for ``topic_partition``.
    """

    topic_partition: TopicPartition
    fencing_token: FencingToken
    values: Sequence[Any]
    #: The records as they were fetched, one for each value.
    fetched: Sequence[Record] = field(repr=False)

    @property
    def records(self) -> list[Record]:
        """
        The records with the batch's values, by ascending offset. Each access builds a new list.

        Raises:
            ValueError: There are more or fewer ``values`` than ``fetched`` records.
        """
        if isinstance(self.fetched, FetchedRecords):
            return self.fetched.with_values(self.values)
        return [
            Record(fetched.topic, fetched.partition, fetched.offset, fetched.key, value)
            for fetched, value in zip(self.fetched, self.values, strict=True)
        ]


class Batch(list[Any]):
    """
    A list of values of one topic, with the origin of the values, as ``consume()`` of a grouped consumer returns it.

    A part in ``parts`` has values of one partition, in the order of the list. A partition may have several parts.
    Changing the list does not change ``parts``.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Iterable[PartitionBatch] = ()) -> None:
        self.parts: tuple[PartitionBatch, ...] = tuple(parts)
        super().__init__()
        for part in self.parts:
            self += part.values
