"""Keep a process in a group across ZooKeeper sessions: open a session, join, leave, and replace lost sessions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from kiel_groups.backoff import Backoff
from kiel_groups.config import GroupConfig
from kiel_groups.errors import (
    AuthorizationError,
    ClosedError,
    ConfigError,
    CoordinationError,
    CredentialsError,
    KielGroupsError,
    NoZooKeeperError,
    SessionLostError,
)
from kiel_groups.group.lease import check_heartbeat_interval
from kiel_groups.group.znodes.contents import make_member_id
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.listeners import Stall
from kiel_groups.members.partition_handler import Work
from kiel_groups.members.zookeeper.leader import Candidacy
from kiel_groups.zookeeper.heartbeat import Heartbeat
from kiel_groups.zookeeper.session import Session, SessionEvent
from kiel_groups.zookeeper.tasks import CloseLimit, ProcessContext, SessionContext, TaskSet, cancelled_by
from kiel_groups.zookeeper.watchdog import Watchdog, caught_up

log = logging.getLogger(__name__)


class SessionRole:
    """
    The role of a process on one session. The methods of this class do nothing. A role overrides the methods that the
    role needs.

    ``proof`` is the znode that each heartbeat checks, and without which this process is no candidate. ``candidacy``
    takes part in the election for this process. ``candidacy`` is None if the process is no candidate.
    """

    proof: str
    candidacy: Candidacy | None = None

    async def register(self) -> None:
        """Create the znodes that register this process."""

    async def joined(self) -> None:
        """Start the work of a process that has registered."""

    def recheck(self) -> None:
        """Read all watched znodes again, because watches may have been lost."""

    async def restore(self) -> None:
        """Restore the znodes that an operator has deleted and that other processes need."""

    def in_progress(self) -> Collection[Work]:
        """Return the application's work in progress. Other threads may call this method, too."""
        return ()

    def stalled(self, stall: Stall) -> None:
        """Report work that makes no progress, in addition to the log line. This method runs on its own thread."""

    async def release(self, *, alone: bool) -> None:
        """
        Release what this process owns, before the process leaves.

        ``alone`` means that this process leads, and that no other process can take over.
        """

    def end(self) -> None:
        """Drop what this process owns, because the session is over."""


RoleT = TypeVar("RoleT", bound=SessionRole)


@dataclass(frozen=True, slots=True)
class RoleKind(Generic[RoleT]):
    """
    The kind of role that a process has on each of its sessions.

    Args:
        paused: The effect of a broken connection, in words for the log.
        layout: Returns the paths of the group's znodes.
        admit: Raises an error if this process may not join the group.
        new_role: Creates the role on a session that is open. The role is complete, and starts nothing yet.
    """

    paused: str
    layout: Callable[[str], GroupLayout]
    admit: Callable[[Session, GroupLayout, GroupConfig], Awaitable[None]]
    new_role: Callable[[SessionContext], RoleT]


# One ZooKeeper session of a member or an allocator process: it opens, joins the group, leaves, and ends.
#
# The process's ``SessionRole`` says what it does in its group. A ``GroupSession`` ends with its ZooKeeper session;
# ``SessionSupervisor`` then starts the next one.


#: How long the first session may wait for a server until a warning says which ones it tries, in seconds.
_SILENCE_S = 3.0


class SessionPhase(Enum):
    """The phase of one session of a process in its group."""

    #: Entry: the start. Duty: connect to ZooKeeper. Exit: a server has granted a session.
    OPENING = "opening"
    #: Entry: the ZooKeeper session is open. Duty: check admission, create folders, register. Exit: registered.
    JOINING = "joining"
    #: Entry: registered. Duty: heartbeats, the election; a member claims partitions. Exit: leaving, or ended.
    JOINED = "joined"
    #: Entry: leaving in order. Duty: release what is owned, all else continues. Exit: released, or ended.
    LEAVING = "leaving"
    #: Entry: lost, failed, given up or closed. Duty: close the ZooKeeper session. Exit: none; another session joins.
    ENDED = "ended"


