"""The lease: what renews it, how long it lasts, and what the heartbeat does about silence."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from kazoo.exceptions import ConnectionLoss, NoNodeError, RolledBackError, SessionMovedError

from kiel_groups.allocators import round_robin
from kiel_groups.config import GroupConfig, ZooKeeperConfig
from kiel_groups.coordination.member.group_session import GroupSession
from kiel_groups.coordination.session.delivery_gate import DeliveryGate
from kiel_groups.coordination.session.heartbeat import Heartbeat
from kiel_groups.coordination.zookeeper.kazoo_client import Connection
from kiel_groups.coordination.zookeeper.runtime import replaced
from kiel_groups.errors import ConfigError
from kiel_groups.group.member.lease import check_heartbeat_interval, heartbeat_interval_s
from kiel_groups.metrics import Metrics
from tests.helpers.manual_runtime import ManualRuntime

pytestmark = pytest.mark.unit

TIMEOUT_MS = 6_000


@pytest.fixture
def machine() -> Iterator[ManualRuntime]:
    """Time passes when the test says so."""
    manual = ManualRuntime()
    with replaced(manual):
        yield manual


@pytest.fixture
def gate(machine: ManualRuntime) -> DeliveryGate:
    """Of a session with a timeout of 6 seconds, confirmed now."""
    made = DeliveryGate()
    made.grant(TIMEOUT_MS)
    made.renew(machine.now_s)
    return made


def test_a_gate_is_closed_until_something_was_confirmed(machine: ManualRuntime) -> None:
    """A session that is open proves nothing yet, and has no lease that could end."""
    gate = DeliveryGate()
    assert not gate.is_open(machine.now_s)
    gate.grant(TIMEOUT_MS)
    assert not gate.is_open(machine.now_s)
    assert not gate.is_over(machine.now_s + 100)
    gate.renew(machine.now_s)
    assert gate.is_open(machine.now_s)


def test_a_lease_counts_from_the_sending(machine: ManualRuntime, gate: DeliveryGate) -> None:
    """Half of the timeout, however late the answer came; an older proof takes nothing away."""
    sent_s = machine.now_s
    gate.renew(sent_s + 1)
    gate.renew(sent_s)
    assert gate.deadline_s == sent_s + 4
    assert gate.is_open(sent_s + 3.999)
    assert not gate.is_open(sent_s + 4)


def test_the_end_of_a_lease_is_final(machine: ManualRuntime, gate: DeliveryGate) -> None:
    """Whoever asked after it was told no; what is answered then must not open the gate again."""
    assert not gate.is_open(machine.now_s + 3)
    gate.renew(machine.now_s + 3.1)
    assert not gate.is_open(machine.now_s + 3.2)
    assert gate.shut_reason == "lease over"


def test_a_lease_whose_end_somebody_saw_is_not_renewed(machine: ManualRuntime, gate: DeliveryGate) -> None:
    """
    A proof that was sent after the end, by a leader that went on after SIGSTOP, say, brings nothing back.

    Found by the simulator: the heartbeat took the session for alive, and kept a member in the group for ever that could
    neither claim nor leave.
    """
    machine.now_s += 4
    assert not gate.is_open(machine.now_s)
    gate.renew(machine.now_s)
    assert gate.is_over(machine.now_s)


def test_a_broken_connection_pauses(machine: ManualRuntime, gate: DeliveryGate) -> None:
    """Until it is back, within the lease."""
    gate.suspended = True
    assert not gate.is_open(machine.now_s)
    gate.suspended = False
    assert gate.is_open(machine.now_s)


def test_a_gate_that_was_shut_stays_shut(machine: ManualRuntime, gate: DeliveryGate) -> None:
    """The first reason is kept."""
    gate.shut("closed")
    gate.shut("something else")
    gate.renew(machine.now_s + 1)
    assert not gate.is_open(machine.now_s)
    assert gate.shut_reason == "closed"


def test_a_shorter_timeout_shortens_the_lease(machine: ManualRuntime, gate: DeliveryGate) -> None:
    """A server that is found after a broken connection may grant less than the one before."""
    gate.grant(2_000)
    assert gate.deadline_s == machine.now_s + 1
    gate.renew(machine.now_s + 0.5)
    assert gate.deadline_s == machine.now_s + 1.5


def test_a_longer_timeout_lengthens_no_lease(machine: ManualRuntime, gate: DeliveryGate) -> None:
    """Others wait for the one that the member told them of, before they take what it holds."""
    gate.grant(2_000)
    gate.grant(10 * TIMEOUT_MS)
    gate.renew(machine.now_s)
    assert gate.timeout_ms == TIMEOUT_MS
    assert gate.deadline_s == machine.now_s + TIMEOUT_MS / 2_000


@pytest.mark.parametrize(("asked_ms", "expected_s"), [(None, 1.0), (250, 0.25), (2_000, 2.0), (5_000, 2.0)])
def test_how_often_to_beat(asked_ms: int | None, expected_s: float) -> None:
    """A sixth of the granted timeout, or as asked, but at least every third."""
    assert heartbeat_interval_s(TIMEOUT_MS, asked_ms) == pytest.approx(expected_s)


def test_heartbeats_too_seldom_for_what_was_granted_are_refused() -> None:
    """The error says what was given, what is possible, and what to do."""
    check_heartbeat_interval(TIMEOUT_MS, None)
    check_heartbeat_interval(TIMEOUT_MS, 2_000)
    with pytest.raises(ConfigError) as caught:
        check_heartbeat_interval(TIMEOUT_MS, 2_001)
    assert str(caught.value) == (
        "heartbeat_interval_ms: 2001 given; expected at most 2000, a third of the session timeout that ZooKeeper"
        " granted (6000 ms). Leave it out, or raise session_timeout_ms (and the server's maxSessionTimeout where that"
        " is what lowers it)"
    )


async def test_a_later_life_makes_do_with_less(caplog: pytest.LogCaptureFixture) -> None:
    """A first one is refused; one that follows a lost session beats as seldom as it may, and says so."""
    config = ZooKeeperConfig(hosts="h:1", heartbeat_interval_ms=2_001)
    first, later = (
        GroupSession(GroupConfig(group="g"), config, round_robin, Metrics(), first=is_first)
        for is_first in (True, False)
    )
    for life in (first, later):
        life.session.gate.grant(TIMEOUT_MS)
    with pytest.raises(ConfigError, match="heartbeat_interval_ms: 2001 given"):
        first._check_heartbeat(strictly=first._first)
    later._check_heartbeat(strictly=later._first)
    assert "group g: heartbeat_interval_ms: 2001 given; expected at most 2000" in caplog.text
    assert "using a third of the granted session timeout for now" in caplog.text


@pytest.mark.parametrize("given", [0, -1, 1.5, "100", True])
def test_a_heartbeat_interval_is_a_whole_number_of_milliseconds(given: Any) -> None:
    """Of at least one."""
    with pytest.raises(ConfigError, match=r"heartbeat_interval_ms: .* expected a whole number of at least 1"):
        ZooKeeperConfig(hosts="h:1", heartbeat_interval_ms=given)


class Answer:
    """What kazoo gives for a request."""

    def __init__(self) -> None:
        self.exception: Exception | None = None
        self.value: list[Any] = [True]
        self.came = False
        self._callback: Callable[[Answer], None] | None = None

    def rawlink(self, callback: Callable[[Answer], None]) -> None:
        self._callback = callback

    def come(self, *, exception: Exception | None = None, value: Any = True) -> None:
        self.exception, self.value, self.came = exception, [value], True
        assert self._callback is not None
        self._callback(self)


class Socket:
    def __init__(self) -> None:
        self.shut = 0

    def shutdown(self, how: int) -> None:
        self.shut += 1


class Client:
    """As much of kazoo's client as a heartbeat needs: what it sent stands in ``sent``."""

    def __init__(self, machine: ManualRuntime) -> None:
        self._machine = machine
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
        self.sent.append((self._machine.now_s, answer))
        return answer

    @property
    def times(self) -> list[float]:
        """When the beats were sent, in seconds after the start."""
        return [round(sent_s - 1_000, 3) for sent_s, _ in self.sent]

    @property
    def last(self) -> Answer:
        return self.sent[-1][1]


