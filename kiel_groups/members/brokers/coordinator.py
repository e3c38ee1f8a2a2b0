"""Send requests to the coordinator of a group (Kafka 0.9 or later): joins, syncs, leaves, and heartbeats."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from kiel_groups.clients.calls.eager_methods import home_loop
from kiel_groups.errors import BrokerError, ConfigError, GroupConfigError, KielGroupsError, NoBrokersError
from kiel_groups.group.member_state import CoordinatorCode, GroupRequest
from kiel_groups.members.brokers.gate import GenerationGate
from kiel_groups.members.brokers.hooks import CoordinatedContext, JoinedGroup, MemberHooks
from kiel_groups.members.brokers.transport import BeatAnswer, FindError
from kiel_groups.model import GenerationToken
from kiel_groups.wire.consumer_protocol import PROTOCOL_TYPE
from kiel_groups.wire.error_codes import NO_ERROR, UNKNOWN_MEMBER_ID, ErrorCode, error_code
from kiel_groups.wire.framing import Request
from kiel_groups.wire.group_requests import (
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestV1,
    JoinGroupRequestV4,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kiel_groups.zookeeper.tasks import CloseLimit

log = logging.getLogger(__name__)


class CoordinatorWords(NamedTuple):
    """
    Phrases for a member's log lines: ``confirmer`` names what confirms the membership, and ``find`` names the search
    for it.
    """

    confirmer: str = "the coordinator"
    find: str = "find its coordinator"


class JoinAnswer(NamedTuple):
    """The answer to a join: an error, or the membership and the metadata of all members."""

    error: ErrorCode
    token: GenerationToken
    joined: JoinedGroup

    @property
    def is_leader(self) -> bool:
        """Whether the member leads its generation."""
        return self.joined.leader_id == self.token.member_id


class SyncAnswer(NamedTuple):
    """The answer to a sync: an error, or the member's assignment."""

    error: ErrorCode
    assignment: bytes


class BeatTarget(NamedTuple):
    """The coordinator that receives heartbeats, and the gate of the membership that these heartbeats confirm."""

    coordinator: int
    gate: GenerationGate


#: Called on the event loop with a membership and the coordinator's answer about it.
BeatReport: TypeAlias = Callable[[BeatTarget, BeatAnswer], None]


class GroupCoordinator(Protocol):
    """
    The coordinator of one member's group: a broker, or the leader on ZooKeeper of a group of programs.

    Numbers identify coordinators: the node ids of brokers, or one number for each ZooKeeper session. Requests raise
    ``BrokerError`` if no answer comes, and ``ProtocolError`` if the answer cannot be read.
    """

    @property
    def words(self) -> CoordinatorWords:
        """The words by which the member's log lines name the coordinator, and the search for it."""

    @property
    def beats_while_draining(self) -> bool:
        """Whether heartbeats keep a member in the group during a rebalance, before the member has joined again."""

    async def find(self) -> int:
        """
        Return the number of the present coordinator.

        Raises:
            FindError: The coordinator is not known at the moment.
        """

    async def join(self, coordinator: int, member_id: str) -> JoinAnswer:
        """
        Join with the protocols that the hooks offer now, and wait for the other members. A new member's id is "".

        The coordinator may answer a new member at once, with the error MEMBER_ID_REQUIRED and the id to join with.
        """

    async def sync(self, coordinator: int, token: GenerationToken, assignments: Mapping[str, bytes]) -> SyncAnswer:
        """Wait for this member's assignment. Only the leader passes ``assignments``: the assignments of all members."""

    async def leave(self, coordinator: int, member_id: str) -> None:
        """Send one leave request. Raise KielGroupsError if the coordinator refuses or does not answer."""

    def abandon(self) -> None:
        """Cancel the join or the sync in flight. The task that waits for its answer is cancelled, too."""

    def new_gate(self, token: GenerationToken, sent_s: float) -> GenerationGate:
        """Return the gate of a generation whose sync was sent at the boot time ``sent_s``."""

    def follow(self, target: BeatTarget | None) -> None:
        """Confirm this membership by heartbeats, and report their answers. With None, send no heartbeats."""

    def leave_at_once(self, coordinator: int, member_id: str) -> None:
        """Leave the group without the event loop. Any thread may call this method."""

    def stop(self) -> None:
        """Ask the threads and tasks beside the member to end, without waiting for them."""

    async def closed(self, limit: CloseLimit) -> None:
        """After ``stop``, wait until the coordinator has no task left on the event loop, or until the limit."""

    def wait_ended(self, timeout_s: float) -> None:
        """After ``stop``, block until the threads beside the event loop have ended, for at most ``timeout_s``."""

    def unreachable(self, error: KielGroupsError) -> KielGroupsError:
        """Return the error of a first join that has not found a coordinator in time. ``error`` is the last failure."""

    def refusal(self, request: GroupRequest, code: int) -> KielGroupsError:
        """Return the error of a member that the coordinator refuses for good."""


