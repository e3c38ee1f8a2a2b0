"""
The common part of members and allocator processes: one ZooKeeper session with its election, heartbeat and watchdog.

A ``GroupSession`` ends with its ZooKeeper session; ``SessionSupervisor`` then starts the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from enum import Enum
from typing import ClassVar

from kiel_groups.coordination.leader.election import Election
from kiel_groups.coordination.leader.foreign_members import ForeignMemberMonitor
from kiel_groups.coordination.leader.leader_driver import LeaderDriver
from kiel_groups.coordination.partition_handler import Work
from kiel_groups.coordination.session.heartbeat import Heartbeat
from kiel_groups.coordination.session.session_context import ProcessContext, SessionContext
from kiel_groups.coordination.session.session_tasks import TaskSet
from kiel_groups.coordination.session.watchdog import Watchdog
from kiel_groups.coordination.session.zk_session import Session, SessionEvent
from kiel_groups.errors import ConfigError, CoordinationError, KielGroupsError, NoZooKeeperError, SessionLostError
from kiel_groups.group.leader import candidate as election
from kiel_groups.group.member.lease import check_heartbeat_interval
from kiel_groups.group.znodes.contents import make_member_id
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.listeners import Stall

__all__ = ["GroupSession", "MOVES", "SessionPhase", "is_fatal"]

log = logging.getLogger(__name__)


class SessionPhase(Enum):
    """The phase of one session of a process in its group."""

    #: Entry: the start. Duty: connect to ZooKeeper. Exit: a server has granted a session.
    OPENING = "opening"
    #: Entry: the ZooKeeper session is open. Duty: create folders, check admission, register. Exit: registered.
    JOINING = "joining"
    #: Entry: registered. Duty: heartbeats, the election; a member claims partitions. Exit: leaving, or ended.
    JOINED = "joined"
    #: Entry: a member leaves in order. Duty: release its partitions, all else continues. Exit: released, or ended.
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


class GroupSession:
    """
    One ZooKeeper session in one group; ``first`` is true for the first session of this process in the group.

    ``over`` is done when the session ends, with the error that ended it, or None if it was lost or closed.
    """

    #: The effect of a broken connection, for the log.
    _paused: ClassVar[str] = "delivery is paused"

    def __init__(self, process: ProcessContext, *, first: bool) -> None:
        self._process = process
        self._config = process.config
        self._zookeeper = process.zookeeper
        self._metrics = process.metrics
        self._first = first
        self._layout = GroupLayout(process.config.group)
        self._tasks = TaskSet(self.fail)
        self._loop = asyncio.get_running_loop()
        self.phase = SessionPhase.OPENING
        #: The step that joining waits for, for error messages.
        self._step = "the chroot"
        #: Whether the watchdog ended the session: the application may still be processing the same records.
        self.stalled = False
        self.session = Session(process.zookeeper, process.metrics, self._on_session, process.runtime)
        self.over: asyncio.Future[BaseException | None] = self._loop.create_future()

    async def join(self, by_s: float) -> None:
        """
        Open the session and join the group.

        Args:
            by_s: When to give up, in seconds on the event loop's clock. The session is then closed in the background,
                as soon as a server can be reached.

        Raises:
            NoZooKeeperError: ZooKeeper did not answer by then; the message names the step that joining waited for.
            SessionLostError: The session ended before it had joined; the next session may succeed.
            ChrootMissingError: The chroot does not exist.
            ConfigError: ``heartbeat_interval_ms`` is too long for the timeout granted to the first session.
            GroupConfigError: The group's settings differ from this member's, or cannot be read.
            ForeignMemberError: Foreign members are alive in the group.
        """
        try:
            async with asyncio.timeout_at(by_s):
                await self._join_group()
        except TimeoutError:
            self._finish(None)
            # The close runs in the background: a server that has not answered so far may not answer the close either.
            self.session.abandon("it did not answer in time")
            await self._tasks.cancel()
            raise NoZooKeeperError(self._timeout_message()) from None
        except BaseException:
            await self.close()
            raise

    async def _join_group(self) -> None:
        await self.session.open()
        self._check_timeout()
        self._check_heartbeat(strictly=self._first)
        self._continue_in(SessionPhase.JOINING)
        self._step = "the group's folders"
        await self.session.ensure(self._layout.parents)
        await self._enroll()
        self._continue_in(SessionPhase.JOINED)
        self._heartbeat.start()
        self._watchdog.start()
        self._election.feed(election.EnterElection())
        self._tasks.start(self._check_regularly())
        self._step = "what follows the registration"
        await self._on_joined()

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
        """Enter a phase by a legal move, or remain in it."""
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

    def _timeout_message(self) -> str:
        """Return an error message that names the step ZooKeeper did not answer."""
        hosts, limit_s = self._zookeeper.hosts, self._zookeeper.connect_timeout_ms / 1000
        if not self.session.id:
            return f"no ZooKeeper server answered at {hosts} within {limit_s:g} s; is one running there?"
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
        Check the heartbeat interval against the granted session timeout, which may differ between servers.

        In the first session, an interval that is too long is an error for the user to correct. Later, it is a warning.
        """
        try:
            check_heartbeat_interval(self.session.timeout_ms, self._zookeeper.heartbeat_interval_ms)
        except ConfigError as error:
            if strictly:
                raise
            log.warning("group %s: %s; using a third of the granted session timeout for now", self._config.group, error)

    async def _enroll(self) -> None:
        """Check admission, choose the member id, call ``_set_up``, and register the znodes of this process."""
        raise NotImplementedError

    async def _on_joined(self) -> None:
        """Start the work of a session that has joined."""

    def _context(self) -> SessionContext:
        """Return the context of the open session, whose id is part of the member id."""
        config, runtime = self._config, self._process.runtime
        started_ms = runtime.wall_ms()
        job = f"{config.job}." if config.job is not None else ""
        self.member_id = make_member_id(config.group, job + runtime.host(), started_ms, self.session.id)
        return SessionContext(
            config=config,
            layout=self._layout,
            member_id=self.member_id,
            started_ms=started_ms,
            session=self.session,
            tasks=self._tasks,
            metrics=self._metrics,
            runtime=runtime,
        )

    def _set_up(self, context: SessionContext, proof: str) -> None:
        """Create the election, leader, heartbeat and watchdog; ``proof`` is the znode that each heartbeat checks."""
        runtime, metrics = context.runtime, context.metrics
        self._audit_interval_s = context.audit_interval_s
        self._foreign_members = ForeignMemberMonitor(context)
        self._leader_driver = LeaderDriver(context, self._process.allocator, self._check_candidacy)
        self._election = Election(context, proof, self._lead, self._resign)
        self._heartbeat = Heartbeat(self.session, proof, self._zookeeper.heartbeat_interval_ms, metrics, runtime)
        self._watchdog = Watchdog(self._config, self._in_progress, self._on_stall, self._give_up, metrics, runtime)

    def _in_progress(self) -> Collection[Work]:
        """Return the application's work in progress; also called from other threads."""
        return ()

    def _on_stall(self, stall: Stall) -> None:
        """Report work that makes no progress; called on a thread of its own."""

    def _give_up(self, reason: str) -> None:
        """Give up the session when the watchdog's limit is reached; called on the watchdog's thread."""
        self.stalled = True
        self.session.abandon(reason)

    def _lead(self, candidate: str, succeeds: bool) -> None:
        self._leader_driver.lead(candidate, succeeds=succeeds)
        self._foreign_members.start()

    def _resign(self) -> None:
        self._foreign_members.stop()
        self._leader_driver.resign()

    @property
    def leads(self) -> bool:
        """Whether this process is the group's leader."""
        return self._active and self._election.leads

    def _on_session(self, event: SessionEvent) -> None:
        if event is SessionEvent.ENDED:
            self._finish(None)
        elif event is SessionEvent.SUSPENDED:
            log.warning("group %s: the connection to ZooKeeper broke; %s", self._config.group, self._paused)
            self._metrics.count("zookeeper_suspensions")
        elif self._active:
            # Logged at the level of the break, so that an operator who sees one sees the other.
            log.warning("group %s: the connection to ZooKeeper is back, on the same session", self._config.group)
            self._check_heartbeat(strictly=False)
            self._recheck()

    def _recheck(self) -> None:
        """Read again everything that is watched: the watches may have been lost."""
        self._check_candidacy()

    async def _check_regularly(self) -> None:
        """Check the election and the registration at regular intervals; a leader then also plans again."""
        while True:
            await asyncio.sleep(self._audit_interval_s())
            self._check_candidacy()
            await self._restore_registration()

    async def _restore_registration(self) -> None:
        """Restore znodes of this process that an operator deleted and that other processes rely on."""

    def _check_candidacy(self) -> None:
        """Read the candidates again: an operator may have deleted the election znode, or a watch was lost."""
        self._election.feed(election.Resumed())

    def fail(self, error: BaseException) -> None:
        """End the session because of an error."""
        # The message of this library's own errors is complete. Any other error is a bug and needs its traceback.
        trace = None if isinstance(error, KielGroupsError) else error
        what = "this member stops" if is_fatal(error) else f"{self.member_id} failed"
        message = str(error).removeprefix(f"group {self._config.group}: ")
        # A command prints the error that ends it, unless a log line has already reported that error.
        extra = {"reports": error}
        log.error("group %s: %s: %s", self._config.group, what, message, exc_info=trace, extra=extra)
        self._metrics.count("member_failures")
        self._finish(error)

    def _finish(self, error: BaseException | None) -> None:
        """Shut the gate, stop all parts of the session, and complete ``over``."""
        self.session.gate.shut("membership over")
        if self._active:
            self._heartbeat.stop()
            self._watchdog.stop()
            self._leader_driver.close()
            self._election.feed(election.SessionEnded())
            self._on_end()
        self._enter(SessionPhase.ENDED)
        if not self.over.done():
            self.over.set_result(error)

    def _on_end(self) -> None:
        """Stop the parts that a subclass runs on the session."""

    async def leave(self) -> None:
        """Leave the group, then close the session; a member first releases its partitions."""
        await self.close()

    async def close(self) -> None:
        """Close the session, which deletes its ephemeral znodes at once."""
        self._finish(None)
        # Concurrently: a slow hook of the application must not delay the close of the session.
        await asyncio.gather(self._tasks.cancel(), self.session.close())


def is_fatal(error: BaseException | None) -> bool:
    """Whether a new session would fail with the same error."""
    return isinstance(error, (ConfigError, CoordinationError)) and not error.retriable
