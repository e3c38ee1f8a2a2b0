"""Send the requests by which a member joins, syncs and leaves, and return their answers as the member needs them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar

from kiel_groups.clients.coordinator.group_coordinator import JoinAnswer
from kiel_groups.clients.coordinator.group_transport import FindError
from kiel_groups.clients.coordinator.join_refusals import JoinOffer
from kiel_groups.clients.coordinator.member_hooks import CoordinatedContext, JoinedGroup, MemberHooks
from kiel_groups.errors import BrokerError
from kiel_groups.model import GenerationToken
from kiel_groups.wire.error_codes import NO_ERROR, UNKNOWN_MEMBER_ID, ErrorCode
from kiel_groups.wire.framing import Request
from kiel_groups.wire.groups.join_group import JoinGroupRequest, JoinGroupRequestV1, JoinGroupResponse
from kiel_groups.wire.groups.leave_group_v0 import LeaveGroupRequest
from kiel_groups.wire.groups.sync_group_v0 import SyncGroupRequest, SyncGroupResponse

__all__ = ["MembershipRequests"]

T = TypeVar("T")

#: How long the coordinator may take for an answer beyond the time that it waits for other members, in seconds.
_ANSWER_S = 10.0

#: The share of the session timeout after which a slow answer makes the member ask for the coordinator again.
_LOOK_SHARE = 1 / 3

#: How long a leave request may take, in seconds. The coordinator removes the member later all the same.
_LEAVE_S = 2.0


class MembershipRequests:
    """The requests of one member; each method raises the errors of ``GroupTransport.send``."""

    def __init__(self, context: CoordinatedContext, hooks: MemberHooks) -> None:
        self._context = context
        self._group = context.group.group
        self._hooks = hooks
        #: What the last join has offered.
        self.offer = JoinOffer("", ())
        #: The join or the sync under way, or what the hooks read before a join.
        self._sending: asyncio.Future[Any] | None = None

    @property
    def _patience_s(self) -> float:
        """How long the answer to a join or a sync may take: until the slowest member has given its partitions back."""
        return self._context.rebalance_timeout_s + _ANSWER_S

    async def join(self, coordinator: int, member_id: str) -> JoinAnswer:
        """Join with what the hooks offer now; ``member_id`` is empty for a new member."""
        timing, type_ = self._context.timing, self._hooks.protocol_type
        # A member that is given up while its hooks read something must not join afterwards: ``abandon`` cancels this.
        self._sending = reading = asyncio.ensure_future(self._hooks.protocols())
        offered = tuple(await reading)
        self.offer = JoinOffer(type_, offered)
        request: JoinGroupRequest = JoinGroupRequest(self._group, timing.session_timeout_ms, member_id, type_, offered)
        if self._context.has_rebalance_timeout:
            request = JoinGroupRequestV1(
                self._group,
                timing.session_timeout_ms,
                member_id,
                type_,
                offered,
                rebalance_timeout_ms=timing.rebalance_timeout_ms,
            )
        answer: JoinGroupResponse = await self._patiently(coordinator, request)
        token = GenerationToken(answer.generation, answer.member_id)
        return JoinAnswer(answer.error, token, JoinedGroup(answer.protocol, answer.leader_id, answer.members))

    async def sync(
        self, coordinator: int, token: GenerationToken, assignments: Mapping[str, bytes]
    ) -> SyncGroupResponse:
        """Ask for the member's assignment; the leader brings those of all members."""
        return await self._patiently(coordinator, SyncGroupRequest(self._group, *token, assignments))

    async def _patiently(self, coordinator: int, request: Request[T]) -> T:
        """
        Send a request that is answered when the other members are ready, which may take minutes.

        If the coordinator hangs, nothing ends the wait for so long. So other brokers are asked meanwhile whether it is
        still the coordinator.

        Raises:
            BrokerError: Another broker is the coordinator now.
        """
        transport = self._context.transport
        self._sending = sending = asyncio.ensure_future(transport.send(coordinator, request, self._patience_s))
        try:
            while not (await asyncio.wait({sending}, timeout=self._look_s))[0]:
                other = await self._other_coordinator(coordinator)
                if other is not None and not sending.done():
                    raise BrokerError(f"group {self._group}: broker {coordinator} does not coordinate it now: {other}")
            return sending.result()
        finally:
            sending.cancel()

    def abandon(self) -> None:
        """Cancel the join or the sync under way, and with it the task that waits for its answer."""
        if self._sending is not None:
            self._sending.cancel()

    async def _other_coordinator(self, coordinator: int) -> str | None:
        """Return what another broker says of the group's coordinator if that is not this one, else None."""
        try:
            found = await self._context.transport.find(doubted=coordinator)
        except FindError as error:
            # A broker that does not answer says nothing of the coordinator.
            return None if error.code is None else str(error)
        return None if found == coordinator else f"broker {found} does"

    @property
    def _look_s(self) -> float:
        """How often the coordinator is asked for during such a wait, in seconds."""
        return self._context.timing.session_timeout_ms / 1000 * _LOOK_SHARE

    async def leave(self, coordinator: int, member_id: str) -> None:
        """
        Leave the group once, beside a join that may be under way.

        Raises:
            BrokerError: The coordinator refuses; it does not if it has removed the member already.
        """
        request: Request[ErrorCode] = LeaveGroupRequest(self._group, member_id)
        answer = await self._context.transport.send(coordinator, request, _LEAVE_S, aside=True)
        if answer not in (NO_ERROR, UNKNOWN_MEMBER_ID):
            raise answer.exception(f"group {self._group}: LeaveGroup")
