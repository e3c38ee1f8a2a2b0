"""One session of a process whose role only notes what the session asks of it, from its opening to its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import replace
from enum import Enum
from functools import partial

import pytest

from kiel_groups.allocators import round_robin
from kiel_groups.config import GroupConfig, ZooKeeperConfig
from kiel_groups.errors import (
    AuthorizationError,
    ConfigError,
    CoordinationError,
    CredentialsError,
    KielGroupsError,
    NoZooKeeperError,
    SessionLostError,
)
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.listeners import Stall
from kiel_groups.members.partition_handler import Work
from kiel_groups.members.zookeeper.group_session import GroupSession, SessionSupervisor, is_fatal
from kiel_groups.members.zookeeper.leader import Candidacy
from kiel_groups.members.zookeeper.planner import PartitionPlanner
from kiel_groups.metrics import Metrics
from kiel_groups.zookeeper.session import Session
from kiel_groups.zookeeper.tasks import SessionContext
from tests.fakes import FakeEnsemble, SimulatedProcess, Timeline
from tests.helpers.contexts import process_context

pytestmark = pytest.mark.sim

ASKED_MS = 10_000
#: What a server grants that allows only shorter timeouts. A third of it is less than ``HEARTBEAT_MS``.
GRANTED_MS = 6_000
HEARTBEAT_MS = 3_300
#: The limit of the watchdog, and the interval of the regular check, longer or shorter by up to a third.
STALL_MS, CHECK_MS = 2_000, 3_000
#: The default of ``connect_timeout_ms``.
LIMIT_S = 15.0


class Step(Enum):
    """A step of a join, as the error of a join that waits for it names the step."""

    CHROOT = "the chroot"
    ADMISSION = "the group's settings and members"
    FOLDERS = "the group's folders"
    REGISTRATION = "the registration"
    START = "what follows the registration"


class Role:
    """A role that counts the calls of its methods, and waits for ever in ``endless`` and, if asked, in its release."""

    def __init__(self, context: SessionContext, endless: Step | None) -> None:
        self.proof = context.layout.election
        self.candidacy = Candidacy(context, partial(PartitionPlanner, context, round_robin, None), self.proof)
        self.rechecks = self.restores = 0
        self.works: list[Work] = []
        self.releases_for_ever = False
        self.release_error: KielGroupsError | None = None
        #: The endings of its release, and of a task that it has started on its session.
        self.release_ended, self.task_ended = asyncio.Event(), asyncio.Event()
        self._tasks = context.tasks
        self._endless = endless

    async def register(self) -> None:
        await wait_if(self._endless is Step.REGISTRATION)

    async def joined(self) -> None:
        self._tasks.start(wait_for_ever(self.task_ended))
        await wait_if(self._endless is Step.START)

    def recheck(self) -> None:
        self.rechecks += 1

    async def restore(self) -> None:
        self.restores += 1

    def in_progress(self) -> Collection[Work]:
        return self.works

    def stalled(self, stall: Stall) -> None:
        """Ignore the stall."""

    async def release(self, *, alone: bool) -> None:
        if self.release_error is not None:
            raise self.release_error
        if self.releases_for_ever:
            await wait_for_ever(self.release_ended)

    def end(self) -> None:
        """Drop nothing."""


class Kind:
    """The kind of ``Role``. ``endless`` is the step of each join that waits for ever."""

    paused = "nothing is paused"

    def __init__(self, endless: Step | None = None) -> None:
        self.endless = endless
        self.roles: list[Role] = []

    def layout(self, group: str) -> GroupLayout:
        return GroupLayout(group)

    async def admit(self, session: Session, layout: GroupLayout, config: GroupConfig) -> None:
        await wait_if(self.endless is Step.ADMISSION)

    def new_role(self, context: SessionContext) -> Role:
        self.roles.append(Role(context, self.endless))
        return self.roles[-1]


async def wait_for_ever(ended: asyncio.Event) -> None:
    """Wait until the task is cancelled, and set ``ended`` then."""
    try:
        await asyncio.Event().wait()
    finally:
        ended.set()


async def wait_if(endless: bool) -> None:
    """Wait for ever, or not at all."""
    if endless:
        await wait_for_ever(asyncio.Event())


class ProcessBench:
    """A process, its only server, and the sessions that it opens."""

    def __init__(self, endless: Step | None = None, heartbeat_ms: int | None = None) -> None:
        self.timeline = Timeline(1)
        self.ensemble = FakeEnsemble(self.timeline, 1)
        self.process = SimulatedProcess(self.ensemble)
        self.metrics = Metrics()
        self.kind = Kind(endless)
        config = GroupConfig(group="g", max_poll_interval_ms=STALL_MS, reconcile_interval_ms=CHECK_MS)
        zookeeper = ZooKeeperConfig(hosts="fake1:2181", session_timeout_ms=ASKED_MS, heartbeat_interval_ms=heartbeat_ms)
        if endless is Step.CHROOT:
            zookeeper = replace(zookeeper, hosts="fake1:2181/chroot")
        self.context = process_context(config, zookeeper, metrics=self.metrics, runtime=self.process.runtime)

    def new_session(self, *, first: bool = True) -> GroupSession[Role]:
        session = self.process.call(lambda: GroupSession(self.context, self.kind, first=first))
        if self.kind.endless is Step.CHROOT:
            session.session.exists = lambda *_: wait_if(True)  # type: ignore[method-assign]
        if self.kind.endless is Step.FOLDERS:
            session.session.ensure = lambda *_: wait_if(True)  # type: ignore[method-assign]
        return session

    def join(self, session: GroupSession[Role]) -> None:
        """Have a session join, and raise the error of the join."""
        joining = self.process.start(session.join(self.timeline.now_s + LIMIT_S))
        self.timeline.run_until(joining.done, LIMIT_S + 5.0)
        joining.result()

    def joined(self) -> GroupSession[Role]:
        """Return a session that has joined."""
        session = self.new_session()
        self.join(session)
        return session

    def pass_s(self, seconds: float) -> None:
        """Advance the time, and raise the first error that no code has handled."""
        self.timeline.run_for(seconds)
        if self.timeline.failures:
            raise self.timeline.failures[0]


# The join


@pytest.mark.parametrize("step", Step)
def test_a_join_that_takes_too_long_names_its_step(step: Step) -> None:
    """The error of a join without an answer names the step that the join waits for."""
    bench = ProcessBench(endless=step)
    with pytest.raises(NoZooKeeperError, match=f"joining group g, waiting for {step.value}"):
        bench.joined()


def test_a_join_that_takes_too_long_leaves_no_task() -> None:
    """When a join has timed out, the tasks that its role has started have ended."""
    bench = ProcessBench(endless=Step.START)
    with pytest.raises(NoZooKeeperError):
        bench.joined()
    assert bench.kind.roles[0].task_ended.is_set()


def test_a_process_leads_only_between_its_join_and_the_end_of_its_session() -> None:
    """A session that is opening or over does not lead, although it is the only candidate in between."""
    bench = ProcessBench()
    session = bench.new_session()
    leads = [session.leads]
    bench.join(session)
    bench.pass_s(1.0)
    leads.append(session.leads)
    bench.process.call(session.fail, ValueError("a bug"))
    leads.append(session.leads)
    assert leads == [False, True, False]


# The granted session timeout


def granted_warnings(caplog: pytest.LogCaptureFixture) -> int:
    """Return how often the log says that ZooKeeper granted another timeout than requested."""
    return caplog.text.count(f"session_timeout_ms: {ASKED_MS} was asked for, and ZooKeeper granted {GRANTED_MS}")


def heartbeat_warnings(caplog: pytest.LogCaptureFixture) -> int:
    """Return how often the log says that the heartbeat interval is too long for the granted timeout."""
    return caplog.text.count("using a third of the granted session timeout for now")


def test_another_timeout_than_requested_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """The first session logs that ZooKeeper granted another timeout than requested. Its successors do not."""
    bench = ProcessBench()
    bench.ensemble.max_session_timeout_ms = GRANTED_MS
    bench.join(bench.new_session(first=True))
    assert granted_warnings(caplog) == 1
    bench.join(bench.new_session(first=False))
    assert granted_warnings(caplog) == 1


def test_the_first_session_refuses_a_heartbeat_interval_that_is_too_long() -> None:
    """A heartbeat interval above a third of the granted timeout ends the first join with an error for the user."""
    bench = ProcessBench(heartbeat_ms=HEARTBEAT_MS)
    bench.ensemble.max_session_timeout_ms = GRANTED_MS
    with pytest.raises(ConfigError, match=f"heartbeat_interval_ms: {HEARTBEAT_MS} given"):
        bench.joined()


def test_a_later_session_joins_although_the_heartbeat_interval_is_too_long(caplog: pytest.LogCaptureFixture) -> None:
    """A server that grants a later session a shorter timeout is no error of the user: the member joins, and warns."""
    bench = ProcessBench(heartbeat_ms=HEARTBEAT_MS)
    bench.ensemble.max_session_timeout_ms = GRANTED_MS
    bench.join(bench.new_session(first=False))
    assert heartbeat_warnings(caplog) == 1


def test_a_shorter_timeout_after_a_reconnection_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """
    If a server grants a shorter timeout at a reconnection, and the heartbeat interval is too long for it, the session
    continues with a warning, even if it is the first one.
    """
    bench = ProcessBench(heartbeat_ms=HEARTBEAT_MS)
    session = bench.joined()
    assert heartbeat_warnings(caplog) == 0
    bench.ensemble._granted[session.session.id] = GRANTED_MS
    bench.process.reset()
    bench.pass_s(2.0)
    assert heartbeat_warnings(caplog) == 1
    assert not session.ended


# The session of a process that has joined


def test_watched_znodes_are_read_again_when_the_connection_is_back() -> None:
    """When the connection is back, the role reads again what it watches, because watches may have been lost."""
    bench = ProcessBench()
    session = bench.joined()
    assert session.role.rechecks == 0
    bench.process.reset()
    bench.pass_s(1.0)
    assert session.role.rechecks == 1


def test_deleted_znodes_are_restored_at_regular_intervals() -> None:
    """The regular check has the role restore znodes that an operator has deleted."""
    bench = ProcessBench()
    session = bench.joined()
    bench.pass_s(3 * 4 / 3 * CHECK_MS / 1000)
    assert session.role.restores >= 3


def test_a_stall_ends_the_session() -> None:
    """A session that the watchdog has ended says so: the process must not join again before the application resumes."""
    bench = ProcessBench()
    stalled, lost = bench.joined(), bench.joined()
    stalled.role.works = [Work(object(), "processing", frozenset())]
    bench.process.call(lost.session.end, "lost in the test")
    bench.pass_s(2 * STALL_MS / 1000)
    assert (stalled.ended, stalled.stalled) == (True, True)
    assert (lost.ended, lost.stalled) == (True, False)


# The end of a session


def test_a_session_that_fails_shuts_its_gate_at_once() -> None:
    """
    When a session fails, nothing more is delivered or committed on it, although its ZooKeeper session is still open.
    """
    bench = ProcessBench()
    session = bench.joined()
    trusted = [session.session.trusted]
    bench.process.call(session.fail, ValueError("a bug"))
    trusted.append(session.session.trusted)
    assert trusted == [True, False]
    assert session.session.gate.shut_reason == "membership over"


def test_the_watchdog_stops_with_its_session() -> None:
    """After the end of a session, its watchdog reports no stall: the next session has a watchdog of its own."""
    bench = ProcessBench()
    session = bench.joined()
    session.role.works = [Work(object(), "processing", frozenset())]
    bench.process.call(session.session.end, "lost in the test")
    bench.pass_s(5 * STALL_MS / 1000)
    assert bench.metrics.total("stalls") == 0
    assert bench.metrics.total("watchdog_exits") == 0
    assert not session.stalled


def test_the_end_of_a_session_ends_its_release() -> None:
    """A session that ends while the process leaves has nothing left to release: the release is cancelled."""
    bench = ProcessBench()
    session = bench.joined()
    session.role.releases_for_ever = True
    leaving = bench.process.start(session.leave())
    bench.pass_s(5.0)
    assert not leaving.done()
    bench.process.call(session.session.end, "lost in the test")
    bench.timeline.run_until(leaving.done, 5.0)
    assert session.role.release_ended.is_set()


@pytest.mark.parametrize("error", [CoordinationError("not authorised"), SessionLostError("the session is over")])
def test_a_release_that_fails_is_logged(error: KielGroupsError, caplog: pytest.LogCaptureFixture) -> None:
    """The session is closed all the same. The end of the session is no failure of its release."""
    bench = ProcessBench()
    session = bench.joined()
    session.role.release_error = error
    with caplog.at_level(logging.ERROR):
        leaving = bench.process.start(session.leave())
        bench.timeline.run_until(leaving.done, 5.0)
    leaving.result()
    logged = [] if isinstance(error, SessionLostError) else ["group g: this member stops: not authorised"]
    assert [record.getMessage() for record in caplog.records] == logged
    assert bench.metrics.total("member_failures") == len(logged)
    assert session.ended


def test_a_missing_right_ends_the_session_once(caplog: pytest.LogCaptureFixture) -> None:
    """Two requests need the same right: there is one line, and the process may join again."""
    bench = ProcessBench()
    session = bench.joined()
    error = AuthorizationError("no right to write /a", path="/a", right="write")
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            bench.process.call(session.fail, error)
    bench.pass_s(0.1)
    assert session.over.result() is error
    assert not is_fatal(error)
    (record,) = caplog.records
    assert record.getMessage().startswith(f"group g: {session.member_id} ends its session, and joins again when it has")
    assert (bench.metrics.total("sessions_denied"), bench.metrics.total("member_failures")) == (1, 0)


def test_a_refused_acl_does_not_stop_the_process(caplog: pytest.LogCaptureFixture) -> None:
    """The session fails, and another one follows: the file with the ACL may be corrected meanwhile."""
    bench = ProcessBench()
    session = bench.joined()
    with caplog.at_level(logging.ERROR):
        bench.process.call(session.fail, CredentialsError("ZooKeeper does not accept the ACL"))
    (record,) = caplog.records
    assert record.getMessage() == f"group g: {session.member_id} failed: ZooKeeper does not accept the ACL"
    assert record.exc_info is None


def supervised(bench: ProcessBench) -> SessionSupervisor[Role]:
    """Return a supervisor whose first session has joined."""
    failures = list[KielGroupsError]()
    supervisor = bench.process.call(lambda: SessionSupervisor(bench.context, bench.kind, failures.append))
    starting = bench.process.start(supervisor.start())
    bench.timeline.run_until(starting.done, 15.0)
    starting.result()
    return supervisor


def test_a_process_joins_again_when_it_has_the_right(caplog: pytest.LogCaptureFixture) -> None:
    """A candidate that may not read the election does not lead. It logs that once, and tries again."""
    bench = ProcessBench()
    denied = bench.ensemble.tree.denied
    supervised(bench)
    denied.add(("read", GroupLayout("g").election))
    with caplog.at_level(logging.WARNING):
        bench.pass_s(60.0)
        assert bench.metrics.total("sessions_opened") == 1
        assert bench.metrics.total("joins_failed") > 5
        assert bench.ensemble.tree.children(GroupLayout("g").election) == []
        denied.clear()
        bench.pass_s(15.0)
    assert bench.metrics.total("sessions_opened") == 2
    assert len(bench.ensemble.tree.children(GroupLayout("g").election)) == 1
    messages = [record.getMessage() for record in caplog.records]
    assert ["ZooKeeper refused to read" in message for message in messages] == [True, False]
    assert "joined again" in messages[-1]


def test_a_right_of_an_earlier_session_is_not_tried_for_ever() -> None:
    """A process that has worked without a right since does not need it to join again."""
    bench = ProcessBench()
    denied = bench.ensemble.tree.denied
    error = AuthorizationError("is refused", path=GroupLayout("g").election, right="write")
    supervisor = supervised(bench)
    assert supervisor.current is not None
    denied.add(("write", GroupLayout("g").election))
    bench.process.call(supervisor.current.fail, error)
    bench.pass_s(15.0)
    assert bench.metrics.total("sessions_opened") == 1
    denied.clear()
    bench.pass_s(15.0)
    assert bench.metrics.total("sessions_opened") == 2
    denied.add(("write", GroupLayout("g").election))
    bench.process.call(supervisor.current.session.end, "lost in the test")
    bench.pass_s(15.0)
    assert bench.metrics.total("sessions_opened") == 3