#: The legal changes of a session's phase: it may end at any time.
MOVES: Mapping[SessionPhase, frozenset[SessionPhase]] = {
    SessionPhase.OPENING: frozenset({SessionPhase.JOINING, SessionPhase.ENDED}),
    SessionPhase.JOINING: frozenset({SessionPhase.JOINED, SessionPhase.ENDED}),
    SessionPhase.JOINED: frozenset({SessionPhase.LEAVING, SessionPhase.ENDED}),
    SessionPhase.LEAVING: frozenset({SessionPhase.ENDED}),
    SessionPhase.ENDED: frozenset(),
}


class GroupSession(Generic[RoleT]):
    """
    One ZooKeeper session in one group.

    ``over`` is done when the session ends, with the error that ended it, or None if the session was lost or closed.

    Args:
        process: The process that the session belongs to.
        kind: The kind of role that the process has in its group.
        first: Whether this is the first session of this process in the group.
        denied: Why an earlier session ended, if a right was missing. This session joins only if the right is there.
    """

    def __init__(
        self,
        process: ProcessContext,
        kind: RoleKind[RoleT],
        *,
        first: bool,
        denied: AuthorizationError | None = None,
    ) -> None:
        self._process = process
        self._kind = kind
        self._first = first
        self._denied = denied
        self._config = process.config
        self._zookeeper = process.zookeeper
        self._metrics = process.metrics
        self._layout = kind.layout(process.config.group)
        self._tasks = TaskSet(self.fail)
        self.phase = SessionPhase.OPENING
        self._began_s = process.runtime.boot_time_s()
        #: The step that joining waits for, for error messages.
        self._step = "the chroot"
        #: Whether the watchdog ended the session: the application may still be processing the same records.
        self.stalled = False
        self.session = Session(process.zookeeper, process.metrics, self._on_session, process.runtime)
        #: The member id of a process that was admitted; "" before that.
        self.member_id = ""
        self._role: RoleT | None = None
        #: Run while the process takes part in the group.
        self._threads: tuple[Heartbeat | Watchdog, ...] = ()
        self.over: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    @property
    def role(self) -> RoleT:
        """The role of a process that was admitted."""
        assert self._role is not None, "the process was not admitted yet"
        return self._role

    @property
    def leads(self) -> bool:
        """Whether this process is the group's leader."""
        return self._active and self.role.candidacy is not None and self.role.candidacy.leads

    async def join(self, by_s: float) -> None:
        """
        Open the session and join the group.

        Args:
            by_s: When to give up, in seconds on the event loop's clock. The session is then closed in the background,
                as soon as a server can be reached.

        Raises:
            NoZooKeeperError: ZooKeeper did not answer in time; the message names the step that the join waited for.
            SessionLostError: The session ended before the process had joined. The next session may succeed.
            ChrootMissingError: The chroot does not exist.
            CredentialsError: ZooKeeper refused the user or the password of SASL, or it requires SASL.
            AuthorizationError: ZooKeeper refused a request because of an ACL.
            ConfigError: ``heartbeat_interval_ms`` is too long for the timeout granted to the first session.
            GroupConfigError: The group's settings differ from this member's, or cannot be read.
            ForeignMemberError: Foreign members are alive in the group.
        """
        loop = asyncio.get_running_loop()
        left_s = by_s - loop.time() - _SILENCE_S
        # A caller that gets the error soon needs no warning. The supervisor logs failures of later sessions.
        warning = loop.call_later(_SILENCE_S, self._warn_of_silence, left_s) if left_s >= _SILENCE_S else None
        try:
            async with asyncio.timeout_at(by_s):
                await self._join_group()
        except TimeoutError:
            self._finish(None)
            # The close runs in the background: a server that has not answered so far may not answer the close either.
            self.session.abandon("it did not answer in time")
            await self._tasks.cancel()
            raise NoZooKeeperError(await self._timeout_message()) from None
        except BaseException:
            await self.close()
            raise
        finally:
            if warning is not None:
                warning.cancel()

    def _warn_of_silence(self, left_s: float) -> None:
        if self._first and not self.session.id:
            log.warning(
                "group %s: no ZooKeeper server at %s has answered for %g s; trying for %.0f s more",
                self._config.group,
                self._zookeeper.hosts,
                _SILENCE_S,
                left_s,
            )

    async def _join_group(self) -> None:
        await self.session.open()
        self._check_timeout()
        self._check_heartbeat(strictly=self._first)
        self._continue_in(SessionPhase.JOINING)
        if self._denied is not None:
            # The member would own partitions again, and lose them again at the same request.
            self._step = "the right that was missing"
            await self.session.check_right(self._denied)
        self._step = "the group's settings and members"
        await self._kind.admit(self.session, self._layout, self._config)
        # Znodes are created only now, because a process that is refused must leave none in a group.
        self._step = "the group's folders"
        await self.session.ensure(self._layout.parents)
        process, context = self._process, self._new_context()
        self.member_id = context.member_id
        self._role = role = self._kind.new_role(context)
        self._threads = (
            Heartbeat(
                self.session, role.proof, process.zookeeper.heartbeat_interval_ms, process.metrics, process.runtime
            ),
            Watchdog(process.config, role.in_progress, role.stalled, self._give_up, process.metrics, process.runtime),
        )
        self._step = "the registration"
        await role.register()
        self._continue_in(SessionPhase.JOINED)
        for thread in self._threads:
            thread.start()
        if role.candidacy is not None:
            role.candidacy.enter()
        self._tasks.start(self._check_regularly(context))
        self._step = "what follows the registration"
        await role.joined()
        process.refusals.clear()

    def _new_context(self) -> SessionContext:
        """Return the context of the open session, whose id is part of the member id."""
        config, runtime = self._config, self._process.runtime
        started_ms = runtime.wall_ms()
        job = f"{config.job}." if config.job is not None else ""
        return SessionContext(
            config=config,
            layout=self._layout,
            member_id=make_member_id(config.group, job + runtime.host(), started_ms, self.session.id),
            started_ms=started_ms,
            began_s=self._began_s,
            session=self.session,
            tasks=self._tasks,
            metrics=self._metrics,
            runtime=runtime,
        )

    def _continue_in(self, phase: SessionPhase) -> None:
        """
        Enter the next phase of a join.

        Raises:
            SessionLostError: The session ended after the last answer had come.
        """
        if self.ended:
            raise SessionLostError(f"the ZooKeeper session is over: {self.session.ended}")
        self._enter(phase)

    def _enter(self, phase: SessionPhase) -> None:
        """Enter a phase, which must be the present phase or one that ``MOVES`` permits."""
        before = self.phase
        assert phase is before or phase in MOVES[before], (self._config.group, before, phase)
        self.phase = phase

    @property
    def ended(self) -> bool:
        """Whether the session is over, so that only ``close`` is left to do."""
        return self.phase is SessionPhase.ENDED

    @property
    def _active(self) -> bool:
        """Whether the process takes part in the group: it has joined, and the session has not ended."""
        return self.phase in (SessionPhase.JOINED, SessionPhase.LEAVING)

    async def _timeout_message(self) -> str:
        """Return an error message with the step of the join that ZooKeeper did not answer."""
        hosts, limit_s = self._zookeeper.hosts, self._zookeeper.connect_timeout_ms / 1000
        if not self.session.id:
            return await self._process.runtime.no_answer(self._zookeeper)
        return (
            f"ZooKeeper at {hosts} opened a session, and then did not answer within {limit_s:g} s in all (joining group"
            f" {self._config.group}, waiting for {self._step}); is it overloaded, stopped, or without a quorum?"
        )

    def _check_timeout(self) -> None:
        asked_ms, granted_ms = self._zookeeper.session_timeout_ms, self.session.timeout_ms
        if self._first and granted_ms != asked_ms:
            log.warning(
                "group %s: session_timeout_ms: %d was asked for, and ZooKeeper granted %d, the nearest that its"
                " minSessionTimeout and maxSessionTimeout allow (2 and 20 times its tickTime by default)",
                self._config.group,
                asked_ms,
                granted_ms,
            )

    def _check_heartbeat(self, *, strictly: bool) -> None:
        """
        Check the heartbeat interval against the granted session timeout. Servers may grant different timeouts.

        In the first session, an interval that is too long is an error for the user to correct. Later, it is a warning.
        """
        try:
            check_heartbeat_interval(self.session.timeout_ms, self._zookeeper.heartbeat_interval_ms)
        except ConfigError as error:
            if strictly:
                raise
            log.warning("group %s: %s; using a third of the granted session timeout for now", self._config.group, error)

    def _give_up(self, reason: str) -> None:
        """Give up the session because the watchdog's limit is reached. The watchdog's thread calls this method."""
        self.stalled = True
        self.session.abandon(reason)

    def _on_session(self, event: SessionEvent) -> None:
        if event is SessionEvent.ENDED:
            self._finish(None)
        elif event is SessionEvent.SUSPENDED:
            log.warning("group %s: the connection to ZooKeeper broke; %s", self._config.group, self._kind.paused)
            self._metrics.count("zookeeper_suspensions")
        elif self._active:
            # This line has the level of the line about the break, so that an operator who sees one sees the other.
            log.warning("group %s: the connection to ZooKeeper is back, on the same session", self._config.group)
            self._check_heartbeat(strictly=False)
            self._recheck_candidates()
            self.role.recheck()

    def _recheck_candidates(self) -> None:
        if self.role.candidacy is not None:
            self.role.candidacy.recheck()

    async def _check_regularly(self, context: SessionContext) -> None:
        """
        Check the election and the registration at regular intervals, and follow changed ACLs. At each check, a leader
        also plans again.
        """
        while True:
            await asyncio.sleep(context.audit_interval_s())
            await self.session.follow_acls()
            self._recheck_candidates()
            await self.role.restore()

    def fail(self, error: BaseException) -> None:
        """
        End the session because of an error. If the error is not fatal, another session follows.
        """
        if isinstance(error, AuthorizationError) and self.ended:
            return  # Several requests need the same right.
        # The message of this library's own errors is complete. Any other error is a bug and needs its traceback.
        trace = None if isinstance(error, KielGroupsError) else error
        is_leaving = self.phase is SessionPhase.LEAVING
        is_denied = isinstance(error, AuthorizationError) and not is_leaving
        is_last = is_fatal(error) or (is_leaving and trace is None)
        what = "this member stops" if is_last else f"{self.member_id} failed"
        if is_denied:
            what = f"{self.member_id} ends its session, and joins again when it has the right"
        message = str(error).removeprefix(f"group {self._config.group}: ")
        # A command prints the error that ends it, unless a log line has already reported that error.
        extra = {"reports": error}
        level = logging.ERROR if self._process.refusals.is_news(error) else logging.DEBUG
        log.log(level, "group %s: %s: %s", self._config.group, what, message, exc_info=trace, extra=extra)
        self._metrics.count("sessions_denied" if is_denied else "member_failures")
        self._finish(error)

    def _finish(self, error: BaseException | None) -> None:
        """Shut the gate, stop all parts of the session, and complete ``over``."""
        self.session.gate.shut("membership over")
        if self._active:
            for thread in self._threads:
                thread.stop()
            if self.role.candidacy is not None:
                self.role.candidacy.end()
            self.role.end()
        self._enter(SessionPhase.ENDED)
        if not self.over.done():
            self.over.set_result(error)

    async def leave(self) -> None:
        """Release what the process owns, then close the session."""
        if self._active:
            self._enter(SessionPhase.LEAVING)
            alone = self.role.candidacy is not None and self.role.candidacy.alone
            releasing = asyncio.ensure_future(self.role.release(alone=alone))
            either: set[asyncio.Future[Any]] = {releasing, self.over}
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                # If the session ends first, nothing is left to release, and the error of its end was logged.
                if releasing.done() and (error := releasing.exception()) and not isinstance(error, SessionLostError):
                    self.fail(error)
            finally:
                releasing.cancel()
        await self.close()

    def close(self) -> asyncio.Future[Any]:
        """
        Close the session. ZooKeeper then deletes the session's ephemeral znodes at once.

        The close begins before this method returns, so a caller that is cancelled before it awaits the future leaves no
        session behind. Without a running event loop, use ``abandon`` of the session.

        Returns:
            A future that is done when the session's tasks and kazoo's client have ended; see ``Session.close``.
        """
        self._finish(None)
        # Both run concurrently: a slow hook of the application must not delay the close of the session.
        closed = self.session.close()
        return asyncio.gather(self._tasks.cancel(), closed)

    async def close_within(self, limit: CloseLimit) -> None:
        """Close the session as ``close`` does. After the limit, leave the rest to the session's threads."""
        try:
            async with limit.timeout():
                await self.close()
        except TimeoutError:
            log.warning("group %s: ZooKeeper does not close the session in time; it may expire", self._config.group)
            self.session.abandon("closed")


