"""Liveness: states that a group must reach within a time limit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kiel_groups.errors import KielGroupsError
from kiel_groups.model import TopicPartition
from tests.sim.invariants.invariant import Invariant

if TYPE_CHECKING:
    from tests.sim.consumer import Consumer

__all__ = ["EveryMemberLeaves", "EveryPartitionOwned", "NoMemberStops"]

#: The interval, in seconds, at which an awaited state is checked.
CHECK_S = 0.5


class NoMemberStops(Invariant):
    """No member stops for an error that it regards as permanent."""

    def on_stop(self, consumer: Consumer, error: KielGroupsError) -> None:
        if not self._may_not_join():
            raise self.violation(f"{consumer.name} stops for good: {error}")

    def _may_not_join(self) -> bool:
        """Return whether an operator has made a change after which no member may join the group."""
        return self.history.forbids_joining


class EveryPartitionOwned(Invariant):
    """Within a time limit after the last fault, one member owns each partition, with a position in its current log."""

    def wait(self, limit_s: float) -> None:
        """
        Advance the time until the invariant is met.

        Raises:
            Violation: The invariant is not met within ``limit_s``.
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
        partitions = self.world.partitions()
        # Without topics, a leader publishes no plan, so that a failed look-up moves nothing. A member that joins then
        # is in no plan, and waits for a topic.
        is_settled = not partitions or all(consumer.member.settled for consumer in self._running())
        has_subscribed = all(consumer.pending is None for consumer in self._running())
        return (
            self.world.all_topics_exist
            and has_subscribed
            and is_settled
            and not self._unowned(partitions)
            and not self._outdated()
        )

    def _running(self) -> list[Consumer]:
        return [consumer for consumer in self.world.consumers if consumer.is_running]

    def _unowned(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions from which no consumer, or more than one, may deliver."""
        running = self._running()
        return [
            p for p in partitions if sum(p in consumer.opened and consumer.gate_is_open for consumer in running) != 1
        ]

    def _outdated(self) -> list[TopicPartition]:
        """Return the partitions that their owner has not reset since their topic was created again."""
        topics = self.history.topics
        return [p for consumer in self._running() for p in sorted(consumer.opened) if topics.is_outdated(consumer, p)]


class EveryMemberLeaves(Invariant):
    """Members that are asked to leave have left in time, and no owner znode and no client of theirs remains."""

    def wait(self, limit_s: float, session_timeout_s: float) -> None:
        """
        Advance the time until all members that were asked to leave have left, and no owner znode or client remains.

        Raises:
            Violation: A member has not left within ``limit_s``, or something remains two session timeouts later.
        """
        timeline = self.world.timeline
        leaving = [consumer for consumer in self.world.consumers if consumer.closing and not consumer.process.killed]
        end_s = timeline.now_s + limit_s
        while not all(consumer.closed for consumer in leaving):
            if timeline.now_s > end_s:
                names = [consumer.name for consumer in leaving if not consumer.closed]
                raise self.violation(f"{limit_s:g} s after all members were asked to leave, {names} have not")
            self.world.run_for(CHECK_S)
        # A session that its member could not close has to expire first.
        while remaining := [*self.world.claims(), *(f"a client of {each.name}" for each in leaving if each.has_client)]:
            if timeline.now_s > end_s + 2 * session_timeout_s:
                raise self.violation(f"all members have left, and {remaining[0]} is still there")
            self.world.run_for(CHECK_S)
