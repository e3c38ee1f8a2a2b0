"""What a member needs of the consumer around it."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Coroutine, Mapping
from typing import Any, NamedTuple, Protocol

from kiel_groups.config import HostPort
from kiel_groups.errors import KielGroupsError, NoOffsetsError
from kiel_groups.listeners import Stall, StallKind
from kiel_groups.model import TopicPartition

__all__ = ["LogOffsets", "PartitionHandler", "Work"]


class Work(NamedTuple):
    """Something that the application is busy with; for as long as it gets on, ``token`` is another object each time."""

    token: object
    kind: StallKind
    partitions: frozenset[TopicPartition]


class LogOffsets(NamedTuple):
    """The answer to a look-up of log offsets: the offsets that are known, and why each of the others is not."""

    found: Mapping[TopicPartition, int]
    failures: Mapping[TopicPartition, KielGroupsError]


class PartitionHandler(Protocol):
    """What a member needs of the consumer around it; called on the event loop, but where it says otherwise."""

    async def log_offsets(self, partitions: Collection[TopicPartition], policy: str) -> LogOffsets:
        """
        Ask the leaders for the first ("earliest") or next ("latest") offsets of partitions.

        Returns within a bound whatever the leaders do, and raises nothing that a broker causes: a partition that has no
        leader, or whose leader fails or stays silent, keeps no other one waiting.
        """

    def assigned(self, partitions: Collection[TopicPartition]) -> Coroutine[Any, Any, None]:
        """
        Hand them out from now on; their positions stand in the subscription state.

        What undoes an earlier ``stop`` of them happens at the call, before any later one; the rest may wait.
        """

    def stop(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Fetch and hand out no more of them; returns those of which the application still processes something."""

    def drained(self, partitions: Collection[TopicPartition]) -> Awaitable[None]:
        """Ends when the application has finished what it has of them, and its listener was told."""

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Somebody else may own them already: drop everything of them at once."""

    async def fetch_offsets(self, partitions: Collection[TopicPartition]) -> object:
        """Ask the brokers for committed offsets; only with the store that has them written by brokers."""

    def refused(self, topic: str, error: NoOffsetsError) -> None:
        """Where claims of a topic start cannot be told; that is tried again, and the other topics go on."""

    async def send_commit(self, offsets: Mapping[TopicPartition, int], metadata: str) -> object:
        """Ask the brokers to store next offsets; only with the store that does so."""

    def moved(self, partition: TopicPartition, offset: int) -> None:
        """Somebody else wrote the committed offset, or the topic has a new log: hand out from there on."""

    def leaders(self, leaders: Mapping[TopicPartition, int], brokers: Mapping[int, HostPort]) -> None:
        """
        Use these leaders, which ZooKeeper names for the owned partitions, instead of those of the call before.

        ``brokers`` are the addresses of the registered brokers. A partition that is left out has no live leader as far
        as ZooKeeper knows, or its znode cannot be read.
        """

    def in_progress(self) -> Collection[Work]:
        """What the application is busy with at this moment; called from another thread, too."""

    def stalled(self, stall: Stall) -> None:
        """Something of that does not get on: half of its time is over; called from another thread, may block."""
