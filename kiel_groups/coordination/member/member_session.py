"""A member on one ZooKeeper session, from its registration until it leaves or the session ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from kiel_groups.allocators import Allocator
from kiel_groups.config import BROKER_V0, GroupConfig, HostPort, ZooKeeperConfig
from kiel_groups.coordination.member.admission import check_admission
from kiel_groups.coordination.member.group_session import GroupSession
from kiel_groups.coordination.member.owned_partitions import OwnedPartitions
from kiel_groups.coordination.member.owner_znodes import OwnerZnodes
from kiel_groups.coordination.member.partition_leaders import PartitionLeaders, registered_brokers
from kiel_groups.coordination.offsets.broker_store import BrokerOffsetStore
from kiel_groups.coordination.offsets.topic_incarnations import TopicIncarnations
from kiel_groups.coordination.offsets.zookeeper_store import ZooKeeperOffsetStore
from kiel_groups.coordination.partition_handler import PartitionHandler, Work
from kiel_groups.coordination.session.fenced_writes import FencedWriter
from kiel_groups.coordination.zookeeper import runtime
from kiel_groups.errors import ConfigError, CoordinationError, SessionLostError
from kiel_groups.group.member.subscription import SubscriptionState
from kiel_groups.group.znodes.contents import MemberInfo, encode_consumer_id
from kiel_groups.group.znodes.layout import topic_path
from kiel_groups.group.znodes.transactions import (
    LARGEST_BYTES,
    Answer,
    Check,
    Create,
    Delete,
    Done,
    Failure,
    Operation,
    Refused,
    Unknown,
    size_of,
)
from kiel_groups.listeners import Stall
from kiel_groups.metrics import Metrics

__all__ = ["MemberSession"]

log = logging.getLogger(__name__)

#: How long a leaving member waits for a plan without it, beyond the longest debounce, in seconds.
PATIENCE_S = 0.5


class MemberSession(GroupSession):
    """One member of a group on one ZooKeeper session."""

    def __init__(
        self,
        config: GroupConfig,
        zookeeper: ZooKeeperConfig,
        handler: PartitionHandler,
        subscription: SubscriptionState,
        allocator: Allocator,
        metrics: Metrics,
        *,
        first: bool,
    ) -> None:
        super().__init__(config, zookeeper, allocator, metrics, first=first)
        self._handler = handler
        self._subscription = subscription
        self._registering = asyncio.Lock()
        #: The registered subscription; None while it is not known.
        self._registered: Collection[str] | None = None

    async def _enroll(self) -> None:
        self._step = "the group's settings and members"
        await check_admission(self.session, self._layout, self._config)
        self._build_parts()
        self._step = "the registration"
        await self._register()

    async def _on_joined(self) -> None:
        self.owned_partitions.start()
        await self._warn_of_missing_topics(self._registered or ())
        # The subscription may have changed while the member joined.
        await self.resubscribe()

    def _build_parts(self) -> None:
        """Create the parts that depend on the member id, which is known once the session is open."""
        config, session, layout, metrics = self._config, self.session, self._layout, self._metrics
        self._choose_member_id()
        self._path = layout.member(self.member_id)
        topics = TopicIncarnations(session, self._tasks)
        writer = FencedWriter(session, self._path, topics.catch_up)
        store = self._offset_store(writer, topics)
        owner_znodes = OwnerZnodes(
            session,
            layout,
            self.member_id,
            writer,
            store,
            self._subscription,
            metrics,
            commits=config.autocommit,
        )
        self.owned_partitions = OwnedPartitions(
            session,
            layout,
            self.member_id,
            config,
            owner_znodes,
            store,
            self._handler,
            self._subscription,
            topics,
            PartitionLeaders(session, writer, self._handler, metrics),
            self._tasks,
            metrics,
        )
        self._set_up(self._path)

    def _offset_store(self, writer: FencedWriter, topics: TopicIncarnations) -> ZooKeeperOffsetStore:
        kind = BrokerOffsetStore if self._config.store == BROKER_V0 else ZooKeeperOffsetStore
        store = kind(
            self.session,
            self._layout,
            writer,
            topics,
            self._metrics,
            self._handler.log_offsets,
            self._config.auto_offset_reset,
        )
        if isinstance(store, BrokerOffsetStore):
            store.send_commit = self._handler.send_commit
            store.fetch_offsets = self._handler.fetch_offsets
        return store

    def check_subscription(self, topics: Collection[str]) -> None:
        """
        Check that these topics can be registered.

        Raises:
            ConfigError: The topics take more space than ZooKeeper allows.
        """
        self._registration(topics)

    def _registration(self, topics: Collection[str]) -> list[Operation]:
        info = MemberInfo(
            member_id=self.member_id,
            session_timeout_ms=self.session.timeout_ms,
            subscription=tuple(sorted(topics)),
            instance_id=self._config.instance_id,
            host=runtime.host(),
            pid=runtime.pid(),
            client=self._config.client,
            started_at_ms=self._started_ms,
        )
        consumer_id = encode_consumer_id(topics, self._started_ms)
        operations: list[Operation] = [
            Create(self._path, info.encode(), ephemeral=True),
            Create(self._layout.consumer_id(self.member_id), consumer_id, ephemeral=True),
        ]
        size = sum(map(size_of, operations))
        if size > LARGEST_BYTES:
            raise ConfigError(
                f"group {self._config.group}: a subscription to {len(topics)} topics takes {size >> 10} KiB in"
                f" ZooKeeper, expected at most {LARGEST_BYTES >> 10}; have several members subscribe to some of them"
                " each"
            )
        return operations

    async def _register(self) -> None:
        """
        Create the member znode and the consumer id in one transaction, and repeat it until there is an answer.

        If the znodes exist after an answer was lost, they are this member's own: their names contain the session id. A
        read could not confirm that, because the server may lag behind.
        """
        async with self._registering:
            wanted = self._registered = self._subscription.subscription
            unanswered = False
            while not isinstance(answer := await self.session.transact(self._registration(wanted)), Done):
                if isinstance(answer, Unknown):
                    unanswered = True
                elif answer.failure is Failure.NO_NODE:
                    await self._restore_folders()
                elif unanswered and answer.failure is Failure.NODE_EXISTS:
                    break
                else:
                    raise CoordinationError(
                        f"group {self._config.group}: ZooKeeper refused to register {self._path}: {answer.failure.name}"
                    )
        log.info(
            "group %s: joined as %s, session timeout %d ms",
            self._config.group,
            self.member_id,
            self.session.timeout_ms,
        )

    async def _restore_folders(self) -> None:
        """
        Create the group's folders again after some of them were deleted.

        Raises:
            CoordinationError: ZooKeeper refuses, because rights or the chroot are missing.
        """
        self._metrics.count("group_folders_restored")
        log.warning(
            "group %s: folders that %s registers in were deleted; creating them again",
            self._config.group,
            self.member_id,
        )
        await self.session.ensure(self._layout.parents)

    async def _look_at_registration(self) -> None:
        """Restore a deleted consumer id: without it, Kafka 0.8 tools and consumers do not see this member."""
        async with self._registering:
            path = self._layout.consumer_id(self.member_id)
            if self._registered is None or await self.session.exists(path) is not None:
                return
            consumer_id = encode_consumer_id(self._registered, self._started_ms)
            operations: list[Operation] = [Check(self._path), Create(path, consumer_id, ephemeral=True)]
            while isinstance(answer := await self.session.transact(operations), Refused) and answer.index == 1:
                if answer.failure is not Failure.NO_NODE:
                    break
                await self._restore_folders()
            if isinstance(answer, Done):
                log.warning("group %s: %s was deleted and has been created again", self._config.group, path)

    async def resubscribe(self) -> None:
        """
        Register a changed subscription.

        One transaction deletes and creates the member's znodes. The claims are not affected, and the leader's watch on
        the member znode fires.
        """
        self.owned_partitions.follow_subscription()
        async with self._registering:
            while self._registered != self._subscription.subscription:
                wanted = self._subscription.subscription
                # Until there is an answer, either subscription may be the registered one. A change back to the previous
                # one must be registered again, too.
                self._registered = None
                answer = await self._register_anew(wanted)
                if isinstance(answer, Done):
                    self._registered = wanted
                    await self._warn_of_missing_topics(wanted)
                elif not isinstance(answer, Unknown):
                    self.session.end("the member znode is gone")
                    raise SessionLostError(f"the member znode {self._path} is gone")

    async def _register_anew(self, topics: Collection[str]) -> Answer:
        removal: list[Operation] = [Delete(self._path), Delete(self._layout.consumer_id(self.member_id))]
        return await self.session.transact([*removal, *self._registration(topics)])

    async def _warn_of_missing_topics(self, subscription: Collection[str]) -> None:
        """Warn of subscribed topics that do not exist: that is allowed, but the name may be wrong."""
        topics = sorted(subscription)
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
        """Return the addresses of the brokers that ZooKeeper lists at this moment."""
        return list((await registered_brokers(self.session)).values())

    def _look_again(self) -> None:
        super()._look_again()
        self.owned_partitions.look_again()

    def _in_progress(self) -> Collection[Work]:
        return self._handler.in_progress()

    def _on_stall(self, stall: Stall) -> None:
        self._handler.stalled(stall)

    def _on_end(self) -> None:
        self.owned_partitions.end()

    async def leave(self) -> None:
        """Commit finished records and release all partitions, then close the session."""
        if self._joined and not self.over.done():
            releasing = asyncio.ensure_future(self._release_all())
            either: set[asyncio.Future[Any]] = {releasing, self.over}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            releasing.cancel()
        await self.close()

    async def _release_all(self) -> None:
        """
        Have the leader move the owned partitions to other members, then release those that are left.

        A member that gets a partition then already waits for its release. A static member skips the first step because
        it is expected back, and so does a leader that is the only member.
        """
        if self._config.instance_id is None and not self.owned_partitions.idle and not self._leader_driver.alone:
            # If the session ends meanwhile, there is nothing left to release.
            with suppress(TimeoutError, SessionLostError):
                async with asyncio.timeout(self._config.debounce.bound_ms / 1000 + PATIENCE_S):
                    await self._retire()
        await self.owned_partitions.release_all()

    async def _retire(self) -> None:
        """Register an empty subscription, and wait until the next plan has revoked all partitions one by one."""
        async with self._registering:
            if isinstance(await self._register_anew(()), Refused):
                return
        await self.owned_partitions.all_released()
