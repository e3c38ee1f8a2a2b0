"""The lease: proofs that renew it, its end, and the heartbeat when ZooKeeper does not answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest
from kazoo.exceptions import ConnectionLoss, NoAuthError, NoNodeError, RolledBackError, SessionMovedError

from kiel_groups.allocators import round_robin
from kiel_groups.config import ZooKeeperConfig
from kiel_groups.errors import ConfigError
from kiel_groups.group.lease import check_heartbeat_interval, heartbeat_interval_s
from kiel_groups.members.zookeeper.allocator_process import allocator_kind
from kiel_groups.members.zookeeper.group_session import GroupSession
from kiel_groups.metrics import Metrics
from kiel_groups.zookeeper.delivery_gate import DeliveryGate
from kiel_groups.zookeeper.heartbeat import Heartbeat
from kiel_groups.zookeeper.kazoo_client import Connection
from tests.helpers.contexts import process_context
from tests.helpers.manual_runtime import ManualRuntime

pytestmark = pytest.mark.unit

TIMEOUT_MS = 6_000


@pytest.fixture
def gate(runtime: ManualRuntime) -> DeliveryGate:
    """Return the gate of a session with a timeout of 6 seconds, whose last proof was sent now."""
    gate = DeliveryGate()
    gate.grant(TIMEOUT_MS, runtime.now_s)
    gate.renew(runtime.now_s)
    return gate


def test_a_gate_is_closed_until_the_first_proof(runtime: ManualRuntime) -> None:
    """A gate is closed until the first proof. The opening of a session proves nothing."""
    gate = DeliveryGate()
    assert not gate.is_open(runtime.now_s)
    gate.grant(TIMEOUT_MS, runtime.now_s)
    assert not gate.is_open(runtime.now_s)
    assert not gate.is_over(runtime.now_s + 100)
    gate.renew(runtime.now_s)
    assert gate.is_open(runtime.now_s)


def test_a_lease_counts_from_the_sending_of_the_proof(runtime: ManualRuntime, gate: DeliveryGate) -> None:
    """
    A lease lasts half of the timeout from the sending of the proof, regardless of when the answer arrived. An older
    proof does not shorten the lease.
    """
    sent_s = runtime.now_s
    gate.renew(sent_s + 1)
    gate.renew(sent_s)
    assert gate.deadline_s == sent_s + 4
    assert gate.is_open(sent_s + 3.999)
    assert not gate.is_open(sent_s + 4)


def test_the_end_of_a_lease_is_final(runtime: ManualRuntime, gate: DeliveryGate) -> None:
    """After a caller has found the gate shut at the end of the lease, no proof opens the gate again."""
    assert not gate.is_open(runtime.now_s + 3)
    gate.renew(runtime.now_s + 3.1)
    assert not gate.is_open(runtime.now_s + 3.2)
    assert gate.shut_reason == "lease over"


def test_a_lease_whose_end_was_reported_is_not_renewed(runtime: ManualRuntime, gate: DeliveryGate) -> None:
    """
    A proof sent after the end of a lease does not reopen the gate.

    The simulator found this: a leader resumed after SIGSTOP, and its heartbeat kept the session of a member that could
    neither claim nor leave.
    """
    runtime.now_s += 4
    assert not gate.is_open(runtime.now_s)
    gate.renew(runtime.now_s)
    assert gate.is_over(runtime.now_s)


def test_a_suspended_connection_closes_the_gate(runtime: ManualRuntime, gate: DeliveryGate) -> None:
    """
    A suspended connection closes the gate. If the session is connected again within the lease, the gate opens again.
    """
    gate.suspended = True
    assert not gate.is_open(runtime.now_s)
    gate.suspended = False
    assert gate.is_open(runtime.now_s)


def test_a_gate_that_was_shut_stays_shut(runtime: ManualRuntime, gate: DeliveryGate) -> None:
    """A gate that was shut stays shut, and keeps the first reason."""
    gate.shut("closed")
    gate.shut("something else")
    gate.renew(runtime.now_s + 1)
    assert not gate.is_open(runtime.now_s)
    assert gate.shut_reason == "closed"


def test_a_shorter_timeout_shortens_the_lease(runtime: ManualRuntime, gate: DeliveryGate) -> None:
    """If another server grants a shorter timeout after a reconnection, the lease is shortened."""
    gate.grant(2_000, runtime.now_s)
    assert gate.deadline_s == runtime.now_s + 1
    gate.renew(runtime.now_s + 0.5)
    assert gate.deadline_s == runtime.now_s + 1.5


def test_a_longer_timeout_does_not_lengthen_the_lease(runtime: ManualRuntime, gate: DeliveryGate) -> None:
    """A longer timeout does not lengthen the lease, because other members rely on the timeout in the member znode."""
    gate.grant(2_000, runtime.now_s)
    gate.grant(10 * TIMEOUT_MS, runtime.now_s)
    gate.renew(runtime.now_s)
    assert gate.timeout_ms == TIMEOUT_MS
    assert gate.deadline_s == runtime.now_s + TIMEOUT_MS / 2_000


@pytest.mark.parametrize(("asked_ms", "expected_s"), [(None, 1.0), (250, 0.25), (2_000, 2.0), (5_000, 2.0)])
def test_the_heartbeat_interval(asked_ms: int | None, expected_s: float) -> None:
    """The heartbeat interval is a sixth of the granted timeout, or the setting, but at most a third of the timeout."""
    assert heartbeat_interval_s(TIMEOUT_MS, asked_ms) == pytest.approx(expected_s)


def test_an_interval_beyond_a_third_of_the_granted_timeout_is_refused() -> None:
    """
    A heartbeat interval above a third of the granted timeout is refused. The error has the setting, the largest
    possible value, and advice.
    """
    check_heartbeat_interval(TIMEOUT_MS, None)
    check_heartbeat_interval(TIMEOUT_MS, 2_000)
    with pytest.raises(ConfigError) as caught:
        check_heartbeat_interval(TIMEOUT_MS, 2_001)
    assert str(caught.value) == (
        "heartbeat_interval_ms: 2001 given; expected at most 2000, a third of the session timeout that ZooKeeper"
        " granted (6000 ms). Leave it out, or raise session_timeout_ms (and the server's maxSessionTimeout where that"
        " is what lowers it)"
    )


async def test_a_later_session_shortens_the_interval(caplog: pytest.LogCaptureFixture) -> None:
    """
    The first session refuses a heartbeat interval that is too large. A session after a lost one uses the largest
    possible interval instead, with a warning.
    """
    config = ZooKeeperConfig(hosts="h:1", heartbeat_interval_ms=2_001)
    first, later = (
        GroupSession(process_context(zookeeper=config), allocator_kind(round_robin), first=is_first)
        for is_first in (True, False)
    )
    for each in (first, later):
        each.session.gate.grant(TIMEOUT_MS, 0.0)
    with pytest.raises(ConfigError, match="heartbeat_interval_ms: 2001 given"):
        first._check_heartbeat(strictly=first._first)
    later._check_heartbeat(strictly=later._first)
    assert "group g: heartbeat_interval_ms: 2001 given; expected at most 2000" in caplog.text
    assert "using a third of the granted session timeout for now" in caplog.text


@pytest.mark.parametrize("given", [0, -1, 1.5, "100", True])
def test_a_heartbeat_interval_is_a_whole_number_of_milliseconds(given: Any) -> None:
    """The setting of the heartbeat interval must be a whole number of milliseconds, at least 1."""
    with pytest.raises(ConfigError, match=r"heartbeat_interval_ms: .* expected a whole number of at least 1"):
        ZooKeeperConfig(hosts="h:1", heartbeat_interval_ms=given)


class Answer:
    """The pending result of a request, as kazoo returns it."""

    def __init__(self) -> None:
        self.exception: Exception | None = None
        self.value: list[Any] = [True]
        self.is_set = False
        self._callback: Callable[[Answer], None] | None = None

    def rawlink(self, callback: Callable[[Answer], None]) -> None:
        self._callback = callback

    def set(self, *, exception: Exception | None = None, value: Any = True) -> None:
        self.exception, self.value, self.is_set = exception, [value], True
        assert self._callback is not None
        self._callback(self)


class Socket:
    def __init__(self) -> None:
        self.shut = 0

    def shutdown(self, how: int) -> None:
        self.shut += 1


class Client:
    """The part of kazoo's client that a heartbeat uses. ``sent`` lists its requests."""

    def __init__(self, runtime: ManualRuntime) -> None:
        self._runtime = runtime
        self._connection = self
        self._socket = Socket()
        self._stopped = threading.Event()
        self.sent: list[tuple[float, Answer]] = []

    def transaction(self) -> Client:
        return self

    def check(self, path: str, version: int) -> None:
        assert (path, version) == ("/m", -1)

    def commit_async(self) -> Answer:
        answer = Answer()
        self.sent.append((self._runtime.now_s, answer))
        return answer

    @property
    def times(self) -> list[float]:
        """The times of the heartbeats, in seconds after the start."""
        return [round(sent_s - 1_000, 3) for sent_s, _ in self.sent]

    @property
    def last(self) -> Answer:
        return self.sent[-1][1]


