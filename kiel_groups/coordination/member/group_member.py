"""A member of a group across sessions: when one is lost, the next one joins anew."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import TypeVar

from kiel_groups.allocators import Allocator
from kiel_groups.config import GroupConfig, HostPort, ZooKeeperConfig
from kiel_groups.coordination.member.member_session import MemberSession
from kiel_groups.coordination.member.owned_partitions import OwnedPartitions
from kiel_groups.coordination.member.session_supervisor import SessionSupervisor
from kiel_groups.coordination.partition_handler import PartitionHandler
from kiel_groups.coordination.session.delivery_gate import Gate
from kiel_groups.coordination.zookeeper.runtime import boot_time_s
from kiel_groups.errors import CoordinationError, KielGroupsError, SessionLostError
from kiel_groups.group.member.pending_reset import PendingReset
from kiel_groups.group.member.subscription import SubscriptionState
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition

__all__ = ["GroupMember"]

log = logging.getLogger(__name__)

T = TypeVar("T")

#: How often a member that was ended by its watchdog looks whether the application gets on, in seconds.
CATCH_UP_S = 0.05


class GroupMember:
    """
    Membership of one consumer in one group, from ``start`` to ``close``.

    ``on_failure`` hears of an error that no new session can mend: other settings than the group's, foreign members,
    missing rights.
    """

    def __init__(
        self,
        config: GroupConfig,
        zookeeper: ZooKeeperConfig,
        handler: PartitionHandler,
        subscription: SubscriptionState,
        allocator: Allocator,
        metrics: Metrics,
        on_failure: Callable[[KielGroupsError], None],
    ) -> None:
        self._config = config
        self._zookeeper = zookeeper
        self._handler = handler
        self._subscription = subscription
        self._allocator = allocator
        self._metrics = metrics
        #: The present session's gate, to be asked before every record; one that never opens before the first session.
        self.gate = Gate()
        self._lives = SessionSupervisor(config.group, self._join, zookeeper.connect_timeout_ms, metrics, on_failure)

    async def start(self) -> None:
        """
        Join; what prevents the first joining is raised, later losses are mended in the background.

        Raises:
            NoZooKeeperError: No server answered in time.
            ChrootMissingError: The chroot does not exist.
            GroupConfigError: The group lives by other settings.
            ForeignMemberError: Members that are not ours are alive in the group.
        """
        await self._lives.start()

    async def _join(self, by_s: float) -> MemberSession:
        if self._membership is not None and self._membership.stalled:
            await self._caught_up()
            # The application's time does not count against ZooKeeper's.
            by_s = asyncio.get_running_loop().time() + self._zookeeper.connect_timeout_ms / 1000
        membership = MemberSession(
            self._config,
            self._zookeeper,
            self._handler,
            self._subscription,
            self._allocator,
            self._metrics,
            first=self._membership is None,
        )
        await membership.join(by_s)
        self.gate = membership.session.gate
        return membership

    async def _caught_up(self) -> None:
        """
        After the watchdog's exit, wait until the application gets on.

        Partitions that it would claim before that would stand still, as those did that it lost.
        """
        stalled = self._handler.in_progress()
        while any(now.token is then.token for now in self._handler.in_progress() for then in stalled):  # noqa: ASYNC110
            await asyncio.sleep(CATCH_UP_S)

    @property
    def _membership(self) -> MemberSession | None:
        return self._lives.current

    @property
    def member_id(self) -> str | None:
        """The present member's id; another one after a lost session. None before the first joining."""
        return self._membership.member_id if self._membership else None

    @property
    def leads(self) -> bool:
        return self._membership is not None and self._membership.leads

    @property
    def settled(self) -> bool:
        """Whether this member is alive and holds just what the leader wants it to hold."""
        membership = self._membership
        return membership is not None and not membership.over.done() and membership.holding.settled

    def check_subscription(self, topics: Collection[str]) -> None:
        """
        To be asked before the subscription is changed to these topics: one that is refused must change nothing.

        Raises:
            ConfigError: They take more room than ZooKeeper has for them.
        """
        if self._membership is not None:
            self._membership.check_subscription(topics)

    async def resubscribe(self) -> None:
        """Tell the group of a changed subscription; a member whose session was lost tells it when it joins."""
        if self._membership is not None and not self._membership.over.done():
            try:
                await self._membership.resubscribe()
            except SessionLostError:
                log.info("group %s: the new subscription is registered with the next session", self._config.group)

    async def commit_on_session(self, metadata: str = "") -> frozenset[TopicPartition]:
        """
        Store the offsets of all that is finished.

        Args:
            metadata: A text for stores that have room for one.

        Returns:
            The partitions whose offsets were stored.

        Raises:
            SessionLostError: There is no session at the moment, or its lease is over; nothing more was stored.
            CoordinationError: ZooKeeper refused it for the lack of rights; this member stops.
        """
        return await self._written(lambda holding: holding.commit_owned(metadata))

    async def store_reset(self, partition: TopicPartition, reset: PendingReset) -> int | None:
        """
        Store the position that a reset chose, as soon as nothing older of its partition is buffered or in flight.

        Returns:
            The offset to continue at; None where the reset is void, as ``Offsets.store_reset`` says.

        Raises:
            SessionLostError: As ``commit_on_session``.
            CoordinationError: As ``commit_on_session``.
        """
        return await self._written(lambda holding: holding.store_reset(partition, reset))

    async def confirm_leaders(self) -> None:
        """
        Read the leaders of the owned partitions from ZooKeeper, and give them to the handler.

        Raises:
            SessionLostError: As ``commit_on_session``.
            CoordinationError: As ``commit_on_session``.
        """
        await self._written(lambda holding: holding.confirm_leaders())

    async def _written(self, write: Callable[[OwnedPartitions], Awaitable[T]]) -> T:
        membership = self._membership
        if membership is None or not membership.session.gate.is_open(boot_time_s()):
            raise SessionLostError(f"group {self._config.group}: no session to commit with at the moment")
        try:
            return await write(membership.holding)
        except CoordinationError as error:
            if not error.retriable:
                membership.fail(error)
            raise

    async def brokers(self) -> list[HostPort]:
        """Where brokers are registered in ZooKeeper at this moment; none where there is no session."""
        membership = self._membership
        return [] if membership is None or membership.over.done() else await membership.brokers()

    def abandon(self, timeout_s: float) -> None:
        """Leave the group without an event loop, and without a commit; what is not done in that time goes on."""
        membership = self._membership
        if membership is not None and not membership.session.abandoned_within("its event loop has ended", timeout_s):
            log.warning("group %s: ZooKeeper does not answer; the session ends by its timeout", self._config.group)

    async def close(self, timeout_s: float | None = None) -> None:
        """
        Hand everything back and leave the group.

        Args:
            timeout_s: How long to wait for the application to finish what it processes; then its partitions are given
                up without a commit. None: as long as it takes.
        """
        await self._lives.close(timeout_s)