class Beating:
    """A heartbeat at work."""

    def __init__(self, machine: ManualRuntime, gate: DeliveryGate, interval_ms: int | None = None) -> None:
        self.machine, self.gate = machine, gate
        self.client, self.metrics, self.dead = Client(machine), Metrics(), list[str]()
        connection = Connection(cast(Any, self.client), self.metrics)
        self.heartbeat = Heartbeat(connection, gate, "/m", self.metrics, self.dead.append, interval_ms)
        self.heartbeat.start()
        machine.pass_s(0)

    def answered_for(self, seconds: float, step_s: float = 0.01) -> None:
        """Let time pass; every beat is answered soon."""
        for _ in range(round(seconds / step_s)):
            if not self.client.last.came:
                self.client.last.come()
            self.machine.pass_s(step_s)


def test_a_heartbeat_beats_every_sixth_of_the_timeout(machine: ManualRuntime, gate: DeliveryGate) -> None:
    """From the start on; the lease never ends."""
    beating = Beating(machine, gate)
    beating.answered_for(4.5)
    assert beating.client.times == pytest.approx([0, 1, 2, 3, 4], abs=0.05)
    assert gate.is_open(machine.now_s)
    assert not beating.dead


@pytest.mark.parametrize(("interval_ms", "gap_s"), [(200, 0.2), (2_000, 2.0), (60_000, 2.0)])
def test_a_heartbeat_beats_as_often_as_it_is_told(
    machine: ManualRuntime, gate: DeliveryGate, interval_ms: int, gap_s: float
) -> None:
    """More seldom than every third of the timeout it never does."""
    beating = Beating(machine, gate, interval_ms)
    beating.answered_for(6.1)
    gaps = [later - earlier for earlier, later in zip(beating.client.times, beating.client.times[1:], strict=False)]
    assert gaps == pytest.approx([gap_s] * len(gaps), abs=0.05)
    assert len(gaps) == int(6.1 / gap_s)
    assert gate.is_open(machine.now_s)