class RunningHeartbeat:
    """
    A running heartbeat, and its session. ``dead`` collects the reasons for which the session is abandoned, and
    ``listeners`` the listeners to its connections.
    """

    def __init__(self, runtime: ManualRuntime, gate: DeliveryGate, interval_ms: int | None = None) -> None:
        self.runtime, self.gate = runtime, gate
        self.client, self.metrics, self.dead = Client(runtime), Metrics(), list[str]()
        self.connection = Connection(cast(Any, self.client), self.metrics)
        self.abandon, self.listeners = self.dead.append, list[Callable[[], None]]()
        self.add_connect_listener = self.listeners.append
        self.is_orphaned = False
        self.heartbeat = Heartbeat(cast(Any, self), "/m", interval_ms, self.metrics, runtime)
        self.heartbeat.start()
        runtime.pass_s(0)

    def answered_for(self, seconds: float, step_s: float = 0.01) -> None:
        """Advance the time, and answer each heartbeat soon after it was sent."""
        for _ in range(round(seconds / step_s)):
            if not self.client.last.is_set:
                self.client.last.set()
            self.runtime.pass_s(step_s)


def test_heartbeats_are_a_sixth_of_the_timeout_apart(runtime: ManualRuntime, gate: DeliveryGate) -> None:
    """
    The first heartbeat is sent at the start, and further ones a sixth of the timeout apart. While they are answered,
    the lease continues.
    """
    running = RunningHeartbeat(runtime, gate)
    running.answered_for(4.5)
    assert running.client.times == pytest.approx([0, 1, 2, 3, 4], abs=0.05)
    assert gate.is_open(runtime.now_s)
    assert not running.dead


