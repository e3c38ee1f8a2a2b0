"""A member on one ZooKeeper session, from its registration until it leaves or the session ends."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from functools import partial

from kiel_groups.allocators import Allocator
from kiel_groups.config import GroupConfig, HostPort
from kiel_groups.coordination.leader.candidacy import Candidacy
from kiel_groups.coordination.leader.partition_planner import PartitionPlanner
from kiel_groups.coordination.member.admission import check_admission
from kiel_groups.coordination.member.member_offsets import MemberOffsets
from kiel_groups.coordination.member.owned_partitions import OwnedPartitions
from kiel_groups.coordination.member.owner_znodes import OwnerZnodes
from kiel_groups.coordination.member.partition_leaders import PartitionLeaders, registered_brokers
from kiel_groups.coordination.member.subscription_registration import SubscriptionRegistration
from kiel_groups.coordination.partition_handler import PartitionHandler, Work
from kiel_groups.coordination.session.session_context import MemberContext, SessionContext
from kiel_groups.coordination.session.zk_session import Session
from kiel_groups.errors import SessionLostError
from kiel_groups.group.member.subscription import SubscriptionState
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.listeners import Stall

__all__ = ["MemberKind", "MemberRole"]

#: How long a leaving member waits for a plan without it, beyond the longest debounce, in seconds.
PATIENCE_S = 0.5


class MemberKind:
    """The roles of one member on its sessions; see ``RoleKind``."""

    paused = "delivery is paused"

    def __init__(self, handler: PartitionHandler, subscription: SubscriptionState, allocator: Allocator) -> None:
        self._handler = handler
        self._subscription = subscription
        self._allocator = allocator

    def layout(self, group: str) -> GroupLayout:
        """Return the paths of a group of consumers."""
        return GroupLayout(group)

    async def admit(self, session: Session, layout: GroupLayout, config: GroupConfig) -> None:
        """Check the group's settings and its members; raises as ``check_admission``."""
        await check_admission(session, layout, config)

    def new_role(self, context: SessionContext) -> MemberRole:
        member = MemberContext.of(context, self._handler, self._subscription.offsets)
        return MemberRole(member, self._subscription, self._allocator)


class MemberRole:
    """A member of a group on one session; see ``SessionRole``."""

    def __init__(self, context: MemberContext, subscription: SubscriptionState, allocator: Allocator) -> None:
        self._context = context
        self._handler = context.handler
        self.proof = context.layout.member(context.member_id)
        self.candidacy = Candidacy(context, partial(PartitionPlanner, context, allocator), self.proof)
        self.registration = SubscriptionRegistration(context, lambda: subscription.topics)
        self.offsets = offsets = MemberOffsets.compose(context)
        self.owned_partitions = OwnedPartitions(
            context,
            OwnerZnodes(context, offsets.writer, offsets.znodes),
            offsets,
            PartitionLeaders(context, offsets.writer),
            subscription,
        )

    async def register(self) -> None:
        """Register the member and its subscription; raises as ``SubscriptionRegistration.register``."""
        await self.registration.register()

    async def joined(self) -> None:
        """Follow the assignment."""
        self.owned_partitions.start()
        await self.registration.warn_of_missing_topics()
        # The subscription may have changed while the member joined.
        await self.resubscribe()

    async def resubscribe(self) -> None:
        """Register a changed subscription; raises as ``SubscriptionRegistration.follow_subscription``."""
        self.owned_partitions.follow_subscription()
        if self.registration.is_outdated:
            self.owned_partitions.times.subscription_changed()
        await self.registration.follow_subscription()

    async def brokers(self) -> list[HostPort]:
        """Return the addresses of the brokers that ZooKeeper lists at this moment."""
        return list((await registered_brokers(self._context.session)).values())

    def recheck(self) -> None:
        """Read all watched znodes of partitions and topics again."""
        self.owned_partitions.recheck()

    async def restore(self) -> None:
        """Restore a deleted consumer id."""
        await self.registration.restore_consumer_id()

    def in_progress(self) -> Collection[Work]:
        """Return the work that the application is busy with."""
        return self._handler.in_progress()

    def stalled(self, stall: Stall) -> None:
        """Notify the application of a stall."""
        self._handler.stalled(stall)

    async def release(self, *, alone: bool) -> None:
        """
        Commit finished records, have the leader move the partitions to other members, and release those that are left.

        Each new owner then already awaits its partitions. A static member does not wait for the leader because it is
        expected back, and neither does a leader that is the only member.
        """
        config = self._context.config
        self.owned_partitions.times.end()
        if config.instance_id is None and not self.owned_partitions.idle and not alone:
            # If the session ends meanwhile, there is nothing left to release.
            with suppress(TimeoutError, SessionLostError):
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
