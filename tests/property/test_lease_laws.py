"""The gate after renewals, checks, broken connections and changed timeouts in any order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiel_groups.zookeeper.delivery_gate import DeliveryGate

pytestmark = pytest.mark.property

steps = st.lists(
    st.tuples(
        st.sampled_from(["renew", "check", "suspend", "resume", "grant", "shut"]),
        # Tenths of a second since the previous step, and since the answered request was sent.
        st.integers(0, 20),
        st.integers(0, 40),
    ),
    max_size=40,
)


@given(steps)
def test_an_open_gate_has_a_proof_that_is_younger_than_half_the_timeout(drawn: list[tuple[str, int, int]]) -> None:
    """
    An open gate has a proof that is younger than half of the timeout. This is the timeout granted at the time of the
    proof, but at most the first one, which other members rely on.

    A gate whose lease has ended never opens again.
    """
    gate, now_s, timeout_ms = DeliveryGate(), 0.0, 6_000
    proofs: list[tuple[float, int]] = []
    lapsed = shut = suspended = False
    gate.grant(timeout_ms, now_s)
    for what, later, age in drawn:
        now_s += later / 10
        if what == "renew":
            proofs.append((now_s - age / 10, timeout_ms))
            gate.renew(now_s - age / 10)
        elif what in ("suspend", "resume"):
            gate.suspended = suspended = what == "suspend"
        elif what == "grant":
            gate.grant(2_000 + 200 * age, now_s)
            timeout_ms = min(2_000 + 200 * age, 6_000)
        elif what == "shut":
            shut = True
            gate.shut("by the test")
        elif gate.is_open(now_s):
            assert (lapsed, shut, suspended) == (False, False, False)
            assert any(now_s < sent_s + granted_ms / 2_000 for sent_s, granted_ms in proofs)
        else:
            lapsed = lapsed or (bool(proofs) and now_s >= gate.deadline_s)


@given(st.lists(st.integers(0, 1_000), min_size=1), st.integers(1, 60_000))
def test_the_newest_proof_renews_the_lease(sent: list[int], timeout_ms: int) -> None:
    """The lease counts from the newest proof, in whatever order the answers arrive."""
    gate = DeliveryGate()
    gate.grant(timeout_ms, 0.0)
    for sent_s in sent:
        gate.renew(sent_s)
    assert gate.deadline_s == max(sent) + timeout_ms / 2_000
