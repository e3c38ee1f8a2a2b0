"""Sessions that are given up while their client has no connection."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.protocol.serialization import Close, Connect

from kiel_groups.testing import fake_ensemble
from kiel_groups.testing.fake_network import Link
from kiel_groups.testing.fake_server import FakeServer
from tests.sim.consumer import Consumer
from tests.sim.world import SESSION_TIMEOUT_MS, World, at_rest

pytestmark = pytest.mark.sim

TIMEOUT_S = SESSION_TIMEOUT_MS / 1000


def cut_off_for(world: World, consumer: Consumer, duration_s: float) -> int:
    """Keep a process from all servers for a while; returns the session that it had."""
    (session_id,) = consumer.process.sessions
    consumer.process.stall()
    world.run_for(duration_s)
    consumer.process.resume()
    return session_id


def note_requests(monkeypatch: pytest.MonkeyPatch) -> dict[Link, list[Any]]:
    """Return what servers are asked from now on, by connection."""
    asked: dict[Link, list[Any]] = {}
    receive = FakeServer.receive

    def noting(server: FakeServer, link: Link, message: Any) -> None:
        asked.setdefault(link, []).append(message[1])
        receive(server, link, message)

    monkeypatch.setattr(FakeServer, "receive", noting)
    return asked


def test_it_is_closed_on_the_next_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its claims go at once, while the servers would keep them; nothing else is asked on that connection."""
    with at_rest(members=2, topics=(4,)) as world:
        consumer = world.consumers[0]
        asked = note_requests(monkeypatch)
        session_id = cut_off_for(world, consumer, 0.65 * TIMEOUT_S)
        assert consumer.metrics.total("sessions_lost") == 1
        assert world.ensemble.truth.ephemerals(session_id)
        world.run_for(0.15 * TIMEOUT_S)
        assert not world.ensemble.truth.ephemerals(session_id)
        resumed = [
            requests
            for requests in asked.values()
            if isinstance(requests[0], Connect)
            and requests[0].session_id == session_id
            and Close in map(type, requests)
        ]
        assert [[type(request) for request in requests] for requests in resumed] == [[Connect, Close]]
        world.settle(30.0)


def test_one_that_is_over_by_then_is_not_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """kazoo would open a new session where a server refuses to resume one: nobody would use it, nor close it."""
    with at_rest(members=2, topics=(4,)) as world:
        consumer = world.consumers[0]
        opened = world.ensemble._granted
        before = len(opened)
        session_id = cut_off_for(world, consumer, 1.3 * TIMEOUT_S)
        assert not world.ensemble.truth.ephemerals(session_id)
        world.settle(30.0)
        world.run_for(TIMEOUT_S)
        assert len(opened) == before + 1
        assert len(consumer.process.sessions) == 2


def test_one_that_every_server_has_ended_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread tries to connect for it any more, however long the servers stay away."""
    with at_rest(members=2, topics=(4,)) as world:
        consumer = world.consumers[0]
        asked = note_requests(monkeypatch)
        session_id = cut_off_for(world, consumer, 2.5 * TIMEOUT_S)
        asked.clear()
        world.settle(30.0)
        resumed = [requests[0].session_id for requests in asked.values() if isinstance(requests[0], Connect)]
        assert resumed, "the member has a new session"
        assert session_id not in resumed


def test_a_longer_timeout_of_the_servers_is_the_one_that_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers may grant more than was asked for: for so long there is something to close."""
    least_ticks = 60
    monkeypatch.setattr(fake_ensemble, "LEAST_TICKS", least_ticks)
    with at_rest(members=2, topics=(4,)) as world:
        consumer = world.consumers[0]
        membership = consumer.member._member_session
        assert membership is not None
        assert membership.session.timeout_ms == least_ticks * world.ensemble.tick_ms > 2 * SESSION_TIMEOUT_MS
        consumer.process.stall()
        consumer.process.reset()
        world.run_for(0.1)
        consumer.process.call(membership.session.abandon, "the test ends it")
        world.run_for(1.3 * TIMEOUT_S)
        assert world.ensemble.truth.ephemerals(membership.session.id)
        consumer.process.resume()
        world.run_for(0.5 * TIMEOUT_S)
        assert not world.ensemble.truth.ephemerals(membership.session.id)


def test_one_whose_close_is_not_answered_is_closed_elsewhere() -> None:
    """The server that has the connection is frozen: another one is asked to close the session."""
    with at_rest(members=6, topics=(4,)) as world:
        consumer = next(c for c in world.consumers if c.process.server is not world.ensemble.leader)
        (session_id,), server, membership = (
            consumer.process.sessions,
            consumer.process.server,
            consumer.member._member_session,
        )
        assert server is not None
        assert membership is not None
        world.ensemble.freeze(server)
        consumer.process.call(membership.session.abandon, "the test ends it")
        world.run_for(0.5 * TIMEOUT_S)
        assert not world.ensemble.truth.ephemerals(session_id)
