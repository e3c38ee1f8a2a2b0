"""Define what stores a member's offsets: ZooKeeper, or the coordinator of its group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from kiel_groups.coordination.session.fenced_writes import Renew
from kiel_groups.errors import KielGroupsError
from kiel_groups.group.member.partition_offsets import Commit, StartPosition, StoredOffset
from kiel_groups.model import TopicPartition

__all__ = ["NewLogStore", "OffsetStore", "Starts", "Written"]


class Written(NamedTuple):
    """
    The result of writing offsets.

    ``stored`` has the offsets that were written, with their new versions; ``found`` has the offsets that other writers
    had stored, and that were read instead.
    """

    stored: dict[TopicPartition, StoredOffset]
    found: dict[TopicPartition, StoredOffset]


class Starts(NamedTuple):
    """
    The start positions of claims, and the reason for each claim whose position is not known yet.

    A claim that is in neither is opened by a later call, or its owner znode is gone.
    """

    found: dict[TopicPartition, StartPosition]
    failures: dict[TopicPartition, KielGroupsError]


class NewLogStore(Protocol):
    """Stores the start offsets of new logs, after a topic was deleted and created again."""

    async def store_starts(
        self,
        topic: str,
        earliest: Mapping[TopicPartition, int],
        is_known: Callable[[TopicPartition, StoredOffset], bool],
        renew: Renew[object],
    ) -> Mapping[TopicPartition, StoredOffset]:
        """
        Store the ``earliest`` offsets, except where an operator has set one in the new log.

        Args:
            topic: The topic.
            earliest: The first offset of each partition's new log.
            is_known: Returns whether this member has seen, or written, a stored offset in the old log.
            renew: Drops the writes once the topic was created again.

        Returns:
            The offsets that are stored now, without those that were dropped or not stored.
        """


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
