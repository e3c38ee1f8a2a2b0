"""A member on one ZooKeeper session, from its registration until it leaves or the session ends."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from dataclasses import fields
from typing import Any

from kiel_groups.config import HostPort
from kiel_groups.coordination.member.admission import check_admission
from kiel_groups.coordination.member.group_session import GroupSession, SessionPhase
from kiel_groups.coordination.member.owned_partitions import OwnedPartitions
from kiel_groups.coordination.member.owner_znodes import OwnerZnodes
from kiel_groups.coordination.member.partition_leaders import PartitionLeaders, registered_brokers
from kiel_groups.coordination.member.subscription_registration import SubscriptionRegistration
from kiel_groups.coordination.offsets.member_offsets import MemberOffsets
from kiel_groups.coordination.partition_handler import PartitionHandler, Work
from kiel_groups.coordination.session.session_context import MemberContext, ProcessContext
from kiel_groups.errors import SessionLostError
from kiel_groups.group.member.subscription import SubscriptionState
from kiel_groups.listeners import Stall

__all__ = ["MemberSession"]

#: How long a leaving member waits for a plan without it, beyond the longest debounce, in seconds.
PATIENCE_S = 0.5


class MemberSession(GroupSession):
    """One member of a group on one ZooKeeper session."""

    def __init__(
        self,
        process: ProcessContext,
        handler: PartitionHandler,
        subscription: SubscriptionState,
        *,
        first: bool,
    ) -> None:
        super().__init__(process, first=first)
        self._handler = handler
        self._subscription = subscription

    async def _enroll(self) -> None:
        self._step = "the group's settings and members"
        await check_admission(self.session, self._layout, self._config)
        self._build_parts()
        self._step = "the registration"
        await self.registration.register()

    async def _on_joined(self) -> None:
        self.owned_partitions.start()
        await self.registration.warn_of_missing_topics()
        # The subscription may have changed while the member joined.
        await self.resubscribe()

    def _build_parts(self) -> None:
        """Create the parts that depend on the member id, which is known once the session is open."""
        shared = self._context()
        context = MemberContext(
            **{field.name: getattr(shared, field.name) for field in fields(shared)},
            handler=self._handler,
            tracker=self._subscription.offsets,
        )
        self.registration = SubscriptionRegistration(context, lambda: self._subscription.topics)
        self.offsets = offsets = MemberOffsets.compose(context)
        self.owned_partitions = OwnedPartitions(
            context,
            OwnerZnodes(context, offsets.writer, offsets.znodes),
            offsets,
            PartitionLeaders(context, offsets.writer),
            self._subscription,
        )
        self._set_up(context, self._layout.member(self.member_id))

    async def _restore_registration(self) -> None:
        await self.registration.restore_consumer_id()

    async def resubscribe(self) -> None:
        """Register a changed subscription; raises as ``SubscriptionRegistration.follow_subscription``."""
        self.owned_partitions.follow_subscription()
        await self.registration.follow_subscription()

    async def brokers(self) -> list[HostPort]:
        """Return the addresses of the brokers that ZooKeeper lists at this moment."""
        return list((await registered_brokers(self.session)).values())

    def _recheck(self) -> None:
        super()._recheck()
        self.owned_partitions.recheck()

    def _in_progress(self) -> Collection[Work]:
        return self._handler.in_progress()

    def _on_stall(self, stall: Stall) -> None:
        self._handler.stalled(stall)

    def _on_end(self) -> None:
        self.owned_partitions.end()

    async def leave(self) -> None:
        """Commit finished records and release all partitions, then close the session."""
        if self._active:
            self._enter(SessionPhase.LEAVING)
            releasing = asyncio.ensure_future(self._release_all())
            either: set[asyncio.Future[Any]] = {releasing, self.over}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            releasing.cancel()
        await self.close()

    async def _release_all(self) -> None:
        """
        Have the leader move the owned partitions to other members, then release those that are left.

        Each new owner then already awaits its partitions. A static member skips the first step because it is expected
        back, and so does a leader that is the only member.
        """
        if self._config.instance_id is None and not self.owned_partitions.idle and not self._leader_driver.alone:
            # If the session ends meanwhile, there is nothing left to release.
            with suppress(TimeoutError, SessionLostError):
                async with asyncio.timeout(self._config.debounce.bound_ms / 1000 + PATIENCE_S):
                    await self._retire()
        await self.owned_partitions.release_all()

    async def _retire(self) -> None:
        """Register an empty subscription, and wait until the next plan has revoked all partitions."""
        if await self.registration.withdraw():
            await self.owned_partitions.all_released()
