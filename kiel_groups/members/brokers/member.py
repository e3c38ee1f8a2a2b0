"""Run a member of a group that has a coordinator: perform the effects of ``group.member_state``, and call hooks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from kiel_groups.backoff import Backoff
from kiel_groups.clients.calls.eager_methods import home_loop
from kiel_groups.config import GroupConfig
from kiel_groups.errors import (
    BrokerError,
    ClosedError,
    HookError,
    KielGroupsError,
    NoBrokersError,
    ProtocolError,
    SessionLostError,
)
from kiel_groups.group import member_state
from kiel_groups.group.member_state import (
    CoordinatorCode,
    GroupRequest,
    Holding,
    MemberState,
    Phase,
    Reaction,
    reaction_to,
    step,
)
from kiel_groups.members.brokers.coordinator import BeatReport, BeatTarget, GroupCoordinator
from kiel_groups.members.brokers.gate import GenerationGate
from kiel_groups.members.brokers.hooks import JoinedGroup, MemberHooks
from kiel_groups.members.brokers.request_failures import RequestFailures, reported
from kiel_groups.members.brokers.transport import BeatAnswer, FindError
from kiel_groups.metrics import Metrics
from kiel_groups.model import GenerationToken
from kiel_groups.wire.consumer_protocol import PROTOCOL_TYPE
from kiel_groups.wire.error_codes import MEMBER_ID_REQUIRED, error_code
from kiel_groups.zookeeper.runtime import Runtime
from kiel_groups.zookeeper.tasks import CloseLimit, TaskSet

log = logging.getLogger(__name__)


#: The pause before a member whose assignment cannot be read joins again, in seconds; it doubles each time. Each join is
#: a rebalance of the whole group, and its leader may make the same mistake again.
FIRST_REJOIN_S, LONGEST_REJOIN_S = 1.0, 300.0


#: The words of log lines for the effects of the end of a lease, and of its renewal.
_DELIVERY = ("delivery has stopped", "delivery continues")
_USE = ("the assignment may not be used", "the assignment may be used again")


class HeldAssignment:
    """
    Calls the hooks of a member for its assignments, one after the other.

    Args:
        group: The group's name.
        metrics: Counts lost memberships and unreadable assignments.
        runtime: The clock.
        hooks: The hooks of the program that the member belongs to.
        confirmer: The name, for log lines, of what confirms the membership, such as the coordinator.
        drained: Called when the program has released an assignment.
        rejoin: Called to make the member join again.
        crashed: Called with the error of a hook.
    """

    def __init__(
        self,
        group: str,
        metrics: Metrics,
        runtime: Runtime,
        hooks: MemberHooks,
        confirmer: str,
        drained: Callable[[], None],
        rejoin: Callable[[], None],
        crashed: Callable[[BaseException], None],
    ) -> None:
        self._name = group
        self._metrics = metrics
        self._runtime = runtime
        self._hooks = hooks
        self._confirmer = confirmer
        self._lease_words = _DELIVERY if hooks.protocol_type == PROTOCOL_TYPE else _USE
        self._drained = drained
        self._rejoin = rejoin
        self._unreadable_pauses = Backoff(FIRST_REJOIN_S, LONGEST_REJOIN_S)
        self._crashed = crashed
        #: The gate of the newest assignment; None before the first one, and after a loss.
        self.gate: GenerationGate | None = None
        #: Whether the log reports that the lease is over, and not yet that it runs again.
        self._is_over = False
        self._lease_timer: asyncio.TimerHandle | None = None
        #: The hook that runs for the present assignment: ``complete`` or ``prepare``.
        self._hook: asyncio.Task[None] | None = None
        #: The ``complete`` that the present ``prepare`` cancels, unless it is cancelled itself before it begins.
        self._completing: asyncio.Task[None] | None = None

    def open(self, gate: GenerationGate, joined: JoinedGroup, assignment: bytes) -> None:
        """Start the hook ``complete`` with a new assignment."""
        self.gate = gate
        log.info("group %s: joined generation %d as %s", self._name, *gate.token)
        self.report_lease()
        self._run(self._complete(gate, joined, assignment))

    def report_lease(self) -> None:
        """
        Log once that the assignment may not be used because the lease is over, and once that it may be used again.

        A timer calls this method at the end of the lease. After that, each answer to a heartbeat leads to a call.
        """
        if self._lease_timer is not None:
            self._lease_timer.cancel()
            self._lease_timer = None
        if self.gate is None or self.gate.is_shut:
            return
        now_s = self._runtime.boot_time_s()
        if (left_s := self.gate.deadline_s - now_s) > 0:
            self._lease_timer = asyncio.get_running_loop().call_later(left_s, self.report_lease)
        is_over = left_s <= 0
        if is_over == self._is_over:
            return
        self._is_over, member_id, (stopped, continues) = is_over, self.gate.token.member_id, self._lease_words
        if is_over:
            log.warning(
                "group %s: %s: the lease of %s is over, because %s has not confirmed its membership; %s when it does",
                self._name,
                stopped,
                member_id,
                self._confirmer,
                continues,
            )
        else:
            log.warning(
                "group %s: %s: %s has confirmed the membership of %s",
                self._name,
                continues,
                self._confirmer,
                member_id,
            )

    def drain(self) -> None:
        """Tell the program to release its assignment: cancel a running ``complete``, then call ``prepare``."""
        assert self.gate is not None
        log.info("group %s: revoking the assignment of generation %d", self._name, self.gate.token.generation)
        self._completing = self._hook
        self._run(self._drain(self.gate, self._completing))

    def drop(self) -> None:
        """If there is an assignment, end it at once: shut its gate, cancel its running hook, and call ``lost``."""
        gate, hook = self.gate, self._hook
        if gate is None:
            return
        gate.shut()
        self.gate = self._hook = None
        if hook is not None:
            hook.cancel()
        if self._completing is not None:
            self._completing.cancel()
        self.report_lease()
        self._metrics.count("memberships_lost")
        log.warning("group %s: the membership of %s is over; its assignment is lost", self._name, gate.token.member_id)
        try:
            self._hooks.lost(gate)
        except Exception as error:
            # The member is within a step, whose other effects come first.
            asyncio.get_running_loop().call_soon(self._crashed, error)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._hook = asyncio.get_running_loop().create_task(work)
        self._hook.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._crashed(error)

    async def _complete(self, gate: GenerationGate, joined: JoinedGroup, assignment: bytes) -> None:
        since_s = self._runtime.boot_time_s()
        try:
            await self._hooks.complete(gate, joined, assignment)
        except ProtocolError as error:
            await self._rejoin_later(gate, joined, error)
            return
        self._unreadable_pauses.reset()
        self._metrics.observe("sync", self._runtime.boot_time_s() - since_s)

    async def _rejoin_later(self, gate: GenerationGate, joined: JoinedGroup, error: ProtocolError) -> None:
        """Report an unreadable assignment, and join again after a pause. A rebalance cancels this task."""
        pause_s = self._unreadable_pauses.next_s()
        self._metrics.count("assignments_unreadable")
        log.error(
            "group %s: leader %s has sent an assignment that cannot be read: %s; what is assigned to this member stays"
            " without an owner; joining again in %g s, unless the group rebalances before",
            self._name,
            joined.leader_id,
            error,
            pause_s,
        )
        await asyncio.sleep(pause_s)
        self._rejoin()

    async def _drain(self, gate: GenerationGate, completing: asyncio.Task[None] | None) -> None:
        if completing is not None and not completing.done():
            completing.cancel()
            await asyncio.wait({completing})
        await self._hooks.prepare(gate)
        gate.shut()
        self.report_lease()
        self._drained()


# A member of a group that has a coordinator: it performs what ``group.member_state`` decides.
#
# The class is generic. Its hooks decide what a protocol's metadata and assignments mean, and what a member does with
# its assignment; ``ConsumerMember`` has the hooks of a consumer. A ``GroupCoordinator`` coordinates the group.


T = TypeVar("T")

#: The longest pause before a request is repeated, in seconds.
LONGEST_REQUEST_PAUSE_S = 5.0


class CoordinatedMember:
    """
    One member of a group, from ``start`` to ``close``. After each rebalance and each loss, the member joins again by
    itself.

    Args:
        group: The member's group.
        find_timeout_ms: How long the first join waits for a coordinator, in milliseconds.
        metrics: Receives the counters and gauges.
        runtime: The clock, and the source of random numbers.
        coordinate: Creates the member's ``GroupCoordinator``, given a function that takes the answers to heartbeats.
        hooks: The hooks of the program that the member belongs to.
        on_failure: Called with the error of a member that stops for good.
    """

    def __init__(
        self,
        group: GroupConfig,
        find_timeout_ms: int,
        metrics: Metrics,
        runtime: Runtime,
        coordinate: Callable[[BeatReport], GroupCoordinator],
        hooks: MemberHooks,
        on_failure: Callable[[KielGroupsError], None],
    ) -> None:
        self._name = group.group
        self._find_timeout_s = find_timeout_ms / 1000
        self._metrics = metrics
        self._runtime = runtime
        self._hooks = hooks
        self._coordination = coordinate(self._beat_answered)
        self._on_failure = on_failure
        self._state = MemberState()
        self._tasks = TaskSet(self._crashed)
        self._pauses = Backoff(
            group.retry_backoff_ms / 1000, LONGEST_REQUEST_PAUSE_S, lambda: runtime.uniform(0.5, 1.5)
        )
        self._held = HeldAssignment(
            self._name,
            metrics,
            runtime,
            hooks,
            self._coordination.words.confirmer,
            self._drained,
            self.request_rejoin,
            self._crashed,
        )
        self._joined = JoinedGroup("", "", {})
        self._assignments: Mapping[str, bytes] = {}
        self._assignment = b""
        self._failures = RequestFailures(self._name, self._metrics, self._runtime, self._coordination.words.find)
        #: When the newest join, and the newest sync, were decided and sent, in seconds of boot time.
        self._rejoin_s = self._sync_sent_s = 0.0
        #: Set after each step of the state machine.
        self._has_stepped = asyncio.Event()
        #: The outcome of the member, as soon as it is known: an error, or None if it has left.
        self._over: asyncio.Future[KielGroupsError | None] = home_loop().create_future()
        #: Set when no step is left, such as a leave request after an error.
        self._ended = asyncio.Event()

    # ------------------------------------------------------------------ the membership

    @property
    def token(self) -> GenerationToken | None:
        """The generation and the member id, or None if the member has not joined."""
        return GenerationToken(self._state.generation, self._state.member_id) if self._state.is_member else None

    @property
    def coordinator_id(self) -> int | None:
        """
        The broker that coordinates the group, or the number of the ZooKeeper session, or None while the coordinator is
        unknown.
        """
        return self._state.coordinator

    @property
    def leads(self) -> bool:
        """Whether this member is the leader of its generation."""
        return bool(self._state.member_id) and self._joined.leader_id == self._state.member_id

    @property
    def need_rejoin(self) -> bool:
        """Whether the member has no assignment of the present generation, or must join again."""
        return self._state.rejoin_due or self._state.phase is not Phase.STABLE

    @property
    def holds_assignment(self) -> bool:
        """Whether the program has an assignment that it has not yet released completely."""
        return self._state.holding is not Holding.NOTHING

    @property
    def may_commit(self) -> bool:
        """Whether the program has an assignment of the present generation, so that the coordinator accepts commits."""
        return self._state.may_commit

    @property
    def gate(self) -> GenerationGate | None:
        """The gate of the newest assignment, or None before the first assignment, and after a loss."""
        return self._held.gate

    async def start(self) -> None:
        """
        Join the group, and wait for the first assignment.

        Raises:
            NoBrokersError: No broker has named the coordinator in time, or the coordinator did not answer a join.
            NoZooKeeperError: The group is on ZooKeeper, and no server has answered in time.
            KielGroupsError: The coordinator refuses the member, or the member's assignor has failed.
        """
        self.request_rejoin()
        await self.ensure_active()

    def request_rejoin(self) -> None:
        """Make the member join again: the protocols or the metadata that the member offers have changed."""
        self._feed(member_state.Rejoin())

    async def ensure_active(self) -> None:
        """
        Wait until the member has an assignment of the present generation. The errors are those of ``start``.

        The other members may delay a rebalance for as long as their rebalance timeout. If the member leaves the group
        meanwhile, raise ClosedError.
        """
        await self._until(lambda: not self.need_rejoin)

    async def ensure_coordinator_known(self) -> None:
        """Wait until the coordinator is known. The errors are those of ``start``."""
        await self._until(lambda: self.coordinator_id is not None)

    async def _until(self, is_true: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        limit_s = loop.time() + self._find_timeout_s
        while not is_true():
            self._has_stepped.clear()
            stepped = asyncio.ensure_future(self._has_stepped.wait())
            try:
                either: set[asyncio.Future[Any]] = {stepped, self._over}
                await asyncio.wait(either, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
            finally:
                stepped.cancel()
            if self._over.done():
                raise self._over.result() or ClosedError(f"group {self._name}: the member has left")
            is_failing = self._state.coordinator is None or self._state.phase is Phase.UNJOINED
            if is_failing and self._failures.last is not None and loop.time() >= limit_s:
                raise self._coordination.unreachable(self._failures.last)

    async def close(self, limit: CloseLimit | None = None) -> None:
        """
        Release the assignment, and leave the group. After the limit, leave without waiting for the application.

        If the caller is cancelled, or no broker answers, the heartbeat's thread sends the leave request.
        """
        limit = limit or CloseLimit()
        self._feed(member_state.Leave())
        try:
            async with limit.timeout(reserves=True):
                await self._ended.wait()
        except TimeoutError:
            log.warning("group %s: leaving although the application or a broker is not done", self._name)
            self._feed(member_state.LeaveAtOnce())
            with suppress(TimeoutError):
                async with limit.timeout():
                    await self._ended.wait()
        finally:
            if not self._ended.is_set():
                self._leave_by_thread()
                self._feed(member_state.GivenUp())
                self._feed(member_state.LeaveAnswered())
            self._coordination.stop()
            cancelled = self._tasks.cancel()
        await cancelled
        await self._coordination.closed(limit)

    def abandon(self, timeout_s: float) -> None:
        """Leave the group without an event loop and without a commit. Wait at most ``timeout_s`` for the request."""
        self._leave_by_thread()
        self._coordination.stop()
        self._coordination.wait_ended(timeout_s)

    def give_up(self) -> None:
        """
        Leave at once, because the application makes no progress. The event loop must call ``given_up`` afterwards.

        Any thread may call this method. The method logs nothing, because the blocked event loop may hold the log's
        lock.
        """
        self._leave_by_thread()

    def given_up(self) -> None:
        """End the membership after ``give_up``. The member joins again only after ``request_rejoin``."""
        self._feed(member_state.GivenUp())
        self._coordination.abandon()

    def leave(self) -> None:
        """Leave at once. The program loses its assignment, and the member joins again only after ``request_rejoin``."""
        self.give_up()
        self.given_up()

    def _leave_by_thread(self) -> None:
        # The watchdog's thread calls this method, too, so it reads the state once.
        gate, state = self._held.gate, self._state
        if gate is not None:
            gate.shut()
        if state.leaves_from is not None:
            self._coordination.leave_at_once(state.leaves_from, state.member_id)

    # ------------------------------------------------------------------ requests about offsets

    async def send(self, kind: GroupRequest, request: Callable[[int], Awaitable[T]]) -> T:
        """
        Send a request about offsets, and return its answer. The caller passes error codes of the answer to ``note``.

        Args:
            kind: The kind of the request.
            request: Sends the request to the coordinator with the given number.

        Raises:
            SessionLostError: The coordinator is not known at the moment, or the member has left.
            KielGroupsError: No answer came in time, or the answer cannot be read.
        """
        if self._state.phase is Phase.ENDED:
            raise SessionLostError(f"group {self._name}: this member has left the group")
        coordinator, token = self._state.coordinator, self.token
        if kind is GroupRequest.FETCH and (coordinator is None or token is None):
            # A member without a generation does not notice that its coordinator has moved.
            coordinator = await self._coordination.find()
        if coordinator is None:
            raise SessionLostError(f"group {self._name}: the group's coordinator is not known at the moment")
        self._feed(member_state.RequestStarted())
        try:
            return await request(coordinator)
        except KielGroupsError:
            if token is not None:
                self._feed(member_state.Answered(kind, None, *token))
            raise
        finally:
            self._feed(member_state.RequestEnded())

    def note(self, kind: GroupRequest, code: int, token: GenerationToken) -> None:
        """Apply the error code of an answer about offsets to the membership."""
        self._feed(member_state.Answered(kind, code, *token))

    # ------------------------------------------------------------------ the state machine

    def _feed(self, event: member_state.Event) -> None:
        before = self._state
        self._state, effects = step(before, event)
        if self._state.is_joining and not before.is_joining:
            self._rejoin_s = self._runtime.boot_time_s()
        for effect in effects:
            self._perform(effect)
        self._follow()

    def _follow(self) -> None:
        """After a step, set the target of the heartbeats, and wake the callers that wait for a change of state."""
        state, gate, coordination = self._state, self._held.gate, self._coordination
        target = None
        if gate is not None and state.coordinator is not None and not gate.is_shut and gate.token == self.token:
            beats = state.beats(while_draining=coordination.beats_while_draining)
            target = BeatTarget(state.coordinator, gate) if beats else None
        coordination.follow(target)
        self._has_stepped.set()

    def _perform(self, effect: member_state.Effect) -> None:
        match effect:
            case member_state.FindCoordinator(discovery):
                self._tasks.start(self._find(discovery))
            case member_state.Pause(pause, failures):
                self._tasks.start(self._wait(pause, self._pauses.delay_s(failures)))
            case member_state.Join(join, member_id):
                self._tasks.start(self._join(join, member_id))
            case member_state.Assign(join):
                self._tasks.start(self._assign(join))
            case member_state.Sync(join):
                self._tasks.start(self._sync(join))
            case member_state.Open():
                self._open()
            case member_state.Drain():
                self._held.drain()
            case member_state.Lose():
                self._held.drop()
            case member_state.SendLeave(member_id):
                self._tasks.start(self._leave(member_id))
            case member_state.Fail(request, code):
                self._fail(self._coordination.refusal(request, code))
            case member_state.Ended():
                if not self._over.done():
                    self._over.set_result(None)
                self._ended.set()

    # ------------------------------------------------------------------ requests about the membership

    async def _find(self, discovery: int) -> None:
        try:
            coordinator = await self._coordination.find()
        except FindError as error:
            if reaction_to(GroupRequest.FIND, error.code) is not Reaction.FAIL:
                self._failures.note(GroupRequest.FIND, error)
            self._held.report_lease()
            self._feed(member_state.FindFailed(discovery, error.code))
            return
        self._feed(member_state.CoordinatorFound(discovery, coordinator))

    async def _wait(self, pause: int, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        self._feed(member_state.PauseOver(pause))

    async def _join(self, join: int, member_id: str) -> None:
        if (join, Phase.JOINING) != (self._state.join, self._state.phase):
            return  # The member has left, or was given up, before this task began.
        try:
            with self._failures.slow(GroupRequest.JOIN, "other members may not have given their assignments back yet"):
                answer = await self._coordination.join(self._coordinator, member_id)
        except (BrokerError, ProtocolError) as error:
            self._failures.note(GroupRequest.JOIN, error)
            self._feed(member_state.JoinAnswered(join, None))
            return
        if answer.error.number:
            given_id = answer.token.member_id
            is_named = answer.error == MEMBER_ID_REQUIRED and given_id and not member_id
            # If the join has crossed the member's own leave request, its refusal is no failure, either.
            if not is_named and (join, Phase.JOINING) == (self._state.join, self._state.phase):
                self._failures.note_code(GroupRequest.JOIN, answer.error)
            self._feed(member_state.JoinAnswered(join, answer.error.number, member_id=given_id))
            return
        if join == self._state.join:
            self._joined = answer.joined
        self._feed(member_state.JoinAnswered(join, 0, *answer.token, answer.is_leader))

    async def _assign(self, join: int) -> None:
        try:
            assignments = await self._hooks.perform_assignment(self._joined)
        except Exception as error:
            if (join, Phase.SYNCING) == (self._state.join, self._state.phase):
                self._fail(reported(self._name, error))
            self._feed(member_state.AssignFailed(join))
            return
        if join == self._state.join:
            self._assignments = assignments
        self._feed(member_state.Assigned(join))

    async def _sync(self, join: int) -> None:
        assignments, self._assignments = self._assignments, {}
        self._sync_sent_s = self._runtime.boot_time_s()
        token = GenerationToken(self._state.generation, self._state.member_id)
        try:
            with self._failures.slow(GroupRequest.SYNC, f"leader {self._joined.leader_id} may not have assigned yet"):
                answer = await self._coordination.sync(self._coordinator, token, assignments)
        except (BrokerError, ProtocolError) as error:
            self._failures.note(GroupRequest.SYNC, error)
            self._feed(member_state.SyncAnswered(join, None))
            return
        if answer.error.number:
            self._failures.note_code(GroupRequest.SYNC, answer.error)
        self._assignment = answer.assignment
        self._feed(member_state.SyncAnswered(join, answer.error.number))

    @property
    def _coordinator(self) -> int:
        assert self._state.coordinator is not None, "the member joins, syncs and leaves with a known coordinator only"
        return self._state.coordinator

    async def _leave(self, member_id: str) -> None:
        try:
            await self._coordination.leave(self._coordinator, member_id)
        except KielGroupsError as error:
            log.info(
                "group %s: the coordinator has not performed the leave, and removes this member when its session is"
                " over: %s",
                self._name,
                error,
            )
        self._feed(member_state.LeaveAnswered())

    # ------------------------------------------------------------------ the assignment

    def _open(self) -> None:
        token = self.token
        assert token is not None
        now_s = self._runtime.boot_time_s()
        self._metrics.observe("join", now_s - self._rejoin_s)
        # A join that was asked for during this one begins now.
        self._rejoin_s = now_s
        self._metrics.count("joins")
        self._failures.forget()
        gate = self._coordination.new_gate(token, self._sync_sent_s)
        self._held.open(gate, self._joined, self._assignment)

    def _drained(self) -> None:
        self._feed(member_state.Drained())

    def _beat_answered(self, target: BeatTarget, answer: BeatAnswer) -> None:
        if target.gate.token != self.token or self._state.phase is Phase.LEAVING:
            # The heartbeat and the member's own leave or join have crossed, so a refusal is no failure.
            pass
        elif answer.code is None:
            self._failures.note(GroupRequest.HEARTBEAT, NoBrokersError(answer.failure))
        elif answer.code == CoordinatorCode.NO_ERROR:
            self._failures.forget()
        elif answer.failure:
            self._failures.note(GroupRequest.HEARTBEAT, SessionLostError(answer.failure))
        else:
            self._failures.note_code(GroupRequest.HEARTBEAT, error_code(answer.code))
        self._held.report_lease()
        self._feed(member_state.Answered(GroupRequest.HEARTBEAT, answer.code, *target.gate.token))

    # ------------------------------------------------------------------ failures and the end

    def _crashed(self, error: BaseException) -> None:
        """Stop the member because one of its parts has failed unexpectedly, for example because of a bug."""
        if self._over.done():
            log.error("group %s: a part of a member that has stopped failed: %s", self._name, error, exc_info=error)
        self._fail(reported(self._name, error))
        self._feed(member_state.LeaveAtOnce())

    def _fail(self, error: KielGroupsError) -> None:
        if self._over.done():
            return
        self._metrics.count("member_failures")
        # A traceback says where a program, or this package, has failed. Other errors explain themselves.
        trace = error.__cause__ if isinstance(error, HookError) or type(error) is KielGroupsError else None
        log.error("group %s: this member stops: %s", self._name, error, exc_info=trace, extra={"reports": error})
        self._on_failure(error)
        self._over.set_result(error)
