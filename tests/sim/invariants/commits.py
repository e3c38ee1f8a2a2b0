"""Commits: which member may write an offset, and which offset."""

from __future__ import annotations

from kiel_groups.config import ZOOKEEPER_STORE
from kiel_groups.model import TopicPartition
from tests.fakes.znode_tree import Kind
from tests.sim.history.records import OffsetWrite, WriteKind
from tests.sim.invariants.invariant import Invariant

__all__ = [
    "CommittedByOwner",
    "CommittedOnlyProcessed",
    "FirstOffsetFollowsPolicy",
    "NewLogKeepsOperatorsOffset",
    "OffsetsNeverMoveBack",
    "ResetStoredWhenDrained",
]


class CommittedByOwner(Invariant):
    """A member commits only partitions that it owns, or releases in the same transaction, or that an operator took."""

    def on_offset(self, write: OffsetWrite) -> None:
        if write.kind is not WriteKind.COMMIT or self._is_first_of_topic(write) or write.offset == write.before:
            return
        is_owned = self.history.owners.claim(write.entry, write.partition) is not None
        if not is_owned and not self.is_taken_by_operator(write.by, write.partition):
            raise self.violation(
                f"{write.by.name} commits {write.offset} of {write.partition}, and its claim is not there"
            )

    def _is_first_of_topic(self, write: OffsetWrite) -> bool:
        """
        Return whether the write creates the offset: any member may create the first offsets of all partitions of a
        topic.
        """
        return write.change.kind is Kind.CREATED


class OffsetsNeverMoveBack(Invariant):
    """
    A commit is never lower than the offset that it replaces, unless the application chose that offset under the claim.

    Writes of operators, resets and new logs may move an offset back; they are no commits (see ``WriteKind``). Late
    writes of brokers may move it back, too: a broker checks nothing.
    """

    def on_offset(self, write: OffsetWrite) -> None:
        if write.kind is not WriteKind.COMMIT or write.before is None or write.offset >= write.before:
            return
        if not self.history.chosen.allow(write.entry, write.by, write.partition, write.offset):
            raise self.violation(
                f"{write.by.name} takes the offset of {write.partition} back from {write.before} to {write.offset}"
            )


class CommittedOnlyProcessed(Invariant):
    """A commit never stores an offset beyond the processed records."""

    def on_offset(self, write: OffsetWrite) -> None:
        if write.kind is WriteKind.COMMIT and write.offset > write.processed:
            raise self.violation(
                f"{write.by.name} commits {write.offset} of {write.partition}, processed is {write.processed}"
            )


class ResetStoredWhenDrained(Invariant):
    """A member stores a reset only while it has no record of the partition in flight."""

    def on_offset(self, write: OffsetWrite) -> None:
        if write.kind is WriteKind.RESET and write.by.is_processing(write.partition):
            raise self.violation(
                f"{write.by.name} stores a reset of {write.partition} while its application processes it"
            )


class FirstOffsetFollowsPolicy(Invariant):
    """
    The first offsets of a topic follow the reset policy. Partitions that are added later start at their log's start.
    """

    def on_offset(self, write: OffsetWrite) -> None:
        if write.kind is not WriteKind.FIRST:
            return
        partition, log, policy = write.partition, self.world.logs[write.partition], self.world.reset
        starts, ends = log.starts, log.ends | {self.world.log_end}
        expected = set(starts if self._came_later(write) or policy == "earliest" else ends)
        if self._others_are_gone(partition):
            expected |= starts
        if self._cannot_know_others(write):
            expected |= starts if policy == "earliest" else ends
        if write.offset not in expected:
            raise self.violation(f"the first offset of {partition} is {write.offset}, it should be of {expected}")

    def _came_later(self, write: OffsetWrite) -> bool:
        """Return whether other partitions of the topic have undamaged offsets that this transaction does not create."""
        fresh = {self.history.partition_of(change) for change in write.entry.changes} | self.history.damaged
        return not self.history.stored_partitions(write.partition.topic) <= fresh

    def _others_are_gone(self, partition: TopicPartition) -> bool:
        """
        Return whether offsets of the topic were damaged, so that no member may know whether the partition was added.
        """
        damaged = self.history.damaged - {partition}
        return partition.topic in self.history.cleared or any(other.topic == partition.topic for other in damaged)

    def _cannot_know_others(self, write: OffsetWrite) -> bool:
        """
        Return whether the member may have read ZooKeeper while the topic was deleted.

        Such a member creates offsets only of partitions that it owns. The owners of the other partitions may be about
        to create their offsets.
        """
        topics, topic = self.history.topics, write.partition.topic
        return topics.was_created(topic) and not topics.could_know(write.entry, topic)


class NewLogKeepsOperatorsOffset(Invariant):
    """A member that resets a partition to its new log does not overwrite an offset that an operator set in that log."""

    def on_offset(self, write: OffsetWrite) -> None:
        if write.kind is not WriteKind.NEW_LOG or write.repairs or write.may_reset or self._cannot_distinguish(write):
            return
        partition = write.partition
        created, _ = self.history.topics.created(partition)
        if self.history.set_by_operators.get(partition, 0) > created:
            raise self.violation(
                f"{write.by.name} resets {partition} to the new log, and an operator has set it to"
                f" {self.history.stored(partition)} in the new log"
            )

    def _cannot_distinguish(self, write: OffsetWrite) -> bool:
        """
        Return whether the member cannot distinguish an operator's offset from another offset.

        A member that is still opening its claim may mistake an operator's offset for its own write-back of an old
        offset. With ``broker-v0``, a member may mistake it for a broker's write.
        """
        return self.world.store != ZOOKEEPER_STORE or not write.by.finished(write.partition)
