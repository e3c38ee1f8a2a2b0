"""Backoff after any sequence of failures and successes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiel_groups.backoff import Backoff

pytestmark = pytest.mark.property

lengths_s = st.floats(min_value=0.000_1, max_value=1_000)


@given(lengths_s, lengths_s, st.lists(st.booleans(), max_size=60))
def test_delays_depend_on_the_failures_since_the_last_success(
    first_s: float, longest_s: float, outcomes: list[bool]
) -> None:
    """
    Each delay is that of the number of failures since the last reset. Delays never shrink without a reset, at most
    double, and never exceed the longest one.
    """
    backoff, failures, before_s = Backoff(first_s, longest_s), 0, 0.0
    for succeeds in outcomes:
        if succeeds:
            backoff.reset()
            failures, before_s = 0, 0.0
            continue
        failures += 1
        delay_s = backoff.next_s()
        assert delay_s == backoff.delay_s(failures)
        assert before_s <= delay_s <= longest_s
        assert delay_s <= 2 * before_s or failures == 1
        before_s = delay_s


@given(lengths_s, lengths_s, st.integers(1, 1_000), st.floats(min_value=0.0, max_value=2.0))
def test_jitter_multiplies_the_delay(first_s: float, longest_s: float, failures: int, factor: float) -> None:
    """Jitter changes a delay by its factor, and nothing else."""
    plain = Backoff(first_s, longest_s).delay_s(failures)
    assert Backoff(first_s, longest_s, lambda: factor).delay_s(failures) == plain * factor
