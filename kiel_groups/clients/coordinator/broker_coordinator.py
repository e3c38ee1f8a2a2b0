"""The coordinator of a group among its brokers, from Kafka 0.9 on, as one member reaches it."""

from __future__ import annotations

from collections.abc import Mapping

from kiel_groups.clients.coordinator.coordinator_heartbeat import CoordinatorHeartbeat
from kiel_groups.clients.coordinator.generation_gate import GenerationGate
from kiel_groups.clients.coordinator.group_coordinator import (
    BeatReport,
    BeatTarget,
    CoordinatorWords,
    JoinAnswer,
    SyncAnswer,
)
from kiel_groups.clients.coordinator.join_refusals import refusal
from kiel_groups.clients.coordinator.member_hooks import CoordinatedContext, MemberHooks
from kiel_groups.clients.coordinator.membership_requests import MembershipRequests
from kiel_groups.coordination.session.close_limit import CloseLimit
from kiel_groups.errors import KielGroupsError, NoBrokersError
from kiel_groups.group.coordinated.coordinator_codes import GroupRequest
from kiel_groups.model import GenerationToken

__all__ = ["BrokerCoordinator"]


class BrokerCoordinator:
    """
    A broker that coordinates a group; see ``GroupCoordinator``.

    Args:
        context: The member's settings, its transport, and its runtime.
        hooks: The program that the member belongs to.
        report: Called with the answer to each heartbeat.
    """

    words = CoordinatorWords()

    def __init__(self, context: CoordinatedContext, hooks: MemberHooks, report: BeatReport) -> None:
        self._context = context
        self._requests = MembershipRequests(context, hooks)
        self._heartbeat = CoordinatorHeartbeat(
            context.group.group,
            context.transport,
            context.timing.heartbeat_interval_ms,
            context.timing.session_timeout_ms,
            context.metrics,
            context.runtime,
            report,
        )

    @property
    def beats_while_draining(self) -> bool:
        """Whether the brokers know JoinGroup v1; before, a member that has not joined again is removed all the same."""
        return self._context.has_rebalance_timeout

    async def find(self) -> int:
        """Ask any broker for the coordinator."""
        return await self._context.transport.find()

    async def join(self, coordinator: int, member_id: str) -> JoinAnswer:
        """Send a join; see ``MembershipRequests``."""
        return await self._requests.join(coordinator, member_id)

    async def sync(self, coordinator: int, token: GenerationToken, assignments: Mapping[str, bytes]) -> SyncAnswer:
        """Send a sync; see ``MembershipRequests``."""
        answer = await self._requests.sync(coordinator, token, assignments)
        return SyncAnswer(answer.error, bytes(answer.assignment))

    async def leave(self, coordinator: int, member_id: str) -> None:
        """Send a leave request, beside a join that may be under way."""
        await self._requests.leave(coordinator, member_id)

    def abandon(self) -> None:
        """Cancel the join or the sync under way."""
        self._requests.abandon()

    def new_gate(self, token: GenerationToken, sent_s: float) -> GenerationGate:
        """Return a gate whose lease is half the session timeout."""
        drain_s = self._context.rebalance_timeout_s if self._context.has_rebalance_timeout else 0.0
        return GenerationGate(token, self._context.timing.session_timeout_ms, sent_s, drain_s)

    def follow(self, target: BeatTarget | None) -> None:
        """Send heartbeats for this membership."""
        self._heartbeat.follow(target)

    def leave_at_once(self, target: BeatTarget) -> None:
        """Have the heartbeat's thread send a leave request."""
        self._heartbeat.leave(target)

    def stop(self) -> None:
        """Have the heartbeat's thread end."""
        self._heartbeat.stop()

    async def closed(self, limit: CloseLimit) -> None:
        """Return: only the heartbeat runs beside the member, on its own thread."""

    def wait_ended(self, timeout_s: float) -> None:
        """Block until the heartbeat's thread has ended."""
        self._heartbeat.wait_ended(timeout_s)

    def unreachable(self, error: KielGroupsError) -> KielGroupsError:
        """Return that no broker has answered."""
        return NoBrokersError(str(error))

    def refusal(self, request: GroupRequest, code: int) -> KielGroupsError:
        """Return the error of a refused member, with the brokers' settings that decide it."""
        return refusal(request, code, self._context, self._requests.offer)
