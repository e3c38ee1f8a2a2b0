"""A member of a group across sessions: when one is lost, the next one joins anew."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from kiel_groups.allocators import Allocator
from kiel_groups.config import GroupConfig, HostPort, ZooKeeperConfig
from kiel_groups.coordination.gate import Gate, boot_time_s
from kiel_groups.coordination.holding import PartitionHandler
from kiel_groups.coordination.membership import Membership
from kiel_groups.errors import ConfigError, CoordinationError, KielGroupsError, NoOffsetsError, SessionLostError
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition

__all__ = ["GroupMember"]

log = logging.getLogger(__name__)

#: The pause before a lost session is followed by a new one, in seconds: first, and at most.
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0


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
        self._on_failure = on_failure
        #: The present session's gate, to be asked before every record; one that never opens before the first session.
        self.gate = Gate()
        self._membership: Membership | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """
        Join; what prevents the first joining is raised, later losses are mended in the background.

        Raises:
            NoZooKeeperError: No server answered in time.
            ChrootMissingError: The chroot does not exist.
            GroupConfigError: The group lives by other settings.
            ForeignMemberError: Members that are not ours are alive in the group.
        """
        self._membership = await self._join()
        self._supervisor = asyncio.get_running_loop().create_task(self._supervise())
        await self.resubscribe()

    async def _join(self) -> Membership:
        membership = Membership(
            self._config, self._zookeeper, self._handler, self._subscription, self._allocator, self._metrics
        )
        await membership.join()
        self.gate = membership.session.gate
        self._metrics.count("sessions_opened")
        return membership

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

    async def resubscribe(self) -> None:
        """Tell the group of a changed subscription; a member whose session was lost tells it when it joins."""
        if self._membership is not None and not self._membership.over.done():
            try:
                await self._membership.resubscribe()
            except SessionLostError:
                log.info("group %s: the subscription is told with the next session", self._config.group)

    async def commit(self, metadata: str = "") -> frozenset[TopicPartition]:
        """
        Store the offsets of all that is finished.

        Args:
            metadata: A text for stores that have room for one.

        Returns:
            The partitions whose offsets were stored.

        Raises:
            SessionLostError: There is no session at the moment, or its lease is over; nothing more was stored.
        """
        membership = self._membership
        if membership is None or not membership.session.gate.is_open(boot_time_s()):
            raise SessionLostError(f"group {self._config.group}: no session to commit with at the moment")
        return await membership.holding.commit(metadata)

    async def brokers(self) -> list[HostPort]:
        """Where brokers are registered in ZooKeeper at this moment; none where there is no session."""
        membership = self._membership
        return [] if membership is None or membership.over.done() else await membership.brokers()

    async def close(self, timeout_s: float | None = None) -> None:
        """
        Hand everything back and leave the group.

        Args:
            timeout_s: How long to wait for the application to finish what it processes; then its partitions are given
                up without a commit. None: as long as it takes.
        """
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait({self._supervisor})
        if self._membership is not None:
            try:
                await asyncio.wait_for(self._membership.leave(), timeout_s)
            except TimeoutError:
                log.warning("group %s: left before the application had finished", self._config.group)
                await self._membership.close()
        if self._closing:
            await asyncio.wait(self._closing)

    async def _supervise(self) -> None:
        """Wait for the end of each session, and start the next one."""
        while self._membership is not None:
            # Shielded: cancelling this task must not cancel what others wait for as well.
            error = await asyncio.shield(self._membership.over)
            self._metrics.count("sessions_lost")
            log.warning(
                "group %s: the session of %s is over (%s); joining anew",
                self._config.group,
                self._membership.member_id,
                error or self._membership.session.ended,
            )
            self._close_in_background(self._membership)
            if _is_fatal(error):
                self._fail(error)
                return
            await self._rejoin()

    def _close_in_background(self, membership: Membership) -> None:
        """A server that cannot be reached may hold up the closing; the next session does not wait for it."""
        closing = asyncio.get_running_loop().create_task(membership.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _rejoin(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
            try:
                self._membership = await self._join()
                # What was subscribed to while it joined.
                await self.resubscribe()
                return
            except Exception as error:
                if _is_fatal(error):
                    self._membership = None
                    self._fail(error)
                    return
                self._metrics.count("joins_failed")
                # An error that is not ours is a bug, or a machine out of means: its place matters.
                trace = None if isinstance(error, KielGroupsError) else error
                log.warning("group %s: could not join: %s; again", self._config.group, error, exc_info=trace)

    def _fail(self, error: BaseException | None) -> None:
        assert isinstance(error, KielGroupsError)
        log.error("group %s: this member stops: %s", self._config.group, error)
        self._on_failure(error)


def _is_fatal(error: BaseException | None) -> bool:
    """Whether a new session would meet the same error."""
    return isinstance(error, (ConfigError, CoordinationError, NoOffsetsError)) and not error.retriable
