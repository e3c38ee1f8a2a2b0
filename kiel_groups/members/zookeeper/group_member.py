"""Run a member of a group across ZooKeeper sessions. On each session, register, follow the assignment, leave."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial

from kiel_groups.allocators import Allocator
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.config import GroupConfig, HostPort
from kiel_groups.errors import (
    AuthorizationError,
    CommitFailedError,
    CoordinationError,
    KielGroupsError,
    SessionLostError,
)
from kiel_groups.group.partition_offsets import PendingReset
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.listeners import Stall
from kiel_groups.members.partition_handler import PartitionHandler, Work
from kiel_groups.members.zookeeper.group_session import GroupSession, RoleKind, SessionRole, SessionSupervisor
from kiel_groups.members.zookeeper.leader import Candidacy
from kiel_groups.members.zookeeper.owned_partitions import OwnedPartitions
from kiel_groups.members.zookeeper.owner_znodes import registered_brokers
from kiel_groups.members.zookeeper.planner import PartitionPlanner
from kiel_groups.members.zookeeper.registration import SubscriptionRegistration, check_admission, check_cluster
from kiel_groups.model import TopicPartition
from kiel_groups.zookeeper.session import Session
from kiel_groups.zookeeper.tasks import CloseLimit, MemberContext, ProcessContext, SessionContext

log = logging.getLogger(__name__)


#: How long a leaving member waits for a plan without it, beyond the longest debounce, in seconds.
PATIENCE_S = 0.5


class MemberRole(SessionRole):
    """A member of a group on one session; see ``SessionRole``."""

    def __init__(self, context: MemberContext, subscription: SubscriptionState, allocator: Allocator) -> None:
        self._context = context
        self._handler = context.handler
        self.proof = context.layout.member(context.member_id)
        self.candidacy = Candidacy(context, partial(PartitionPlanner, context, allocator, context.handler), self.proof)
        self.registration = SubscriptionRegistration(context, lambda: subscription.wanted)
        self.owned_partitions = OwnedPartitions(context, subscription)
        self.offsets = self.owned_partitions.offsets

    async def register(self) -> None:
        """Register the member and its subscription. The errors are those of ``SubscriptionRegistration.register``."""
        await self.registration.register()

    async def joined(self) -> None:
        """
        Start to follow the assignment. If the subscription has changed during the join, register the new subscription.
        """
        self.owned_partitions.start()
        await self.registration.warn_of_missing_topics()
        # The subscription may have changed while the member joined.
        await self.resubscribe()

    async def resubscribe(self) -> None:
        """Register a changed subscription. The errors are those of ``SubscriptionRegistration.follow_subscription``."""
        self.owned_partitions.follow_subscription()
        if self.registration.is_outdated:
            self.owned_partitions.times.subscription_changed()
        await self.registration.follow_subscription()
        self.owned_partitions.look_for_matches()

    async def brokers(self) -> list[HostPort]:
        """Return the addresses of the brokers that ZooKeeper lists at this moment."""
        return list((await registered_brokers(self._context.session)).values())

    def recheck(self) -> None:
        """Read all watched znodes of partitions and topics again."""
        self.owned_partitions.recheck()

    async def restore(self) -> None:
        """Restore the consumer id if it was deleted."""
        await self.registration.restore_consumer_id()

    def in_progress(self) -> Collection[Work]:
        """Return the application's work in progress."""
        return self._handler.in_progress()

    def stalled(self, stall: Stall) -> None:
        """Notify the application of a stall."""
        self._handler.stalled(stall)

    async def release(self, *, alone: bool) -> None:
        """
        Withdraw the subscription, so that the leader moves the partitions to other members. Then commit and release the
        remaining partitions.

        So each new owner already awaits its partitions at the time of their release. A static member does not wait for
        the leader, because the member is expected back. A leader that is the only member does not wait either.
        """
        config = self._context.config
        self.owned_partitions.times.end()
        if config.instance_id is None and not self.owned_partitions.idle and not alone:
            # If the session ends meanwhile, there is nothing left to release. Without the right to withdraw, the member
            # releases its partitions before the next plan.
            with suppress(TimeoutError, SessionLostError, AuthorizationError):
                async with asyncio.timeout(config.debounce.bound_ms / 1000 + PATIENCE_S):
                    await self._retire()
        await self.owned_partitions.release_all()

    async def _retire(self) -> None:
        """Register an empty subscription, and wait until the next plan has revoked all partitions."""
        if await self.registration.withdraw():
            await self.owned_partitions.all_released()

    def end(self) -> None:
        """Drop all partitions."""
        self.owned_partitions.end()


