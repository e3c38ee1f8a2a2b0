"""A connection that breaks and comes back within the session."""

from __future__ import annotations

import pytest

from kiel_groups.group.lease import lease_deadline
from tests.sim.world import SESSION_TIMEOUT_MS, at_rest

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
