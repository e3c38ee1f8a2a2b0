"""
What a consumer subscribes to, what it is assigned, and where it stands in each partition.

Method names are those of kafka-python's SubscriptionState. Offsets are *next* offsets throughout: the offset of the
first record that was not handed out (``position``), not finished (``finished``) or not committed (``committed``).
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
    Where a claim starts.

    ``offset`` is the next offset, ``version`` that of the offset znode after the write-back, ``token`` the czxid of the
    owner znode: the claim's fencing token, which grows with every claim of the partition. ``created`` is the creation
    zxid of the topic whose log the offset is of, 0 where nobody knows it.
    """

    offset: int
    version: int
    token: int
    created: int = 0


@dataclass(slots=True)
class PartitionState:
    """
    Where this consumer stands in one partition of one claim.

    ``sent`` are offsets that a commit was to put in the place of ``version`` and of which nobody heard whether it did:
    it is on its way, or whoever waited for it was interrupted. ``unreadable``: what stands in the store at ``version``
    is no offset; it is written over, although nothing may have been finished since. ``adopted`` is the version at which
    another writer's offset was adopted last. ``created`` is the creation zxid of the topic whose log all of this is
    about, ``newest`` that of the latest one that was heard of. ``reset`` was chosen because the log lacks the position;
    it is None again when it is stored.
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
        """Whether the topic was created again since: nobody is to commit offsets in a log that is gone."""
        return self.created < self.newest

    @property
    def uncommitted(self) -> bool:
        """Whether a commit has something to store; offsets beyond the end of a log that was cut are never stored."""
        beyond_log = self.reset is not None and self.finished > self.reset.end
        return not self.outdated and not beyond_log and (self.unreadable or self.finished != self.committed)

    def reset_offset(self, *, autocommit: bool) -> int | None:
        """The offset that a chosen reset stores, None without one; never one that the application has yet to commit."""
        return None if self.reset is None else self.reset.offset_after(self.finished if autocommit else self.committed)

    def made(self, offset: int | None, version: int) -> bool:
        """Whether a commit of this consumer's made the stored offset what it is."""
        return version == self.version + 1 and offset in self.sent

    def knows(self, offset: int | None, version: int) -> bool:
        """Whether a stored offset is one that this consumer found at its claim, or has stored itself."""
        return version == self.version != self.adopted or self.made(offset, version)


class SubscriptionState:
    """The topics asked for and the partitions held; one per consumer, used on its event loop only."""

    def __init__(self) -> None:
        self._topics: frozenset[str] = frozenset()
        self._assigned: dict[TopicPartition, PartitionState] = {}

    @property
    def subscription(self) -> frozenset[str]:
        """The topics asked for."""
        return self._topics

    def subscribe(self, topics: str | Iterable[str]) -> bool:
        """
        Replace the subscription.

        Returns:
            Whether it changed.

        Raises:
            ConfigError: A name that no topic of Kafka 0.8 can have.
        """
        wanted = frozenset(topic_names(topics))
        changed = wanted != self._topics
        self._topics = wanted
        return changed

    def assigned_partitions(self) -> frozenset[TopicPartition]:
        """The partitions that may be handed out."""
        return frozenset(self._assigned)

    def is_assigned(self, partition: TopicPartition) -> bool:
        return partition in self._assigned

    def assign_from_subscribed(self, starts: Mapping[TopicPartition, StartPosition]) -> None:
        """Add freshly claimed partitions; each begins at its start, with nothing to commit."""
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
        """Forget partitions that were released or lost."""
        for partition in partitions:
            self._assigned.pop(partition, None)

    def state(self, partition: TopicPartition) -> PartitionState | None:
        """The state of a partition, None when it is not assigned."""
        return self._assigned.get(partition)

    def position(self, partition: TopicPartition) -> int | None:
        """The next offset to hand out, None when the partition is not assigned."""
        state = self._assigned.get(partition)
        return None if state is None else state.position

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Deliver from ``offset`` on: later records count as neither delivered nor finished. Ends a reset."""
        state = self._assigned[partition]
        state.position = state.finished = offset
        state.reset = None

    def choose_reset(self, partition: TopicPartition, reset: PendingReset) -> None:
        """A position was chosen in the place of one that the log lacks."""
        self._assigned[partition].reset = reset

    def reset_of(self, partition: TopicPartition) -> PendingReset | None:
        """The reset of a partition that is chosen and not stored yet."""
        state = self._assigned.get(partition)
        return None if state is None else state.reset

    def resetting(self) -> frozenset[TopicPartition]:
        """The partitions with a reset that is chosen and not stored yet."""
        return frozenset(partition for partition, state in self._assigned.items() if state.reset is not None)

    def all_consumed_offsets(self) -> dict[TopicPartition, int]:
        """What a commit would store now: the finished offset of each partition where the store holds something else."""
        return {partition: state.finished for partition, state in self._assigned.items() if state.uncommitted}

    def mark_sent(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """
        A commit of these begins.

        Returns:
            What ``mark_answered`` is to be told; without what an earlier commit sent of which nobody heard: that this
            one was refused tells nothing of that one.
        """
        fresh = {partition: offset for partition, offset in offsets.items() if offset not in self._sent(partition)}
        for partition, offset in fresh.items():
            self._sent(partition).add(offset)
        return fresh

    def _sent(self, partition: TopicPartition) -> set[int]:
        return self._assigned[partition].sent

    def mark_answered(self, offsets: Mapping[TopicPartition, int]) -> None:
        """What became of that commit is known."""
        for partition, offset in offsets.items():
            if (state := self._assigned.get(partition)) is not None:
                state.sent.discard(offset)

    def mark_committed(self, partition: TopicPartition, offset: int, version: int) -> None:
        """The store holds ``offset`` at ``version`` now."""
        state = self._assigned.get(partition)
        if state is not None:
            state.committed = offset
            state.version = version
            state.sent.clear()
            state.unreadable = False

    def adopt(self, partition: TopicPartition, offset: int, version: int) -> None:
        """Resume at an offset that another one has stored."""
        self.seek(partition, offset)
        self.mark_committed(partition, offset, version)
        self._assigned[partition].adopted = version

    def is_outdated(self, partition: TopicPartition) -> bool:
        """Whether what is known of a partition is of a log that is gone."""
        state = self._assigned.get(partition)
        return state is not None and state.outdated

    def mark_recreated(self, topic: str, created: int) -> frozenset[TopicPartition]:
        """
        A topic has another log since ``created``, its creation zxid.

        Returns:
            The partitions whose state is of an earlier one; without those whose topic has a still later one.
        """
        states = {p: state for p, state in self._assigned.items() if p.topic == topic and state.created < created}
        for state in states.values():
            state.newest = max(state.newest, created)
        return frozenset(partition for partition, state in states.items() if state.newest == created)

    def start_over(self, partition: TopicPartition, offset: int, version: int, created: int) -> None:
        """What is known of a partition from now on is of the log that its topic has since ``created``."""
        self._assigned[partition].created = created
        self.seek(partition, offset)
        self.mark_committed(partition, offset, version)

    def mark_unreadable(self, partition: TopicPartition, version: int) -> None:
        """The store holds something at ``version`` that is no offset: what is known here is better."""
        self._assigned[partition].version = version
        self._assigned[partition].unreadable = True

    def allocation(self) -> defaultdict[str, list[int]]:
        """The partitions held, ascending, per topic; [] of any other."""
        topics: defaultdict[str, list[int]] = defaultdict(list)
        for topic, partition in sorted(self._assigned):
            topics[topic].append(partition)
        return topics
