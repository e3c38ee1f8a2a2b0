"""Releases of partitions: their conditions, and the offsets that they leave to the next owners."""

from __future__ import annotations

from kiel_groups.config import BROKER_V0
from tests.fakes.znode_tree import Kind
from tests.sim.history.records import OffsetWrite, OwnerDeletion, WriteKind
from tests.sim.invariants.invariant import Invariant

__all__ = [
    "GateShutBeforeClaimEnds",
    "ReleaseCommitsNothing",
    "ReleasedAtFinishedOffset",
    "ReleasedWhenDrained",
    "ResetStoredBeforeRelease",
]


class ReleasedWhenDrained(Invariant):
    """A member releases a partition only while it has no record of the partition in flight."""

    def on_owner_deletion(self, deletion: OwnerDeletion) -> None:
        if deletion.is_release and deletion.owner.is_processing(deletion.partition):
            raise self.violation(
                f"{deletion.owner.name} releases {deletion.partition} while its application processes it"
            )


class Release(Invariant):
    """Base class: checks releases after which the stored offset must match what the owner has finished."""

    def on_owner_deletion(self, deletion: OwnerDeletion) -> None:
        finished = deletion.owner.finished(deletion.partition)
        if not deletion.is_release or finished is None or self._is_of_new_log(deletion):
            return
        version, offset = finished
        znode = self.world.ensemble.tree.znodes.get(self.history.layout.offset(deletion.partition))
        path = self.history.layout.offset(deletion.partition)
        by_itself = any(change.path == path for change in deletion.entry.changes)
        if znode is not None and znode.version == version + by_itself:
            self.check(deletion, offset, by_itself=by_itself)
        # If the version differs, another writer wrote the offset, and the release leaves it unchanged.

    def check(self, deletion: OwnerDeletion, finished: int, *, by_itself: bool) -> None:
        """
        Check a release.

        Args:
            deletion: The release.
            finished: The next offset after the records that the owner has finished.
            by_itself: Whether the release writes the offset, too.
        """
        raise NotImplementedError

    def _is_of_new_log(self, deletion: OwnerDeletion) -> bool:
        """
        Return whether the finished records are of a deleted log, so that the owner does not commit them.

        ``NoOffsetOfOldLog`` and ``EveryPartitionOwned`` check that partitions are reset to the new log.
        """
        topics, partition = self.history.topics, deletion.partition
        return (
            partition in topics.outdated
            or topics.was_reset_by(deletion.entry, partition)
            or topics.is_outdated(deletion.owner, partition)
        )


class ResetStoredBeforeRelease(Release):
    """An owner that has chosen a reset stores the chosen offset with the release."""

    def check(self, deletion: OwnerDeletion, finished: int, *, by_itself: bool) -> None:
        owner, partition, stored = deletion.owner, deletion.partition, self.history.stored(deletion.partition)
        assert stored is not None
        if owner.has_pending_reset(partition) and not self.history.may_reset(owner, partition, deletion.entry, stored):
            raise self.violation(f"{owner.name} releases {partition} at {stored}, and forgets its reset")


class ReleasedAtFinishedOffset(Release):
    """When an owner that commits by itself releases a partition, the stored offset is the owner's finished offset."""

    def check(self, deletion: OwnerDeletion, finished: int, *, by_itself: bool) -> None:
        if not self.world.autocommit:
            return
        owner, partition, stored = deletion.owner, deletion.partition, self.history.stored(deletion.partition)
        if owner.has_pending_reset(partition) or finished == stored:
            return
        if not self._may_differ(deletion, finished, by_itself=by_itself):
            raise self.violation(f"{owner.name} releases {partition} at {stored}, finished is {finished}")

    def _may_differ(self, deletion: OwnerDeletion, finished: int, *, by_itself: bool) -> bool:
        """
        Return whether the stored offset may differ from the finished offset.

        The stored offset may be larger, up to the offset that was processed under an earlier claim. It may be smaller
        if the release itself writes it (in place of garbage), if a broker has yet to write the requested offset, if a
        broker wrote late, or if a broker wrote an offset that the application chose.
        """
        partition, stored = deletion.partition, self.history.stored(deletion.partition)
        if stored is not None and stored > finished:
            return stored <= self.history.processed(partition)
        requests, owner, token = self.history.requests, deletion.owner, deletion.claim.czxid
        was_requested = requests.may_have_requested(owner, partition, finished)
        if self.world.store == BROKER_V0 and stored is not None:
            # A chosen offset may be written later than the member waits, in place of what the member has stored since.
            was_requested = was_requested or self.history.chosen.was_chosen(owner, partition, token, stored)
        return by_itself or was_requested or partition in requests.late


class ReleaseCommitsNothing(Invariant):
    """If applications commit, a release commits nothing: it stores only resets, and repairs what was damaged."""

    def on_offset(self, write: OffsetWrite) -> None:
        if self.world.autocommit or write.kind is not WriteKind.COMMIT or write.repairs or write.offset == write.before:
            return
        owner = self.history.layout.owner(write.partition)
        if any(change.path == owner and change.kind is Kind.DELETED for change in write.entry.changes):
            raise self.violation(
                f"{write.by.name} stores {write.offset} of {write.partition} with its release, and {write.before} is"
                " stored: the application has not committed it"
            )


class GateShutBeforeClaimEnds(Invariant):
    """The owner znode of a partition that a member may deliver from is deleted only after the member's gate is shut."""

    def on_owner_deletion(self, deletion: OwnerDeletion) -> None:
        owner, partition = deletion.owner, deletion.partition
        if partition in owner.opened and owner.gate_is_open and not self._is_by_operator(deletion):
            raise self.violation(f"{owner.name} loses its claim of {partition}, and its gate is open")

    def _is_by_operator(self, deletion: OwnerDeletion) -> bool:
        """
        Return whether an operator deletes the owner znode and leaves the member znode (see ``is_taken_by_operator``).
        """
        return deletion.is_forced
