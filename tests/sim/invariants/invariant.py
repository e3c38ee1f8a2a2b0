"""What an invariant is."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from kiel_groups.errors import KielGroupsError
from kiel_groups.model import TopicPartition
from kiel_groups.testing.fake_ensemble import Entry
from tests.sim.history.history import History
from tests.sim.history.records import CommitRequest, Delivery, OffsetWrite, OwnerDeletion, PlanWrite

if TYPE_CHECKING:
    from tests.sim.consumer import Consumer

__all__ = ["Invariant", "Violation"]


class Violation(AssertionError):  # noqa: N818 -- what a run has found
    """An invariant does not hold."""


class Invariant:
    """
    A rule that the first sentence of its class states.

    The checker calls ``on_…`` for what happens. ``self.history`` has all that was before. An invariant raises
    ``self.violation(text)``.
    """

    def __init__(self, history: History) -> None:
        self.history = history
        self.world = history.world

    def violation(self, text: str) -> Violation:
        """Make a violation. It ends the run, also where the product's own code catches what is raised."""
        violation = Violation(text)
        self.world.timeline.failures.append(violation)
        return violation

    def is_taken_by_operator(self, consumer: Consumer, partition: TopicPartition) -> bool:
        """
        An operator has deleted the consumer's owner znode, and not its member znode.

        Several invariants excuse this. The member notices it when it reconciles; until then its lease runs, and its
        gate is open. An owner znode that is deleted by hand ends the guarantee (``docs/ownership.rst``).
        """
        return self.history.owners.is_forced(consumer, partition)

    # Time

    def on_start(self) -> None:
        """The topics are there, and no consumer is."""

    def on_step(self) -> None:
        """Something has happened, and all that followed at once from it."""

    def on_end(self, partitions: Collection[TopicPartition]) -> None:
        """All members have left; these partitions were owned by them."""

    # ZooKeeper's log

    def on_entry(self, entry: Entry) -> None:
        """A transaction is committed, or a session ends."""

    def on_plan(self, write: PlanWrite) -> None:
        """A leader writes a plan, or part of one."""

    def on_topic_deletion(self, topic: str) -> None:
        """A topic is deleted."""

    def on_offset(self, write: OffsetWrite) -> None:
        """An offset znode changes."""

    def on_owner_deletion(self, deletion: OwnerDeletion) -> None:
        """An owner znode is deleted."""

    # Reports of consumers

    def on_open(self, opened: Delivery) -> None:
        """A consumer may deliver from a partition from now on."""

    def on_delivery(self, delivery: Delivery) -> None:
        """A consumer delivers a record."""

    def on_commit_request(self, request: CommitRequest) -> None:
        """A consumer requests brokers to store an offset."""

    def on_stop(self, consumer: Consumer, error: KielGroupsError) -> None:
        """A consumer has met an error that no new session can fix, as it says."""