# Send the heartbeats of one member, on a thread of its own: a busy event loop must not cost the membership.
#
# The thread renews the gate itself, so that delivery continues at once when the loop is free again. What an answer
# means for the membership is decided on the loop.
#
# A coordinator that loads its log answers every heartbeat with success, because it does not know its members yet. While
# the lease runs, that is right: the former coordinator has not removed the member before its session was over. A member
# whose lease is over may have been removed. So its thread sends a sync, which only a stable group of the same
# generation grants; a sync also renews the session.


#: How long the thread sleeps if there is nothing to do, in seconds. A change of the target wakes it.
_IDLE_S = 60.0

#: The share of the session timeout after which an unanswered heartbeat is given up. Another try fits into the lease.
_ANSWER_SHARE = 1 / 6


class CoordinatorHeartbeat:
    """
    Sends heartbeats for a membership at regular intervals, on a thread of its own, while there is a target.

    Args:
        context: The member's settings, its transport, and its runtime. The member's metrics observe ``heartbeat``, the
            seconds from a request to the answer, and count ``heartbeats`` by code.
        answered: Called on the event loop with the target of a heartbeat and its answer.
    """

    def __init__(self, context: CoordinatedContext, answered: BeatReport) -> None:
        self._group = context.group.group
        self._transport = context.transport
        self._interval_s = context.timing.heartbeat_interval_ms / 1000
        self._limit_s = context.timing.session_timeout_ms / 1000 * _ANSWER_SHARE
        self._metrics = context.metrics
        self._runtime = context.runtime
        self._report = answered
        self._loop = home_loop()
        #: Written by the event loop and read by the thread, each by one plain assignment.
        self._target: BeatTarget | None = None
        self._due_s = float("inf")
        #: When the last heartbeat was sent.
        self._sent_s = float("-inf")
        self._is_waiting = False
        self._is_stopped = False
        #: The coordinator and the member id of the leave request that the thread has to send.
        self._to_leave: tuple[int, str] | None = None
        self._is_started = False
        #: Protects the start of the thread: the event loop starts it to beat, and the watchdog's thread to leave.
        self._starting = threading.Lock()
        self._ended = threading.Event()
        self._ticker = context.runtime.ticker(self._tick, "heartbeat")

    def follow(self, target: BeatTarget | None) -> None:
        """
        Send heartbeats for this membership from now on. If ``target`` is None, send no heartbeats.

        The first heartbeat is due after one interval, because the request before this call has just proved the
        membership. If the lease is over already, as after a long sync, the first heartbeat is due at once, but not
        within an interval of the last heartbeat. Otherwise, a coordinator that refuses connections would get
        heartbeats without a pause.

        Each later heartbeat is due a whole number of intervals after the first heartbeat, even if a heartbeat was late.
        All members of a generation get their assignments at the same time. So they also learn of the next rebalance at
        the same time.
        """
        if target == self._target:
            return
        now_s = self._runtime.boot_time_s()
        self._target = target
        is_urgent = target is not None and not target.gate.is_open(now_s)
        self._due_s = max(now_s, self._sent_s + self._interval_s) if is_urgent else now_s + self._interval_s
        if target is not None:
            self._start()
        self._ticker.wake()

    def _start(self) -> None:
        with self._starting:
            if not self._is_started:
                self._ticker.start()
                self._is_started = True

    def leave(self, coordinator: int, member_id: str) -> None:
        """
        Tell the thread to send a leave request: the event loop may be blocked. Any thread may call this method.

        A member that has not had an assignment yet has sent no heartbeat, so this method may have to start the thread.
        """
        self._target, self._to_leave = None, (coordinator, member_id)
        # An interpreter that exits starts no thread. The coordinator then removes the member after its session timeout.
        with suppress(RuntimeError):
            self._start()
        self._ticker.wake()

    def stop(self) -> None:
        """Ask the thread to end, without waiting for it."""
        self._target, self._is_stopped = None, True
        self._ticker.wake()

    def wait_ended(self, timeout_s: float) -> None:
        """After ``stop``, block until the thread has ended, for at most ``timeout_s``."""
        if self._is_started:
            self._ended.wait(timeout_s)

    # ------------------------------------------------------------------ on the thread

    def _tick(self) -> float | None:
        try:
            return self._check()
        except Exception:
            # Without heartbeats, the lease and delivery end. The thread continues: the next heartbeat may succeed.
            log.exception("group %s: the heartbeat failed", self._group)
            self._is_waiting = False
            return self._interval_s

    def _check(self) -> float | None:
        if self._loop.is_closed() and (target := self._target) is not None:
            # A client that was never closed must not keep its partitions for as long as the process lives.
            log.error("group %s: the event loop was closed before its client; leaving the group", self._group)
            self._target, self._to_leave = None, (target.coordinator, target.gate.token.member_id)
        if (leaving := self._to_leave) is not None and not self._is_waiting:
            self._to_leave = None
            coordinator, member_id = leaving
            request = LeaveGroupRequest(self._group, member_id)
            self._transport.beat(coordinator, request, self._limit_s, lambda _: None)
        if self._is_stopped or self._loop.is_closed():
            if not self._is_waiting:
                self._transport.close_beats()
            self._ended.set()
            return None
        target, now_s = self._target, self._runtime.boot_time_s()
        # The event loop shuts the gate of a membership before it tells the thread that the membership has ended.
        if target is None or target.gate.is_shut or self._is_waiting:
            return _IDLE_S
        if now_s >= (due_s := self._due_s):
            passed = (now_s - due_s) // self._interval_s + 1
            self._sent_s, self._due_s, self._is_waiting = now_s, due_s + passed * self._interval_s, True
            if target.gate.is_open(now_s):
                self._beat(target, now_s, renews=True)
            else:
                request_ = SyncGroupRequest(self._group, *target.gate.token, {})
                self._transport.beat(target.coordinator, request_, self._limit_s, partial(self._synced, target, now_s))
            now_s = self._runtime.boot_time_s()
        return max(0.001, self._due_s - now_s)

    def _beat(self, target: BeatTarget, sent_s: float, *, renews: bool) -> None:
        """Send a heartbeat. If ``renews`` is true, its success extends the lease."""
        request = HeartbeatRequest(self._group, *target.gate.token)
        answered = partial(self._answered, target, sent_s, renews)
        self._transport.beat(target.coordinator, request, self._limit_s, answered)

    def _synced(self, target: BeatTarget, sent_s: float, answer: BeatAnswer) -> None:
        """Handle the answer to a sync. After a success, open the gate again. After an error, send a heartbeat."""
        if answer.code in (0, None):
            self._answered(target, sent_s, True, answer)
        elif self._target != target:
            # The member has left, or joins again: the broker's answer about its former membership does not matter.
            self._is_waiting = False
            self._ticker.wake()
        else:
            self._beat(target, self._runtime.boot_time_s(), renews=False)

    def _answered(self, target: BeatTarget, sent_s: float, renews: bool, answer: BeatAnswer) -> None:
        self._is_waiting = False
        if answer.code == CoordinatorCode.NO_ERROR and renews:
            target.gate.renew(target.gate.token, sent_s)
        elif answer.code == CoordinatorCode.REBALANCE_IN_PROGRESS and renews:
            target.gate.renew_in_rebalance(target.gate.token, sent_s)
        if answer.code is not None:
            self._metrics.observe("heartbeat", self._runtime.boot_time_s() - sent_s)
        self._metrics.count("heartbeats", code=str(answer.code))
        self._ticker.wake()
        try:
            self._loop.call_soon_threadsafe(self._report, target, answer)
        except RuntimeError:
            log.debug("group %s: a heartbeat was answered after its event loop was closed", self._group)


