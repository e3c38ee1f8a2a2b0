"""
Decide from answers of brokers, without ZooKeeper, whether a topic was deleted and created again.

An incarnation of a topic is the topic from one creation to the next deletion. From Kafka 2.8 on, each incarnation has
another id. Earlier brokers name no id. If such brokers did not list a topic for a while, the topic may have been
deleted, or the client had no right to see it. If a topic is created again at once, there is only one sign: the log
lacks the member's position, or has that position again after it was missing. So the logs decide: an early record that
was read is compared with the record that the log has at the same offset now.

A log of the same topic may lose records, too, if an unclean election truncates it. In this case the log is not new, and
``auto_offset_reset`` says where delivery continues.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from kiel_groups.model import TopicPartition


@dataclass(slots=True)
class _SeenTopic:
    """
    The knowledge about one topic. ``number`` counts its new incarnations. ``ids`` are all of its ids, the newest last.

    ``is_missing`` is true if the last answer did not list the topic. ``was_missing`` is true if an earlier answer did
    not list the topic, and it is not known yet whether the topic is still the same. ``trusted`` has the partitions
    whose stored offsets belong to the present topic, as far as this process can know. ``trusted`` is None if the topic
    was never missing and never created again. ``absences`` counts the answers that did not list the topic.
    """

    number: int = 0
    ids: list[str] = field(default_factory=list)
    is_missing: bool = False
    was_missing: bool = False
    trusted: set[TopicPartition] | None = None
    absences: int = 0


class SeenTopics:
    """
    Numbers the incarnations of topics, from 0 on, as one process learns of them.

    The object calls ``changed`` with the name of a topic whose number has grown, and ``doubted`` with the name of a
    topic that may have been created again.
    """

    def __init__(self) -> None:
        self._topics: dict[str, _SeenTopic] = {}
        self.changed: Callable[[str], None] = lambda _: None
        self.doubted: Callable[[str], None] = lambda _: None

    def number(self, topic: str) -> int:
        """Return the number of the topic's newest known incarnation."""
        seen = self._topics.get(topic)
        return 0 if seen is None else seen.number

    def has_id(self, topic: str) -> bool:
        """Return whether the topic's id is known. If the id is known, only a change of the id shows a new topic."""
        seen = self._topics.get(topic)
        return seen is not None and bool(seen.ids)

    def was_missing(self, topic: str) -> bool:
        """Return whether brokers have left out the topic since its logs were last compared."""
        seen = self._topics.get(topic)
        return seen is not None and (seen.is_missing or seen.was_missing)

    def absences(self, topic: str) -> int:
        """Return how many answers did not list the topic."""
        seen = self._topics.get(topic)
        return 0 if seen is None else seen.absences

    def missing(self, topic: str) -> None:
        """
        Note that a broker that knows the cluster has not listed the topic. The topic's stored offsets are not trusted
        any more.
        """
        seen = self._seen(topic)
        seen.is_missing, seen.trusted = True, set()
        seen.absences += 1

    def listed(self, topic: str) -> None:
        """Note that a broker has listed the topic. If the topic was missing, call ``doubted``."""
        seen = self._seen(topic)
        if seen.is_missing:
            seen.is_missing, seen.was_missing, seen.trusted = False, True, set()
            self.doubt(topic)

    def identified(self, topic: str, topic_id: str) -> None:
        """
        Note the topic's id. A second id means that the topic was created again.

        Ignore a former id, because a broker with old metadata has sent it.
        """
        seen = self._seen(topic)
        if topic_id in seen.ids:
            return
        seen.ids.append(topic_id)
        if len(seen.ids) > 1:
            self.settle(topic, seen.absences)
            self.renew(topic)

    def doubt(self, topic: str) -> None:
        """Call ``doubted``, because a broker's answer suggests that the topic was created again."""
        self.doubted(topic)

    def settle(self, topic: str, absences: int) -> None:
        """
        Note that stored offsets were compared with the topic's logs: an earlier absence of the topic needs no further
        check.

        Args:
            topic: The topic.
            absences: The result of ``absences`` before the comparison began. If the topic was missing again since, the
                call has no effect: the topic may have been deleted after the leaders had answered.
        """
        seen = self._seen(topic)
        if seen.absences == absences:
            seen.is_missing = seen.was_missing = False

    def trusted(self, topic: str) -> set[TopicPartition] | None:
        """
        Return the partitions whose stored offsets belong to the present topic, as far as this process can know.

        Coordinators of 0.9 keep the offsets of deleted topics. A caller that has stored an offset, or compared an
        offset with the log, adds the partition to the returned set. If the topic is missing or created again later,
        another set replaces this set, and additions to the former set have no effect.

        Returns:
            None if all offsets are trusted, or the topic has an id.
        """
        seen = self._topics.get(topic)
        return None if seen is None or seen.ids else seen.trusted

    def take_doubt(self, topic: str) -> set[TopicPartition] | None:
        """
        Return ``trusted(topic)``. If the result is a set, note that the topic is no longer in doubt.

        The caller then compares the stored offsets of all other partitions with the logs.
        """
        trusted = self.trusted(topic)
        if trusted is not None:
            self._topics[topic].was_missing = False
        return trusted

    def renew(self, topic: str) -> None:
        """Note that the topic was created again: increase its number, trust no stored offset, and call ``changed``."""
        seen = self._seen(topic)
        seen.number, seen.trusted = seen.number + 1, set()
        self.changed(topic)

    def _seen(self, topic: str) -> _SeenTopic:
        return self._topics.setdefault(topic, _SeenTopic())


class LogSight(NamedTuple):
    """
    The state of one partition's log, as far as it is known.

    ``start`` and ``end`` are the log's range now. ``has_record`` says whether the log still has the record that was
    read first. ``has_record`` is None if no record was read, or if that record was deleted since. ``is_first`` says
    whether that record is the first record of the log. ``in_doubt`` says whether a broker has denied that the log has
    the ``position``.
    """

    position: int
    start: int
    end: int
    has_record: bool | None = None
    is_first: bool = False
    in_doubt: bool = False


class Verdict(Enum):
    """The verdict on a topic, from a comparison of its logs."""

    #: The topic is the same, also if a log was truncated.
    SAME = "same"
    #: The topic was created again.
    NEW = "new"
    #: The logs do not show whether the topic is new.
    UNKNOWN = "unknown"


def judge_logs(sights: Collection[LogSight], *, was_unknown: bool, was_missing: bool) -> Verdict:
    """
    Decide from the logs of a topic's partitions whether the topic was created again.

    Args:
        sights: The logs of partitions of the topic.
        was_unknown: Whether a broker has denied that a partition exists. A broker that has just started may be wrong.
        was_missing: Whether brokers have left out the topic at some time.
    """
    if any(sight.has_record for sight in sights):
        return Verdict.SAME
    # A log that has lost even its first record has nothing in common with the former one. Another record in another
    # place may also be that of a log that was truncated, and has grown since.
    if any(sight.has_record is False and (sight.is_first or was_unknown or was_missing) for sight in sights):
        return Verdict.NEW
    if was_missing and any(sight.end < sight.position for sight in sights):
        return Verdict.NEW
    return Verdict.UNKNOWN
