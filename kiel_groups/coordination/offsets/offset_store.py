"""Define what stores a member's offsets: ZooKeeper, or the coordinator of its group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from kiel_groups.group.member.partition_offsets import Commit, StoredOffset
from kiel_groups.model import TopicPartition

__all__ = ["OffsetStore", "Written"]


class Written(NamedTuple):
    """
    The result of writing offsets.

    ``stored`` has the offsets that were written, with their new versions; ``found`` has the offsets that other writers
    had stored, and that were read instead.
    """

    stored: dict[TopicPartition, StoredOffset]
    found: dict[TopicPartition, StoredOffset]


class OffsetStore(Protocol):
    """
    Stores the next offsets of the partitions that one member owns.

    The tracker learns of each write from the store, so that a write with an unknown outcome is recognised later.
    """

    async def commit(self, commits: Mapping[TopicPartition, Commit], metadata: str) -> Written:
        """
        Store offsets with a text, where the store has room for one.

        Offsets that the tracker no longer permits when they are sent, and those that the store refuses, are in neither
        part of the result.

        Raises:
            SessionLostError: The membership is over; nothing more was stored.
        """

    async def commit_reset(self, commits: Mapping[TopicPartition, Commit]) -> Written:
        """Store the positions that resets chose; as ``commit`` otherwise."""

    async def read(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, StoredOffset]:
        """Read the stored offsets of owned partitions, to find those of other writers."""
