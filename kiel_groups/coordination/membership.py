"""
One member on one session: from its registration to its end.

When its session is over it is over; ``GroupMember`` makes the next one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from typing import Any

from kiel_groups.allocators import Allocator
from kiel_groups.config import BROKER_V0, GroupConfig, HostPort, ZooKeeperConfig
from kiel_groups.coordination.admission import check_admission
from kiel_groups.coordination.broker_offset_store import BrokerOffsetStore
from kiel_groups.coordination.claiming import Claimant
from kiel_groups.coordination.election import Election
from kiel_groups.coordination.fenced import FencedWriter
from kiel_groups.coordination.heartbeat import Heartbeat
from kiel_groups.coordination.holding import Holding, PartitionHandler, jittered_s
from kiel_groups.coordination.leading import Leading
from kiel_groups.coordination.offset_store import ZooKeeperOffsetStore
from kiel_groups.coordination.session import Session, SessionEvent
from kiel_groups.coordination.tasks import TaskSet
from kiel_groups.errors import CoordinationError, KielGroupsError, ProtocolError, SessionLostError
from kiel_groups.group import election
from kiel_groups.group.layout import BROKER_IDS, GroupLayout, topic_path
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.group.transactions import Create, Delete, Done, Operation, Unknown
from kiel_groups.group.znodes import MemberInfo, encode_consumer_id, make_member_id, parse_broker
from kiel_groups.metrics import Metrics

__all__ = ["Membership"]

log = logging.getLogger(__name__)


class Membership:
    """
    A member for the life of one session.

    ``over`` is done when that life ends, with the error that ended it or None where only the session was lost.
    """

    def __init__(
        self,
        config: GroupConfig,
        zookeeper: ZooKeeperConfig,
        handler: PartitionHandler,
        subscription: SubscriptionState,
        allocator: Allocator,
        metrics: Metrics,
    ) -> None:
        self._config = config
        self._layout = GroupLayout(config.group)
        self._handler = handler
        self._subscription = subscription
        self._allocator = allocator
        self._metrics = metrics
        self._registering = asyncio.Lock()
        self._tasks = TaskSet(self._failed)
        self._loop = asyncio.get_running_loop()
        self._joined = False
        self.session = Session(zookeeper, metrics, self._on_session)
        self.over: asyncio.Future[BaseException | None] = self._loop.create_future()

    async def join(self) -> None:
        """
        Open the session and register.

        Raises:
            NoZooKeeperError: No server answered in time.
            ChrootMissingError: The chroot does not exist.
            GroupConfigError: The group lives by other settings.
            ForeignMemberError: Members that are not ours are alive in the group.
        """
        try:
            await self.session.open()
            await self.session.ensure(self._layout.parents)
            await check_admission(self.session, self._layout, self._config)
            self._equip()
            await self._register()
            self._joined = True
            self._heartbeat.start(self.session.timeout_ms)
            self._election.feed(election.Run())
            self.holding.start()
            self._tasks.start(self._look_regularly())
            await self._tell_missing_topics()
        except BaseException:
            await self.close()
            raise

    def _equip(self) -> None:
        """Everything that is named after the session, which is known now."""
        config, session, layout, metrics = self._config, self.session, self._layout, self._metrics
        self._started_ms = int(time.time() * 1000)
        self.member_id = make_member_id(config.group, socket.gethostname(), self._started_ms, session.id)
        self._path = layout.member(self.member_id)
        writer = FencedWriter(session, self._path)
        store = self._offset_store(writer)
        claimant = Claimant(
            session,
            layout,
            self.member_id,
            writer,
            store,
            self._subscription,
            metrics,
            commits=config.autocommit and store.commits_with_release,
        )
        self.holding = Holding(
            session,
            layout,
            self.member_id,
            config,
            claimant,
            store,
            self._handler,
            self._subscription,
            self._tasks,
            metrics,
        )
        self._leading = Leading(
            session, layout, self.member_id, config, self._allocator, self._tasks, metrics, self._look_at_candidates
        )
        self._election = Election(
            session, layout, self.member_id, self._tasks, self._leading.lead, self._leading.resign
        )
        self._heartbeat = Heartbeat(session.client, session.gate, self._path, metrics, self._on_dead)

    def _offset_store(self, writer: FencedWriter) -> ZooKeeperOffsetStore:
        kind = BrokerOffsetStore if self._config.store == BROKER_V0 else ZooKeeperOffsetStore
        store = kind(
            self.session,
            self._layout,
            writer,
            self._metrics,
            self._handler.log_offsets,
            self._config.auto_offset_reset,
        )
        if isinstance(store, BrokerOffsetStore):
            store.send_commit = self._handler.send_commit
            store.fetch_offsets = self._handler.fetch_offsets
        return store

    @property
    def leads(self) -> bool:
        """Whether this member is the group's leader."""
        return self._joined and self._election.leads

    def _registration(self) -> list[Operation]:
        topics = self._subscription.subscription
        info = MemberInfo(
            member_id=self.member_id,
            session_timeout_ms=self.session.timeout_ms,
            subscription=tuple(sorted(topics)),
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at_ms=self._started_ms,
        )
        consumer_id = encode_consumer_id(topics, self._started_ms)
        return [
            Create(self._path, info.encode(), ephemeral=True),
            Create(self._layout.consumer_id(self.member_id), consumer_id, ephemeral=True),
        ]

    async def _register(self) -> None:
        """Member znode and consumer id in one transaction; where its answer is lost, one look tells."""
        async with self._registering:
            self._registered = self._subscription.subscription
            while True:
                answer = await self.session.transact(self._registration())
                if isinstance(answer, Unknown) and await self.session.exists(self._path) is None:
                    continue
                if isinstance(answer, (Done, Unknown)):
                    break
                raise CoordinationError(
                    f"group {self._config.group}: ZooKeeper refused to register {self._path}: {answer.failure.name}"
                )
        log.info(
            "group %s: joined as %s, session timeout %d ms",
            self._config.group,
            self.member_id,
            self.session.timeout_ms,
        )

    async def resubscribe(self) -> None:
        """
        Tell the group of a changed subscription.

        The znodes are deleted and created again in one transaction: claims stay, and who caches members sees it.
        """
        async with self._registering:
            while self._registered != self._subscription.subscription:
                wanted = self._subscription.subscription
                removal: list[Operation] = [Delete(self._path), Delete(self._layout.consumer_id(self.member_id))]
                answer = await self.session.transact([*removal, *self._registration()])
                if isinstance(answer, Done):
                    self._registered = wanted
                    await self._tell_missing_topics()
                elif not isinstance(answer, Unknown):
                    self.session.end("the member znode is gone")
                    raise SessionLostError(f"the member znode {self._path} is gone")

    async def _tell_missing_topics(self) -> None:
        """A subscription may name a topic before it exists; a wrong name should not go unnoticed for that."""
        topics = sorted(self._registered)
        nodes = await self.session.exists_many([topic_path(topic) for topic in topics])
        missing = [topic for topic, node in zip(topics, nodes, strict=True) if node is None]
        if missing:
            self._metrics.count("subscribed_topics_missing", len(missing))
            log.warning(
                "group %s: no such topic yet: %s; it is consumed as soon as it exists",
                self._config.group,
                ", ".join(missing),
            )

    async def brokers(self) -> list[HostPort]:
        """Where brokers are registered at this moment."""
        names = await self.session.children(BROKER_IDS) or []
        paths = [f"{BROKER_IDS}/{name}" for name in sorted(names)]
        nodes = await self.session.get_many(paths)
        found = []
        for path, node in zip(paths, nodes, strict=True):
            try:
                if node is not None:
                    found.append(HostPort(*parse_broker(node.data, path)))
            except ProtocolError as error:
                log.warning("%s; that broker is passed over", error)
        return found

    def _on_session(self, event: SessionEvent) -> None:
        if event is SessionEvent.ENDED:
            self._finish(None)
        elif event is SessionEvent.SUSPENDED:
            log.warning("group %s: the connection to ZooKeeper broke; handing out is paused", self._config.group)
            self._metrics.count("zookeeper_suspensions")
        elif self._joined:
            log.info("group %s: the connection to ZooKeeper is back, on the same session", self._config.group)
            self._heartbeat.beat_now()
            self._election.feed(election.Resumed())
            self.holding.look_again()

    async def _look_regularly(self) -> None:
        """From time to time the election is looked at without any hint, which makes a leader plan anew."""
        while True:
            await asyncio.sleep(jittered_s(self._config.reconcile_interval_ms))
            self._look_at_candidates()

    def _look_at_candidates(self) -> None:
        """The election znode may have been deleted by hand, or a watch may be lost."""
        self._election.feed(election.Resumed())

    def _on_dead(self, reason: str) -> None:
        """On another thread: ZooKeeper does not confirm this member any more."""
        try:
            self._loop.call_soon_threadsafe(self.session.end, reason)
        except RuntimeError:
            log.debug("the event loop is closed already")

    def _failed(self, error: BaseException) -> None:
        # An error of ours says all there is to say; any other one is a bug, and its place matters.
        trace = None if isinstance(error, KielGroupsError) else error
        log.error("group %s: %s failed: %s", self._config.group, self.member_id, error, exc_info=trace)
        self._metrics.count("member_failures")
        self._finish(error)

    def _finish(self, error: BaseException | None) -> None:
        """The end: nothing of this session is trusted any more."""
        self.session.gate.shut("membership over")
        if self._joined:
            self._heartbeat.stop()
            self._leading.close()
            self._election.feed(election.SessionEnded())
            self.holding.end()
        if not self.over.done():
            self.over.set_result(error)

    async def leave(self) -> None:
        """Hand everything back, then close the session; what was finished is committed."""
        if self._joined and not self.over.done():
            handing_back = asyncio.ensure_future(self.holding.hand_back())
            either: set[asyncio.Future[Any]] = {handing_back, self.over}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            handing_back.cancel()
        await self.close()

    async def close(self) -> None:
        """Close the session; claims that are left go with it."""
        self._finish(None)
        # Both at once: a hook of the application that takes its time must not keep a lost session alive.
        await asyncio.gather(self._tasks.cancel(), self.session.close())
