"""Which member owned a partition at the time of a change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiel_groups.group.znodes.contents import parse_owner
from kiel_groups.model import TopicPartition
from tests.fakes.fake_ensemble import Entry
from tests.fakes.znode_tree import Change, Kind, Znode
from tests.sim.history.records import OwnerDeletion
from tests.sim.history.sessions import Sessions

if TYPE_CHECKING:
    from tests.sim.consumer import Consumer
    from tests.sim.world import World

__all__ = ["Owners"]


class Owners:
    """The owner znodes, and the members whose owner znode an operator deleted."""

    def __init__(self, world: World, sessions: Sessions) -> None:
        self._layout = world.layout
        self._znodes = world.ensemble.tree.znodes
        self._sessions = sessions
        #: Members whose owner znode an operator deleted and left the member znode. They may not notice it at once.
        self._forced: set[tuple[TopicPartition, Consumer]] = set()

    def deletion(self, entry: Entry, change: Change, partition: TopicPartition) -> OwnerDeletion | None:
        """
        Describe the deletion of an owner znode, or return None if it did not belong to a consumer's current session.
        """
        owner = self._sessions.user(change.znode.owner)
        if owner is None:
            return None
        by_member, is_forced = self._sessions.is_member(entry), self.is_forced(owner, partition)
        if not by_member and self._layout.member(parse_owner(change.znode.data, change.path)) in self._znodes:
            is_forced = True
        return OwnerDeletion(entry, partition, owner, change.znode, by_member and not entry.closes, is_forced)

    def record(self, deletion: OwnerDeletion) -> None:
        if deletion.is_forced:
            self._forced.add((deletion.partition, deletion.owner))

    def open(self, consumer: Consumer, partition: TopicPartition) -> None:
        """
        Record that a consumer has opened a claim.

        An operator may have deleted the owner znode while the claim was being opened: then the deletion still counts.
        """
        if self.owns(consumer, partition):
            self._forced.discard((partition, consumer))

    def is_forced(self, consumer: Consumer, partition: TopicPartition) -> bool:
        """Return whether an operator deleted the consumer's owner znode and left its member znode."""
        return (partition, consumer) in self._forced

    def znode(self, partition: TopicPartition) -> Znode | None:
        return self._znodes.get(self._layout.owner(partition))

    def owns(self, consumer: Consumer, partition: TopicPartition) -> bool:
        """Return whether the owner znode of a partition belongs to a session of the consumer."""
        owner = self.znode(partition)
        return owner is not None and self._sessions.consumers.get(owner.owner) is consumer

    def claim(self, entry: Entry, partition: TopicPartition) -> Znode | None:
        """
        Return the owner znode of an entry's writer, even if the entry itself deletes it, or None if the writer has
        none.
        """
        path = self._layout.owner(partition)
        deleted = (change.znode for change in entry.changes if change.path == path and change.kind is Kind.DELETED)
        claim = next(deleted, None) or self._znodes.get(path)
        return claim if claim is not None and claim.owner == entry.session_id else None