@pytest.mark.parametrize(("interval_ms", "gap_s"), [(200, 0.2), (2_000, 2.0), (60_000, 2.0)])
def test_the_interval_is_the_setting_up_to_a_third_of_the_timeout(
    runtime: ManualRuntime, gate: DeliveryGate, interval_ms: int, gap_s: float
) -> None:
    """Heartbeats have the configured interval. An interval above a third of the timeout is reduced to a third."""
    running = RunningHeartbeat(runtime, gate, interval_ms)
    running.answered_for(6.1)
    gaps = [later - earlier for earlier, later in zip(running.client.times, running.client.times[1:], strict=False)]
    assert gaps == pytest.approx([gap_s] * len(gaps), abs=0.05)
    assert len(gaps) == int(6.1 / gap_s)
    assert gate.is_open(runtime.now_s)


def test_a_heartbeat_renews_the_lease_from_its_sending(runtime: ManualRuntime, gate: DeliveryGate) -> None:
    """A heartbeat renews the lease from the time of its sending, not from that of its answer."""
    running = RunningHeartbeat(runtime, gate)
    sent_s = runtime.now_s
    runtime.pass_s(0.9)
    running.client.last.set()
    assert gate.deadline_s == sent_s + 3


@pytest.mark.parametrize("outcome", [{"exception": ConnectionLoss()}, {"value": RolledBackError()}])
def test_only_an_executed_heartbeat_renews_the_lease(
    runtime: ManualRuntime, gate: DeliveryGate, outcome: dict[str, Any]
) -> None:
    """A heartbeat whose answer was lost, or which was refused, does not renew the lease."""
    running = RunningHeartbeat(runtime, gate)
    runtime.pass_s(0.5)
    before_s = gate.deadline_s
    running.client.last.set(**outcome)
    assert gate.deadline_s == before_s
    assert not running.dead


