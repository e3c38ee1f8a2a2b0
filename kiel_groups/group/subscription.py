"""Track the subscription of a consumer: how it gets partitions, and which partitions are paused or lack a position."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from kiel_groups.config import GroupConfig, check_name, is_whole, topic_names
from kiel_groups.errors import ConfigError, IllegalStateError
from kiel_groups.group.offset_tracker import CommitRules, OffsetTracker
from kiel_groups.group.partition_offsets import StartOrigin, StartPosition
from kiel_groups.group.topic_patterns import compiled_pattern
from kiel_groups.listeners import RebalanceListener
from kiel_groups.model import TopicPartition
from kiel_groups.wording import some

#: The largest offset of the protocol, an int64.
_MOST_OFFSET = (1 << 63) - 1


def assignable_partitions(partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
    """
    Check the partitions of a manual assignment, and return them as a set.

    Raises:
        ConfigError: A partition is not a TopicPartition with a legal topic and number.
    """
    listed = list(partitions)
    for partition in listed:
        number = partition.partition if isinstance(partition, TopicPartition) else None
        if not is_whole(number) or number < 0:
            raise ConfigError(f"assign(): {partition!r} given; expected TopicPartition(topic, number of at least 0)")
        check_name(partition.topic, "topic")
    return frozenset(listed)


def check_offset(offset: object, where: str) -> int:
    """
    Check an offset at which an application wants to continue, and return it.

    Args:
        offset: The argument.
        where: The call and the partition, for the error.

    Raises:
        ConfigError: The offset is not a whole number, or negative, or larger than an int64.
    """
    if not is_whole(offset) or not 0 <= offset <= _MOST_OFFSET:
        raise ConfigError(
            f"{where}: {offset!r} given; expected the next offset to read, a whole number from 0 to 2**63 - 1"
        )
    return offset


# The subscription of a consumer: how it gets its partitions, and the state of each assigned partition.
#
# Names and rules are kafka-python's. Where this consumer differs, the rules below say so.
#
# Rules
#   1. A consumer gets partitions in one of three ways: by topics, by a pattern, or by a manual assignment. It can
#      choose another way only after ``unsubscribe``.
#   2. A subscription replaces the previous one. Partitions of a topic that leaves it are unassigned at once. Their
#      claims stay in the tracker until the member releases them.
#   3. A partition that stays assigned keeps its position, pause and high watermark, also through a rebalance, unlike in
#      kafka-python. A newly assigned partition is not paused. It has no high watermark, and no position other than that
#      of its claim.
#   4. Positions are in ``OffsetTracker`` and nowhere else. A member opens and ends the partitions that it claims.
#      Without a member, the first ``seek`` or ``open_unclaimed`` opens a manually assigned partition. The removal of
#      the partition from the assignment ends it.
#   5. A call that is refused changes nothing.


class SubscriptionKind(Enum):
    """The three ways in which a consumer gets partitions. The values are for errors."""

    TOPICS = "topics (subscribe(topics))"
    PATTERN = "a pattern (subscribe(pattern=...))"
    MANUAL = "a manual assignment (assign(partitions))"


@dataclass(slots=True)
class _AssignedPartition:
    """The state of an assigned partition, apart from its offsets."""

    is_paused: bool = False
    highwater: int | None = None
    #: The mark of a seek that waits for a look-up, before the partition has a position; see ``PartitionOffsets``.
    seek_mark: object = field(default_factory=object, repr=False)


class Subscription(NamedTuple):
    """What a member asks its group for: topics by name, or all topics that a regular expression matches."""

    topics: frozenset[str] = frozenset()
    pattern: str | None = None


class SubscriptionState:
    """
    The subscription of one consumer and its assigned partitions. Only the consumer's event loop uses this object.

    If a partition is not assigned, ``is_assigned`` and ``is_paused`` return False, ``seek_mark`` returns None, and
    ``set_highwater`` does nothing. ``covers`` accepts any partition. All other methods that take one partition raise
    IllegalStateError.
    """

    def __init__(self, config: GroupConfig | None = None) -> None:
        #: The subscribed topics; the matches of a pattern. A manual assignment subscribes to none.
        self.topics: frozenset[str] = frozenset()
        self.subscribed_pattern: re.Pattern[str] | None = None
        #: The listener of the last call of ``subscribe``. It outlasts ``unsubscribe``, which revokes partitions.
        self.listener: RebalanceListener | None = None
        self.offsets = OffsetTracker(CommitRules() if config is None else CommitRules.of(config))
        #: Called when the topics that the pattern matches have changed.
        self.on_matches: Callable[[], None] = lambda: None
        self._kind: SubscriptionKind | None = None
        #: Whether there has been a subscription or an assignment, which may have ended since.
        self._was_chosen = False
        self._assigned: dict[TopicPartition, _AssignedPartition] = {}

    # The subscription

    def subscribe(
        self,
        topics: str | Iterable[str] = (),
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> bool:
        """
        Replace the subscription and its listener.

        Args:
            topics: One topic or several.
            pattern: A regular expression that topics have to match from their beginning. A new pattern has no topics
                until ``set_matches`` sets them, because a match may take for ever.
            listener: The listener of this subscription, or None.

        Returns:
            Whether the subscription changed, so that the member must register it.

        Raises:
            ConfigError: There is neither a topic nor a pattern, a name is not legal for a topic of Kafka 0.8, or the
                pattern is not a regular expression, or too long.
            IllegalStateError: The caller gives both topics and a pattern, or the consumer gets partitions in another
                way.
        """
        names = frozenset(topic_names(topics))
        compiled = None if pattern is None else compiled_pattern(pattern)
        if names and compiled is not None:
            raise IllegalStateError(f"subscribe(): topics and a pattern given; {_ONE_WAY}")
        if not names and compiled is None:
            raise ConfigError("subscribe(): no topic given; expected topics or a pattern, or call unsubscribe()")
        kind = SubscriptionKind.TOPICS if compiled is None else SubscriptionKind.PATTERN
        self.check_kind(kind, "subscribe()")
        if compiled is not None:
            names = self.topics if compiled == self.subscribed_pattern else frozenset()
        changed = (compiled, names) != (self.subscribed_pattern, self.topics)
        self.subscribed_pattern, self.listener = compiled, listener
        self._set_topics(kind, names)
        return changed

    def change_subscription(self, topics: str | Iterable[str]) -> bool:
        """
        Replace the subscribed topics. The list may be empty. The listener stays.

        Returns:
            Whether the topics changed.

        Raises:
            ConfigError: A name is not legal for a topic of Kafka 0.8.
            IllegalStateError: The consumer has a pattern or a manual assignment.
        """
        names = frozenset(topic_names(topics))
        self.check_kind(SubscriptionKind.TOPICS, "change_subscription()")
        changed = names != self.topics
        self._set_topics(SubscriptionKind.TOPICS, names)
        return changed

    def set_matches(self, pattern: str, topics: Iterable[str]) -> bool:
        """
        Set the topics that the subscribed pattern matches, and call ``on_matches`` if they have changed.

        Do nothing if the application has replaced ``pattern`` meanwhile. Return whether the topics changed.
        """
        names = frozenset(topics)
        if self.wanted.pattern != pattern or names == self.topics:
            return False
        self._set_topics(SubscriptionKind.PATTERN, names)
        self.on_matches()
        return True

    @property
    def wanted(self) -> Subscription:
        """The subscription as the member registers it: topics, or a pattern without its matches."""
        if self.subscribed_pattern is None:
            return Subscription(self.topics)
        return Subscription(pattern=self.subscribed_pattern.pattern)

    def unsubscribe(self) -> None:
        """
        End the subscription or the manual assignment, so that no partition is assigned any more.

        In a group, the member then releases its claims. The positions of a manual assignment are forgotten at once.
        """
        if self._kind is SubscriptionKind.MANUAL:
            self.offsets.end(self._assigned)
        self._kind = self.subscribed_pattern = None
        self.topics = frozenset()
        self._assigned = {}

    def partitions_auto_assigned(self) -> bool:
        """Return whether the group assigns the partitions: there is a subscription, to topics or to a pattern."""
        return self._kind in (SubscriptionKind.TOPICS, SubscriptionKind.PATTERN)

    def is_manual(self) -> bool:
        """Return whether the application assigns the partitions."""
        return self._kind is SubscriptionKind.MANUAL

    def check_kind(self, kind: SubscriptionKind, call: str) -> None:
        """
        Check that the consumer may get partitions in this way, before ``call`` begins.

        Raises:
            IllegalStateError: The consumer gets partitions in another way.
        """
        if self._kind not in (None, kind):
            raise self._wrong_kind(call)

    def check_chosen(self, call: str) -> None:
        """
        Refuse ``call``, which would wait for records, if the application has never subscribed or assigned.

        Raises:
            IllegalStateError: The application has chosen neither topics nor partitions, so no record would ever arrive.
        """
        if not self._was_chosen:
            raise IllegalStateError(
                f"{call}: the consumer has neither topics nor partitions, so no record would ever come; call"
                " subscribe() or assign() first"
            )

    def _wrong_kind(self, call: str) -> IllegalStateError:
        if self._kind is None:
            return IllegalStateError(f"{call}: the consumer has no subscription; call subscribe() first")
        return IllegalStateError(f"{call}: the consumer has {self._kind.value}; {_ONE_WAY}; call unsubscribe() first")

    def _set_topics(self, kind: SubscriptionKind, topics: frozenset[str]) -> None:
        self._kind, self.topics, self._was_chosen = kind, topics, True
        self._set_assigned([partition for partition in self._assigned if partition.topic in topics])

    # The assigned partitions

    def assign_from_user(self, partitions: Iterable[TopicPartition]) -> None:
        """
        Replace the manual assignment. The positions of partitions that are no longer assigned are forgotten.

        Raises:
            ConfigError: There are no partitions, or a partition is not a TopicPartition with a legal topic and number.
            IllegalStateError: The consumer has a subscription, or its member has not released one of the partitions.
        """
        wanted = assignable_partitions(partitions)
        if not wanted:
            raise ConfigError("assign(): no partition given; expected partitions, or call unsubscribe()")
        self.check_kind(SubscriptionKind.MANUAL, "assign()")
        if claimed := (wanted - self._assigned.keys()) & self.offsets.open_partitions():
            raise IllegalStateError(
                f"assign(): {some(sorted(claimed))} not released by this consumer's member yet; wait until it has left"
                " the group"
            )
        self.offsets.end(self._assigned.keys() - wanted)
        self._kind, self._was_chosen = SubscriptionKind.MANUAL, True
        self._set_assigned(wanted)

    def assign_from_subscribed(self, partitions: Iterable[TopicPartition]) -> None:
        """
        Replace the partitions that the group assigns to this consumer.

        The member calls this method whenever its owned partitions or the subscribed topics change. It passes its owned
        partitions of subscribed topics. It leaves out its owned partitions of other topics, because it is about to
        release them.

        Raises:
            ConfigError: The topic of a partition is not subscribed.
            IllegalStateError: The consumer has no subscription.
        """
        wanted = frozenset(partitions)
        if not self.partitions_auto_assigned():
            raise self._wrong_kind("assign_from_subscribed()")
        if others := sorted(partition for partition in wanted if partition.topic not in self.topics):
            raise ConfigError(
                f"assign_from_subscribed(): {some(others)} given; the subscription has"
                f" {some(sorted(self.topics)) or 'no topics'}"
            )
        self._set_assigned(wanted)

    def assigned_partitions(self) -> frozenset[TopicPartition]:
        return frozenset(self._assigned)

    def is_assigned(self, partition: TopicPartition) -> bool:
        return partition in self._assigned

    def _set_assigned(self, partitions: Collection[TopicPartition]) -> None:
        before = self._assigned
        self._assigned = {partition: before.get(partition) or _AssignedPartition() for partition in sorted(partitions)}

    def covers(self, partition: TopicPartition) -> bool:
        """
        Return whether a partition may be delivered: the consumer subscribes to its topic, or the application assigned
        the partition.
        """
        return partition.topic in self.topics or (self.is_manual() and partition in self._assigned)

    def covers_topic(self, topic: str) -> bool:
        """Return whether partitions of a topic may be delivered."""
        return topic in self.topics or (self.is_manual() and any(each.topic == topic for each in self._assigned))

    def check_assigned(self, partitions: Iterable[TopicPartition], call: str) -> None:
        """
        Check that all of these partitions are assigned, before ``call`` changes any of them.

        Raises:
            IllegalStateError: At least one of the partitions is not assigned.
        """
        for partition in partitions:
            self._require(partition, call)

    def _require(self, partition: TopicPartition, call: str) -> _AssignedPartition:
        state = self._assigned.get(partition)
        if state is None:
            assigned = some(self._assigned) or "none"
            raise IllegalStateError(f"{call}: {partition} is not assigned to this consumer; assigned are: {assigned}")
        return state

    # Positions

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """
        Continue delivery of an assigned partition at ``offset``. A reset that the policy chose no longer applies.

        Raises:
            ConfigError: The offset is not a whole number from 0 to 2**63 - 1.
            IllegalStateError: The partition is not assigned, or the consumer's member has not opened the claim yet.
        """
        check_offset(offset, f"seek(): {partition}")
        state = self._require(partition, "seek()")
        if self.offsets.is_open(partition):
            self.offsets.seek(partition, offset)
        elif self._kind is SubscriptionKind.MANUAL:
            state.seek_mark = object()
            self.open_unclaimed({partition: offset}, StartOrigin.SEEK)
        else:
            raise IllegalStateError(
                f"seek(): {partition} has no position yet, because the member is opening its claim; seek in the"
                " listener's on_partitions_assigned, or later"
            )

    def open_unclaimed(self, starts: Mapping[TopicPartition, int], origin: StartOrigin) -> list[TopicPartition]:
        """
        Open assigned partitions that no member claims, at these offsets. Open partitions do not change.

        Returns:
            The partitions that were opened.
        """
        opened = [each for each in starts if each in self._assigned and not self.offsets.is_open(each)]
        for partition in opened:
            mark = self._assigned[partition].seek_mark
            # Without a claim, there is neither an offset znode nor a fencing token.
            self.offsets.open({partition: StartPosition(starts[partition], version=0, token=0, origin=origin)})
            self.offsets.set_seek_mark(partition, mark)
        return opened

    def renew_seek_mark(self, partition: TopicPartition) -> object:
        """
        Set and return a new mark for a seek whose offset must be looked up first.

        If the mark has changed when the look-up ends, a later seek has replaced the waiting seek.

        Raises:
            IllegalStateError: The partition is not assigned.
        """
        mark = self._require(partition, "renew_seek_mark()").seek_mark = object()
        if self.offsets.is_open(partition):
            self.offsets.set_seek_mark(partition, mark)
        return mark

    def seek_mark(self, partition: TopicPartition) -> object:
        """Return the mark of the last seek, or None if the partition is not assigned."""
        state = self._assigned.get(partition)
        if state is None:
            return None
        return self.offsets.seek_mark(partition) if self.offsets.is_open(partition) else state.seek_mark

    def position(self, partition: TopicPartition) -> int | None:
        """Return the next offset to deliver, or None if the partition has no position."""
        self._require(partition, "position()")
        return self.offsets.position(partition)

    def missing_fetch_positions(self) -> frozenset[TopicPartition]:
        """Return the assigned partitions that have no position yet, because they are not opened."""
        return frozenset(partition for partition in self._assigned if not self.offsets.is_open(partition))

    def highwater(self, partition: TopicPartition) -> int | None:
        """Return the high watermark, or None if it was not reported since the partition was assigned."""
        return self._require(partition, "highwater()").highwater

    def set_highwater(self, partition: TopicPartition, offset: int) -> None:
        """Record a high watermark that a leader has reported. A late report on a removed partition has no effect."""
        if (state := self._assigned.get(partition)) is not None:
            state.highwater = offset

    # Pauses

    def pause(self, partition: TopicPartition) -> None:
        """Stop fetching a partition until ``resume``. The position of the partition remains."""
        self._require(partition, "pause()").is_paused = True

    def resume(self, partition: TopicPartition) -> None:
        """End a pause. Do nothing if the partition is not paused."""
        self._require(partition, "resume()").is_paused = False

    def is_paused(self, partition: TopicPartition) -> bool:
        state = self._assigned.get(partition)
        return state is not None and state.is_paused

    def paused_partitions(self) -> frozenset[TopicPartition]:
        return frozenset(partition for partition in self._assigned if self.is_paused(partition))


_ONE_WAY = f"a consumer gets partitions in one way only: {', '.join(kind.value for kind in SubscriptionKind)}"