def test_a_beat_renews_the_lease_from_when_it_was_sent(machine: ManualRuntime, gate: DeliveryGate) -> None:
    """Not from when it was answered."""
    beating = Beating(machine, gate)
    sent_s = machine.now_s
    machine.pass_s(0.9)
    beating.client.last.come()
    assert gate.deadline_s == sent_s + 3


@pytest.mark.parametrize("outcome", [{"exception": ConnectionLoss()}, {"value": RolledBackError()}])
def test_only_a_beat_that_was_done_renews(machine: ManualRuntime, gate: DeliveryGate, outcome: dict[str, Any]) -> None:
    """An answer that is none, and one that refuses, confirm nothing."""
    beating = Beating(machine, gate)
    machine.pass_s(0.5)
    before_s = gate.deadline_s
    beating.client.last.come(**outcome)
    assert gate.deadline_s == before_s
    assert not beating.dead


def test_an_unanswered_beat_shuts_the_socket(machine: ManualRuntime, gate: DeliveryGate) -> None:
    """After a sixth of the timeout, once, so that kazoo looks for another server within the lease."""
    beating = Beating(machine, gate)
    machine.pass_s(0.99)
    assert beating.client._socket.shut == 0
    machine.pass_s(0.02)
    assert beating.client._socket.shut == 1
    assert beating.metrics.total("zookeeper_connections_dropped") == 1


def test_a_beat_that_is_told_of_a_move_shuts_the_socket(machine: ManualRuntime, gate: DeliveryGate) -> None:
    """The lease goes on over the next connection, which an answer on the old one does not end once more."""
    beating = Beating(machine, gate)
    machine.pass_s(0.5)
    before_s = gate.deadline_s
    beating.heartbeat.beat_now()
    machine.pass_s(0)
    (_, first), (_, second) = beating.client.sent
    left = beating.client._socket
    first.come(value=SessionMovedError())
    second.come(value=SessionMovedError())
    assert left.shut == 1
    beating.client._socket = Socket()
    second.come(value=SessionMovedError())
    assert (left.shut, beating.client._socket.shut) == (1, 0)
    assert beating.metrics.total("zookeeper_connections_dropped") == 1
    assert (gate.deadline_s, beating.dead) == (before_s, [])


