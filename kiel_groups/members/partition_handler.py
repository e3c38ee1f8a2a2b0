"""Define the interface through which a group member controls the consumer that it belongs to."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Coroutine, Mapping
from enum import Enum, auto
from typing import Any, NamedTuple, Protocol

from kiel_groups.config import HostPort
from kiel_groups.errors import KielGroupsError, NoOffsetsError
from kiel_groups.group.seen_topics import LogSight
from kiel_groups.listeners import Stall, StallKind
from kiel_groups.model import OffsetAndMetadata, TopicPartition


class Work(NamedTuple):
    """
    A piece of work that the application has in progress.

    The watchdog compares ``token`` by identity: another object means that the application has made progress. ``hook``
    is the name of the listener's hook that is running, or "" if the work is not a hook.
    """

    token: object
    kind: StallKind
    partitions: frozenset[TopicPartition]
    hook: str = ""


class LogOffsets(NamedTuple):
    """The result of a lookup of log offsets. ``failures`` has an error for each partition that is not in ``found``."""

    found: Mapping[TopicPartition, int]
    failures: Mapping[TopicPartition, KielGroupsError]


class StoreAnswer(Enum):
    """The outcome of a request to a group's coordinator to store an offset."""

    STORED = auto()
    #: No answer came, or an error after which the same request may succeed. The offset may be stored now or later.
    UNKNOWN = auto()
    #: The text is too long; nothing was stored.
    TOO_LONG = auto()
    #: The coordinator refuses for good; the log has the reason.
    REFUSED = auto()


class ReadOffsets(NamedTuple):
    """
    The committed offsets that were ``found``, and the error of each partition whose offset could not be read.

    A partition without a committed offset is in neither field.
    """

    found: Mapping[TopicPartition, OffsetAndMetadata]
    failures: Mapping[TopicPartition, KielGroupsError]


class KafkaOffsets(Protocol):
    """Stores and returns the offsets of the member's group in Kafka, by requests to the group's coordinator."""

    async def read(self, partitions: Collection[TopicPartition]) -> ReadOffsets:
        """Read committed offsets. Retry for some seconds while the coordinator changes, or loads the offsets."""

    async def store(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> Mapping[TopicPartition, StoreAnswer]:
        """Ask the coordinator once to store offsets, and return the outcome for each partition."""


class Gate(Protocol):
    """Decides whether records may be delivered now. Each session or generation of a member has a gate of its own."""

    def is_open(self, now_s: float) -> bool:
        """Return whether records may be delivered at the boot time ``now_s``."""


class PartitionHandler(Protocol):
    """
    The object that a member belongs to: a consumer, a query of Spark, or the simulator's consumer.

    The member calls the methods on the event loop unless stated otherwise.
    """

    async def log_offsets(self, partitions: Collection[TopicPartition], policy: str) -> LogOffsets:
        """
        Ask the leaders for the first ("earliest") or next ("latest") offsets of partitions.

        The call returns within a time limit. The call returns errors of brokers in ``failures``, and does not raise
        these errors. A partition without a leader, or with a leader that fails or does not answer, delays no other
        partition.
        """

    async def look_at_logs(self, positions: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, LogSight]:
        """
        Compare logs with the given positions, and with the records that were read before these positions.

        The result lacks the partitions whose leaders do not answer. Only members that brokers coordinate call this
        method.
        """

    def gate_changed(self, gate: Gate) -> None:
        """
        From now on, deliver records only while ``gate`` is open: a new session or generation of the member begins.
        """

    def assigned(self, partitions: Collection[TopicPartition]) -> Coroutine[Any, Any, None]:
        """
        Start to fetch and deliver these partitions at their positions in the subscription state.

        The call itself undoes an earlier ``stop`` of the partitions. The returned coroutine does everything else.
        """

    def stop(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Stop fetching and delivering these partitions. Return the partitions that have records in flight."""

    def drained(self, partitions: Collection[TopicPartition]) -> Awaitable[None]:
        """Wait until no record of these partitions is in flight, then notify the listener of the revocation."""

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """
        Drop the buffered records of these partitions, stop counting their records in flight, and notify the listener.

        Another member may own the partitions already.
        """

    async def fetch_offsets(self, partitions: Collection[TopicPartition]) -> object:
        """Ask the brokers for committed offsets. Only the ``broker-v0`` offset store calls this method."""

    def start_unknown(self, topic: str, error: NoOffsetsError) -> None:
        """
        Make the next request for the topic raise ``error``: a start position is unknown.

        The member keeps looking for the start position. Requests for other topics do not raise the error.
        """

    async def send_commit(self, offsets: Mapping[TopicPartition, int], metadata: str) -> object:
        """Ask the brokers to store next offsets. Only the ``broker-v0`` offset store calls this method."""

    @property
    def kafka_offsets(self) -> KafkaOffsets:
        """The group's offsets in Kafka. Only the ``broker-v1`` offset store uses this property."""

    def offset_changed(self, partition: TopicPartition, offset: int) -> None:
        """
        Stop counting the partition's records in flight. Resume at ``offset`` once ``on_partitions_assigned`` has ended.

        Another writer has stored the offset, or the topic was created again and has a new log.
        """

    def leaders_changed(self, leaders: Mapping[TopicPartition, int], brokers: Mapping[int, HostPort]) -> None:
        """
        Fetch the owned partitions from these leaders, read from ZooKeeper. The leaders replace those of an earlier
        call.

        ``brokers`` has the addresses of the registered brokers. A partition without an entry has no registered leader
        in ZooKeeper, or the partition's znode cannot be read.
        """

    def in_progress(self) -> Collection[Work]:
        """Return the application's work in progress. Other threads may call this method, too."""

    def stalled(self, stall: Stall) -> None:
        """Handle a stall that has lasted for half its time limit. This method runs on its own thread, and may block."""