def test_an_unanswered_heartbeat_shuts_the_socket(runtime: ManualRuntime, gate: DeliveryGate) -> None:
    """
    If a heartbeat is not answered within a sixth of the timeout, the socket is shut once, so that kazoo can reconnect
    within the lease.
    """
    running = RunningHeartbeat(runtime, gate)
    runtime.pass_s(0.99)
    assert running.client._socket.shut == 0
    runtime.pass_s(0.02)
    assert running.client._socket.shut == 1
    assert running.metrics.total("zookeeper_connections_dropped") == 1


@pytest.mark.parametrize("is_shut", [False, True])
def test_the_heartbeat_ends_the_session_of_a_closed_event_loop(
    runtime: ManualRuntime, gate: DeliveryGate, caplog: pytest.LogCaptureFixture, is_shut: bool
) -> None:
    """At its next tick, and without a beat. The log says so, unless the session was being closed already."""
    running = RunningHeartbeat(runtime, gate)
    running.client.last.set()
    running.is_orphaned = True
    if is_shut:
        gate.shut("closed")
    runtime.pass_s(1.0)
    assert running.dead == ["its event loop is closed"]
    assert (running.client.times, runtime.tickers[0].ended) == ([0], True)
    assert ("the event loop of /m was closed before its client" in caplog.text) is not is_shut


def test_a_heartbeat_of_a_moved_session_shuts_the_socket(runtime: ManualRuntime, gate: DeliveryGate) -> None:
    """
    If a heartbeat is refused because the session has moved, the socket is shut, and the lease continues. A later answer
    from the old connection does not shut the new socket.
    """
    running = RunningHeartbeat(runtime, gate)
    runtime.pass_s(0.5)
    before_s = gate.deadline_s
    running.heartbeat.beat_now()
    runtime.pass_s(0)
    (_, first), (_, second) = running.client.sent
    left = running.client._socket
    first.set(value=SessionMovedError())
    second.set(value=SessionMovedError())
    assert left.shut == 1
    running.client._socket = Socket()
    second.set(value=SessionMovedError())
    assert (left.shut, running.client._socket.shut) == (1, 0)
    assert running.metrics.total("zookeeper_connections_dropped") == 1
    assert (gate.deadline_s, running.dead) == (before_s, [])


def test_a_reconnection_sends_a_heartbeat_at_once(runtime: ManualRuntime, gate: DeliveryGate) -> None:
    """While the connection is suspended, no heartbeat is sent. A reconnection sends one at once."""
    running = RunningHeartbeat(runtime, gate)
    runtime.pass_s(1.01)
    gate.suspended = True
    running.client.last.set(exception=ConnectionLoss())
    runtime.pass_s(0.5)
    assert running.client.times == [0]
    running.client._socket = Socket()
    gate.suspended = False
    (connected,) = running.listeners
    connected()
    runtime.pass_s(0)
    assert running.client.times == pytest.approx([0, 1.51])
    running.client.last.set()
    assert gate.deadline_s == pytest.approx(1_000 + 1.51 + 3)


def test_the_answer_to_an_earlier_heartbeat_does_not_count_for_a_later_one(
    runtime: ManualRuntime, gate: DeliveryGate
) -> None:
    """
    If only the earlier of two heartbeats is answered, the socket is shut when the answer to the later one is overdue.
    """
    running = RunningHeartbeat(runtime, gate)
    runtime.pass_s(0.5)
    running.heartbeat.beat_now()
    runtime.pass_s(0.1)
    first, second = running.client.sent
    first[1].set()
    runtime.pass_s(0.91)
    assert running.client._socket.shut == 1
    assert second[0] == pytest.approx(1_000.5)


