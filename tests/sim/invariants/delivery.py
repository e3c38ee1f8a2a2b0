"""Delivery: which consumer may deliver a record, and which record comes next."""

from __future__ import annotations

from kiel_groups.config import ZOOKEEPER_STORE
from kiel_groups.model import TopicPartition
from tests.sim.history.history import History
from tests.sim.history.records import Delivery
from tests.sim.invariants.invariant import Invariant

__all__ = [
    "DeliveredAfterHook",
    "DeliveredUnderClaim",
    "NoRecordSkipped",
    "NotDeliveredBeforeStored",
    "OneOpenGate",
]


class DeliveredUnderClaim(Invariant):
    """A consumer delivers only from partitions that it owns, or that an operator took from it."""

    def on_delivery(self, delivery: Delivery) -> None:
        consumer, partition = delivery.consumer, delivery.partition
        if not (self.history.owners.owns(consumer, partition) or self.is_taken_by_operator(consumer, partition)):
            raise self.violation(f"{consumer.name} delivers {partition}, and its claim is not there")


class DeliveredAfterHook(Invariant):
    """A consumer delivers no record of a partition before the listener's assigned hook has ended."""

    def on_delivery(self, delivery: Delivery) -> None:
        consumer, partition = delivery.consumer, delivery.partition
        if partition not in consumer.hooked:
            raise self.violation(f"{consumer.name} delivers {partition}, and its assigned hook has not ended")


class NoRecordSkipped(Invariant):
    """A consumer never continues beyond the first record that was not processed."""

    def on_open(self, opened: Delivery) -> None:
        self._check(opened)

    def on_delivery(self, delivery: Delivery) -> None:
        self._check(delivery)

    def _check(self, delivery: Delivery) -> None:
        if self._log_is_gone(delivery):
            return
        consumer, partition = delivery.consumer, delivery.partition
        processed: int | None = self.history.processed(partition)
        if self._is_of_earlier_epoch(delivery):
            processed = self._processed_before_late_write(delivery)
        if processed is not None and delivery.offset > processed:
            raise self.violation(
                f"{consumer.name} continues in {partition} at {delivery.offset}, and only what is before"
                f" {processed} was processed"
            )

    def _log_is_gone(self, delivery: Delivery) -> bool:
        """
        Return whether the log is deleted. The owner skips nothing in it, because it delivers the new log from its
        start.
        """
        return self.history.topics.is_log_gone(delivery.consumer, delivery.partition)

    def _is_of_earlier_epoch(self, delivery: Delivery) -> bool:
        """
        Return whether the consumer does not know yet that another writer set the offset. Its deliveries do not count.
        """
        return delivery.epoch != self.history.epoch(delivery.partition)

    def _processed_before_late_write(self, delivery: Delivery) -> int | None:
        """
        Return the offset that the consumer may continue at until it follows a broker's late write; None for any offset.

        The consumer may have read the offset that the late write has replaced, and continues exactly there.
        """
        if delivery.partition not in self.history.requests.replacing:
            return None
        return self.history.processed_in(delivery.partition, delivery.epoch)


class NotDeliveredBeforeStored(Invariant):
    """A consumer does not go back before the stored offset without a reset."""

    def on_delivery(self, delivery: Delivery) -> None:
        if self._may_not_know(delivery) or self._may_follow_late_write():
            return
        consumer, partition, stored = delivery.consumer, delivery.partition, self.history.stored(delivery.partition)
        if stored is not None and delivery.offset < stored:
            raise self.violation(
                f"{consumer.name} goes back in {partition} to {delivery.offset}, and {stored} is stored"
            )

    def _may_not_know(self, delivery: Delivery) -> bool:
        """Return whether the consumer may not know yet that another writer set, deleted or garbled the offset."""
        partition = delivery.partition
        return delivery.epoch != self.history.epoch(partition) or partition in self.history.damaged

    def _may_follow_late_write(self) -> bool:
        """Return whether an owner may follow a broker's late write that another late write replaces (``broker-v0``)."""
        return self.world.store != ZOOKEEPER_STORE


class OneOpenGate(Invariant):
    """At most one consumer has an open gate for a partition. Consumers from which an operator took it do not count."""

    def __init__(self, history: History) -> None:
        super().__init__(history)
        #: Partitions that more than one consumer has opened. Each step checks only these partitions.
        self._contested: set[TopicPartition] = set()

    def on_open(self, opened: Delivery) -> None:
        if sum(opened.partition in consumer.opened for consumer in self.world.consumers) > 1:
            self._contested.add(opened.partition)
        self.on_step()

    def on_step(self) -> None:
        for partition in list(self._contested):
            opened = [consumer for consumer in self.world.consumers if partition in consumer.opened]
            unforced = [consumer for consumer in opened if not self.is_taken_by_operator(consumer, partition)]
            names = [consumer.name for consumer in unforced if consumer.gate_is_open]
            if len(names) > 1:
                raise self.violation(f"two gates are open for {partition}: {' and '.join(names)}")
            if len(opened) < 2:
                self._contested.discard(partition)
