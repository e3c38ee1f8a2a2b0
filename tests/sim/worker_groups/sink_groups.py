"""The topic of simulated sinks, and their consumer groups: what brokers and the coordination would have of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kiel_groups.model import TopicPartition

if TYPE_CHECKING:
    from tests.sim.worker_groups.sink_consumer import SinkConsumerProcess
    from tests.sim.worker_groups.worker_world import WorkerWorld

__all__ = ["TOPIC", "SinkCluster", "SinkGroup"]

#: The topic of all sinks.
TOPIC = "t"
#: The pause between two writes to the topic, in seconds, and the most records of one.
LONGEST_PAUSE_S, MOST_RECORDS = 2.0, 6
#: How long a consumer is a member although its process does not run, and how long it may keep records in flight.
SESSION_S, MAX_POLL_S = 6.0, 15.0
#: The interval of the checks of sessions, in seconds.
CHECK_S = 1.0


class SinkGroup:
    """
    The consumer group of one sink: its members, who owns which partition, and the committed offsets.

    A claim has one owner at a time. Members release what the group deals to others, and claim what is free.
    """

    def __init__(self, cluster: SinkCluster, connector: str) -> None:
        self._cluster = cluster
        self.connector = connector
        self.members: list[SinkConsumerProcess] = []
        self.owners: dict[TopicPartition, SinkConsumerProcess] = {}
        #: The member that each partition is dealt to.
        self.targets: dict[TopicPartition, SinkConsumerProcess] = {}
        self.committed = dict.fromkeys(cluster.partitions, 0)

    def join(self, consumer: SinkConsumerProcess) -> None:
        self.members.append(consumer)
        self._deal()

    def leave(self, consumer: SinkConsumerProcess) -> None:
        """End the membership of a consumer, and all its claims."""
        if consumer in self.members:
            self.members.remove(consumer)
            for partition in [each for each, owner in self.owners.items() if owner is consumer]:
                del self.owners[partition]
            self._deal()

    def expel(self, consumer: SinkConsumerProcess) -> None:
        """End the session of a consumer, which is notified when its process runs."""
        self.leave(consumer)
        delay_s = self._cluster.timeline.random.uniform(0.0, 0.2)
        self._cluster.timeline.after(delay_s, consumer.process.run_on_loop, consumer.process.call, consumer.expelled)

    def claim(self, consumer: SinkConsumerProcess, partition: TopicPartition) -> int:
        """Make a consumer the owner of a free partition, and return the committed offset."""
        assert partition not in self.owners
        self.owners[partition] = consumer
        return self.committed[partition]

    def release(self, consumer: SinkConsumerProcess, partition: TopicPartition) -> None:
        if self.owners.get(partition) is consumer:
            del self.owners[partition]
            self._notify()

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Store offsets of the owner of their partitions."""
        self._cluster.world.sinks.committing(self, offsets)
        self.committed.update(offsets)

    def _deal(self) -> None:
        if len(self.members) > 1 and self._cluster.timeline.random.random() < 0.3:
            self.members.append(self.members.pop(0))
        count = len(self.members)
        self.targets = {each: self.members[each.partition % count] for each in self._cluster.partitions if count}
        self._notify()

    def _notify(self) -> None:
        for member in self.members:
            member.notify()


class SinkCluster:
    """
    The partitions of the topic, whose logs grow, and the groups of all sinks.

    Args:
        world: The world of the sinks.
        count: The number of partitions.
        losses_s: How often a consumer loses its session, in seconds, until all faults end.
    """

    def __init__(self, world: WorkerWorld, count: int, losses_s: float) -> None:
        self.world = world
        self.timeline = world.timeline
        self.partitions = [TopicPartition(TOPIC, number) for number in range(count)]
        #: The next offset of each log.
        self.ends = dict.fromkeys(self.partitions, 0)
        self.is_growing = True
        self._losses_s = losses_s
        self.groups: dict[str, SinkGroup] = {}
        #: Until when commits are refused, no broker answers, and sinks are slow.
        self.refuses_until_s = self.silent_until_s = self.slow_until_s = 0.0
        #: When each member ran last whose process does not run now.
        self._absent: dict[SinkConsumerProcess, float] = {}
        self._grow()
        self._check_sessions()

    def group(self, connector: str) -> SinkGroup:
        """Return the group of a sink; it is created at the first call."""
        if connector not in self.groups:
            self.groups[connector] = SinkGroup(self, connector)
        return self.groups[connector]

    def heal(self) -> None:
        """End all faults."""
        self._losses_s = math.inf
        self.refuses_until_s = self.silent_until_s = self.slow_until_s = 0.0

    @property
    def is_silent(self) -> bool:
        return self.timeline.now_s < self.silent_until_s

    @property
    def is_slow(self) -> bool:
        return self.timeline.now_s < self.slow_until_s

    @property
    def refuses(self) -> bool:
        return self.timeline.now_s < self.refuses_until_s

    def lose_partitions(self, choice: float) -> str:
        """End the session of a consumer that has partitions, and return a description. ``choice`` selects."""
        found = [(group, each) for group in self.groups.values() for each in dict.fromkeys(group.owners.values())]
        if not found:
            return ""
        group, consumer = found[int(choice * len(found))]
        group.expel(consumer)
        return f"{group.connector} in {consumer.process.name}"

    def _grow(self) -> None:
        if self.is_growing:
            partition = self.timeline.random.choice(self.partitions)
            self.ends[partition] += self.timeline.random.randint(1, MOST_RECORDS)
            for group in self.groups.values():
                if partition in group.owners:
                    group.owners[partition].notify()
        self.timeline.after(self.timeline.random.uniform(0.0, LONGEST_PAUSE_S), self._grow)

    def _check_sessions(self) -> None:
        """Expel consumers whose processes do not run, or that are too slow."""
        now_s = self.timeline.now_s
        for group in self.groups.values():
            for consumer in list(group.members):
                process = consumer.process
                if process.killed or process.frozen or process.stalled:
                    is_expired = now_s - self._absent.setdefault(consumer, now_s) > SESSION_S
                else:
                    self._absent.pop(consumer, None)
                    is_expired = consumer.busy_since_s is not None and now_s - consumer.busy_since_s > MAX_POLL_S
                if is_expired:
                    self._absent.pop(consumer, None)
                    group.expel(consumer)
        if self.timeline.random.random() < CHECK_S / self._losses_s:
            self.lose_partitions(self.timeline.random.random())
        self.timeline.after(CHECK_S, self._check_sessions)
