"""
Decide whether a topic was deleted and created again, by what brokers answer, without ZooKeeper.

From Kafka 2.8 on a topic has an id, which says it exactly. Before, a topic that brokers have not listed for a while is
another one. A topic that is created again at once leaves less: a position that its log had, and has not, or has again.
So the first record that was read is compared with what the log has in its place now.

A log of the same topic may lose records, too: an unclean election truncates it. That is no new log, and
``auto_offset_reset`` says where delivery continues.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

__all__ = ["LogSight", "SeenTopics", "Verdict", "judge_logs"]

#: How many answers of brokers have to lack a topic that then exists before it counts as created again. One answer may
#: be that of a broker that has just started.
_MISSING_ANSWERS = 2


@dataclass(slots=True)
class _SeenTopic:
    """``ids`` are all ids of the topic, the newest one last. ``missing`` counts the answers in a row that lack it."""

    number: int = 0
    ids: list[str] = field(default_factory=list)
    missing: int = 0


class SeenTopics:
    """
    Numbers the incarnations of topics, from 0 on, as one process learns of them.

    ``changed`` is called with a topic whose number has grown, ``doubted`` with one that may have been created again.
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
        """Return whether the topic's id is known, so that nothing else says whether it was created again."""
        seen = self._topics.get(topic)
        return seen is not None and bool(seen.ids)

    def absent(self) -> frozenset[str]:
        """Return the topics without an id that the last answer about them has lacked."""
        return frozenset(topic for topic, seen in self._topics.items() if seen.missing and not seen.ids)

    def missing(self, topic: str) -> None:
        """Note that a broker that knows the cluster has not listed the topic."""
        self._seen(topic).missing += 1

    def listed(self, topic: str) -> None:
        """Note that a broker has listed the topic."""
        seen = self._seen(topic)
        missing, seen.missing = seen.missing, 0
        if missing and not seen.ids:
            if missing >= _MISSING_ANSWERS:
                self.renew(topic)
            else:
                self.doubt(topic)

    def identified(self, topic: str, topic_id: str) -> None:
        """Note the topic's id. A former id is the answer of a broker whose metadata are old."""
        seen = self._seen(topic)
        if topic_id in seen.ids:
            return
        seen.ids.append(topic_id)
        if len(seen.ids) > 1:
            self.renew(topic)

    def doubt(self, topic: str) -> None:
        """Note that a broker has answered as if the topic were another one."""
        self.doubted(topic)

    def renew(self, topic: str) -> None:
        """Note that the topic was created again."""
        self._seen(topic).number += 1
        self.changed(topic)

    def _seen(self, topic: str) -> _SeenTopic:
        return self._topics.setdefault(topic, _SeenTopic())


class LogSight(NamedTuple):
    """
    What is known of one partition's log.

    ``start`` and ``end`` are its range now. ``has_record`` is whether it still has the record that was read first, None
    if that cannot be known: none was read, or it was deleted since. ``is_first`` is whether that is the log's first
    record. ``in_doubt`` is whether a broker has denied that it has the ``position``.
    """

    position: int
    start: int
    end: int
    has_record: bool | None = None
    is_first: bool = False
    in_doubt: bool = False


class Verdict(Enum):
    """What the logs of a topic say about it."""

    #: The topic is the same, also if a log was truncated.
    SAME = "same"
    #: The topic was created again.
    NEW = "new"
    #: It cannot be known.
    UNKNOWN = "unknown"


def judge_logs(sights: Collection[LogSight], *, was_unknown: bool) -> Verdict:
    """
    Return what the logs of a topic's partitions say about it: a topic is deleted as a whole.

    Args:
        sights: Partitions of the topic.
        was_unknown: Whether brokers have lacked the topic, or one of these partitions.
    """
    if any(sight.has_record for sight in sights):
        return Verdict.SAME
    # A log that has lost even its first record has nothing in common with the former one. Another record in another
    # place may be that of a log that was truncated, and has grown since.
    if any(sight.has_record is False and (sight.is_first or was_unknown) for sight in sights):
        return Verdict.NEW
    if was_unknown and any(sight.end < sight.position for sight in sights):
        return Verdict.NEW
    return Verdict.UNKNOWN