def is_fatal(error: BaseException | None) -> bool:
    """Return whether a new session would fail with the same error."""
    return isinstance(error, (ConfigError, CoordinationError)) and not error.retriable


#: The longest pause before a join is tried again, in seconds, longer or shorter by up to half. The first pause
#: is ``retry_backoff_ms``.
LONGEST_JOIN_PAUSE_S = 5.0


class SessionSupervisor(Generic[RoleT]):
    """
    Keeps one process in one group, from ``start`` to ``close``, on one session after another.

    Args:
        process: The process; its ``connect_timeout_ms`` is how long a session may take to join.
        kind: The kind of role that the process has on its sessions.
        on_failure: Called with an error that a new session cannot fix: settings that differ from the group's, or
            foreign members.
        joined: Called with each session that has joined the group.
    """

    def __init__(
        self,
        process: ProcessContext,
        kind: RoleKind[RoleT],
        on_failure: Callable[[KielGroupsError], None],
        joined: Callable[[GroupSession[RoleT]], None] = lambda session: None,
    ) -> None:
        self._process = process
        self._kind = kind
        self._joined = joined
        self._group = process.config.group
        self._first_pause_s = process.config.retry_backoff_ms / 1000
        self._limit_s = process.zookeeper.connect_timeout_ms / 1000
        self._metrics = process.metrics
        self._runtime = process.runtime
        self._on_failure = on_failure
        #: The current session. While the next session is joining, after a fatal error, and after ``close``, it is the
        #: last session. None before the start, and after a replacement failed with a fatal error.
        self.current: GroupSession[RoleT] | None = None
        #: Why the last join failed, or None after a success.
        self._cause: str | None = None
        #: The right that was missing on the last session. And the pauses before the next session, which grow if
        #: ZooKeeper refuses a right, or an ACL of new znodes, on one session after another.
        self._denied: AuthorizationError | None = None
        self._denials = self._new_backoff()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._closing: set[asyncio.Future[Any]] = set()

    @property
    def member_id(self) -> str | None:
        """The member id of the current session, which changes with each session, or None before the first session."""
        return self.current.member_id if self.current else None

    @property
    def leads(self) -> bool:
        """Whether this process is the group's leader."""
        return self.current is not None and self.current.leads

    async def start(self) -> None:
        """
        Join with a first session, and replace lost sessions in the background.

        If the first session ends before it has joined, the next session gets the rest of the time.

        Raises:
            KielGroupsError: This error prevents the first session from joining, even if it is a missing right.
            ClosedError: ``close`` was called.
        """
        by_s, backoff = self._due_s(), self._new_backoff()
        while self.current is None:
            try:
                self.current = await self._start_session(by_s)
            except SessionLostError as error:
                self._join_failed(error)
                # The pause must not exceed the time limit, or the error would come late.
                await asyncio.sleep(min(backoff.next_s(), max(0.0, by_s - asyncio.get_running_loop().time())))
        self._task = asyncio.get_running_loop().create_task(self._supervise())

    async def close(self, limit: CloseLimit | None = None) -> None:
        """
        End the current session, and start no other session.

        Args:
            limit: When the close must end. If the process needs too long to leave in order, it uses the last part of
                the time to close the session. If ZooKeeper does not close the session in time, the close continues in
                the background. None means no limit.
        """
        self._is_closed = True
        try:
            await self._close(limit or CloseLimit())
        except BaseException:
            # The caller waits no longer: begin the close, and do not wait for it.
            if self.current is not None:
                self.current.close()
            raise

    async def _close(self, limit: CloseLimit) -> None:
        if self._task is not None:
            await cancelled_by({self._task}, limit)
        if self.current is not None:
            await self._leave(self.current, limit)
        if self._closing:
            with suppress(TimeoutError):
                async with limit.timeout():
                    await asyncio.wait(self._closing)
        await cancelled_by(set(self._closing), limit)

    async def _leave(self, session: GroupSession[RoleT], limit: CloseLimit) -> None:
        try:
            async with limit.timeout(reserves=True):
                await session.leave()
        except TimeoutError:
            log.warning(
                "group %s: leaving although the application or a server is not done: the time limit is over",
                self._group,
            )
            await session.close_within(limit)

    def forget_denied(self) -> None:
        """Let the next session join without the right that the last session lacked."""
        self._denied = None

    def _due_s(self) -> float:
        """Return when a session that starts now must have joined, on the event loop's clock."""
        return asyncio.get_running_loop().time() + self._limit_s

    async def _open_and_join(self, by_s: float) -> GroupSession[RoleT]:
        """
        Open a session, join the group by the time ``by_s`` of the event loop's clock, and return the session.

        If the watchdog has ended the last session, first wait until the application makes progress.
        """
        if self.current is not None and self.current.stalled:
            role = self.current.role
            await caught_up(role.in_progress, role.in_progress())
            # The time that the application took does not count against the connect timeout.
            by_s = self._due_s()
        session = GroupSession(self._process, self._kind, first=self.current is None, denied=self._denied)
        await session.join(by_s)
        self._joined(session)
        return session

    async def _start_session(self, by_s: float) -> GroupSession[RoleT]:
        session = await self._open_and_join(by_s)
        if self._is_closed:
            await session.close()
            raise ClosedError(f"group {self._group}: closed while it was joining")
        self._metrics.count("sessions_opened")
        self._cause = None
        return session

    async def _supervise(self) -> None:
        """Wait for the end of each session, and start the next one."""
        while self.current is not None:
            # The future is shielded: the cancellation of this task must not cancel a future that other tasks await,
            # too.
            error = await asyncio.shield(self.current.over)
            self._metrics.count("sessions_lost")
            self._close_in_background(self.current)
            if is_fatal(error):
                self._fail(error)
                return
            self._denied = error if isinstance(error, AuthorizationError) else None
            if isinstance(error, (AuthorizationError, CredentialsError)):
                # The session has logged the error. A join that fails for the same reason logs nothing.
                self._cause = _cause(error)
                await asyncio.sleep(self._denials.next_s())
            else:
                self._denials.reset()
                log.warning(
                    "group %s: the session of %s is over (%s); joining again",
                    self._group,
                    self.current.member_id,
                    error or self.current.session.ended,
                )
            await self._rejoin()

    def _close_in_background(self, session: GroupSession[RoleT]) -> None:
        """Close a session without waiting: an unreachable server may delay the close, but not the next session."""
        closing = session.close()
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _new_backoff(self) -> Backoff:
        return Backoff(self._first_pause_s, LONGEST_JOIN_PAUSE_S, lambda: self._runtime.uniform(0.5, 1.5))

    async def _rejoin(self) -> None:
        backoff = self._new_backoff()
        while True:
            await asyncio.sleep(backoff.next_s())
            try:
                self.current = await self._start_session(self._due_s())
                # This line has the level of the line about the loss, so that an operator who sees one sees the other.
                log.warning("group %s: joined again, as %s", self._group, self.current.member_id)
                return
            except Exception as error:
                if is_fatal(error):
                    log.error("group %s: this member stops: %s", self._group, error)
                    self.current = None
                    self._fail(error)
                    return
                self._join_failed(error)

    def _join_failed(self, error: Exception) -> None:
        """Count a failed join that is retried. Log the cause, unless the last join failed for the same cause."""
        self._metrics.count("joins_failed")
        cause, self._cause = self._cause, _cause(error)
        if cause == self._cause or not self._process.refusals.is_news(error):
            return
        # Any error but this library's own is a bug or a lack of resources, and needs its traceback.
        trace = None if isinstance(error, KielGroupsError) else error
        log.warning(
            "group %s: could not join: %s; retrying, with pauses of up to %g s",
            self._group,
            error,
            LONGEST_JOIN_PAUSE_S,
            exc_info=trace,
        )

    def _fail(self, error: BaseException | None) -> None:
        assert isinstance(error, KielGroupsError)
        self._on_failure(error)


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
