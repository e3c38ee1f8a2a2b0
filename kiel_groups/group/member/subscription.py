"""
The subscription of a consumer, its assigned partitions, and its position in each of them.

Method names are those of kafka-python's SubscriptionState. All offsets are *next* offsets: the offset of the first
record that was not delivered (``position``), not finished (``finished``) or not committed (``committed``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from kiel_groups.config import topic_names
from kiel_groups.group.member.pending_reset import PendingReset
from kiel_groups.model import TopicPartition

__all__ = ["SubscriptionState", "PartitionState", "StartPosition"]


@dataclass(frozen=True, slots=True)
class StartPosition:
    """
    The start position of a claim.

    ``offset`` is the next offset, ``version`` the version of the offset znode after the write-back. ``token`` is the
    claim's fencing token: the czxid of the owner znode, which grows with every claim of the partition. ``created``
    identifies the topic incarnation that the offset belongs to: the topic's creation zxid, 0 if unknown.
    """

    offset: int
    version: int
    token: int
    created: int = 0


@dataclass(slots=True)
class PartitionState:
    """
    The progress of this consumer in one partition, during one claim.

    ``sent`` has the offsets of commits against ``version`` whose outcome is unknown: the commit is in flight, or its
    caller was interrupted. ``unreadable``: the stored value at ``version`` is not an offset; the next commit replaces
    it, even if no record has finished since. ``adopted`` is the version at which another writer's offset was last
    adopted. ``created`` identifies the topic incarnation that this state belongs to, by the topic's creation zxid;
    ``newest`` identifies the latest known incarnation. ``reset`` is set if the log lacks the position, until the new
    position is stored.
    """

    token: int
    position: int
    finished: int
    committed: int
    version: int
    sent: set[int] = field(default_factory=set)
    unreadable: bool = False
    adopted: int | None = None
    created: int = 0
    newest: int = 0
    reset: PendingReset | None = None

    @property
    def outdated(self) -> bool:
        """Whether the topic has a newer incarnation than this state, whose offsets must then not be committed."""
        return self.created < self.newest

    @property
    def uncommitted(self) -> bool:
        """Whether a commit has an offset to store; offsets beyond the end of a truncated log are never stored."""
        beyond_log = self.reset is not None and self.finished > self.reset.end
        return not self.outdated and not beyond_log and (self.unreadable or self.finished != self.committed)

    def reset_offset(self, *, autocommit: bool) -> int | None:
        """
        Return the offset that the chosen reset stores; None if there is no reset.

        If the application commits by itself (no ``autocommit``), its uncommitted records are not skipped.
        """
        return None if self.reset is None else self.reset.offset_after(self.finished if autocommit else self.committed)

    def made(self, offset: int | None, version: int) -> bool:
        """Whether the stored ``offset`` at ``version`` was written by a commit of this consumer."""
        return version == self.version + 1 and offset in self.sent

    def knows(self, offset: int | None, version: int) -> bool:
        """
        Whether this consumer found the stored offset when it claimed the partition, or wrote it itself.

        An adopted offset does not count: another writer may have set it for a new incarnation of the topic before this
        consumer learned of that incarnation. The offset must then survive the reset to the new log.
        """
        return version == self.version != self.adopted or self.made(offset, version)


class SubscriptionState:
    """The subscribed topics and the assigned partitions; one per consumer, used on its event loop only."""

    def __init__(self) -> None:
        self._topics: frozenset[str] = frozenset()
        self._assigned: dict[TopicPartition, PartitionState] = {}

    @property
    def subscription(self) -> frozenset[str]:
        """The subscribed topics."""
        return self._topics

    def subscribe(self, topics: str | Iterable[str]) -> bool:
        """
        Replace the subscription.

        Returns:
            Whether the subscription changed.

        Raises:
            ConfigError: A name is not legal for a topic of Kafka 0.8.
        """
        wanted = frozenset(topic_names(topics))
        changed = wanted != self._topics
        self._topics = wanted
        return changed

    def assigned_partitions(self) -> frozenset[TopicPartition]:
        """Return the partitions whose records may be delivered."""
        return frozenset(self._assigned)

    def is_assigned(self, partition: TopicPartition) -> bool:
        return partition in self._assigned

    def assign_from_subscribed(self, starts: Mapping[TopicPartition, StartPosition]) -> None:
        """Add newly claimed partitions; each starts at its start position, with nothing to commit."""
        for partition, start in starts.items():
            self._assigned[partition] = PartitionState(
                token=start.token,
                position=start.offset,
                finished=start.offset,
                committed=start.offset,
                version=start.version,
                created=start.created,
            )

    def unassign(self, partitions: Collection[TopicPartition]) -> None:
        """Remove partitions that were released or lost."""
        for partition in partitions:
            self._assigned.pop(partition, None)

    def state(self, partition: TopicPartition) -> PartitionState | None:
        """Return the state of a partition; None if the partition is not assigned."""
        return self._assigned.get(partition)

    def position(self, partition: TopicPartition) -> int | None:
        """Return the next offset to deliver; None if the partition is not assigned."""
        state = self._assigned.get(partition)
        return None if state is None else state.position

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Set the position and the finished offset to ``offset``, and drop a pending reset."""
        state = self._assigned[partition]
        state.position = state.finished = offset
        state.reset = None

    def choose_reset(self, partition: TopicPartition, reset: PendingReset) -> None:
        """Record the reset that replaces a position that the log lacks."""
        self._assigned[partition].reset = reset

    def reset_of(self, partition: TopicPartition) -> PendingReset | None:
        """Return the pending reset of a partition; None if it has none."""
        state = self._assigned.get(partition)
        return None if state is None else state.reset

    def resetting(self) -> frozenset[TopicPartition]:
        """Return the partitions with a pending reset."""
        return frozenset(partition for partition, state in self._assigned.items() if state.reset is not None)

    def all_consumed_offsets(self) -> dict[TopicPartition, int]:
        """Return the offsets that a commit would store now: the finished ones of all ``uncommitted`` partitions."""
        return {partition: state.finished for partition, state in self._assigned.items() if state.uncommitted}

    def mark_sent(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """
        Record that a commit of these offsets is in flight.

        Returns:
            The offsets to pass to ``mark_answered``. An offset that an earlier commit sent, with unknown outcome, is
            left out: the answer to this commit does not resolve the earlier one.
        """
        fresh = {partition: offset for partition, offset in offsets.items() if offset not in self._sent(partition)}
        for partition, offset in fresh.items():
            self._sent(partition).add(offset)
        return fresh

    def _sent(self, partition: TopicPartition) -> set[int]:
        return self._assigned[partition].sent

    def mark_answered(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Record that the outcome of the commit of these offsets is known."""
        for partition, offset in offsets.items():
            if (state := self._assigned.get(partition)) is not None:
                state.sent.discard(offset)

    def mark_committed(self, partition: TopicPartition, offset: int, version: int) -> None:
        """Record that the store now has ``offset`` at ``version``."""
        state = self._assigned.get(partition)
        if state is not None:
            state.committed = offset
            state.version = version
            state.sent.clear()
            state.unreadable = False

    def adopt(self, partition: TopicPartition, offset: int, version: int) -> None:
        """Resume at an offset that another writer has stored."""
        self.seek(partition, offset)
        self.mark_committed(partition, offset, version)
        self._assigned[partition].adopted = version

    def is_outdated(self, partition: TopicPartition) -> bool:
        """Whether the state of a partition belongs to a deleted log."""
        state = self._assigned.get(partition)
        return state is not None and state.outdated

    def mark_recreated(self, topic: str, created: int) -> frozenset[TopicPartition]:
        """
        Record that a topic has a new incarnation, identified by ``created``, its creation zxid.

        Returns:
            The partitions whose state belongs to an earlier incarnation, unless a later one is already known.
        """
        states = {p: state for p, state in self._assigned.items() if p.topic == topic and state.created < created}
        for state in states.values():
            state.newest = max(state.newest, created)
        return frozenset(partition for partition, state in states.items() if state.newest == created)

    def reset_recreated(self, partition: TopicPartition, offset: int, version: int, created: int) -> None:
        """Restart a partition at ``offset`` of the topic incarnation that ``created`` identifies."""
        self._assigned[partition].created = created
        self.seek(partition, offset)
        self.mark_committed(partition, offset, version)

    def mark_unreadable(self, partition: TopicPartition, version: int) -> None:
        """Record that the stored value at ``version`` is not an offset, so that the next commit replaces it."""
        self._assigned[partition].version = version
        self._assigned[partition].unreadable = True

    def allocation(self) -> defaultdict[str, list[int]]:
        """Return the assigned partitions of each topic in ascending order; any other topic maps to ``[]``."""
        topics: defaultdict[str, list[int]] = defaultdict(list)
        for topic, partition in sorted(self._assigned):
            topics[topic].append(partition)
        return topics
