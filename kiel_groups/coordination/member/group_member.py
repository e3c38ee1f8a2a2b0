"""A member of a group across ZooKeeper sessions: after a lost session, it joins again with a new one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TypeVar

from kiel_groups.allocators import Allocator
from kiel_groups.config import HostPort
from kiel_groups.coordination.member.group_session import GroupSession
from kiel_groups.coordination.member.member_role import MemberKind, MemberRole
from kiel_groups.coordination.member.session_supervisor import SessionSupervisor
from kiel_groups.coordination.partition_handler import PartitionHandler
from kiel_groups.coordination.session.close_limit import CloseLimit
from kiel_groups.coordination.session.session_context import ProcessContext
from kiel_groups.errors import CommitFailedError, CoordinationError, KielGroupsError, SessionLostError
from kiel_groups.group.member.pending_reset import PendingReset
from kiel_groups.group.member.subscription import SubscriptionState
from kiel_groups.model import TopicPartition

__all__ = ["GroupMember"]

log = logging.getLogger(__name__)

T = TypeVar("T")

#: The pause between checks whether the application has resumed, after the watchdog ended a session, in seconds.
CATCH_UP_S = 0.05


class GroupMember:
    """
    Membership of one consumer in one group, from ``start`` to ``close``.

    Args:
        process: The process that the member runs in.
        handler: The consumer.
        subscription: What the application has subscribed to, and the offsets of the member's partitions.
        allocator: Computes the assignments while this process leads.
        on_failure: Called with an error that a new session cannot fix: settings that differ from the group's, foreign
            members, missing rights.
    """

    def __init__(
        self,
        process: ProcessContext,
        handler: PartitionHandler,
        subscription: SubscriptionState,
        allocator: Allocator,
        on_failure: Callable[[KielGroupsError], None],
    ) -> None:
        self._process = process
        self._config = process.config
        self._handler = handler
        self._kind = MemberKind(handler, subscription, allocator)
        self._supervisor = SessionSupervisor(process, self._join, on_failure)

    async def start(self) -> None:
        """
        Join the group. Errors of the first join are raised; lost sessions are replaced in the background.

        Raises:
            NoZooKeeperError: No server answered in time.
            ChrootMissingError: The chroot does not exist.
            GroupConfigError: The group's settings differ from this member's, or cannot be read.
            ForeignMemberError: Foreign members are alive in the group.
        """
        await self._supervisor.start()

    async def _join(self, by_s: float) -> GroupSession[MemberRole]:
        if self._member_session is not None and self._member_session.stalled:
            await self._wait_until_caught_up()
            # The time that the application took does not count against the connect timeout.
            by_s = asyncio.get_running_loop().time() + self._process.zookeeper.connect_timeout_ms / 1000
        member_session = GroupSession(self._process, self._kind, first=self._member_session is None)
        await member_session.join(by_s)
        self._handler.gate_changed(member_session.session.gate)
        return member_session

    async def _wait_until_caught_up(self) -> None:
        """
        Wait until the application makes progress, after the watchdog ended a session.

        If the member joined earlier, its new partitions would stall like those that it has just lost.
        """
        stalled = self._handler.in_progress()
        while any(now.token is then.token for now in self._handler.in_progress() for then in stalled):  # noqa: ASYNC110
            await asyncio.sleep(CATCH_UP_S)

    @property
    def _member_session(self) -> GroupSession[MemberRole] | None:
        return self._supervisor.current

    @property
    def member_id(self) -> str | None:
        """The member id of the current session, which changes with each session. None before the first join."""
        return self._member_session.member_id if self._member_session else None

    @property
    def leads(self) -> bool:
        return self._member_session is not None and self._member_session.leads

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
        """Register a changed subscription; if the session is lost, the next session registers it when it joins."""
        if self._member_session is not None and not self._member_session.ended:
            try:
                await self._member_session.role.resubscribe()
            except SessionLostError:
                log.info("group %s: the new subscription is registered with the next session", self._config.group)

    async def commit_on_session(self, metadata: str = "") -> frozenset[TopicPartition]:
        """
        Store the offsets of all finished records.

        Args:
            metadata: A text to store with the offsets, in stores that support it.

        Returns:
            The partitions whose offsets were stored.

        Raises:
            SessionLostError: There is no session at the moment, or its lease has expired; nothing more was stored.
            CoordinationError: ZooKeeper refused the write because rights are missing; this member stops.
        """
        return await self._write(lambda role: role.offsets.owned.commit_finished(metadata))

    async def commit_chosen(self, offsets: Mapping[TopicPartition, int]) -> frozenset[TopicPartition]:
        """
        Store next offsets that the application chose: all, or none if one of them is refused.

        Returns:
            The partitions.

        Raises:
            ConfigError: As ``ChosenCommits.commit``.
            CommitFailedError: As ``ChosenCommits.commit``.
            SessionLostError: As ``commit_on_session``.
            CoordinationError: As ``commit_on_session``.
        """
        return await self._write(lambda role: role.offsets.chosen.commit(offsets))

    async def partitions_with_offsets(self) -> list[TopicPartition]:
        """Return the partitions in which the group may have an offset; raises as ``stored_offsets``."""
        return await self._readable().offsets.partitions()

    async def stored_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int | None]:
        """
        Read the group's offsets from ZooKeeper, in one round trip, whether or not this member owns the partitions.

        Returns:
            The offset of each partition that has an offset znode, or None if the znode has no offset.

        Raises:
            SessionLostError: There is no session at the moment.
            CoordinationError: ZooKeeper refused the read because rights are missing.
        """
        found = await self._readable().offsets.znodes.read(list(partitions))
        return {partition: stored.offset for partition, stored in found.items()}

    def _readable(self) -> MemberRole:
        """Return the role on a session that has not ended; its gate may be shut."""
        if self._member_session is None or self._member_session.ended:
            raise SessionLostError(f"group {self._config.group}: no session to read with at the moment")
        return self._member_session.role

    async def store_reset(self, partition: TopicPartition, reset: PendingReset) -> int | None:
        """
        Store the position that a reset chose, once no older record of the partition is buffered or in flight.

        Returns:
            The offset to continue at; None if the reset is void, see ``OwnedOffsets.store_reset``.

        Raises:
            SessionLostError: As ``commit_on_session``.
            CoordinationError: As ``commit_on_session``.
        """
        return await self._write(lambda role: role.offsets.owned.store_reset(partition, reset))

    async def confirm_leaders(self) -> None:
        """
        Read the leaders of the owned partitions from ZooKeeper and pass them to the handler.

        Raises:
            SessionLostError: As ``commit_on_session``.
            CoordinationError: As ``commit_on_session``.
        """
        await self._write(lambda role: role.owned_partitions.confirm_leaders())

    async def _write(self, write: Callable[[MemberRole], Awaitable[T]]) -> T:
        member_session = self._member_session
        if member_session is None or not member_session.session.trusted:
            raise SessionLostError(f"group {self._config.group}: no session to commit with at the moment")
        try:
            return await write(member_session.role)
        except CommitFailedError:
            # It concerns these offsets only.
            raise
        except CoordinationError as error:
            if not error.retriable:
                member_session.fail(error)
            raise

    async def brokers(self) -> list[HostPort]:
        """Return the addresses of the brokers that ZooKeeper lists at this moment; none without a session."""
        member_session = self._member_session
        return [] if member_session is None or member_session.ended else await member_session.role.brokers()

    def abandon(self, timeout_s: float) -> None:
        """Leave the group without an event loop and without a commit; wait for the close at most ``timeout_s``."""
        member_session = self._member_session
        if member_session is not None and not member_session.session.abandoned_within(
            "its event loop has ended", timeout_s
        ):
            log.warning("group %s: ZooKeeper does not answer; the session will expire", self._config.group)

    async def close(self, limit: CloseLimit | None = None) -> None:
        """
        Release all partitions and leave the group.

        Args:
            limit: When the close must end, whether the application or a server delays it. After that, the session is
                closed, and unfinished records are not committed. None: no limit.
        """
        await self._supervisor.close(limit)