def refusal(
    request: GroupRequest,
    code: int,
    context: CoordinatedContext,
    protocol_type: str,
    protocols: Sequence[GroupProtocol],
) -> KielGroupsError:
    """
    Return the error of a member that a coordinator refuses.

    Args:
        request: The request that was refused.
        code: The coordinator's error code.
        context: The member's settings.
        protocol_type: The protocol type of the member, such as "consumer".
        protocols: The protocols that the member has joined with.
    """
    group, known = context.group.group, error_code(code)
    match code:
        case CoordinatorCode.INCONSISTENT_PROTOCOL:
            names = ", ".join(protocol.name for protocol in protocols)
            if protocol_type == PROTOCOL_TYPE:
                others, advice = "are no consumers", "Give all members the same partition_allocator"
            else:
                others = f"are of another type than {protocol_type!r}"
                advice = "Give the programs of all members a protocol in common"
            return GroupConfigError(
                f"group {group}: the coordinator refuses this member ({known}): it offers {names}, and the members of"
                f" the group have no such protocol in common, or {others}. {advice}, or choose another group"
            )
        case CoordinatorCode.INVALID_SESSION_TIMEOUT:
            return ConfigError(
                f"session_timeout_ms: {context.timing.session_timeout_ms} given, which the coordinator of group"
                f" {group} refuses ({known}): the brokers' group.min.session.timeout.ms (6,000 unless changed) and"
                " group.max.session.timeout.ms (30,000 in Kafka 0.9, 300,000 to 1,800,000 later) are its bounds"
            )
        case CoordinatorCode.INVALID_GROUP:
            return ConfigError(f"group: the coordinator refuses the name {group!r} ({known})")
    return known.exception(f"group {group}: {request.value}: the coordinator refuses this member")


