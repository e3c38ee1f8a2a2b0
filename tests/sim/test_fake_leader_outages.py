"""Short outages of the fake ensemble's leader: sessions stay alive (seed 924729937101), and no election starts."""

from __future__ import annotations

import pytest

from tests.fakes import FakeEnsemble, Host, Timeline, fake_client
from tests.fakes.fake_ensemble import ELECTION_S

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("connected", [0, 1], ids=["the leader", "a follower"])
def test_pings_during_an_outage_keep_a_session_alive(connected: int) -> None:
    """The leader is cut off several times, each time too briefly for an election."""
    timeline = Timeline(1)
    ensemble = FakeEnsemble(timeline, 3, sync_limit=1_000)
    host = Host(ensemble)
    host.servers = [ensemble.servers[connected]]
    client = fake_client(host)
    client.start()
    session_id = client.client_id[0]
    away = ensemble.servers[0]
    for _ in range(4):
        ensemble.cut(away)
        # Longer than the interval of kazoo's pings.
        timeline.run_for(4.0)
        ensemble.heal(away)
        assert ensemble.leader is away
        timeline.run_for(0.2)
    assert session_id in ensemble.sessions
    client.stop()


def test_each_outage_restarts_the_time_until_an_election() -> None:
    """Earlier outages of the leader do not count towards it."""
    timeline = Timeline(1)
    ensemble = FakeEnsemble(timeline, 3)
    leader = ensemble.leader
    assert leader is not None
    for _ in range(200):
        ensemble.cut(leader)
        timeline.run_for(0.9 * ELECTION_S)
        ensemble.heal(leader)
        assert ensemble.leader is leader
        timeline.run_for(0.001)