def test_the_end_of_the_lease_is_reported_in_time(runtime: ManualRuntime, gate: DeliveryGate) -> None:
    """The end of the lease is reported once, before the next heartbeat is due. No heartbeat is sent after it."""
    running = RunningHeartbeat(runtime, gate, 2_000)
    runtime.pass_s(2.99)
    assert not running.dead
    runtime.pass_s(0.02)
    assert running.dead == ["the lease ran out: ZooKeeper confirmed nothing for half the session timeout"]
    assert gate.shut_reason == "lease over"
    sent = len(running.client.sent)
    runtime.pass_s(60)
    assert len(running.client.sent) == sent
    assert len(running.dead) == 1


def test_the_end_of_the_lease_names_an_acl_that_denies_the_heartbeat(
    runtime: ManualRuntime, gate: DeliveryGate
) -> None:
    """While the ACL denies the heartbeat, the lease is not renewed. If it allows the next one, the session goes on."""
    running = RunningHeartbeat(runtime, gate)
    running.client.last.set(value=NoAuthError())
    runtime.pass_s(1.01)
    running.client.last.set()
    runtime.pass_s(1.01)
    assert (gate.is_open(runtime.now_s), running.dead) == (True, [])
    while not running.dead:
        running.client.last.set(value=NoAuthError())
        runtime.pass_s(0.5)
    (reason,) = running.dead
    assert reason.startswith("the lease ran out: the ACL of ")


def test_a_resumed_process_finds_that_its_lease_has_ended(runtime: ManualRuntime, gate: DeliveryGate) -> None:
    """
    A process that was stopped longer than its lease reports the end of the lease first. A heartbeat would prove nothing
    about the time before, so none is sent.
    """
    running = RunningHeartbeat(runtime, gate)
    running.client.last.set()
    runtime.sleep_s(5)
    runtime.pass_s(0)
    assert running.client.times == [0]
    assert len(running.dead) == 1


def test_a_session_without_its_member_znode_is_given_up(runtime: ManualRuntime, gate: DeliveryGate) -> None:
    """If the member znode is gone, the gate is shut, and the session is given up."""
    running = RunningHeartbeat(runtime, gate)
    running.client.last.set(value=NoNodeError())
    assert not gate.is_open(runtime.now_s)
    assert running.dead == ["the member znode is gone"]


def test_a_heartbeat_waits_for_the_first_proof(runtime: ManualRuntime) -> None:
    """
    The answer to the first heartbeat starts the lease. Until then, the heartbeat's thread does not run in a busy loop.
    """
    gate = DeliveryGate()
    gate.grant(TIMEOUT_MS, runtime.now_s)
    running = RunningHeartbeat(runtime, gate)
    ticker = runtime.tickers[-1]
    assert ticker.due_s == pytest.approx(runtime.now_s + 1)
    running.client.last.set()
    assert gate.is_open(runtime.now_s)


def test_an_error_in_the_heartbeat_ends_the_session(runtime: ManualRuntime, gate: DeliveryGate) -> None:
    """
    An error in the heartbeat ends the session at once. Without heartbeats, the lease would end later, with a misleading
    reason.
    """
    running = RunningHeartbeat(runtime, gate)
    running.client.last.set()
    running.client.transaction = None  # type: ignore[assignment, method-assign]
    runtime.pass_s(1.1)
    assert gate.shut_reason == "heartbeat failed"
    assert len(running.dead) == 1


def test_a_stopped_heartbeat_reports_nothing(runtime: ManualRuntime, gate: DeliveryGate) -> None:
    """A stopped heartbeat sends and reports nothing, because its session is being closed regularly."""
    running = RunningHeartbeat(runtime, gate)
    running.heartbeat.stop()
    runtime.pass_s(60)
    assert running.client.times == [0]
    assert not running.dead
