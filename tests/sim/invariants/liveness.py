"""What has to come about in the end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kiel_groups.errors import KielGroupsError
from kiel_groups.model import TopicPartition
from tests.sim.invariants.invariant import Invariant

if TYPE_CHECKING:
    from tests.sim.consumer import Consumer

__all__ = ["EveryMemberLeaves", "EveryPartitionOwned", "NoMemberStops"]

#: How often the end of a wait is checked, in seconds.
CHECK_S = 0.5


class NoMemberStops(Invariant):
    """No member meets an error that it takes for permanent."""

    def on_stop(self, consumer: Consumer, error: KielGroupsError) -> None:
        if not self._may_not_join():
            raise self.violation(f"{consumer.name} stops for good: {error}")

    def _may_not_join(self) -> bool:
        """An operator has changed the group so that no member may join."""
        return self.history.forbids_joining


class EveryPartitionOwned(Invariant):
    """Some time after the last fault, every partition is owned by one member, at a position in its present log."""

    def wait(self, limit_s: float) -> None:
        """
        Let time pass until it is so.

        Raises:
            Violation: It takes longer than ``limit_s``.
        """
        timeline = self.world.timeline
        end_s = timeline.now_s + limit_s
        while not self.is_met():
            if timeline.now_s > end_s:
                unowned = self._unowned(self.world.partitions())
                unsettled = [consumer.name for consumer in self._running() if not consumer.member.settled]
                raise self.violation(
                    f"{limit_s:g} s after the last fault {len(unowned)} partitions are not owned by one, first"
                    f" {unowned[:3]}; not settled: {unsettled}; not reset to a new log: {self._outdated()[:3]}"
                )
            self.world.run_for(CHECK_S)

    def is_met(self) -> bool:
        return (
            self.world.all_topics_exist
            and all(consumer.member.settled for consumer in self._running())
            and not self._unowned(self.world.partitions())
            and not self._outdated()
        )

    def _running(self) -> list[Consumer]:
        return [consumer for consumer in self.world.consumers if consumer.is_running]

    def _unowned(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Partitions from which no consumer may deliver, or more than one."""
        running = self._running()
        return [
            p for p in partitions if sum(p in consumer.opened and consumer.gate_is_open for consumer in running) != 1
        ]

    def _outdated(self) -> list[TopicPartition]:
        """Partitions whose owner has not reset them since their topic was created again."""
        topics = self.history.topics
        return [p for consumer in self._running() for p in sorted(consumer.opened) if topics.is_outdated(consumer, p)]


class EveryMemberLeaves(Invariant):
    """Members that are asked to leave do so in time, and no owner znode is left when all sessions have ended."""

    def wait(self, limit_s: float, session_timeout_s: float) -> None:
        """
        Let time pass until it is so; the members have been asked.

        Raises:
            Violation: It takes longer than ``limit_s``, or owner znodes are left two session timeouts later.
        """
        timeline = self.world.timeline
        leaving = [consumer for consumer in self.world.consumers if consumer.closing and not consumer.process.killed]
        end_s = timeline.now_s + limit_s
        while not all(consumer.closed for consumer in leaving):
            if timeline.now_s > end_s:
                names = [consumer.name for consumer in leaving if not consumer.closed]
                raise self.violation(f"{limit_s:g} s after all members were asked to leave, {names} have not")
            self.world.run_for(CHECK_S)
        # Sessions that no member could close end by themselves.
        while claims := self.world.claims():
            if timeline.now_s > end_s + 2 * session_timeout_s:
                raise self.violation(f"all members have left, and {claims[0]} is still there")
            self.world.run_for(CHECK_S)