def test_a_beat_goes_out_when_the_connection_is_back(machine: ManualRuntime, gate: DeliveryGate) -> None:
    """At once, and none while there is none."""
    beating = Beating(machine, gate)
    machine.pass_s(1.01)
    gate.suspended = True
    beating.client.last.come(exception=ConnectionLoss())
    machine.pass_s(0.5)
    assert beating.client.times == [0]
    beating.client._socket = Socket()
    gate.suspended = False
    beating.heartbeat.beat_now()
    machine.pass_s(0)
    assert beating.client.times == pytest.approx([0, 1.51])
    beating.client.last.come()
    assert gate.deadline_s == pytest.approx(1_000 + 1.51 + 3)


def test_an_old_answer_does_not_stand_for_a_new_beat(machine: ManualRuntime, gate: DeliveryGate) -> None:
    """The socket is shut on time although the beat before was answered meanwhile."""
    beating = Beating(machine, gate)
    machine.pass_s(0.5)
    beating.heartbeat.beat_now()
    machine.pass_s(0.1)
    first, second = beating.client.sent
    first[1].come()
    machine.pass_s(0.91)
    assert beating.client._socket.shut == 1
    assert second[0] == pytest.approx(1_000.5)


def test_the_end_of_the_lease_is_told_on_time(machine: ManualRuntime, gate: DeliveryGate) -> None:
    """At the lease's end, not at the next beat; and nothing is sent after it."""
    beating = Beating(machine, gate, 2_000)
    machine.pass_s(2.99)
    assert not beating.dead
    machine.pass_s(0.02)
    assert beating.dead == ["the lease ran out: ZooKeeper confirmed nothing for half the session timeout"]
    assert gate.shut_reason == "lease over"
    sent = len(beating.client.sent)
    machine.pass_s(60)
    assert len(beating.client.sent) == sent
    assert len(beating.dead) == 1


def test_a_process_that_was_stopped_finds_its_lease_over(machine: ManualRuntime, gate: DeliveryGate) -> None:
    """Before it sends anything: an answer to a late beat must not make up for the time that nobody knows of."""
    beating = Beating(machine, gate)
    beating.client.last.come()
    machine.sleep_s(5)
    machine.pass_s(0)
    assert beating.client.times == [0]
    assert len(beating.dead) == 1


def test_a_member_whose_znode_is_gone_is_dead(machine: ManualRuntime, gate: DeliveryGate) -> None:
    """The gate is shut before anybody is told."""
    beating = Beating(machine, gate)
    beating.client.last.come(value=NoNodeError())
    assert not gate.is_open(machine.now_s)
    assert beating.dead == ["the member znode is gone"]


def test_a_session_that_nothing_has_confirmed_yet_is_waited_for(machine: ManualRuntime) -> None:
    """Its first beat begins the lease; until then this thread does not spin."""
    gate = DeliveryGate()
    gate.grant(TIMEOUT_MS)
    beating = Beating(machine, gate)
    ticker = machine.tickers[-1]
    assert ticker.due_s == pytest.approx(machine.now_s + 1)
    beating.client.last.come()
    assert gate.is_open(machine.now_s)


def test_a_heartbeat_that_fails_ends_the_session(machine: ManualRuntime, gate: DeliveryGate) -> None:
    """Without beats the lease would end later, and as if ZooKeeper were to blame."""
    beating = Beating(machine, gate)
    beating.client.last.come()
    beating.client.transaction = None  # type: ignore[assignment, method-assign]
    machine.pass_s(1.1)
    assert gate.shut_reason == "heartbeat failed"
    assert len(beating.dead) == 1


def test_a_heartbeat_that_was_stopped_tells_nobody(machine: ManualRuntime, gate: DeliveryGate) -> None:
    """Its session is being closed in order."""
    beating = Beating(machine, gate)
    beating.heartbeat.stop()
    machine.pass_s(60)
    assert beating.client.times == [0]
    assert not beating.dead
