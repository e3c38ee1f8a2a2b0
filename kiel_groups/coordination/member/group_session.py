"""
What a member and a mere candidate have in common: a session, a candidacy on it, a heartbeat, and an end.

When the session is over the life is over; ``SessionSupervisor`` makes the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import ClassVar

from kiel_groups.allocators import Allocator
from kiel_groups.config import GroupConfig, ZooKeeperConfig
from kiel_groups.coordination.leader.election import Election
from kiel_groups.coordination.leader.foreign_members import ForeignMemberMonitor
from kiel_groups.coordination.leader.leader_driver import LeaderDriver
from kiel_groups.coordination.member.owned_partitions import jittered_s
from kiel_groups.coordination.partition_handler import Work
from kiel_groups.coordination.session.heartbeat import Heartbeat
from kiel_groups.coordination.session.session_tasks import TaskSet
from kiel_groups.coordination.session.watchdog import Watchdog
from kiel_groups.coordination.session.zk_session import Session, SessionEvent
from kiel_groups.coordination.zookeeper import runtime
from kiel_groups.errors import ConfigError, CoordinationError, KielGroupsError, NoZooKeeperError
from kiel_groups.group.leader import candidate as election
from kiel_groups.group.member.lease import check_heartbeat_interval
from kiel_groups.group.znodes.contents import make_member_id
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.listeners import Stall
from kiel_groups.metrics import Metrics

__all__ = ["GroupSession", "is_fatal"]

log = logging.getLogger(__name__)


class GroupSession:
    """
    The life of one session in one group; ``first`` where none came before it.

    ``over`` is done when that life ends, with the error that ended it or None where only the session was lost.
    """

    #: What a broken connection stops, for the log.
    _paused: ClassVar[str] = "handing out is paused"

    def __init__(
        self, config: GroupConfig, zookeeper: ZooKeeperConfig, allocator: Allocator, metrics: Metrics, *, first: bool
    ) -> None:
        self._config = config
        self._zookeeper = zookeeper
        self._first = first
        self._layout = GroupLayout(config.group)
        self._allocator = allocator
        self._metrics = metrics
        self._tasks = TaskSet(self.fail)
        self._loop = asyncio.get_running_loop()
        self._joined = False
        #: What joining waits for, for people.
        self._step = "the chroot"
        #: Whether the watchdog ended it: what was in progress then may be so still.
        self.stalled = False
        self.session = Session(zookeeper, metrics, self._on_session)
        self.over: asyncio.Future[BaseException | None] = self._loop.create_future()

    async def join(self, by_s: float) -> None:
        """
        Open the session and take part.

        Args:
            by_s: When to give up, in seconds on the event loop's clock. Nothing of this life is left then: the session
                is closed in the background, as soon as a server can be reached.

        Raises:
            NoZooKeeperError: ZooKeeper did not answer by then; says what was waited for.
            SessionLostError: The session ended before that; the next one may do better.
            ChrootMissingError: The chroot does not exist.
            ConfigError: ``heartbeat_interval_ms`` is too long for the timeout that the server granted to a first life.
            GroupConfigError: The group lives by other settings.
            ForeignMemberError: Members that are not ours are alive in the group.
        """
        try:
            async with asyncio.timeout_at(by_s):
                await self._take_part()
        except TimeoutError:
            self._finish(None)
            # Not waited for: a server that did not answer so far may not answer the close either.
            self.session.abandon("it did not answer in time")
            await self._tasks.cancel()
            raise NoZooKeeperError(self._silence()) from None
        except BaseException:
            await self.close()
            raise

    async def _take_part(self) -> None:
        await self.session.open()
        self._check_timeout()
        self._check_heartbeat(strictly=self._first)
        self._step = "the group's folders"
        await self.session.ensure(self._layout.parents)
        await self._enter()
        self._joined = True
        self._heartbeat.start()
        self._watchdog.start()
        self._election.feed(election.Run())
        self._tasks.start(self._look_regularly())
        self._step = "what follows the registration"
        await self._entered()

    def _silence(self) -> str:
        """Return an error message that says what ZooKeeper did not answer."""
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
        Whether the setting suits what the server granted, which another server may grant another time.

        A user at the keyboard corrects it; a member that is needed makes do with the nearest one.
        """
        try:
            check_heartbeat_interval(self.session.timeout_ms, self._zookeeper.heartbeat_interval_ms)
        except ConfigError as error:
            if strictly:
                raise
            log.warning("group %s: %s; a third is used until then", self._config.group, error)

    async def _enter(self) -> None:
        """Check what there is to check, name oneself, ``_stand``, and register."""
        raise NotImplementedError

    async def _entered(self) -> None:
        """What follows when it has joined."""

    def _name(self) -> None:
        """A name after the session, which is known now."""
        self._started_ms = runtime.wall_ms()
        job = f"{self._config.job}." if self._config.job is not None else ""
        self.member_id = make_member_id(self._config.group, job + runtime.host(), self._started_ms, self.session.id)

    def _stand(self, proof: str) -> None:
        """Be able to stand for election and to lead; ``proof`` is the znode that every heartbeat checks."""
        session, layout, metrics = self.session, self._layout, self._metrics
        self._foreigners = ForeignMemberMonitor(session, layout, self._tasks, metrics)
        self._leading = LeaderDriver(
            session,
            layout,
            self.member_id,
            self._config,
            self._allocator,
            self._tasks,
            metrics,
            self._look_at_candidates,
        )
        self._election = Election(
            session, layout, self.member_id, proof, self._tasks, metrics, self._lead, self._resign
        )
        self._heartbeat = Heartbeat(
            session.connection, session.gate, proof, metrics, session.abandon, self._zookeeper.heartbeat_interval_ms
        )
        session.on_connected = self._heartbeat.beat_now
        self._watchdog = Watchdog(self._config, self._in_progress, self._hurry, self._give_up, metrics)

    def _in_progress(self) -> Collection[Work]:
        """What the application is busy with; called from other threads, too."""
        return ()

    def _hurry(self, stall: Stall) -> None:
        """Something does not get on; called on a thread of its own."""

    def _give_up(self, reason: str) -> None:
        """On the watchdog's thread: the time is up."""
        self.stalled = True
        self.session.abandon(reason)

    def _lead(self, candidate: str, succeeds: bool) -> None:
        self._leading.lead(candidate, succeeds=succeeds)
        self._foreigners.start()

    def _resign(self) -> None:
        self._foreigners.stop()
        self._leading.resign()

    @property
    def leads(self) -> bool:
        """Whether this is the group's leader."""
        return self._joined and self._election.leads

    def _on_session(self, event: SessionEvent) -> None:
        if event is SessionEvent.ENDED:
            self._finish(None)
        elif event is SessionEvent.SUSPENDED:
            log.warning("group %s: the connection to ZooKeeper broke; %s", self._config.group, self._paused)
            self._metrics.count("zookeeper_suspensions")
        elif self._joined:
            # As loud as the break: whoever heard of that waits for this.
            log.warning("group %s: the connection to ZooKeeper is back, on the same session", self._config.group)
            self._check_heartbeat(strictly=False)
            self._look_again()

    def _look_again(self) -> None:
        """Watches may have been lost."""
        self._look_at_candidates()

    async def _look_regularly(self) -> None:
        """Look at the election without a hint, which makes a leader plan anew, and at the registration."""
        while True:
            await asyncio.sleep(jittered_s(self._config.reconcile_interval_ms))
            self._look_at_candidates()
            await self._look_at_registration()

    async def _look_at_registration(self) -> None:
        """Restore znodes of this process that an operator has deleted and that other processes rely on."""

    def _look_at_candidates(self) -> None:
        """The election znode may have been deleted by hand, or a watch may be lost."""
        self._election.feed(election.Resumed())

    def fail(self, error: BaseException) -> None:
        """End it because of an error."""
        # An error of ours says all there is to say; any other one is a bug, and its place matters.
        trace = None if isinstance(error, KielGroupsError) else error
        what = "this member stops" if is_fatal(error) else f"{self.member_id} failed"
        told = str(error).removeprefix(f"group {self._config.group}: ")
        # A command prints the error that ends it, unless a line of the log has reported it.
        extra = {"reports": error}
        log.error("group %s: %s: %s", self._config.group, what, told, exc_info=trace, extra=extra)
        self._metrics.count("member_failures")
        self._finish(error)

    def _finish(self, error: BaseException | None) -> None:
        """The end: nothing of this session is trusted any more."""
        self.session.gate.shut("membership over")
        if self._joined:
            self._heartbeat.stop()
            self._watchdog.stop()
            self._leading.close()
            self._election.feed(election.SessionEnded())
            self._ended()
        if not self.over.done():
            self.over.set_result(error)

    def _ended(self) -> None:
        """What else ends with it."""

    async def leave(self) -> None:
        """End it in order."""
        await self.close()

    async def close(self) -> None:
        """Close the session; what is left of it in ZooKeeper goes at once."""
        self._finish(None)
        # Both at once: a hook of the application that takes its time must not keep a lost session alive.
        await asyncio.gather(self._tasks.cancel(), self.session.close())


def is_fatal(error: BaseException | None) -> bool:
    """Whether a new session would meet the same error."""
    return isinstance(error, (ConfigError, CoordinationError)) and not error.retriable
