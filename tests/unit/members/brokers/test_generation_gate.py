"""The gate of a generation: how long a member may deliver and commit after the coordinator has confirmed it."""

from __future__ import annotations

import pytest

from kiel_groups.members.brokers.gate import GenerationGate
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
    """No confirmation opens a gate that was shut."""
    assert not gate.is_shut
    gate.shut()
    gate.renew(TOKEN, SENT_S + 4)
    gate.renew_in_rebalance(TOKEN, SENT_S + 4)
    assert gate.is_shut
    assert not gate.is_open(SENT_S + 4)


@pytest.mark.parametrize(("rebalance_timeout_s", "end_s"), [(60.0, 5.5), (5.0, 4.5), (3.0, 3.0), (0.0, 3.0)])
def test_answers_during_a_rebalance_renew_a_lease_within_its_timeout(rebalance_timeout_s: float, end_s: float) -> None:
    """
    The coordinator removes the member at the end of the rebalance timeout, however often that beats or commits, and
    before that, if it is silent for a session.
    """
    gate = GenerationGate(TOKEN, 6_000, SENT_S, rebalance_timeout_s)
    for after_s in (1.5, 2.5):
        gate.renew_in_rebalance(TOKEN, SENT_S + after_s)
    assert (gate.deadline_s, gate.confirmed_s) == (SENT_S + end_s, SENT_S)
    gate.renew_in_rebalance(GenerationToken(6, "m"), SENT_S + 10)
    assert gate.deadline_s == SENT_S + end_s


def test_a_drain_of_any_number_of_heartbeats_ends() -> None:
    """The timeout counts from the last moment when the group was stable; a tenth is kept for the clocks' rates."""
    gate = GenerationGate(TOKEN, 6_000, SENT_S, 60.0)
    for second in range(1, 120):
        gate.renew_in_rebalance(TOKEN, SENT_S + second)
    assert gate.deadline_s == SENT_S + 54
