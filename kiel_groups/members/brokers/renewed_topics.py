"""Detect topics that were deleted and created again, in a group that brokers coordinate."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

from kiel_groups.clients.net.cluster_metadata import DOUBT
from kiel_groups.errors import KielGroupsError
from kiel_groups.group.offset_tracker import OffsetTracker
from kiel_groups.group.seen_topics import LogSight, Verdict, judge_logs
from kiel_groups.members.brokers.assignment_planner import TopicSource
from kiel_groups.members.brokers.coordinator_commits import CoordinatorOffsets
from kiel_groups.members.partition_handler import PartitionHandler
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wording import counted, some
from kiel_groups.zookeeper.tasks import TaskSet

log = logging.getLogger(__name__)


#: The pauses before a doubted topic is checked, in seconds: the metadata of brokers lag behind their logs.
_PAUSES_S = (0.0, 1.0, 4.0)


class RenewedTopics:
    """
    Detects that a topic of a member's partitions was created again, and calls ``on_recreated`` with the topic.

    Args:
        group: The group's name.
        handler: Compares logs with the records that the member has read.
        tracker: The offsets of the member's partitions.
        tasks: Runs the look-ups.
        metrics: Counts recreated topics, and logs that may be new without proof.
        topics: The topics of the cluster.
        offsets: The group's offsets.
    """

    def __init__(
        self,
        group: str,
        handler: PartitionHandler,
        tracker: OffsetTracker,
        tasks: TaskSet,
        metrics: Metrics,
        topics: TopicSource,
        offsets: CoordinatorOffsets,
    ) -> None:
        self.group = group
        self.handler = handler
        self.tracker = tracker
        self.tasks = tasks
        self.metrics = metrics
        #: Called with a topic and the number of its new incarnation; see ``OwnedOffsets.restart``.
        self.on_recreated: Callable[[str, int], None] = lambda topic, number: None
        self._topics = topics
        self._seen = topics.seen
        self._offsets = offsets
        #: The topics under doubt, because a broker has answered as if they were other topics.
        self._doubted: set[str] = set()
        #: The partitions whose logs were reported to have other records, without another sign of a new log.
        self._odd: set[TopicPartition] = set()
        self._seen.changed = self.announce
        self._seen.doubted = self._doubt

    # ------------------------------------------------------------------ what OwnedOffsets.restart needs

    def announce(self, topic: str) -> None:
        """If partitions were opened in an earlier log of the topic, log a warning, and call ``on_recreated``."""
        number = self._seen.number(topic)
        self.tracker.recreated(topic, number)
        outdated = sorted(self.tracker.to_restart(topic, number))
        if not outdated:
            return
        self.metrics.count("topics_recreated")
        state = self.tracker.of(outdated[0])
        log.warning(
            "group %s: topic %s was deleted and created again: %s, first %s at offset %d, continue at the start of the"
            " new log",
            self.group,
            topic,
            counted(outdated, "partition"),
            outdated[0],
            0 if state is None else state.position,
        )
        self.on_recreated(topic, number)

    def unless_recreated(self, topic: str) -> Callable[[Any, Any], Any]:
        """
        Return a ``renew`` function for writes: it drops all writes as soon as a newer incarnation of the topic is
        known.
        """
        number = self._seen.number(topic)
        return lambda _, written: written if self._seen.number(topic) == number else None

    async def store_beginnings(self, partitions: Collection[TopicPartition]) -> None:
        """
        Store the offset 0 for partitions that are revoked before their restart, because their offsets are of old logs.

        Raises:
            KielGroupsError: As ``CoordinatorOffsets.store``.
        """
        outdated = [partition for partition in partitions if not self.tracker.may_store(partition)]
        if outdated:
            await self._offsets.store(dict.fromkeys(outdated, 0))

    # ------------------------------------------------------------------ doubts

    def identify(self, topics: Collection[str]) -> None:
        """Ask brokers for the unknown ids of topics. A later change of an id shows that the topic was created again."""
        unknown = [topic for topic in topics if not self._seen.has_id(topic)]
        if unknown and self._topics.asks_ids:
            self.tasks.start(self._refresh(unknown))

    async def _refresh(self, topics: Collection[str]) -> None:
        with suppress(KielGroupsError):
            await self._topics.refresh(topics, "ids")

    def _doubt(self, topic: str) -> None:
        if topic not in self._doubted and any(each.topic == topic for each in self.tracker.open_partitions()):
            self._doubted.add(topic)
            # An id that becomes known later may be the new topic's.
            self.tasks.start(self._look_again(topic, has_id=self._seen.has_id(topic)))

    async def _look_again(self, topic: str, *, has_id: bool) -> None:
        """Check several times, after pauses, whether a doubted topic was created again."""
        try:
            for pause_s in _PAUSES_S:
                await asyncio.sleep(pause_s)
                with suppress(KielGroupsError):
                    await self._topics.refresh({topic}, DOUBT)
                if not has_id and await self._judge(topic, was_unknown=True):
                    return
        finally:
            self._doubted.discard(topic)

    async def look_regularly(self, interval_s: float) -> None:
        """
        Check topics without ids every ``interval_s`` seconds.

        Only such checks reveal a new log that quickly grows past the position.
        """
        while True:
            await asyncio.sleep(interval_s)
            for topic in sorted({partition.topic for partition in self.tracker.open_partitions()}):
                if not self._seen.has_id(topic):
                    await self._judge(topic, was_unknown=False)

    async def look_at(self, topics: Collection[str]) -> None:
        """
        Find out whether topics were created again, because the log of a partition lacks its position.

        Raises:
            NoBrokersError: No broker has answered.
        """
        without_id = sorted(topic for topic in topics if not self._seen.has_id(topic))
        await self._topics.refresh(topics, DOUBT)
        for topic in without_id:
            await self._judge(topic, was_unknown=topic in self._doubted)

    async def _judge(self, topic: str, *, was_unknown: bool) -> bool:
        """
        Decide by its logs whether a topic without an id was created again.

        Return False if the logs must be compared again: a leader did not answer, or a broker did not list the topic
        after the comparison had begun.
        """
        number, absences = self._seen.number(topic), self._seen.absences(topic)
        states = {each: self.tracker.of(each) for each in self.tracker.open_partitions() if each.topic == topic}
        positions = {each: state.position for each, state in states.items() if state and not state.outdated}
        if not positions:
            # The doubt concerns the stored offsets, which are checked when the partitions are assigned again.
            return True
        sights = await self.handler.look_at_logs(positions)
        was_missing = self._seen.was_missing(topic)
        verdict = judge_logs(sights.values(), was_unknown=was_unknown, was_missing=was_missing)
        if self._seen.number(topic) != number:
            return True
        is_whole = sights.keys() == positions.keys()
        if verdict is Verdict.NEW:
            self._seen.renew(topic)
        elif verdict is Verdict.UNKNOWN and is_whole:
            is_doubted = was_missing or was_unknown
            doubtful = {p: s for p, s in sights.items() if is_doubted or s.in_doubt or self._is_odd(p, s)}
            warn_of_unknown(self.group, self.metrics, doubtful)
        if is_whole or verdict is not Verdict.UNKNOWN:
            self._seen.settle(topic, absences)
        return is_whole and self._seen.absences(topic) == absences

    def _is_odd(self, partition: TopicPartition, sight: LogSight) -> bool:
        """
        Return whether the log has another record than the one that was read. Return True only once for each partition.
        """
        is_odd = sight.has_record is False and partition not in self._odd
        if is_odd:
            self._odd.add(partition)
        return is_odd


def warn_of_unknown(group: str, metrics: Metrics, sights: Mapping[TopicPartition, LogSight]) -> None:
    """Report partitions whose logs may be new: records before the position of such a log may be skipped."""
    # A log that ends before the position may have grown past it until the next fetch.
    doubtful = {each: sight for each, sight in sorted(sights.items()) if sight.start < sight.position}
    if not doubtful:
        return
    metrics.count("new_logs_unknown", len(doubtful))
    listed = some(f"{each} ({sight.start} to {sight.position})" for each, sight in doubtful.items())
    log.warning(
        "group %s: brokers have denied %s or its position, or its log has other records than were read, and it cannot"
        " be known whether the topic was created again. If it was, these offsets of its new logs may be skipped: %s. To"
        " read them, seek there",
        group,
        min(doubtful),
        listed,
    )
