"""The values that the connector and its use of the target share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from kiel_groups.model import TopicPartition
from kiel_groups.wire.message_sets.record_columns import RecordColumns

#: The compacted topic of a target with the claims of all mirrors: the name of a target topic, and its mirror.
CLAIMS_TOPIC = "kiel-mirror-claims"

#: Returns the timestamp of a record with this value, in milliseconds, or 0 for the present time.
Timestamps: TypeAlias = Callable[[bytes | None], int]


class MirroredTopic(NamedTuple):
    """A topic of the source with its number of partitions and its settings, and its name on the target."""

    source: str
    target: str
    partitions: int
    config: Mapping[str, str]
    #: The partitions of the topic on the target if keys are hashed anew, or 0 for the partitions of the source.
    hashed_partitions: int = 0

    @property
    def target_partitions(self) -> int:
        """The number of partitions that the topic gets on the target."""
        return self.hashed_partitions or self.partitions


class SourceBatch(NamedTuple):
    """The next records of one source partition, and the topic of the target that they are written to."""

    partition: TopicPartition
    columns: Sequence[RecordColumns]
    topic: str
    #: Whether a record with a key goes to the partition that the hash of its key names.
    is_hashed: bool = False

    @property
    def next_offset(self) -> int:
        """The offset after the last record."""
        return self.columns[-1].next_offset


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
    """
    Return the name of the compacted topic of the target that has the checkpoints of a mirror.

    The key of a checkpoint is ``[topic, partition, slot]`` of the source. Its value is ``{"source": S, "target": T}``:
    the records from offset S of the source's partition on are those from offset T of the target's partition on. T is
    null if it is not known.

    If keys are hashed anew (``target.partitions``), T is null, and the value has ``"targets": {"0": T0, "3": T3}``:
    records from offset S on that are in the target's partition 0 have offset T0 or a greater one. A partition of the
    target that is not named may have them from its start on.
    """
    return f"kiel-mirror-{mirror}"
