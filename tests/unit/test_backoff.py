"""The delays between tries: their growth, their limit, their jitter, and their reset."""

from __future__ import annotations

import pytest

from kiel_groups.backoff import LONGEST_REPEAT_S, Backoff, RepeatedFailures, shortening

pytestmark = pytest.mark.unit


def test_delays_double_up_to_the_longest() -> None:
    """The first delay is doubled with every failure in a row, up to the longest delay."""
    backoff = Backoff(0.5, 5.0)
    assert [backoff.next_s() for _ in range(6)] == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_a_reset_starts_with_the_first_delay_again() -> None:
    """After a reset, the next delay is the first one."""
    backoff = Backoff(0.1, 5.0)
    assert [backoff.next_s(), backoff.next_s()] == [0.1, 0.2]
    backoff.reset()
    assert [backoff.next_s(), backoff.next_s()] == [0.1, 0.2]


def test_a_delay_for_a_count_counts_nothing() -> None:
    """``delay_s`` depends only on its argument, and leaves the count of ``next_s`` as it is."""
    backoff = Backoff(0.1, 1.0)
    assert [backoff.delay_s(n) for n in (-1, 0, 1, 2, 3, 5, 10_000)] == [0, 0, 0.1, 0.2, 0.4, 1.0, 1.0]
    assert backoff.next_s() == 0.1


def test_a_longest_delay_below_the_first_one_limits_every_delay() -> None:
    """Each delay is limited by the longest one, also the first."""
    backoff = Backoff(2.0, 0.5)
    assert [backoff.next_s(), backoff.next_s()] == [0.5, 0.5]


def test_jitter_is_drawn_once_for_each_delay() -> None:
    """Each delay is multiplied by a factor of its own. No factor is drawn for a delay of 0."""
    factors = iter((0.5, 1.5))
    backoff = Backoff(1.0, 5.0, lambda: next(factors))
    assert backoff.delay_s(0) == 0
    assert [backoff.next_s(), backoff.next_s()] == [0.5, 3.0]
    assert next(factors, None) is None


def test_shortening_subtracts_at_most_its_share() -> None:
    """``shortening`` only shortens delays, by at most its share."""
    assert shortening(lambda: 0.0)() == 1.0
    assert shortening(lambda: 0.5, 0.5)() == 0.75
    assert shortening(lambda: 0.999_999)() == pytest.approx(0.7)


def test_failures_are_logged_at_growing_intervals_and_new_causes_at_once() -> None:
    """A line after the first one has the number and the time of the failures. A success begins anew."""
    failures, told = RepeatedFailures(), {}
    for now_s in range(0, 4_000, 5):
        if (times := failures.note("refused", now_s)) is not None:
            told[now_s] = times
    assert list(told) == [0, 60, 180, 420, 900, 1500, 2100, 2700, 3300, 3900]
    assert (told[0], told[60], told[3900]) == ("", ", 13 times in 60 s", ", 781 times in 3900 s")
    assert LONGEST_REPEAT_S == 3900 - 3300
    assert [failures.note(cause, 4_000) for cause in ("silent", "silent", "refused")] == ["", None, ""]
    assert [failures.forget(), failures.forget(), failures.note("refused", 4_000)] == [True, False, ""]
