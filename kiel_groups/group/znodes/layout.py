"""
Where everything of a group stands in ZooKeeper; all paths are below the chroot.

The znodes under ``/consumers`` and ``/brokers`` are Kafka 0.8's own, byte-compatible, so that its tools see the group;
those under ``/kiel-groups`` are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kiel_groups.model import MemberId, Slot, TopicPartition

__all__ = [
    "GroupLayout",
    "BROKER_IDS",
    "TOPICS",
    "ROOT",
    "SPARK_GROUPS",
    "topic_path",
    "partition_state_path",
    "consumer_root",
]

ROOT = "/kiel-groups"
CONSUMERS = "/consumers"
BROKER_IDS = "/brokers/ids"
TOPICS = "/brokers/topics"
KIEL_GROUPS = "/kiel/groups"

#: What the names of groups begin with in which Spark queries and archives commit that were given no group.
SPARK_GROUPS = "kiel-spark-"

#: Between the uuid of a candidate and the sequence number that ZooKeeper appends.
CANDIDATE_INFIX = "-n_"


def topic_path(topic: str) -> str:
    """The znode in which a broker registers a topic; its data lists partitions and replicas."""
    return f"{TOPICS}/{topic}"


def partition_state_path(partition: TopicPartition) -> str:
    """The znode in which Kafka's controller writes who leads a partition."""
    return f"{topic_path(partition.topic)}/partitions/{partition.partition}/state"


def consumer_root(group: str) -> str:
    """Kafka 0.8's own folder of a group."""
    return f"{CONSUMERS}/{group}"


@dataclass(frozen=True)
class GroupLayout:
    """The paths of one group; each is put together once."""

    group: str

    @cached_property
    def root(self) -> str:
        return f"{ROOT}/{self.group}"

    @cached_property
    def members(self) -> str:
        return f"{self.root}/members"

    def member(self, member_id: MemberId) -> str:
        return f"{self.members}/{member_id}"

    @cached_property
    def election(self) -> str:
        return f"{self.root}/election"

    def candidate_prefix(self, uuid: str) -> str:
        """What a candidate asks ZooKeeper to create; the server appends ten digits."""
        return f"{self.election}/{uuid}{CANDIDATE_INFIX}"

    @cached_property
    def group_state(self) -> str:
        """The ``allocation`` znode: which generation is published, and whether its publication is complete."""
        return f"{self.root}/allocation"

    def assignment(self, slot: Slot) -> str:
        return f"{self.group_state}/{slot}"

    @cached_property
    def config(self) -> str:
        return f"{self.root}/config"

    @cached_property
    def weights(self) -> str:
        """What partitions weigh, for allocators that look at it."""
        return f"{self.root}/weights"

    @cached_property
    def history(self) -> str:
        """The folder of what past generations were about."""
        return f"{self.root}/history"

    @cached_property
    def ids(self) -> str:
        return f"{consumer_root(self.group)}/ids"

    def consumer_id(self, member_id: MemberId) -> str:
        return f"{self.ids}/{member_id}"

    @cached_property
    def owners(self) -> str:
        return f"{consumer_root(self.group)}/owners"

    def topic_owners(self, topic: str) -> str:
        return f"{self.owners}/{topic}"

    def owner(self, partition: TopicPartition) -> str:
        return f"{self.owners}/{partition.topic}/{partition.partition}"

    @cached_property
    def offsets(self) -> str:
        return f"{consumer_root(self.group)}/offsets"

    def topic_offsets(self, topic: str) -> str:
        return f"{self.offsets}/{topic}"

    def offset(self, partition: TopicPartition) -> str:
        return f"{self.offsets}/{partition.topic}/{partition.partition}"

    @cached_property
    def kiel_members(self) -> str:
        """Where kiel, which computes its shares without owning anything, registers its members."""
        return f"{KIEL_GROUPS}/{self.group}/members"

    @cached_property
    def parents(self) -> tuple[str, ...]:
        """The persistent folders that must exist before a member registers, parents first."""
        return (
            ROOT,
            self.root,
            self.members,
            self.election,
            CONSUMERS,
            consumer_root(self.group),
            self.ids,
            self.owners,
            self.offsets,
        )
