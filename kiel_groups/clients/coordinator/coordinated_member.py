"""
A member of a group that brokers coordinate: it performs what ``group.coordinated.member_state`` decides.

The class is generic: what a protocol's metadata and assignments mean, and what a member does with its assignment, is
decided by its hooks. ``ConsumerMember`` has those of a consumer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from kiel_groups.backoff import Backoff
from kiel_groups.clients.calls.eager_methods import home_loop
from kiel_groups.clients.coordinator.coordinator_heartbeat import BeatTarget, CoordinatorHeartbeat
from kiel_groups.clients.coordinator.generation_gate import LEASE_SHARE, GenerationGate
from kiel_groups.clients.coordinator.group_transport import BeatAnswer, FindError
from kiel_groups.clients.coordinator.join_refusals import refusal
from kiel_groups.clients.coordinator.member_hooks import CoordinatedContext, JoinedGroup, MemberHooks
from kiel_groups.clients.coordinator.membership_requests import MembershipRequests
from kiel_groups.coordination.session.close_limit import CloseLimit
from kiel_groups.coordination.session.session_tasks import TaskSet
from kiel_groups.errors import ClosedError, KielGroupsError, NoBrokersError, SessionLostError
from kiel_groups.group.coordinated import member_events as events
from kiel_groups.group.coordinated.coordinator_codes import GroupRequest
from kiel_groups.group.coordinated.member_state import Holding, MemberState, Phase, step
from kiel_groups.model import GenerationToken
from kiel_groups.wire.framing import Request

__all__ = ["CoordinatedMember"]

log = logging.getLogger(__name__)

T = TypeVar("T")

#: The longest pause before a request is repeated, in seconds.
LONGEST_REQUEST_PAUSE_S = 5.0


class CoordinatedMember:
    """
    One member, from ``start`` to ``close``. It joins again by itself after each rebalance and each loss.

    Args:
        context: The member's settings, its transport, and its runtime.
        hooks: The program that the member belongs to.
        on_failure: Called with the error of a member that stops for good.
    """

    def __init__(
        self, context: CoordinatedContext, hooks: MemberHooks, on_failure: Callable[[KielGroupsError], None]
    ) -> None:
        self._context = context
        self._name = context.group.group
        self._timing = context.timing
        self._metrics = context.metrics
        self._runtime = context.runtime
        self._transport = context.transport
        self._hooks = hooks
        self._requests = MembershipRequests(context, hooks)
        self._on_failure = on_failure
        self._state = MemberState()
        self._tasks = TaskSet(self._crashed)
        self._pauses = Backoff(
            context.group.retry_backoff_ms / 1000, LONGEST_REQUEST_PAUSE_S, lambda: self._runtime.uniform(0.5, 1.5)
        )
        self._heartbeat = CoordinatorHeartbeat(
            self._name,
            self._transport,
            self._timing.heartbeat_interval_ms,
            self._timing.session_timeout_ms,
            self._metrics,
            self._runtime,
            self._beat_answered,
        )
        self._gate: GenerationGate | None = None
        self._joined = JoinedGroup("", "", {})
        self._assignments: Mapping[str, bytes] = {}
        self._assignment = b""
        #: When the newest join, and the newest sync, were decided and sent, in seconds of boot time.
        self._rejoin_s = self._sync_sent_s = 0.0
        #: The hook that runs for the present assignment: ``complete`` or ``prepare``.
        self._hook: asyncio.Task[None] | None = None
        self._is_stable = asyncio.Event()
        self._over: asyncio.Future[KielGroupsError | None] = home_loop().create_future()
        #: Why the last request failed, or None after a success.
        self._cause: str | None = None
        self._find_error: KielGroupsError | None = None

    # ------------------------------------------------------------------ the membership

    @property
    def token(self) -> GenerationToken | None:
        """The generation and the member id; None if the member has not joined."""
        state = self._state
        return GenerationToken(state.generation, state.member_id) if state.is_member else None

    @property
    def leads(self) -> bool:
        """Whether this member is the leader of its generation."""
        return bool(self._state.member_id) and self._joined.leader_id == self._state.member_id

    @property
    def need_rejoin(self) -> bool:
        """Whether the member has to join before it has an assignment of the present generation."""
        return self._state.rejoin_due or self._state.phase is not Phase.STABLE

    @property
    def holds_assignment(self) -> bool:
        """Whether the program still has partitions of an assignment, even if it is giving them back."""
        return self._state.holding is not Holding.NOTHING

    @property
    def may_commit(self) -> bool:
        """Whether the assignment that the program has is that of the present generation."""
        return self._state.may_commit

    @property
    def ended(self) -> bool:
        """Whether the member has left, or has failed."""
        return self._state.phase is Phase.ENDED

    @property
    def gate(self) -> GenerationGate | None:
        """The gate of the newest assignment."""
        return self._gate

    async def start(self) -> None:
        """
        Join the group, and wait for the first assignment.

        Raises:
            NoBrokersError: No broker has named the coordinator in time.
            KielGroupsError: The coordinator refuses the member, or the member's assignor has failed.
        """
        self.request_rejoin()
        await self.ensure_active()

    def request_rejoin(self) -> None:
        """Have the member join again, because what it offers has changed."""
        self._feed(events.Rejoin())

    async def ensure_active(self) -> None:
        """
        Wait until the member has an assignment of the present generation; raises as ``start``.

        The other members of a rebalance may delay that for as long as their rebalance timeout.
        """
        loop = asyncio.get_running_loop()
        limit_s = loop.time() + _limit_s(self._context)
        while self.need_rejoin:
            self._is_stable.clear()
            stable = asyncio.ensure_future(self._is_stable.wait())
            try:
                either: set[asyncio.Future[Any]] = {stable, self._over}
                await asyncio.wait(either, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
            finally:
                stable.cancel()
            if self._over.done():
                raise self._over.result() or ClosedError(f"group {self._name}: the member has left")
            if self._state.coordinator is None and self._find_error is not None and loop.time() >= limit_s:
                raise NoBrokersError(str(self._find_error))

    async def close(self, limit: CloseLimit | None = None) -> None:
        """Give the assignment back and leave the group. After the limit, leave without waiting for the application."""
        limit = limit or CloseLimit()
        self._feed(events.Leave())
        try:
            async with limit.timeout(reserves=True):
                await asyncio.wait({self._over})
        except TimeoutError:
            log.warning("group %s: leaving although the application or a broker is not done", self._name)
            if self._state.phase is not Phase.LEAVING:
                # The other members need not wait until the session expires.
                self._leave_by_thread()
            self._feed(events.GivenUp())
            self._feed(events.LeaveAnswered())
        self._heartbeat.stop()
        await self._tasks.cancel()

    def abandon(self, timeout_s: float) -> None:
        """Leave the group without an event loop and without a commit; wait for that at most ``timeout_s``."""
        self._leave_by_thread()
        self._heartbeat.stop()
        self._heartbeat.wait_ended(timeout_s)

    def give_up(self) -> None:
        """
        Leave at once, because the application makes no progress; ``given_up`` must follow on the event loop.

        Any thread may call it beside a blocked loop, which may hold the lock of the log.
        """
        self._leave_by_thread()

    def given_up(self) -> None:
        """End the membership that ``give_up`` has left; the member joins again by ``request_rejoin``."""
        self._feed(events.GivenUp())

    def _leave_by_thread(self) -> None:
        gate, coordinator = self._gate, self._state.coordinator
        if gate is not None:
            gate.shut()
            if coordinator is not None and self._state.is_member:
                self._heartbeat.leave(BeatTarget(coordinator, gate))

    # ------------------------------------------------------------------ requests about offsets

    async def send(self, kind: GroupRequest, request: Request[T], timeout_s: float) -> T:
        """
        Send a request about offsets to the coordinator, and return its answer; ``note`` tells the member its code.

        Raises:
            SessionLostError: The coordinator is not known at the moment.
            KielGroupsError: There is no answer in time, or none that can be read.
        """
        coordinator, token = self._state.coordinator, self.token
        if coordinator is None:
            if kind is not GroupRequest.FETCH:
                raise SessionLostError(f"group {self._name}: the group's coordinator is not known at the moment")
            coordinator = await self._transport.find()
        self._feed(events.RequestStarted())
        try:
            return await self._transport.send(coordinator, request, timeout_s, aside=True)
        except KielGroupsError:
            if token is not None:
                self._feed(events.Answered(kind, None, *token))
            raise
        finally:
            self._feed(events.RequestEnded())

    def note(self, kind: GroupRequest, code: int, token: GenerationToken) -> None:
        """Follow what an error code in an answer about offsets says of the membership."""
        self._feed(events.Answered(kind, code, *token))

    # ------------------------------------------------------------------ the state machine

    def _feed(self, event: events.Event) -> None:
        before = self._state
        self._state, effects = step(before, event)
        if self._state.rejoin_due and not before.rejoin_due:
            self._rejoin_s = self._runtime.boot_time_s()
        for effect in effects:
            self._perform(effect)
        self._follow()

    def _follow(self) -> None:
        """Have the heartbeat, the gate and the waiting callers follow the state."""
        state, gate = self._state, self._gate
        timely = self._context.has_rebalance_timeout
        if gate is not None and state.holding is Holding.DRAINING and state.rejoin_due and timely:
            gate.extend(gate.confirmed_s + self._context.rebalance_timeout_s * LEASE_SHARE)
        beats = gate is not None and state.beats(while_draining=timely) and gate.token == self.token
        target = BeatTarget(state.coordinator, gate) if beats and gate and state.coordinator is not None else None
        self._heartbeat.follow(target)
        if not self.need_rejoin:
            self._is_stable.set()

    def _perform(self, effect: events.Effect) -> None:
        match effect:
            case events.FindCoordinator(discovery):
                self._tasks.start(self._find(discovery))
            case events.Pause(pause, failures):
                self._tasks.start(self._wait(pause, self._pauses.delay_s(failures)))
            case events.Join(join, member_id):
                self._tasks.start(self._join(join, member_id))
            case events.Assign(join):
                self._tasks.start(self._assign(join))
            case events.Sync(join):
                self._tasks.start(self._sync(join))
            case events.Open():
                self._open()
            case events.Drain():
                assert self._gate is not None
                self._run_hook(self._drain(self._gate, self._hook))
            case events.Lose():
                self._drop()
            case events.SendLeave(member_id):
                self._tasks.start(self._leave(member_id))
            case events.Fail(request, code):
                self._fail(refusal(request, code, self._context, self._hooks.protocols()))
            case events.Ended():
                self._end(None)

    def _drop(self) -> None:
        """End the assignment at once; a hook that runs for it is cancelled before."""
        gate, hook = self._gate, self._hook
        if gate is None:
            return
        gate.shut()
        self._gate = self._hook = None
        if hook is not None:
            hook.cancel()
        self._metrics.count("memberships_lost")
        log.warning("group %s: the membership of %s is over; its partitions are lost", self._name, gate.token.member_id)
        self._hooks.lost(gate)

    def _run_hook(self, work: Coroutine[Any, Any, None]) -> None:
        self._hook = asyncio.get_running_loop().create_task(work)
        self._hook.add_done_callback(self._hook_ended)

    def _hook_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._crashed(error)

    # ------------------------------------------------------------------ requests about the membership

    async def _find(self, discovery: int) -> None:
        try:
            coordinator = await self._transport.find()
        except FindError as error:
            self._find_error = error
            self._note_failure("find its coordinator", error)
            self._feed(events.FindFailed(discovery, error.code))
            return
        self._find_error = None
        self._feed(events.CoordinatorFound(discovery, coordinator))

    async def _wait(self, pause: int, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        self._feed(events.PauseOver(pause))

    async def _join(self, join: int, member_id: str) -> None:
        try:
            answer = await self._requests.join(self._coordinator, member_id)
        except KielGroupsError as error:
            self._note_failure("join", error)
            self._feed(events.JoinAnswered(join, None))
            return
        if answer.error.number:
            self._note_failure("join", answer.error.exception(f"group {self._name}: the join was not accepted"))
            self._feed(events.JoinAnswered(join, answer.error.number))
            return
        self._joined = answer.joined
        generation, id_ = answer.token
        self._feed(events.JoinAnswered(join, 0, generation, id_, answer.is_leader))

    async def _assign(self, join: int) -> None:
        try:
            self._assignments = await self._hooks.perform_assignment(self._joined)
        except Exception as error:
            failure = error if isinstance(error, KielGroupsError) else _wrapped(self._name, error)
            self._fail(failure)
            self._feed(events.AssignFailed(join))
            return
        self._feed(events.Assigned(join))

    async def _sync(self, join: int) -> None:
        assignments, self._assignments = self._assignments, {}
        self._sync_sent_s = self._runtime.boot_time_s()
        token = GenerationToken(self._state.generation, self._state.member_id)
        try:
            answer = await self._requests.sync(self._coordinator, token, assignments)
        except KielGroupsError as error:
            self._note_failure("sync", error)
            self._feed(events.SyncAnswered(join, None))
            return
        if answer.error.number:
            self._note_failure("sync", answer.error.exception(f"group {self._name}: the sync was not accepted"))
        self._assignment = bytes(answer.assignment)
        self._feed(events.SyncAnswered(join, answer.error.number))

    @property
    def _coordinator(self) -> int:
        assert self._state.coordinator is not None, "the member joins, syncs and leaves with a known coordinator only"
        return self._state.coordinator

    async def _leave(self, member_id: str) -> None:
        try:
            await self._requests.leave(self._coordinator, member_id)
        except KielGroupsError as error:
            log.info("group %s: the leave was not answered, so the session will expire: %s", self._name, error)
        self._feed(events.LeaveAnswered())

    # ------------------------------------------------------------------ the assignment

    def _open(self) -> None:
        token = self.token
        assert token is not None
        now_s = self._runtime.boot_time_s()
        self._metrics.observe("join", now_s - self._rejoin_s)
        self._metrics.count("joins")
        self._cause = None
        self._gate = GenerationGate(token, self._timing.session_timeout_ms, self._sync_sent_s)
        log.info("group %s: joined generation %d as %s", self._name, *token)
        self._run_hook(self._complete(self._gate, now_s))

    async def _complete(self, gate: GenerationGate, since_s: float) -> None:
        await self._hooks.complete(gate, self._joined, self._assignment)
        self._metrics.observe("sync", self._runtime.boot_time_s() - since_s)

    async def _drain(self, gate: GenerationGate, completing: asyncio.Task[None] | None) -> None:
        if completing is not None and not completing.done():
            completing.cancel()
            await asyncio.wait({completing})
        await self._hooks.prepare(gate)
        gate.shut()
        self._feed(events.Drained())

    def _beat_answered(self, target: BeatTarget, answer: BeatAnswer) -> None:
        if answer.code is None:
            self._note_failure("prove its membership", NoBrokersError(answer.failure))
        self._feed(events.Answered(GroupRequest.HEARTBEAT, answer.code, *target.gate.token))

    # ------------------------------------------------------------------ failures and the end

    def _note_failure(self, what: str, error: KielGroupsError) -> None:
        """Count a failed request that is repeated; log its cause unless the last one failed for the same one."""
        self._metrics.count("group_requests_failed")
        cause, self._cause = self._cause, f"{what}: {error}"
        if cause != self._cause:
            log.warning("group %s: could not %s: %s; retrying", self._name, what, error)

    def _crashed(self, error: BaseException) -> None:
        """Stop because a part of the member has failed, as by a bug."""
        known = isinstance(error, KielGroupsError)
        log.error("group %s: this member failed: %s", self._name, error, exc_info=None if known else error)
        self._fail(error if isinstance(error, KielGroupsError) else _wrapped(self._name, error))
        self._feed(events.GivenUp())
        self._feed(events.Leave())

    def _fail(self, error: KielGroupsError) -> None:
        if self._over.done():
            return
        self._metrics.count("member_failures")
        log.error("group %s: this member stops: %s", self._name, error, extra={"reports": error})
        self._on_failure(error)
        self._end(error)

    def _end(self, error: KielGroupsError | None) -> None:
        if not self._over.done():
            self._over.set_result(error)


def _limit_s(context: CoordinatedContext) -> float:
    """Return how long the first search for the coordinator may take: as long as joining takes otherwise."""
    return context.timing.find_timeout_ms / 1000


def _wrapped(group: str, error: BaseException) -> KielGroupsError:
    wrapped = KielGroupsError(f"group {group}: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
