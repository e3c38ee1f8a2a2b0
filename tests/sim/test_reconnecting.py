"""A connection that breaks and comes back within the session."""

from __future__ import annotations

import pytest

from kiel_groups.group.member.lease import lease_deadline
from kiel_groups.testing import FakeEnsemble
from tests.sim.consumer import Consumer
from tests.sim.test_interrupted_commits import process_some
from tests.sim.world import SESSION_TIMEOUT_MS, World, at_rest

pytestmark = pytest.mark.sim


def test_a_heartbeat_goes_out_as_soon_as_the_connection_is_back() -> None:
    """The lease may be short by then: the next one in turn may be too late."""
    with at_rest(members=2, topics=(4,), heartbeat_interval_ms=None) as world:
        # A leader's next plan would prove the session as well.
        consumer = next(consumer for consumer in world.consumers if not consumer.member.leads)
        gate = consumer.member.gate
        before_s = gate.deadline_s
        world.timeline.run_until(lambda: gate.deadline_s > before_s)
        broken_s = world.timeline.now_s
        consumer.process.reset()
        world.run_for(1.0)
        assert consumer.metrics.total("zookeeper_suspensions") == 1
        assert gate.deadline_s > lease_deadline(broken_s, SESSION_TIMEOUT_MS)


def test_nothing_is_handed_out_while_the_connection_is_broken() -> None:
    """From the moment that it breaks, long before the lease ends, until it is back within the session."""
    with at_rest(members=2, topics=(4,)) as world:
        consumer = world.consumers[0]
        gate, flowing = consumer.member.gate, set(consumer.flowing)
        assert consumer.gate_is_open
        nowhere = FakeEnsemble(world.timeline, 1).servers[0]
        consumer.process.only = nowhere
        consumer.process.reset()
        world.run_for(0.2)
        assert world.timeline.now_s < gate.deadline_s - 1.0
        assert not consumer.gate_is_open
        consumer.work(0.0, 3, 0.01)
        assert not consumer.hands
        consumer.process.only = None
        world.timeline.run_until(lambda: consumer.gate_is_open, 3.0)
        assert consumer.member.gate is gate
        consumer.work(0.0, 3, 0.01)
        assert set(consumer.flowing) == flowing > consumer.hands.keys() > set()


def take_elsewhere(world: World) -> Consumer:
    """
    Have the leader believe that a session was moved: it hears late of a connection that its client has given up.

    Returns:
        Whose it is. A connection of the leader's own would be closed at the first request of any kind.
    """
    leader, sessions = world.ensemble.leader, world.ensemble.sessions
    moved = next(c for c in world.consumers if sessions[c.process.sessions[-1]].server is not leader)
    assert leader is not None
    sessions[moved.process.sessions[-1]].server = leader
    return moved


@pytest.mark.parametrize("reports_moves", [False, True])
def test_a_session_that_was_taken_elsewhere_is_brought_back(reports_moves: bool) -> None:
    """By the next heartbeat: its lease goes on, and nothing is lost."""
    with at_rest(members=3, topics=(6,)) as world:
        world.ensemble.reports_moves = reports_moves
        consumer = take_elsewhere(world)
        gate, flowing, sessions = consumer.member.gate, set(consumer.flowing), list(consumer.process.sessions)
        world.run_for(2 * SESSION_TIMEOUT_MS / 1000)
        assert consumer.member.gate is gate
        assert consumer.gate_is_open
        assert set(consumer.flowing) == flowing > set()
        assert consumer.process.sessions == sessions
        assert consumer.metrics.total("zookeeper_connections_dropped") == reports_moves


def test_who_writes_brings_a_session_back_that_was_taken_elsewhere() -> None:
    """At once, once, and however much is under way."""
    with at_rest(members=3, topics=(6,), heartbeat_interval_ms=3_300) as world:
        world.ensemble.reports_moves = True
        for consumer in world.consumers:
            process_some(world, consumer)
        consumer = take_elsewhere(world)
        membership = consumer.member._member_session
        assert membership is not None
        for _ in range(3):
            consumer.process.start(membership.session.ensure(["/a/b"]))
        consumer.process.start(consumer.member.commit_on_session())
        world.run_for(0.5)
        assert "/a/b" in world.ensemble.truth.znodes
        assert world.ledger.commits == 1
        assert consumer.metrics.total("zookeeper_connections_dropped") == 1
