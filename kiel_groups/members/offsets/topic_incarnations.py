"""
Detect that a topic was deleted and created again, and restart its partitions in the new logs.

An incarnation of a topic is the topic from one creation to the next deletion. The topic's creation zxid identifies the
incarnation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial

from kiel_groups.backoff import Backoff
from kiel_groups.errors import CoordinationError, KielGroupsError, SessionLostError
from kiel_groups.group.offset_tracker import OffsetTracker
from kiel_groups.group.partition_offsets import StoredOffset
from kiel_groups.group.znodes.layout import TOPICS, topic_path
from kiel_groups.members.offsets.owned_offsets import OwnOffsetStore
from kiel_groups.members.partition_handler import PartitionHandler
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wording import counted
from kiel_groups.zookeeper.fenced_writes import Renew
from kiel_groups.zookeeper.session import Session
from kiel_groups.zookeeper.tasks import TaskSet

log = logging.getLogger(__name__)


class TopicIncarnations:
    """
    Watches the topics of a member's partitions during one session.

    A topic that is created again has another creation zxid. Positions in the old log do not apply to its new log. As
    soon as this object has read a new incarnation, it notifies the tracker, and calls ``on_recreated`` with the topic
    and its new creation zxid.
    """

    def __init__(self, session: Session, tasks: TaskSet, tracker: OffsetTracker) -> None:
        self._session = session
        self._tasks = tasks
        self._tracker = tracker
        self.on_recreated: Callable[[str, int], None] = lambda topic, created: None
        #: Creation zxid by topic; 0 for a topic that did not exist yet.
        self._created: dict[str, int] = {}
        self._hints: dict[str, Callable[[], None]] = {}
        self._first_reads: dict[str, asyncio.Future[None]] = {}
        #: Topics whose watch has fired and that must be read; and the lock held while they are read.
        self._hinted: set[str] = set()
        self._reading = asyncio.Lock()
        #: The zxid of the last change of the cluster's topics, as the last audit found it.
        self._audited = -1

    async def follow(self, topics: Collection[str]) -> None:
        """Watch these topics, too, and wait for their first read. Callers must do so before they read positions."""
        for topic in sorted(topics):
            if topic not in self._first_reads:
                self._hints[topic] = partial(self._hint, topic)
                self._first_reads[topic] = first_read = asyncio.ensure_future(self._read(topic))
                # Retrieve its exception, which asyncio would log if all callers were cancelled.
                first_read.add_done_callback(lambda done: done.cancelled() or done.exception())
            # The read is shielded, because several callers may wait for it.
            await asyncio.shield(self._first_reads[topic])

    def creation(self, topic: str) -> int:
        """Return the creation zxid of a topic as last read, or 0 if the topic was not read, or did not exist."""
        return self._created.get(topic, 0)

    def unless_recreated(self, topic: str) -> Renew[object]:
        """
        Return a ``renew`` function for writes: it drops all writes as soon as a newer incarnation of the topic is
        known.
        """
        created = self.creation(topic)
        return lambda _, written: written if self.creation(topic) == created else None

    def announce(self, topic: str) -> None:
        """Report the topic's newest known incarnation to the tracker, and call ``on_recreated``."""
        created = self.creation(topic)
        self._tracker.recreated(topic, created)
        self.on_recreated(topic, created)

    def recheck(self) -> None:
        """Read all topics again, because watches may have been lost."""
        self._hint(*self._hints)

    async def audit(self) -> None:
        """Read all topics again if a topic of the cluster was created or deleted since the last audit."""
        folder = await self._session.exists(TOPICS)
        changed = 0 if folder is None else folder.pzxid
        if changed != self._audited:
            self._audited = changed
            self.recheck()

    def _hint(self, *topics: str) -> None:
        if not self._hinted and topics:
            self._tasks.start(self.catch_up())
        self._hinted.update(topics)

    async def catch_up(self) -> None:
        """
        Wait until all topics whose watch has fired have been read. Callers must do so before they store offsets.

        After an outage, or a long block of the event loop, watches have fired for topics that are not read yet.
        """
        async with self._reading:
            while topics := sorted(self._hinted):
                self._hinted.clear()
                try:
                    await asyncio.gather(*map(self._read, topics))
                except SessionLostError:
                    # A task that reads again would fail at once and start the next one: a loop without a pause. The
                    # topics stay hinted, so that no write treats them as read.
                    self._hinted.update(topics)
                    raise
                except (Exception, asyncio.CancelledError):
                    # The caller was cancelled, or got no answer, before the topics were read.
                    self._hint(*topics)
                    raise

    async def _read(self, topic: str) -> None:
        node = await self._session.exists(topic_path(topic), self._hints[topic])
        before = self._created.get(topic)
        # A deleted topic needs no action until it is created again.
        self._created[topic] = seen = (before or 0) if node is None else node.czxid
        if before is not None and seen != before:
            self.announce(topic)


#: The first and the longest pause before brokers are asked again for log starts that they did not know, in seconds.
FIRST_RESTART_PAUSE_S = 0.5
LONGEST_RESTART_PAUSE_S = 5.0


class RecreatedTopics:
    """
    Restarts the partitions of one member in new logs. On ZooKeeper, the object belongs to one session.

    Args:
        group: The group's name.
        handler: Looks up where logs start, and continues there.
        tracker: The offsets of the member's partitions.
        tasks: Runs the restarts.
        metrics: Counts restarts that are delayed.
        unless_recreated: Returns a ``renew`` function that drops all writes once the topic was created again.
        store: Stores the start offsets.
        writing: The lock that is held by all writes of offsets.
    """

    def __init__(
        self,
        group: str,
        handler: PartitionHandler,
        tracker: OffsetTracker,
        tasks: TaskSet,
        metrics: Metrics,
        unless_recreated: Callable[[str], Renew[object]],
        store: OwnOffsetStore,
        writing: asyncio.Lock,
    ) -> None:
        self._group = group
        self._handler = handler
        self._tracker = tracker
        self._tasks = tasks
        self._metrics = metrics
        self._unless_recreated = unless_recreated
        self._store = store
        self._writing = writing

    def restart(self, topic: str, created: int) -> None:
        """Restart the partitions of a recreated topic, in the background."""
        self._tasks.start(self._restart(topic, created))

    async def _restart(self, topic: str, created: int) -> None:
        """
        Restart the outdated partitions of a recreated topic at the beginning of its new log.

        Restart partitions that are being revoked, too. Until brokers return the start of a partition's new log, the
        member commits no offset of the partition.

        Args:
            topic: The topic's name.
            created: Identifies the new incarnation. Partitions whose claims were opened in the new incarnation's log
                are not restarted.
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
        renew = self._unless_recreated(topic)
        # The look-up runs outside the lock: brokers may take long, and the member's other partitions must be committed
        # meanwhile.
        earliest, failures = await self._handler.log_offsets(outdated, "earliest")
        async with self._writing:
            # Some partitions may have been released meanwhile, or the topic created once more.
            still = sorted(self._tracker.to_restart(topic, created) & earliest.keys())
            states = {partition: state for partition in still if (state := self._tracker.of(partition))}

            def is_known(partition: TopicPartition, found: StoredOffset) -> bool:
                return states[partition].knows(found)

            current = await self._store.store_starts(topic, {p: earliest[p] for p in states}, is_known, renew)
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
