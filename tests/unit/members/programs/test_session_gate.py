"""When a member on ZooKeeper may use its assignment."""

from __future__ import annotations

import pytest

from kiel_groups.members.programs.zookeeper_coordinator import SessionGate
from kiel_groups.model import GenerationToken
from kiel_groups.zookeeper.delivery_gate import DeliveryGate

pytestmark = pytest.mark.unit


def test_the_gate_follows_the_lease_of_the_session() -> None:
    """It is open while the session is trusted, however old the assignment is."""
    session = DeliveryGate()
    session.grant(10_000, 0.0)
    session.renew(100.0)
    gate = SessionGate(GenerationToken(1, "m"), session, 100.0)
    assert gate.is_open(104.9)
    assert gate.deadline_s == 105.0
    session.renew(200.0)
    assert gate.is_open(204.9)
    assert gate.deadline_s == 205.0
    session.suspended = True
    assert not gate.is_open(204.9)
    session.suspended = False
    assert not gate.is_open(205.0)


@pytest.mark.parametrize("shut", ["gate", "session"])
def test_a_shut_gate_stays_shut(shut: str) -> None:
    """The gate is shut with its generation, or with its session, although the other one continues."""
    session = DeliveryGate()
    session.grant(10_000, 0.0)
    session.renew(100.0)
    gate = SessionGate(GenerationToken(1, "m"), session, 100.0)
    if shut == "gate":
        gate.shut()
    else:
        session.shut("over")
    session.renew(101.0)
    assert not gate.is_open(101.0)
    assert gate.is_shut == (shut == "gate")
