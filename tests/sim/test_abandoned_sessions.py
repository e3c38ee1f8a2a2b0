"""Sessions that a member abandons while its client has no connection."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.protocol.serialization import Close, Connect

from tests.fakes import fake_ensemble
from tests.fakes.fake_network import Link
from tests.fakes.fake_server import FakeServer
from tests.fakes.simulated_process import MAX_THREAD_S
from tests.sim.outages import cut_off_for
from tests.sim.world import SESSION_TIMEOUT_MS, at_rest

pytestmark = pytest.mark.sim

TIMEOUT_S = SESSION_TIMEOUT_MS / 1000


def note_requests(monkeypatch: pytest.MonkeyPatch) -> dict[Link, list[Any]]:
    """Return a dict that collects the requests that servers receive from now on, by connection."""
    received: dict[Link, list[Any]] = {}
    receive = FakeServer.receive

    def noting(server: FakeServer, link: Link, message: Any) -> None:
        received.setdefault(link, []).append(message[1])
        receive(server, link, message)

    monkeypatch.setattr(FakeServer, "receive", noting)
    return received


def test_an_abandoned_session_is_closed_on_the_next_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The client closes an abandoned session on its next connection, which carries only Connect and Close.

    So the claims of the session are deleted at once, although the servers would keep the session for longer.
    """
    with at_rest(members=2, topics=(4,)) as world:
        consumer = world.consumers[0]
        received = note_requests(monkeypatch)
        session_id = cut_off_for(world, consumer, 0.65 * TIMEOUT_S)
        assert consumer.metrics.total("sessions_lost") == 1
        assert world.ensemble.tree.ephemerals(session_id)
        world.run_for(0.15 * TIMEOUT_S)
        assert not world.ensemble.tree.ephemerals(session_id)
        resumed = [
            requests
            for requests in received.values()
            if isinstance(requests[0], Connect)
            and requests[0].session_id == session_id
            and Close in map(type, requests)
        ]
        assert [[type(request) for request in requests] for requests in resumed] == [[Connect, Close]]
        world.settle(30.0)


def test_no_client_runs_on_after_a_close_during_its_start() -> None:
    """
    A client starts on a thread, which a close does not end. A client that has not started yet does not start any more,
    and another one stops.
    """
    started = set()
    with at_rest(members=1, topics=(1,)) as world:
        for _ in range(30):
            consumer = world.join(world.topics)
            world.run_for(world.timeline.random.uniform(0.0, 2 * MAX_THREAD_S))
            started.add(consumer.has_client)
            consumer.leave()
            world.run_for(1.0)
            assert consumer.closed
            assert not consumer.has_client
    assert started == {False, True}


def test_no_session_follows_an_abandoned_one_that_has_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    When a server refuses to resume an expired abandoned session, its client opens no other session. kazoo alone would
    open a session that no code uses or closes.
    """
    with at_rest(members=2, topics=(4,)) as world:
        consumer = world.consumers[0]
        opened = world.ensemble._granted
        before = len(opened)
        session_id = cut_off_for(world, consumer, 1.3 * TIMEOUT_S)
        assert not world.ensemble.tree.ephemerals(session_id)
        world.settle(30.0)
        world.run_for(TIMEOUT_S)
        assert len(opened) == before + 1
        assert len(consumer.process.sessions) == 2


def test_an_abandoned_session_that_has_expired_is_not_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The client of an abandoned session stops trying to connect when the session has expired. When servers are reachable
    again, none gets a request to resume the session.
    """
    with at_rest(members=2, topics=(4,)) as world:
        consumer = world.consumers[0]
        received = note_requests(monkeypatch)
        session_id = cut_off_for(world, consumer, 2.5 * TIMEOUT_S)
        received.clear()
        world.settle(30.0)
        resumed = [requests[0].session_id for requests in received.values() if isinstance(requests[0], Connect)]
        assert resumed, "the member has a new session"
        assert session_id not in resumed


def test_an_abandoned_session_is_closed_within_the_timeout_that_was_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    If servers granted a longer session timeout than the client requested, the client tries to close the session for the
    granted time.
    """
    least_ticks = 60
    monkeypatch.setattr(fake_ensemble, "LEAST_TICKS", least_ticks)
    with at_rest(members=2, topics=(4,)) as world:
        consumer = world.consumers[0]
        member_session = consumer.member._member_session
        assert member_session is not None
        assert member_session.session.timeout_ms == least_ticks * world.ensemble.tick_ms > 2 * SESSION_TIMEOUT_MS
        consumer.process.stall()
        consumer.process.reset()
        world.run_for(0.1)
        consumer.process.call(member_session.session.abandon, "the test ends it")
        world.run_for(1.3 * TIMEOUT_S)
        assert world.ensemble.tree.ephemerals(member_session.session.id)
        consumer.process.resume()
        world.run_for(0.5 * TIMEOUT_S)
        assert not world.ensemble.tree.ephemerals(member_session.session.id)


def test_a_session_whose_close_is_not_answered_is_closed_on_another_server() -> None:
    """
    If the server of the session's connection is frozen and does not answer the close, the client closes the session on
    another server.
    """
    with at_rest(members=6, topics=(4,)) as world:
        consumer = next(c for c in world.consumers if c.process.server is not world.ensemble.leader)
        (session_id,), server, member_session = (
            consumer.process.sessions,
            consumer.process.server,
            consumer.member._member_session,
        )
        assert server is not None
        assert member_session is not None
        world.ensemble.freeze(server)
        consumer.process.call(member_session.session.abandon, "the test ends it")
        world.run_for(0.5 * TIMEOUT_S)
        assert not world.ensemble.tree.ephemerals(session_id)
