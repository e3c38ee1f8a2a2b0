"""
Detect that a topic was deleted and created again.

An incarnation of a topic is the topic from one creation to the next deletion. The topic's creation zxid identifies the
incarnation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from functools import partial

from kiel_groups.errors import SessionLostError
from kiel_groups.group.offset_tracker import OffsetTracker
from kiel_groups.group.znodes.layout import TOPICS, topic_path
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
