"""Define what a group member requires of the consumer that it belongs to."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Coroutine, Mapping
from typing import Any, NamedTuple, Protocol

from kiel_groups.config import HostPort
from kiel_groups.errors import KielGroupsError, NoOffsetsError
from kiel_groups.listeners import Stall, StallKind
from kiel_groups.model import TopicPartition

__all__ = ["LogOffsets", "PartitionHandler", "Work"]


class Work(NamedTuple):
    """Work that the application is busy with; while it makes progress, ``token`` is another object each time."""

    token: object
    kind: StallKind
    partitions: frozenset[TopicPartition]


class LogOffsets(NamedTuple):
    """The result of a look-up of log offsets: the known offsets, and the error of each partition without one."""

    found: Mapping[TopicPartition, int]
    failures: Mapping[TopicPartition, KielGroupsError]


class PartitionHandler(Protocol):
    """The consumer around a member; methods are called on the event loop unless they say otherwise."""

    async def log_offsets(self, partitions: Collection[TopicPartition], policy: str) -> LogOffsets:
        """
        Ask the leaders for the first ("earliest") or next ("latest") offsets of partitions.

        The call returns within a bound and raises no error that a broker causes. A partition without a leader, or with
        a leader that fails or does not answer, delays no other partition.
        """

    def assigned(self, partitions: Collection[TopicPartition]) -> Coroutine[Any, Any, None]:
        """
        Fetch and deliver these partitions from now on, from their positions in the subscription state.

        The call itself undoes an earlier ``stop`` of them, before any later call; the coroutine does the rest.
        """

    def stop(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Stop fetching and delivering these partitions; returns those with records that are still in flight."""

    def drained(self, partitions: Collection[TopicPartition]) -> Awaitable[None]:
        """Wait until no record of these partitions is in flight, and the listener was notified of the revocation."""

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Drop everything of these partitions at once, because another member may own them already."""

    async def fetch_offsets(self, partitions: Collection[TopicPartition]) -> object:
        """Ask the brokers for committed offsets; called only with the ``broker-v0`` offset store."""

    def start_unknown(self, topic: str, error: NoOffsetsError) -> None:
        """Report that the start of a topic's claims is unknown; the member retries, and other topics continue."""

    async def send_commit(self, offsets: Mapping[TopicPartition, int], metadata: str) -> object:
        """Ask the brokers to store next offsets; called only with the ``broker-v0`` offset store."""

    def offset_changed(self, partition: TopicPartition, offset: int) -> None:
        """Deliver from ``offset`` on, because another writer committed it, or the topic has a new log."""

    def leaders_changed(self, leaders: Mapping[TopicPartition, int], brokers: Mapping[int, HostPort]) -> None:
        """
        Use these leaders, which ZooKeeper names for the owned partitions, instead of those of the previous call.

        ``brokers`` are the addresses of the registered brokers. A partition that is left out has no live leader as far
        as ZooKeeper knows, or its znode cannot be read.
        """

    def in_progress(self) -> Collection[Work]:
        """Return the work that the application is busy with now; also called from another thread."""

    def stalled(self, stall: Stall) -> None:
        """Take a stall that has used half of its time limit; called from another thread, which it may block."""
