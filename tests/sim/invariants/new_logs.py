"""Topics that are created again: their offsets are reset to the new logs."""

from __future__ import annotations

from collections.abc import Collection

from kiel_groups.model import TopicPartition
from tests.sim.history.history import History
from tests.sim.history.records import OffsetWrite, OwnerDeletion, WriteKind
from tests.sim.invariants.invariant import Invariant

__all__ = ["NoOffsetOfOldLog"]


class NoOffsetOfOldLog(Invariant):
    """
    After a topic was created again, no release leaves a misleading offset of the old log, and none remains at the end.

    An offset that was written before the topic was created misleads no owner: the owner compares the zxids.
    """

    def __init__(self, history: History) -> None:
        super().__init__(history)
        #: Partitions whose offset was damaged, set by an operator, or committed by a member unaware of the new log.
        self._excused: set[TopicPartition] = set()
        #: The excused partitions whose only excuse is such a commit. The member may know of the new log at a release.
        self._unaware: set[TopicPartition] = set()

    def on_owner_deletion(self, deletion: OwnerDeletion) -> None:
        """Check a release by a member that claimed the partition before its topic was created again."""
        partition, topics = deletion.partition, self.history.topics
        if not deletion.is_release or partition not in topics.outdated:
            return
        znode, topic = (
            self.world.ensemble.tree.znodes.get(self.history.layout.offset(partition)),
            topics.znode(partition),
        )
        if topic is None or znode is None or not topics.could_know(deletion.entry, partition.topic):
            return
        if deletion.claim.czxid > topic.czxid or znode.mzxid < topic.czxid:
            return
        if not (self._is_excused_at_release(partition) or self._is_foreign(partition)):
            name = self.history.sessions.writer(deletion.entry).name
            raise self.violation(f"{name} releases {partition} at {int(znode.data)} of a log that is gone")

    def _is_excused_at_release(self, partition: TopicPartition) -> bool:
        """
        Return whether the partition is excused, and not only for a commit by a member that may know of the new log by
        now.
        """
        return partition in self._excused and partition not in self._unaware

    def _is_foreign(self, partition: TopicPartition) -> bool:
        """Return whether an operator made the last change of the offset: set, deleted or garbled it."""
        return partition in self.history.damaged or partition in self.history.set_by_operators

    def on_end(self, partitions: Collection[TopicPartition]) -> None:
        """Check that no stored offset of an old log looks like an offset of the new log."""
        znodes = self.world.ensemble.tree.znodes
        for partition in sorted(self.history.topics.outdated.intersection(partitions) - self._excused):
            offset, topic = znodes[self.history.layout.offset(partition)], self.history.topics.znode(partition)
            # The topic may have been deleted while the members left.
            if topic is not None and offset.mzxid > topic.czxid:
                raise self.violation(
                    f"{partition} continues at {int(offset.data)} in the log of a topic that was created again"
                )

    def on_topic_deletion(self, topic: str) -> None:
        """End the excuses of the topic's partitions, except for offsets that are still damaged."""
        damaged = self.history.damaged
        self._excused = {p for p in self._excused if p.topic != topic or p in damaged}
        self._unaware = {p for p in self._unaware if p.topic != topic}

    def on_offset(self, write: OffsetWrite) -> None:
        """Record which partitions are excused from now on."""
        if write.kind in (WriteKind.DAMAGE, WriteKind.OPERATOR) or self._is_late(write) or self._is_first(write):
            self._excused.add(write.partition)
        elif self._is_unaware(write):
            if write.partition not in self._excused:
                self._unaware.add(write.partition)
            self._excused.add(write.partition)

    def _is_late(self, write: OffsetWrite) -> bool:
        """Return whether a broker writes late an offset that a member requested in the old log."""
        if write.kind is not WriteKind.BROKER or write.request is None:
            return False
        replaces = self.history.requests.replaces_another_epoch(write.request)
        return replaces and write.partition in self.history.topics.outdated

    def _is_first(self, write: OffsetWrite) -> bool:
        """Return whether a member may have looked up the start of a log, and stores it after that log was deleted."""
        return write.kind is WriteKind.FIRST and write.partition in self.history.topics.without_offset

    def _is_unaware(self, write: OffsetWrite) -> bool:
        """Return whether a member commits, or stores a reset, before it could be notified of the new topic."""
        if write.kind not in (WriteKind.COMMIT, WriteKind.RESET):
            return False
        topics, partition = self.history.topics, write.partition
        return partition in topics.outdated and not topics.could_know(write.entry, partition.topic)