class GroupMember:
    """
    The membership of one consumer in one group, from ``start`` to ``close``.

    Args:
        process: The process that the member runs in.
        handler: The consumer.
        subscription: The topics that the application has subscribed to, and the offsets of the member's partitions.
        allocator: Computes the assignments while this process leads.
        on_failure: Called with an error that a new session cannot fix: settings that differ from the group's, or
            foreign members.
        cluster: The brokers. The first join compares them with the brokers that ZooKeeper registers. None skips the
            comparison.
    """

    def __init__(
        self,
        process: ProcessContext,
        handler: PartitionHandler,
        subscription: SubscriptionState,
        allocator: Allocator,
        on_failure: Callable[[KielGroupsError], None],
        cluster: ClusterMetadata | None = None,
    ) -> None:
        self._config = process.config
        self._handler = handler
        self._subscription = subscription
        self._allocator = allocator
        self._cluster = cluster
        kind = RoleKind("delivery is paused", GroupLayout, self._admit, self._new_role)
        self._supervisor = SessionSupervisor(process, kind, on_failure, self._joined)

    async def start(self) -> None:
        """
        Join the group. Raise errors of the first join. Later, replace lost sessions in the background.

        Raises:
            NoZooKeeperError: No server answered in time.
            ChrootMissingError: The chroot does not exist.
            ConfigError: The brokers are of another cluster than ZooKeeper's.
            GroupConfigError: The group's settings differ from this member's, or cannot be read.
            ForeignMemberError: Foreign members are alive in the group.
        """
        await self._supervisor.start()

    async def _admit(self, session: Session, layout: GroupLayout, config: GroupConfig) -> None:
        if self._cluster is not None and self._member_session is None:
            await check_cluster(session, self._cluster)
        await check_admission(session, layout, config)

    def _new_role(self, context: SessionContext) -> MemberRole:
        member = MemberContext.of(context, self._handler, self._subscription.offsets)
        return MemberRole(member, self._subscription, self._allocator)

    def _joined(self, member_session: GroupSession[MemberRole]) -> None:
        self._handler.gate_changed(member_session.session.gate)

    @property
    def _member_session(self) -> GroupSession[MemberRole] | None:
        return self._supervisor.current

    @property
    def member_id(self) -> str | None:
        """The member id of the current session, which changes with each session, or None before the first join."""
        return self._supervisor.member_id

    @property
    def leads(self) -> bool:
        return self._supervisor.leads

    @property
    def settled(self) -> bool:
        """Whether the session is alive and the member owns exactly the partitions of its assignment."""
        member_session = self._member_session
        return member_session is not None and not member_session.ended and member_session.role.owned_partitions.settled

    def check_subscription(self, topics: Collection[str]) -> None:
        """
        Check that these topics can be registered, before the subscription changes.

        Raises:
            ConfigError: The topics take more space than ZooKeeper allows.
        """
        if self._member_session is not None:
            self._member_session.role.registration.check(topics)

    async def resubscribe(self) -> None:
        """
        Register a changed subscription. If the session is lost, the next session registers the subscription in its
        join, and does not wait for a right that the last session lacked: it may not need that any more.

        Raises:
            AuthorizationError: ZooKeeper refused the registration because of an ACL, and the session has ended.
        """
        if self._member_session is None or self._member_session.ended:
            self._supervisor.forget_denied()
        else:
            try:
                await self._member_session.role.resubscribe()
            except SessionLostError:
                log.info("group %s: the new subscription is registered with the next session", self._config.group)
            except AuthorizationError as error:
                self._member_session.fail(error)
                raise

    async def commit_on_session(self, metadata: str = "") -> frozenset[TopicPartition]:
        """
        Store the offsets of all finished records.

        Args:
            metadata: A text to store with the offsets, in stores that support it.

        Returns:
            The partitions whose offsets were stored.

        Raises:
            SessionLostError: There is no session at the moment, or its lease has expired; no further offset was stored.
            AuthorizationError: ZooKeeper refused the write because of an ACL. The session has ended, and this member
                joins again when it has the right.
        """
        with self._writing() as role:
            return await role.offsets.owned.commit(metadata)

    async def commit_chosen(self, offsets: Mapping[TopicPartition, int]) -> frozenset[TopicPartition]:
        """
        Store next offsets that the application chose. If the tracker refuses an offset, store no offset.

        Returns:
            The partitions whose offsets were stored, that is, all given partitions.

        Raises:
            ConfigError: As ``OwnedOffsets.commit_chosen``.
            CommitFailedError: As ``OwnedOffsets.commit_chosen``.
            SessionLostError: As ``commit_on_session``.
            AuthorizationError: As ``commit_on_session``.
        """
        with self._writing() as role:
            return await role.offsets.owned.commit_chosen(offsets)

    async def partitions_with_offsets(self) -> list[TopicPartition]:
        """Return the partitions in which the group may have an offset. The errors are those of ``stored_offsets``."""
        return await self._readable().offsets.partitions()

    async def stored_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int | None]:
        """
        Read the group's offsets from ZooKeeper, in one round trip, whether or not this member owns the partitions.

        Returns:
            The offset of each partition that has an offset znode, or None if the znode has no offset.

        Raises:
            SessionLostError: There is no session at the moment.
            AuthorizationError: ZooKeeper refused the read because of an ACL.
        """
        found = await self._readable().offsets.znodes.read(list(partitions))
        return {partition: stored.offset for partition, stored in found.items()}

    def _readable(self) -> MemberRole:
        """
        Return the role on a session that has not ended, or raise SessionLostError. The session's gate may be shut.
        """
        if self._member_session is None or self._member_session.ended:
            raise SessionLostError(f"group {self._config.group}: no session to read with at the moment")
        return self._member_session.role

    async def store_reset(self, partition: TopicPartition, reset: PendingReset) -> int | None:
        """
        Store the position that a reset chose, once no older record of the partition is buffered or in flight.

        Returns:
            The offset to continue at, or None if the reset is void, see ``OwnedOffsets.store_reset``.

        Raises:
            SessionLostError: As ``commit_on_session``.
            AuthorizationError: As ``commit_on_session``.
        """
        with self._writing() as role:
            return await role.offsets.owned.store_reset(partition, reset)

    async def confirm_leaders(self) -> None:
        """
        Read the leaders of the owned partitions from ZooKeeper and pass them to the handler.

        Raises:
            SessionLostError: As ``commit_on_session``.
            AuthorizationError: As ``commit_on_session``.
        """
        with self._writing() as role:
            await role.owned_partitions.confirm_leaders()

    @contextmanager
    def _writing(self) -> Iterator[MemberRole]:
        """Yield the role on a session whose gate is open. End the session if ZooKeeper refuses a write for good."""
        member_session = self._member_session
        if member_session is None or not member_session.session.trusted:
            raise SessionLostError(f"group {self._config.group}: no session to commit with at the moment")
        try:
            yield member_session.role
        except CommitFailedError:
            # This error concerns these offsets only.
            raise
        except CoordinationError as error:
            if not error.retriable or isinstance(error, AuthorizationError):
                member_session.fail(error)
            raise

    async def brokers(self) -> list[HostPort]:
        """Return the addresses of the brokers that ZooKeeper lists at this moment, or [] without a session."""
        member_session = self._member_session
        return [] if member_session is None or member_session.ended else await member_session.role.brokers()

    def abandon(self, timeout_s: float) -> None:
        """Leave the group without an event loop and without a commit. Wait at most ``timeout_s`` for the close."""
        member_session = self._member_session
        if member_session is not None and not member_session.session.abandoned_within(
            "its event loop has ended", timeout_s
        ):
            log.warning("group %s: ZooKeeper does not answer; the session will expire", self._config.group)

    async def close(self, limit: CloseLimit | None = None) -> None:
        """
        Release all partitions and leave the group.

        Args:
            limit: When the close must end, even if the application or a server delays it. After the limit, the member
                closes the session, and does not commit unfinished records. None means no limit.
        """
        await self._supervisor.close(limit)
