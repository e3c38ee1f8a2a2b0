"""
The paths of a group's znodes in ZooKeeper, all relative to the chroot.

The znodes under ``/consumers`` and ``/brokers`` are Kafka 0.8's own, byte-compatible, so that its tools see the group.
The znodes under ``/kiel-groups`` are this package's.
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

#: The prefix of the groups in which Spark queries and archives commit if they are given no group.
SPARK_GROUPS = "kiel-spark-"

#: Separates a candidate's uuid from the sequence number that ZooKeeper appends.
CANDIDATE_INFIX = "-n_"


def topic_path(topic: str) -> str:
    """Return the path of a topic's znode, whose data lists partitions and replicas."""
    return f"{TOPICS}/{topic}"


def partition_state_path(partition: TopicPartition) -> str:
    """Return the path of the znode in which Kafka's controller writes a partition's leader."""
    return f"{topic_path(partition.topic)}/partitions/{partition.partition}/state"


def consumer_root(group: str) -> str:
    """Return the path of the znode under which Kafka 0.8 keeps a group."""
    return f"{CONSUMERS}/{group}"


@dataclass(frozen=True)
class GroupLayout:
    """The paths of one group. Paths without parameters are computed only once."""

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
        """The path of the parent of the candidates' znodes."""
        return f"{self.root}/election"

    def candidate_prefix(self, uuid: str) -> str:
        """Return the path that a candidate creates. ZooKeeper appends a sequence number of ten digits."""
        return f"{self.election}/{uuid}{CANDIDATE_INFIX}"

    @cached_property
    def group_state(self) -> str:
        """The path of the ``allocation`` znode, which has the state of the latest plan."""
        return f"{self.root}/allocation"

    def assignment(self, slot: Slot) -> str:
        """Return the path of the znode of one slot's assignment."""
        return f"{self.group_state}/{slot}"

    @cached_property
    def config(self) -> str:
        """The path of the znode with the settings that all members agree on, and with the dynamic settings."""
        return f"{self.root}/config"

    @cached_property
    def weights(self) -> str:
        """The path of the znode with the weights of partitions, for allocators that use weights."""
        return f"{self.root}/weights"

    @cached_property
    def starts(self) -> str:
        """The path above the first offsets of a group whose offsets are in Kafka, by topic."""
        return f"{self.root}/starts"

    def topic_starts(self, topic: str) -> str:
        return f"{self.starts}/{topic}"

    @cached_property
    def history(self) -> str:
        """The path of the parent of the history entries, one per generation."""
        return f"{self.root}/history"

    @cached_property
    def ids(self) -> str:
        """The path of the parent of Kafka's consumer ids, one per member."""
        return f"{consumer_root(self.group)}/ids"

    def consumer_id(self, member_id: MemberId) -> str:
        return f"{self.ids}/{member_id}"

    @cached_property
    def owners(self) -> str:
        """The path above the owner znodes, by topic. Each owner znode is the claim of one partition."""
        return f"{consumer_root(self.group)}/owners"

    def topic_owners(self, topic: str) -> str:
        return f"{self.owners}/{topic}"

    def owner(self, partition: TopicPartition) -> str:
        return f"{self.owners}/{partition.topic}/{partition.partition}"

    @cached_property
    def offsets(self) -> str:
        """The path above the offset znodes, by topic."""
        return f"{consumer_root(self.group)}/offsets"

    def topic_offsets(self, topic: str) -> str:
        return f"{self.offsets}/{topic}"

    def offset(self, partition: TopicPartition) -> str:
        return f"{self.offsets}/{partition.topic}/{partition.partition}"

    @cached_property
    def kiel_members(self) -> str:
        """The path under which kiel registers its members. kiel computes assignments without owner znodes."""
        return f"{KIEL_GROUPS}/{self.group}/members"

    @cached_property
    def parents(self) -> tuple[str, ...]:
        """The paths of the persistent znodes that must exist before a member registers, parents first."""
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
