"""Seeks and pauses of applications."""

from __future__ import annotations

from tests.sim.history.records import Delivery
from tests.sim.invariants.invariant import Invariant

__all__ = ["AssignedToApplication", "DeliveredFromSoughtOffset", "PausedUntilResumed"]


class DeliveredFromSoughtOffset(Invariant):
    """After a seek, records are delivered from its offset on, and none is skipped."""

    def on_open(self, opened: Delivery) -> None:
        self._check(opened)

    def on_delivery(self, delivery: Delivery) -> None:
        self._check(delivery)

    def _check(self, delivery: Delivery) -> None:
        seek = self.history.seeks.of_epoch(delivery.epoch)
        if seek is None or self.history.topics.is_log_gone(delivery.consumer, delivery.partition):
            return
        if not seek.offset <= delivery.offset <= seek.reached:
            raise self.violation(
                f"{delivery.consumer.name} continues in {delivery.partition} at {delivery.offset}, and has sought"
                f" {seek.offset} and processed what is before {seek.reached}"
            )


class PausedUntilResumed(Invariant):
    """A paused partition delivers nothing, as long as its claim lasts. A new claim of it is not paused."""

    def on_open(self, opened: Delivery) -> None:
        consumer, partition = opened.consumer, opened.partition
        if consumer.is_paused(partition) != self._is_paused(opened):
            raise self.violation(f"{consumer.name}: the pause of {partition} is not that of its claim")

    def on_delivery(self, delivery: Delivery) -> None:
        if self._is_paused(delivery):
            raise self.violation(f"{delivery.consumer.name} delivers {delivery.partition}, which is paused")

    def _is_paused(self, delivery: Delivery) -> bool:
        token = delivery.consumer.token(delivery.partition)
        return self.history.seeks.is_paused(delivery.consumer, delivery.partition, token)


class AssignedToApplication(Invariant):
    """A partition that a consumer delivers is assigned to the application."""

    def on_delivery(self, delivery: Delivery) -> None:
        consumer, partition = delivery.consumer, delivery.partition
        if not consumer.is_assigned(partition):
            raise self.violation(f"{consumer.name} delivers {partition}, which is not assigned")