T = TypeVar("T")

#: How long the coordinator may take for an answer beyond the time that it waits for other members, in seconds.
_ANSWER_S = 10.0

#: The share of the session timeout after which a slow answer makes the member ask for the coordinator again.
_LOOK_SHARE = 1 / 3

#: How long a leave request may take, in seconds. Without it, the coordinator removes the member later.
_LEAVE_S = 2.0


class BrokerCoordinator:
    """
    A broker that coordinates a group; see ``GroupCoordinator``. Requests raise the errors of ``GroupTransport.send``.

    Args:
        context: The member's settings, its transport, and its runtime.
        hooks: The hooks of the program that the member belongs to.
        report: Called with the answer to each heartbeat.
    """

    words = CoordinatorWords()

    def __init__(self, context: CoordinatedContext, hooks: MemberHooks, report: BeatReport) -> None:
        self._context = context
        self._group = context.group.group
        self._hooks = hooks
        #: The protocols of the last join.
        self._offered: Sequence[GroupProtocol] = ()
        #: The join or the sync under way, or the reading by the hooks before a join.
        self._sending: asyncio.Future[Any] | None = None
        self._heartbeat = CoordinatorHeartbeat(context, report)

    @property
    def beats_while_draining(self) -> bool:
        """Whether the brokers know JoinGroup v1. Older brokers remove a member that sends only heartbeats."""
        return self._context.has_rebalance_timeout

    async def find(self) -> int:
        """Ask any broker for the coordinator, and return its node id."""
        return await self._context.transport.find()

    # ------------------------------------------------------------------ requests about the membership

    @property
    def _patience_s(self) -> float:
        """How long a join or a sync may take, in seconds: until the slowest member has revoked its partitions."""
        return self._context.rebalance_timeout_s + _ANSWER_S

    async def join(self, coordinator: int, member_id: str) -> JoinAnswer:
        """Join with the protocols that the hooks offer now. ``member_id`` is empty for a new member."""
        timing, type_ = self._context.timing, self._hooks.protocol_type
        # A member that is given up while its hooks read something must not join afterwards: ``abandon`` cancels this.
        self._sending = reading = asyncio.ensure_future(self._hooks.protocols())
        self._offered = offered = tuple(await reading)
        request: JoinGroupRequest = JoinGroupRequest(self._group, timing.session_timeout_ms, member_id, type_, offered)
        if self._context.has_rebalance_timeout:
            later = JoinGroupRequestV4 if self._context.names_members_first else JoinGroupRequestV1
            request = later(
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

    async def sync(self, coordinator: int, token: GenerationToken, assignments: Mapping[str, bytes]) -> SyncAnswer:
        """Ask for the member's assignment. The leader passes the assignments of all members."""
        answer: SyncGroupResponse = await self._patiently(
            coordinator, SyncGroupRequest(self._group, *token, assignments)
        )
        return SyncAnswer(answer.error, bytes(answer.assignment))

    async def _patiently(self, coordinator: int, request: Request[T]) -> T:
        """
        Send a join or a sync, and return its answer. The other members may delay the answer for minutes.

        During this time, the member would not notice that the coordinator hangs. So the member also asks other brokers
        whether this broker is still the coordinator.

        Raises:
            BrokerError: This broker no longer coordinates the group, or does not answer.
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
        """Cancel the join or the sync in flight. The task that waits for its answer is cancelled, too."""
        if self._sending is not None:
            self._sending.cancel()

    async def _other_coordinator(self, coordinator: int) -> str | None:
        """
        Ask another broker for the coordinator, and return a phrase with its answer.

        Return None if the broker names ``coordinator``, or does not answer.
        """
        try:
            found = await self._context.transport.find(doubted=coordinator)
        except FindError as error:
            # A broker that does not answer does not name a coordinator.
            return None if error.code is None else str(error)
        return None if found == coordinator else f"broker {found} does"

    @property
    def _look_s(self) -> float:
        """How often ``_patiently`` asks other brokers for the coordinator, in seconds."""
        return self._context.timing.session_timeout_ms / 1000 * _LOOK_SHARE

    async def leave(self, coordinator: int, member_id: str) -> None:
        """
        Send one leave request, even while a join is in flight.

        Raises:
            BrokerError: The coordinator refuses the request, for another reason than that it has removed the member
                already.
        """
        request: Request[ErrorCode] = LeaveGroupRequest(self._group, member_id)
        answer = await self._context.transport.send(coordinator, request, _LEAVE_S, aside=True)
        if answer not in (NO_ERROR, UNKNOWN_MEMBER_ID):
            raise answer.exception(f"group {self._group}: LeaveGroup")

    # ------------------------------------------------------------------ heartbeats, and the end

    def new_gate(self, token: GenerationToken, sent_s: float) -> GenerationGate:
        """Return a gate whose lease is half the session timeout."""
        drain_s = self._context.rebalance_timeout_s if self._context.has_rebalance_timeout else 0.0
        return GenerationGate(token, self._context.timing.session_timeout_ms, sent_s, drain_s)

    def follow(self, target: BeatTarget | None) -> None:
        """Send heartbeats for this membership, or no heartbeats if ``target`` is None."""
        self._heartbeat.follow(target)

    def leave_at_once(self, coordinator: int, member_id: str) -> None:
        """Tell the heartbeat's thread to send a leave request."""
        self._heartbeat.leave(coordinator, member_id)

    def stop(self) -> None:
        """Ask the heartbeat's thread to end."""
        self._heartbeat.stop()

    async def closed(self, limit: CloseLimit) -> None:
        """Return at once: only the heartbeat runs beside the member, on its own thread."""

    def wait_ended(self, timeout_s: float) -> None:
        """Block until the heartbeat's thread has ended, for at most ``timeout_s``."""
        self._heartbeat.wait_ended(timeout_s)

    def unreachable(self, error: KielGroupsError) -> KielGroupsError:
        """Return a NoBrokersError with the text of ``error``, the last failure of the first join."""
        return NoBrokersError(str(error))

    def refusal(self, request: GroupRequest, code: int) -> KielGroupsError:
        """Return the error of a refused member. The text names the settings that cause the refusal."""
        return refusal(request, code, self._context, self._hooks.protocol_type, self._offered)
