"""
Commit the offsets of one member's partitions, and adopt offsets that other writers store.

Another writer is an operator, or the partition's next owner. ``OffsetTracker`` decides what is stored and adopted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from kiel_groups.coordination.offsets.offset_store import OffsetStore, Written
from kiel_groups.coordination.partition_handler import PartitionHandler
from kiel_groups.group.member.offset_tracker import OffsetTracker
from kiel_groups.group.member.partition_offsets import Commit, Finding, StoredOffset
from kiel_groups.group.member.pending_reset import PendingReset
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition

__all__ = ["Attempt", "OwnedOffsets"]

log = logging.getLogger(__name__)


class Attempt(NamedTuple):
    """
    The partitions whose offsets an attempt ``stored``, and those to ``repeat`` because an earlier commit was stored.

    ``superseded`` has what other writers had stored instead. Offsets in none of the three were not sent because they
    became outdated, or brokers did not store them.
    """

    stored: frozenset[TopicPartition]
    repeat: frozenset[TopicPartition]
    superseded: Mapping[TopicPartition, StoredOffset]


class OwnedOffsets:
    """
    Stores the offsets of a member's partitions in the ``store`` of its group, and adopts those of other writers.

    ``handler`` resumes delivery at an adopted offset, and ``metrics`` counts the stored and the adopted ones.
    """

    def __init__(
        self, group: str, handler: PartitionHandler, tracker: OffsetTracker, metrics: Metrics, store: OffsetStore
    ) -> None:
        self._group = group
        self._handler = handler
        self._tracker = tracker
        self._metrics = metrics
        self._store = store
        #: Held by commits and releases. Two concurrent writes of an offset expect the same version, so one would fail.
        self.writing = asyncio.Lock()

    async def commit_finished(self, metadata: str = "") -> frozenset[TopicPartition]:
        """
        Store the next offset of every owned partition that has newly finished records.

        If another writer has changed an offset meanwhile, the member adopts the new offset and continues there.

        Args:
            metadata: A text for stores that have room for one.

        Returns:
            The partitions whose offsets were stored. A partition whose topic was created again is included only after
            its restart in the new log.

        Raises:
            SessionLostError: The session is over; records whose offsets were not stored will be delivered again.
        """
        async with self.writing:
            return await self.store_finished(None, metadata)

    async def store_finished(
        self, partitions: Collection[TopicPartition] | None, metadata: str = ""
    ) -> frozenset[TopicPartition]:
        """
        Store the finished offsets of ``partitions``, None for all; the caller holds the lock ``writing``.

        If an earlier commit whose caller was interrupted turns out to be stored, another attempt stores the offsets
        finished since.
        """
        attempt = await self.attempt(self._tracker.commits(partitions), metadata)
        stored = attempt.stored
        while attempt.repeat:
            attempt = await self.attempt(self._tracker.commits(attempt.repeat), metadata)
            stored |= attempt.stored
        return stored

    async def store_left(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """
        Store what the release of these partitions leaves, in a store that does not end claims in the same step.

        The caller holds the lock ``writing``. Returns the partitions whose offsets were stored.
        """
        left = {partition: self._tracker.release(partition, None) for partition in partitions}
        return (
            await self.attempt(
                {p: Commit(each.offset, each.version or 0) for p, each in left.items() if each.offset is not None}
            )
        ).stored

    async def attempt(self, commits: Mapping[TopicPartition, Commit], metadata: str = "") -> Attempt:
        """Make one attempt to store next offsets by way of the group's store; the caller holds the lock ``writing``."""
        return self._settle(commits, await self._store.commit(commits, metadata))

    async def store_reset(self, partition: TopicPartition, reset: PendingReset) -> int | None:
        """
        Store the position that a reset chose, once no older record of the partition is buffered or in flight.

        The position is stored even if only the application commits. Otherwise the next owner might choose another one.

        Returns:
            The offset to continue at, or None if the reset is void: the partition is released or lost, its topic was
            created again, or another writer has set its offset.

        Raises:
            SessionLostError: The session is over; nothing was stored.
        """
        async with self.writing:
            while self._tracker.reset_applies(partition, reset):
                if (commit := self._tracker.reset_to_store(partition)) is None:
                    return self._tracker.complete_reset(partition)
                # A commit that a late broker writes after this is another writer's.
                self._tracker.requested({partition: None})
                self._settle({partition: commit}, await self._store.commit_reset({partition: commit}))
            return None

    def _settle(self, commits: Mapping[TopicPartition, Commit], written: Written) -> Attempt:
        """
        Apply the outcome of an attempt to store next offsets.

        The caller holds the lock ``writing`` while it asks the tracker for the commits, too, so that they fit the
        versions that they replace. An operator's offset may be adopted between two commits, and an older offset must
        not overwrite it.
        """
        findings = {partition: self._apply(partition, now) for partition, now in written.found.items()}
        own = {p: written.found[p] for p, found in findings.items() if found in (Finding.UNCHANGED, Finding.OWN)}
        stored_now = written.stored | own
        stored = frozenset(p for p, now in stored_now.items() if now.offset == commits[p].offset)
        self._metrics.count("offsets_committed", len(stored))
        late = frozenset(p for p, found in findings.items() if found is Finding.OWN)
        others = (Finding.ADOPTED, Finding.UNREADABLE, Finding.NOT_OPEN)
        superseded = {partition: written.found[partition] for partition, each in findings.items() if each in others}
        return Attempt(stored, late - stored, superseded)

    async def adopt_foreign_offsets(self, owned: Callable[[], Collection[TopicPartition]]) -> None:
        """
        Adopt the offsets that other writers stored between commits.

        ``owned`` returns the partitions that the member owns, without those that are being revoked; it is called when
        no other write is in progress.

        The znode's version reveals another writer, even if the stored offset is the same. That is a reset, too: the
        records after the offset must be delivered again.
        """
        async with self.writing:
            for partition, found in (await self._store.read(self._tracker.verifiable(owned()))).items():
                self._apply(partition, found)

    def _apply(self, partition: TopicPartition, found: StoredOffset) -> Finding:
        """Have the tracker judge a stored offset; if it is another writer's, resume there."""
        finding = self._tracker.read(partition, found)
        if finding in (Finding.ADOPTED, Finding.UNREADABLE):
            self._metrics.count("commits_superseded")
        if finding is Finding.ADOPTED:
            assert found.offset is not None
            log.warning(
                "group %s: another writer changed the offset of %s to %d; continuing there",
                self._group,
                partition,
                found.offset,
            )
            self._handler.offset_changed(partition, found.offset)
        return finding
