"""
Registers a member and its subscription in ZooKeeper: the member znode, and the consumer id that Kafka's tools read.

A subscription that does not fit into a znode is refused here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from kiel_groups.errors import ConfigError, CoordinationError, SessionLostError
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
from kiel_groups.zookeeper.tasks import SessionContext

__all__ = [
    "SubscriptionRegistration",
]

log = logging.getLogger(__name__)


class SubscriptionRegistration:
    """
    The znodes that register one member on one session.

    Args:
        context: The member on its open session; its member id is the name of both znodes.
        subscription: Returns the topics that the application wants at this moment.
    """

    def __init__(self, context: SessionContext, subscription: Callable[[], Collection[str]]) -> None:
        self._context = context
        self._session = context.session
        self._config = context.config
        self._member_id = context.member_id
        self._started_ms = context.started_ms
        self._metrics = context.metrics
        self._subscription = subscription
        self._path = context.layout.member(context.member_id)
        self._consumer_id = context.layout.consumer_id(context.member_id)
        self._writing = asyncio.Lock()
        #: The registered topics; None while they are not known.
        self._registered: Collection[str] | None = None

    @property
    def is_outdated(self) -> bool:
        """Whether the application wants other topics than those that are registered."""
        return self._registered != self._subscription()

    def check(self, topics: Collection[str]) -> None:
        """
        Check that these topics can be registered.

        Raises:
            ConfigError: The topics take more space than ZooKeeper allows.
        """
        self._creation(topics)

    def _creation(self, topics: Collection[str]) -> list[Operation]:
        info = MemberInfo(
            member_id=self._member_id,
            session_timeout_ms=self._session.timeout_ms,
            subscription=tuple(sorted(topics)),
            instance_id=self._config.instance_id,
            host=self._context.runtime.host(),
            pid=self._context.runtime.pid(),
            client=self._config.client,
            started_at_ms=self._started_ms,
        )
        operations: list[Operation] = [
            Create(self._path, info.encode(), ephemeral=True),
            Create(self._consumer_id, encode_consumer_id(topics, self._started_ms), ephemeral=True),
        ]
        size = sum(map(size_of, operations))
        if size > LARGEST_BYTES:
            raise ConfigError(
                f"group {self._config.group}: a subscription to {len(topics)} topics takes {size >> 10} KiB in"
                f" ZooKeeper, expected at most {LARGEST_BYTES >> 10}; have several members subscribe to some of them"
                " each"
            )
        return operations

    async def register(self) -> None:
        """
        Create the member znode and the consumer id in one transaction, which is repeated until ZooKeeper answers.

        Znodes that exist after a lost answer are this member's own, because their names contain the session id. A read
        could not confirm that, because the server may lag behind.

        Raises:
            CoordinationError: ZooKeeper refuses the transaction.
            ConfigError: As :meth:`check`.
        """
        async with self._writing:
            wanted = self._registered = self._subscription()
            unanswered = False
            while not isinstance(answer := await self._session.transact(self._creation(wanted)), Done):
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
            self._member_id,
            self._session.timeout_ms,
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
            self._member_id,
        )
        await self._session.ensure(self._context.layout.parents)

    async def restore_consumer_id(self) -> None:
        """Restore a deleted consumer id: without it, Kafka 0.8 tools and consumers do not see this member."""
        async with self._writing:
            if self._registered is None or await self._session.exists(self._consumer_id) is not None:
                return
            consumer_id = encode_consumer_id(self._registered, self._started_ms)
            operations: list[Operation] = [Check(self._path), Create(self._consumer_id, consumer_id, ephemeral=True)]
            while isinstance(answer := await self._session.transact(operations), Refused) and answer.index == 1:
                if answer.failure is not Failure.NO_NODE:
                    break
                await self._restore_folders()
            if isinstance(answer, Done):
                log.warning(
                    "group %s: %s was deleted and has been created again", self._config.group, self._consumer_id
                )

    async def follow_subscription(self) -> None:
        """
        Register a changed subscription.

        One transaction deletes and creates the member's znodes. The claims are not affected, and the leader's watch on
        the member znode fires.

        Raises:
            SessionLostError: The member znode is gone; the session has been ended.
        """
        async with self._writing:
            while self.is_outdated:
                wanted = self._subscription()
                # Until there is an answer, either subscription may be the registered one. If the application returns to
                # the previous subscription, that must be registered again, too.
                self._registered = None
                answer = await self._register_again(wanted)
                if isinstance(answer, Done):
                    self._registered = wanted
                    await self.warn_of_missing_topics()
                elif not isinstance(answer, Unknown):
                    self._session.end("the member znode is gone")
                    raise SessionLostError(f"the member znode {self._path} is gone")

    async def withdraw(self) -> bool:
        """Register an empty subscription, so that the leader revokes all partitions; return False if refused."""
        async with self._writing:
            return not isinstance(await self._register_again(()), Refused)

    async def _register_again(self, topics: Collection[str]) -> Answer:
        removal: list[Operation] = [Delete(self._path), Delete(self._consumer_id)]
        return await self._session.transact([*removal, *self._creation(topics)])

    async def warn_of_missing_topics(self) -> None:
        """Warn of registered topics that do not exist: that is allowed, but the name may be wrong."""
        topics = sorted(self._registered or ())
        nodes = await self._session.exists_many([topic_path(topic) for topic in topics])
        missing = [topic for topic, node in zip(topics, nodes, strict=True) if node is None]
        if missing:
            self._metrics.count("subscribed_topics_missing", len(missing))
            log.warning(
                "group %s: no such topic yet: %s; it is consumed as soon as it exists",
                self._config.group,
                ", ".join(missing),
            )
