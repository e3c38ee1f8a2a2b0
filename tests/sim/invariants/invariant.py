"""The base class of all invariants."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from kiel_groups.errors import KielGroupsError
from kiel_groups.model import TopicPartition
from tests.fakes.fake_ensemble import Entry
from tests.sim.history.history import History
from tests.sim.history.records import CommitRequest, Delivery, OffsetWrite, OwnerDeletion, PlanWrite

if TYPE_CHECKING:
    from tests.sim.consumer import Consumer

__all__ = ["Invariant", "Violation"]


class Violation(AssertionError):  # noqa: N818 -- what a run has found
    """An invariant does not hold."""


class Invariant:
    """
    A rule, stated in the first line of its subclass's docstring.

    The checker calls the methods ``on_…``. If a method is about the change of a znode, it is called before the history
    records the change. A method raises ``self.violation(text)`` if the rule is broken. Each exception to a rule is a
    method that returns whether the exception applies.
    """

    def __init__(self, history: History) -> None:
        self.history = history
        self.world = history.world

    def violation(self, text: str) -> Violation:
        """
        Create a violation, and record it, so that it ends the run even if the product's code catches the exception.
        """
        violation = Violation(text)
        self.world.timeline.failures.append(violation)
        return violation

    def is_taken_by_operator(self, consumer: Consumer, partition: TopicPartition) -> bool:
        """
        Return whether an operator has deleted the consumer's owner znode and left its member znode.

        This is an exception to several invariants. The member notices the deletion only when it reconciles; until then
        its gate is open. Deleting an owner znode by hand voids the guarantee (``docs/ownership.rst``).
        """
        return self.history.owners.is_forced(consumer, partition)

    # Time

    def on_start(self) -> None:
        """Start checking: the topics exist, the consumers do not yet."""

    def on_step(self) -> None:
        """Check after a step of the run."""

    def on_end(self, partitions: Collection[TopicPartition]) -> None:
        """Check the state after all members have left. ``partitions`` are the partitions that they owned."""

    # ZooKeeper's log

    def on_entry(self, entry: Entry) -> None:
        """Check a transaction, or the end of a session."""

    def on_plan(self, write: PlanWrite) -> None:
        """Check a leader's write of a plan, or of a part of one."""

    def on_topic_deletion(self, topic: str) -> None:
        """Record the deletion of a topic."""

    def on_offset(self, write: OffsetWrite) -> None:
        """Check a change of an offset znode."""

    def on_owner_deletion(self, deletion: OwnerDeletion) -> None:
        """Check the deletion of an owner znode."""

    # Reports of consumers

    def on_open(self, opened: Delivery) -> None:
        """Check the position at which a consumer opens a partition for delivery."""

    def on_delivery(self, delivery: Delivery) -> None:
        """Check the delivery of a record."""

    def on_commit_request(self, request: CommitRequest) -> None:
        """Check a consumer's request to brokers to store an offset."""

    def on_stop(self, consumer: Consumer, error: KielGroupsError) -> None:
        """Check an error that a consumer regards as permanent."""
