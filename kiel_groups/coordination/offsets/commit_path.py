"""Define how commits reach ZooKeeper, and implement the path of the ``zookeeper`` offset store: the member writes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from kiel_groups.coordination.offsets.offset_znodes import OffsetZnodes, Written
from kiel_groups.group.member.offset_tracker import OffsetTracker
from kiel_groups.group.member.partition_offsets import Commit, StoredOffset
from kiel_groups.model import TopicPartition

__all__ = ["CommitPath", "ZooKeeperCommits"]


class CommitPath(Protocol):
    """The way on which one member's commits are stored."""

    async def check_served(self, partitions: Collection[TopicPartition]) -> None:
        """
        Check that this group's offsets of these partitions can be committed, before anything is processed.

        Raises:
            NoOffsetsError: The offsets can never be committed.
        """

    async def commit(self, commits: Mapping[TopicPartition, Commit], metadata: str) -> Written:
        """
        Store next offsets with the versions that they replace, except those that the tracker no longer permits.

        Returns:
            The offsets that were stored, and those that were found instead, for the tracker to judge.

        Raises:
            SessionLostError: The session is over; nothing more was stored.
        """

    async def read(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, StoredOffset]:
        """Read stored offsets; skip deleted znodes, which a commit creates again."""

    def hurry(self, within_s: float) -> None:
        """Limit all waits for brokers to ``within_s`` seconds from now, because the member leaves."""


class ZooKeeperCommits:
    """Commits that the member itself writes to the offset znodes."""

    def __init__(self, znodes: OffsetZnodes, tracker: OffsetTracker) -> None:
        self._znodes = znodes
        self._tracker = tracker

    async def check_served(self, partitions: Collection[TopicPartition]) -> None:
        """Return at once: no broker is involved."""

    async def commit(self, commits: Mapping[TopicPartition, Commit], metadata: str) -> Written:
        """Write the offsets without ``metadata``, for which an offset znode has no room."""
        may_store = self._tracker.may_store
        return await self._znodes.put(commits, lambda partition, written: written if may_store(partition) else None)

    async def read(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, StoredOffset]:
        return await self._znodes.read(list(partitions))

    def hurry(self, within_s: float) -> None:
        """Return at once: there is no wait for brokers."""
