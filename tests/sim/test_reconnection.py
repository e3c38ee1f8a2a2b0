"""Connections that break and are restored within the session."""

from __future__ import annotations

import pytest

from kiel_groups.group.lease import lease_deadline
from kiel_groups.group.znodes.contents import MemberAssignment
from tests.fakes import FakeEnsemble
from tests.sim.commits import process_some
from tests.sim.consumer import Consumer
from tests.sim.world import SESSION_TIMEOUT_MS, World, at_rest

pytestmark = pytest.mark.sim


def test_a_heartbeat_is_sent_as_soon_as_the_connection_is_back() -> None:
    """
    A member sends a heartbeat as soon as its connection is back. The rest of the lease may be short, so the next
    regular heartbeat could be too late.
    """
    with at_rest(members=2, topics=(4,), heartbeat_interval_ms=None) as world:
        # A leader's next plan would renew the lease, too.
        consumer = next(consumer for consumer in world.consumers if not consumer.member.leads)
        gate = consumer.gate
        before_s = gate.deadline_s
        world.timeline.run_until(lambda: gate.deadline_s > before_s)
        broken_s = world.timeline.now_s
        consumer.process.reset()
        world.run_for(1.0)
        assert consumer.metrics.total("zookeeper_suspensions") == 1
        assert gate.deadline_s > lease_deadline(broken_s, SESSION_TIMEOUT_MS)


def test_nothing_is_delivered_while_the_connection_is_broken() -> None:
    """Delivery stops as soon as the connection breaks, long before the lease ends."""
    with at_rest(members=2, topics=(4,)) as world:
        consumer = world.consumers[0]
        gate, flowing = consumer.gate, set(consumer.opened)
        assert consumer.gate_is_open
        nowhere = FakeEnsemble(world.timeline, 1).servers[0]
        consumer.process.only = nowhere
        consumer.process.reset()
        world.run_for(0.2)
        assert world.timeline.now_s < gate.deadline_s - 1.0
        assert not consumer.gate_is_open
        consumer.work(0.0, 3, 0.01)
        assert not consumer.in_flight
        consumer.process.only = None
        world.timeline.run_until(lambda: consumer.gate_is_open, 3.0)
        assert consumer.gate is gate
        consumer.work(0.0, 3, 0.01)
        assert set(consumer.opened) == flowing > consumer.in_flight.keys() > set()


def test_a_change_without_an_event_is_found_when_the_connection_is_back() -> None:
    """
    A member reads its assignment again when its connection is back. An event that was lost with its watch would
    otherwise be noticed only by the next audit.
    """
    with at_rest(members=2, topics=(6,), reconcile_interval_ms=600_000) as world:
        consumer = next(consumer for consumer in world.consumers if not consumer.member.leads)
        before = consumer.wanted
        consumer.process.loses_events = lambda _: True
        world.join(world.topics)
        world.run_for(5.0)
        path = str(consumer.assignment_path)
        assigned = MemberAssignment.parse(world.ensemble.tree.znodes[path].data, path).partitions
        assert consumer.wanted == before != assigned
        consumer.process.loses_events = lambda _: False
        consumer.process.reset()
        world.run_for(2.0)
        assert consumer.wanted == assigned


def move_session(world: World) -> Consumer:
    """
    Make the leader believe that a session has moved, as if it processed an abandoned connection of the client late.

    Returns:
        The consumer of the session. It is not connected to the leader, which would close the connection at once.
    """
    leader, sessions = world.ensemble.leader, world.ensemble.sessions
    moved = next(c for c in world.consumers if sessions[c.process.sessions[-1]].server is not leader)
    assert leader is not None
    sessions[moved.process.sessions[-1]].server = leader
    return moved


@pytest.mark.parametrize("reports_moves", [False, True])
def test_a_heartbeat_brings_a_moved_session_back(reports_moves: bool) -> None:
    """A heartbeat moves the session back. The lease continues, and no partition is lost."""
    with at_rest(members=3, topics=(6,)) as world:
        world.ensemble.reports_moves = reports_moves
        consumer = move_session(world)
        gate, flowing, sessions = consumer.gate, set(consumer.opened), list(consumer.process.sessions)
        world.run_for(2 * SESSION_TIMEOUT_MS / 1000)
        assert consumer.gate is gate
        assert consumer.gate_is_open
        assert set(consumer.opened) == flowing > set()
        assert consumer.process.sessions == sessions
        assert consumer.metrics.total("zookeeper_connections_dropped") == reports_moves


def test_a_write_brings_a_moved_session_back() -> None:
    """
    A write moves the session back at once. The connection is dropped only once, although several requests are in
    flight.
    """
    with at_rest(members=3, topics=(6,), heartbeat_interval_ms=3_300) as world:
        world.ensemble.reports_moves = True
        for consumer in world.consumers:
            process_some(world, consumer)
        consumer = move_session(world)
        member_session = consumer.member._member_session
        assert member_session is not None
        for _ in range(3):
            consumer.process.start(member_session.session.ensure(["/a/b"]))
        consumer.process.start(consumer.member.commit_on_session())
        world.run_for(0.5)
        assert "/a/b" in world.ensemble.tree.znodes
        assert world.history.commits == 1
        assert consumer.metrics.total("zookeeper_connections_dropped") == 1
