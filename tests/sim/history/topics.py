"""The incarnations of topics, and the offsets that belong to logs of deleted incarnations."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from kiel_groups.group.znodes.contents import parse_topic
from kiel_groups.group.znodes.layout import TOPICS, topic_path
from kiel_groups.model import TopicPartition
from tests.fakes.fake_ensemble import Entry
from tests.fakes.znode_tree import Change, Kind, Znode
from tests.sim.history.sessions import Sessions

if TYPE_CHECKING:
    from tests.sim.consumer import Consumer
    from tests.sim.world import World

__all__ = ["NOTIFIED_S", "Topics"]

#: The longest time, in seconds, for which a notification, or a request sent before its arrival, may be in flight.
NOTIFIED_S = 2.0


class Topics:
    """
    The incarnations of topics.

    A topic that is created again has new logs. The offsets of the old logs are misleading until each partition has been
    reset to the start of its new log.
    """

    def __init__(self, world: World, sessions: Sessions) -> None:
        self._timeline = world.timeline
        self._znodes = world.ensemble.tree.znodes
        self._sessions = sessions
        #: The newest creation of each topic: the zxid, and the time in seconds.
        self._created: dict[str, tuple[int, float]] = {}
        #: Partitions whose topic was deleted or created again, and whose offset is not reset yet.
        self.outdated: set[TopicPartition] = set()
        #: The zxid at which partitions of such topics were reset.
        self._reset_at: dict[TopicPartition, int] = {}
        #: Partitions that had no offset when their topic was deleted. Their first offset may still be of the old log.
        self.without_offset: set[TopicPartition] = set()

    def record_creation(self, entry: Entry, change: Change, stored: Collection[TopicPartition]) -> None:
        """Record that a topic is created. Offsets that exist already belong to an earlier log."""
        topic = _topic(change)
        self._created[topic] = (entry.zxid, self._timeline.now_s)
        self.outdated |= {partition for partition in stored if partition.topic == topic}

    def record_deletion(self, change: Change, stored: Collection[TopicPartition]) -> None:
        topic = _topic(change)
        self.outdated |= {partition for partition in stored if partition.topic == topic}
        numbers = parse_topic(change.znode.data, change.path)
        self.without_offset |= {TopicPartition(topic, number) for number in numbers} - set(stored)

    def record_reset(self, partition: TopicPartition, zxid: int) -> None:
        """Record that the start of the new log is stored as the offset."""
        self.outdated.discard(partition)
        self._reset_at[partition] = zxid

    def record_first_offset(self, partition: TopicPartition) -> None:
        if partition in self.without_offset:
            self.without_offset.discard(partition)
            self.outdated.add(partition)

    def was_reset_by(self, entry: Entry, partition: TopicPartition) -> bool:
        """Return whether this entry made the newest reset of the partition to the start of a new log."""
        return self._reset_at.get(partition) == entry.zxid

    def created(self, partition: TopicPartition) -> tuple[int, float]:
        """Return the creation of the partition's topic: the zxid, and the time in seconds."""
        return self._created[partition.topic]

    def was_created(self, topic: str) -> bool:
        return topic in self._created

    def znode(self, partition: TopicPartition) -> Znode | None:
        return self._znodes.get(topic_path(partition.topic))

    def could_know(self, entry: Entry, topic: str) -> bool:
        """Return whether the writer of an entry could know, when it sent the entry, that a topic was created again."""
        zxid, at_s = self._created[topic]
        seen = self._sessions.writer(entry).last_zxid(entry.session_id)
        return seen > zxid and self._timeline.now_s > at_s + NOTIFIED_S

    def is_outdated(self, consumer: Consumer, partition: TopicPartition) -> bool:
        """Return whether a consumer's position belongs to an earlier log, and the topic has a new log."""
        topic = self.znode(partition)
        return topic is not None and consumer.created(partition) < topic.czxid

    def is_log_gone(self, consumer: Consumer, partition: TopicPartition) -> bool:
        """Return whether the log of a consumer's position is deleted, whether or not the topic exists again."""
        return self.znode(partition) is None or self.is_outdated(consumer, partition)


def changes_of_topics(entry: Entry, kind: Kind) -> Iterator[Change]:
    """Return the creations or deletions of topics in an entry."""
    return (change for change in entry.changes if change.kind is kind and change.path.startswith(f"{TOPICS}/"))


def _topic(change: Change) -> str:
    return change.path.rpartition("/")[2]
