"""The gate of a generation: how long a member may deliver and commit after the coordinator has confirmed it."""

from __future__ import annotations

import pytest

from kiel_groups.clients.coordinator.generation_gate import GenerationGate
from kiel_groups.model import GenerationToken

pytestmark = pytest.mark.unit

TOKEN = GenerationToken(5, "m")
SENT_S = 1_000.0


@pytest.fixture
def gate() -> GenerationGate:
    """Return a gate with a session timeout of 6 seconds, whose sync was sent at ``SENT_S``."""
    return GenerationGate(TOKEN, 6_000, SENT_S)


def test_a_lease_lasts_half_of_the_session_timeout(gate: GenerationGate) -> None:
    """The lease counts from the sending of the answered request, so that the coordinator's session ends later."""
    assert gate.is_open(SENT_S)
    assert gate.is_open(SENT_S + 2.999)
    assert not gate.is_open(SENT_S + 3)


def test_an_answered_request_renews_the_lease(gate: GenerationGate) -> None:
    """A later confirmation moves the end; an earlier one, whose answer came late, does not move it back."""
    gate.renew(TOKEN, SENT_S + 2)
    gate.renew(TOKEN, SENT_S + 1)
    assert (gate.confirmed_s, gate.deadline_s) == (SENT_S + 2, SENT_S + 5)


@pytest.mark.parametrize("other", [GenerationToken(6, "m"), GenerationToken(5, "n"), GenerationToken(-1, "")])
def test_only_its_own_membership_renews_a_lease(gate: GenerationGate, other: GenerationToken) -> None:
    """The confirmation of another generation, or of another member id, does not count."""
    gate.renew(other, SENT_S + 2)
    assert gate.deadline_s == SENT_S + 3


def test_a_later_confirmation_opens_the_gate_again(gate: GenerationGate) -> None:
    """The end of a lease is not final: the coordinator may still count on the member."""
    assert not gate.is_open(SENT_S + 4)
    gate.renew(TOKEN, SENT_S + 4)
    assert gate.is_open(SENT_S + 4)


def test_a_gate_that_was_shut_stays_shut(gate: GenerationGate) -> None:
    """Neither a confirmation nor the time of a drain opens a gate that was shut."""
    assert not gate.is_shut
    gate.shut()
    gate.renew(TOKEN, SENT_S + 4)
    gate.extend(SENT_S + 100, SENT_S)
    assert gate.is_shut
    assert not gate.is_open(SENT_S + 4)


def test_the_time_of_a_drain_extends_the_lease(gate: GenerationGate) -> None:
    """The end moves to the later of the two, and a confirmation does not move it back."""
    gate.extend(SENT_S + 1, SENT_S)
    assert gate.deadline_s == SENT_S + 3
    gate.extend(SENT_S + 30, SENT_S)
    gate.renew(TOKEN, SENT_S + 2)
    assert gate.deadline_s == SENT_S + 30


def test_a_drain_does_not_extend_a_lease_that_is_over(gate: GenerationGate) -> None:
    """The coordinator may have removed the member: what is not committed is lost."""
    gate.extend(SENT_S + 30, SENT_S + 3)
    assert gate.deadline_s == SENT_S + 3


@pytest.mark.parametrize(("rebalance_timeout_s", "end_s"), [(60.0, 5.5), (6.0, 3.0), (8.0, 4.0)])
def test_a_commit_renews_a_lease_within_the_rebalance_timeout(
    gate: GenerationGate, rebalance_timeout_s: float, end_s: float
) -> None:
    """
    The group may rebalance since the last heartbeat, and the coordinator then takes commits until it removes the member
    at the end of the rebalance timeout. So any number of commits extend the lease by half of that.
    """
    for after_s in (1.5, 2.5):
        gate.renew_by_commit(TOKEN, SENT_S + after_s, rebalance_timeout_s)
    assert (gate.deadline_s, gate.confirmed_s) == (SENT_S + end_s, SENT_S)
    gate.renew_by_commit(GenerationToken(6, "m"), SENT_S + 10, 60.0)
    assert gate.deadline_s == SENT_S + end_s
