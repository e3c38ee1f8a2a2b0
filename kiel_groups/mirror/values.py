"""The values that the connector and its use of the target share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from kiel_groups.model import TopicPartition
from kiel_groups.wire.message_sets.record_columns import RecordColumns

#: The compacted topic of a target with the claims of all mirrors: the name of a target topic, and its mirror.
CLAIMS_TOPIC = "kiel-mirror-claims"

#: Returns the timestamp of a record with this value, in milliseconds, or 0 for the present time.
Timestamps: TypeAlias = Callable[[memoryview | None], int]


class MirroredTopic(NamedTuple):
    """A topic of the source with its number of partitions and its settings, and its name on the target."""

    source: str
    target: str
    partitions: int
    config: Mapping[str, str]


class SourceBatch(NamedTuple):
    """The next records of one source partition, and the topic of the target that they are written to."""

    partition: TopicPartition
    columns: Sequence[RecordColumns]
    topic: str

    @property
    def next_offset(self) -> int:
        """The offset after the last record."""
        return self.columns[-1].next_offset

    @property
    def records(self) -> int:
        """The number of the records."""
        return sum(map(len, self.columns))

    @property
    def size_bytes(self) -> int:
        """The number of bytes of all keys and values."""
        return sum(each.size_bytes for each in self.columns)


class WriterSettings(NamedTuple):
    """The settings that all writers of a task share."""

    mirror: str
    is_exactly_once: bool
    compression: str
    timestamps: Timestamps | None
    has_headers: bool
    #: The topic for records that are too large for the target, or "" to fail.
    dead_letter_topic: str


def checkpoints_topic(mirror: str) -> str:
    """Return the name of the compacted topic of the target that has the checkpoints of a mirror."""
    return f"kiel-mirror-{mirror}"
