"""Releases: what a member leaves to the next owner."""

from __future__ import annotations

from tests.sim.history.records import OwnerDeletion
from tests.sim.invariants.invariant import Invariant

__all__ = ["GateShutBeforeClaimEnds", "ReleasedAtFinishedOffset", "ReleasedWhenDrained", "ResetStoredBeforeRelease"]


class ReleasedWhenDrained(Invariant):
    """A partition is released only when nothing of it is in flight."""

    def on_owner_deletion(self, deletion: OwnerDeletion) -> None:
        if deletion.is_release and deletion.partition in deletion.owner.in_flight:
            raise self.violation(
                f"{deletion.owner.name} releases {deletion.partition} while its application processes it"
            )


class Release(Invariant):
    """The checks of a release that has to leave what the owner has finished."""

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
        # Else another writer wrote the offset, and it stays.

    def check(self, deletion: OwnerDeletion, finished: int, *, by_itself: bool) -> None:
        """
        Check a release.

        Args:
            deletion: The release.
            finished: The next offset after what the owner has finished.
            by_itself: Whether the release writes the offset, too.
        """
        raise NotImplementedError

    def _is_of_new_log(self, deletion: OwnerDeletion) -> bool:
        """
        What is finished in a log that is gone is not committed.

        That members are reset to the new log in time, and leave nothing misleading, are invariants of their own.
        """
        topics, partition = self.history.topics, deletion.partition
        return (
            partition in topics.outdated
            or topics.was_reset_by(deletion.entry, partition)
            or topics.is_outdated(deletion.owner, partition)
        )


class ResetStoredBeforeRelease(Release):
    """A reset that an owner has chosen is stored with the release."""

    def check(self, deletion: OwnerDeletion, finished: int, *, by_itself: bool) -> None:
        owner, partition, stored = deletion.owner, deletion.partition, self.history.stored(deletion.partition)
        assert stored is not None
        processed = self.history.processed(partition)
        if owner.has_pending_reset(partition) and not self.history.ranges.may_reset(
            owner, partition, deletion.entry, processed, stored
        ):
            raise self.violation(f"{owner.name} releases {partition} at {stored}, and forgets its reset")


class ReleasedAtFinishedOffset(Release):
    """The offset that is stored when a partition is released is the one that its owner has finished."""

    def check(self, deletion: OwnerDeletion, finished: int, *, by_itself: bool) -> None:
        owner, partition, stored = deletion.owner, deletion.partition, self.history.stored(deletion.partition)
        if owner.has_pending_reset(partition) or finished == stored:
            return
        if not self._may_differ(deletion, finished, by_itself=by_itself):
            raise self.violation(f"{owner.name} releases {partition} at {stored}, finished is {finished}")

    def _may_differ(self, deletion: OwnerDeletion, finished: int, *, by_itself: bool) -> bool:
        """
        Brokers may write later what the owner requested.

        More may be stored, where that was processed under an earlier claim. Less may be stored, where a write is late,
        or was requested and is not there yet, or where the owner itself has replaced garbage.
        """
        partition, stored = deletion.partition, self.history.stored(deletion.partition)
        if stored is not None and stored > finished:
            return stored <= self.history.processed(partition)
        requests = self.history.requests
        was_requested = requests.may_have_requested(deletion.owner, partition, finished)
        return by_itself or was_requested or partition in requests.late


class GateShutBeforeClaimEnds(Invariant):
    """The owner znode of a partition that a member may deliver from is deleted only when the member's gate is shut."""

    def on_owner_deletion(self, deletion: OwnerDeletion) -> None:
        owner, partition = deletion.owner, deletion.partition
        if partition in owner.opened and owner.gate_is_open and not self._is_by_operator(deletion):
            raise self.violation(f"{owner.name} loses its claim of {partition}, and its gate is open")

    def _is_by_operator(self, deletion: OwnerDeletion) -> bool:
        """An operator deletes the owner znode and not the member znode (see ``is_taken_by_operator``)."""
        return deletion.is_forced
