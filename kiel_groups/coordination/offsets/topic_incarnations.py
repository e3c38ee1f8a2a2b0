"""Notices that a topic was deleted and created again while partitions of it are held."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial

from kiel_groups.coordination.session.session_tasks import TaskSet
from kiel_groups.coordination.session.zk_session import Session
from kiel_groups.errors import SessionLostError
from kiel_groups.group.znodes.layout import topic_path

__all__ = ["TopicIncarnations"]


class TopicIncarnations:
    """
    Watches the topics of what a member holds, for the life of one session.

    A topic that is created again has another creation zxid; its log begins anew, and positions in the old one mean
    nothing there. ``on_recreated`` is told at once, with the topic and that zxid, once for each time.
    """

    on_recreated: Callable[[str, int], None]

    def __init__(self, session: Session, tasks: TaskSet) -> None:
        self._session = session
        self._tasks = tasks
        #: Creation zxid by topic, 0 where there was none yet.
        self._created: dict[str, int] = {}
        self._hints: dict[str, Callable[[], None]] = {}
        self._first_looks: dict[str, asyncio.Future[None]] = {}
        #: Topics to look at; and the lock of who does.
        self._hinted: set[str] = set()
        self._looking = asyncio.Lock()

    async def follow(self, topics: Collection[str]) -> None:
        """From now on, watch these too; to be called before their positions are read."""
        for topic in sorted(topics):
            if topic not in self._first_looks:
                self._hints[topic] = partial(self._hint, topic)
                self._first_looks[topic] = look = asyncio.ensure_future(self._look(topic))
                # Its failure is that of who waits for it, if anybody still does.
                look.add_done_callback(lambda done: done.cancelled() or done.exception())
            # Shielded: several may wait for the same first look.
            await asyncio.shield(self._first_looks[topic])

    def creation(self, topic: str) -> int:
        """The creation zxid of a topic as last seen, 0 where it was not."""
        return self._created.get(topic, 0)

    def look_again(self) -> None:
        """Watches may be gone."""
        self._hint(*self._hints)

    def _hint(self, *topics: str) -> None:
        if not self._hinted and topics:
            self._tasks.start(self.catch_up())
        self._hinted.update(topics)

    async def catch_up(self) -> None:
        """
        Look at all topics of which a watch has fired, or wait for who does; to be called before offsets are stored.

        After an outage, or where the event loop was blocked for long, watches have told of what is not looked at yet.
        """
        async with self._looking:
            while topics := sorted(self._hinted):
                self._hinted.clear()
                try:
                    await asyncio.gather(*map(self._look, topics))
                except SessionLostError:
                    # A task that looks again would fail at once, and start the next one: a loop without a pause.
                    # The topics stay hinted, so that no write takes them for looked at.
                    self._hinted.update(topics)
                    raise
                except (Exception, asyncio.CancelledError):
                    # The caller was interrupted, or got no answer, before the topics were looked at.
                    self._hint(*topics)
                    raise

    async def _look(self, topic: str) -> None:
        node = await self._session.exists(topic_path(topic), self._hints[topic])
        before = self._created.get(topic)
        # A topic that is gone is missed by nobody before it is there again.
        self._created[topic] = seen = (before or 0) if node is None else node.czxid
        if before is not None and seen != before:
            self.on_recreated(topic, seen)
