"""Restart partitions in the new logs of their topics, after the topics were deleted and created again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from kiel_groups.backoff import Backoff
from kiel_groups.coordination.offsets.offset_store import NewLogStore
from kiel_groups.coordination.partition_handler import PartitionHandler
from kiel_groups.coordination.session.session_tasks import TaskSet
from kiel_groups.errors import CoordinationError, KielGroupsError
from kiel_groups.group.member.offset_tracker import OffsetTracker
from kiel_groups.group.member.partition_offsets import StoredOffset
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wording import counted

__all__ = ["RecreatedTopics", "Recreations", "RestartedMember"]

log = logging.getLogger(__name__)

#: The first and the longest pause before brokers are asked again for log starts that they did not know, in seconds.
FIRST_RESTART_PAUSE_S = 0.5
LONGEST_RESTART_PAUSE_S = 5.0


class RestartedMember(Protocol):
    """The member whose partitions are restarted; ``MemberContext`` is one."""

    @property
    def group(self) -> str: ...
    @property
    def handler(self) -> PartitionHandler: ...
    @property
    def tracker(self) -> OffsetTracker: ...
    @property
    def tasks(self) -> TaskSet: ...
    @property
    def metrics(self) -> Metrics: ...


class Recreations(Protocol):
    """Announces topics that were created again; see ``TopicIncarnations``."""

    @property
    def recreations(self) -> asyncio.Queue[tuple[str, int]]: ...
    def unless_recreated(self, topic: str) -> Callable[[Any, Any], Any]: ...


class RecreatedTopics:
    """
    Restarts the partitions of one member in new logs, during one session if it has sessions.

    Args:
        context: The member; its handler looks up where logs start, and continues there.
        topics: Announces the recreated topics.
        new_logs: Stores the start offsets.
        writing: The lock that is held by all writes of offsets.
    """

    def __init__(
        self, context: RestartedMember, topics: Recreations, new_logs: NewLogStore, writing: asyncio.Lock
    ) -> None:
        self._group = context.group
        self._handler = context.handler
        self._tracker = context.tracker
        self._tasks = context.tasks
        self._metrics = context.metrics
        self._topics = topics
        self._new_logs = new_logs
        self._writing = writing

    async def run(self) -> None:
        """Restart the partitions of each topic that is announced as recreated, until this task is cancelled."""
        while True:
            topic, created = await self._topics.recreations.get()
            self._tasks.start(self._restart(topic, created))

    async def _restart(self, topic: str, created: int) -> None:
        """
        Restart the outdated partitions of a recreated topic at the beginning of its new log.

        Partitions that are being revoked are restarted, too. Until brokers return the start of a partition's new log,
        no offset of the partition is committed.

        Args:
            topic: The topic's name.
            created: Identifies the new topic. Partitions whose claims were opened in its log are left out.
        """
        backoff = Backoff(FIRST_RESTART_PAUSE_S, LONGEST_RESTART_PAUSE_S)
        while outdated := self._tracker.to_restart(topic, created):
            reason = "brokers did not return the start of every log"
            try:
                if failures := await self._restart_known(topic, created, outdated):
                    reason = str(failures[min(failures)])
            except CoordinationError:
                raise
            except KielGroupsError as error:
                reason = str(error)
            if left := self._tracker.to_restart(topic, created):
                pause_s = backoff.next_s()
                self._metrics.count("recreated_topic_resets_delayed", len(left))
                log.warning(
                    "group %s: topic %s was created again, and %s cannot be reset to its new log yet: %s; trying again"
                    " in %.1f s",
                    self._group,
                    topic,
                    counted(left, "partition"),
                    reason,
                    pause_s,
                )
                await asyncio.sleep(pause_s)

    async def _restart_known(
        self, topic: str, created: int, outdated: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, KielGroupsError]:
        """
        Restart the partitions for which brokers return the start of the new log.

        An offset that an operator has already set in the new log is adopted. Unreadable data is overwritten.

        Returns:
            The reason for each partition whose log start is not known.
        """
        renew = self._topics.unless_recreated(topic)
        # Outside the lock: brokers may take long, and the member's other partitions must be committed meanwhile.
        earliest, failures = await self._handler.log_offsets(outdated, "earliest")
        async with self._writing:
            # Some partitions may have been released meanwhile, or the topic created once more.
            still = sorted(self._tracker.to_restart(topic, created) & earliest.keys())
            states = {partition: state for partition in still if (state := self._tracker.of(partition))}

            def is_known(partition: TopicPartition, found: StoredOffset) -> bool:
                return states[partition].knows(found)

            current = await self._new_logs.store_starts(topic, {p: earliest[p] for p in states}, is_known, renew)
            for partition, found in current.items():
                if found.offset is not None and self._tracker.of(partition) is states[partition]:
                    self._tracker.restart(partition, found.offset, found.version, created)
                    self._handler.offset_changed(partition, found.offset)
                    self._warn_if_set(partition, earliest[partition], found.offset)
        return failures

    def _warn_if_set(self, partition: TopicPartition, earliest: int, offset: int) -> None:
        if offset != earliest:
            log.warning(
                "group %s: another writer set the offset of %s to %d in the new log of its topic; continuing there",
                self._group,
                partition,
                offset,
            )
