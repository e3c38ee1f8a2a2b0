"""How much a fetch asks for: the expected size of a rest, what fills an answer, and how a bite follows a broker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiel_groups.clients.fetch.partition_fetch import FAST_S, SLOW_S, BiteSize, MessageSizes, fill_answer

pytestmark = pytest.mark.unit

KIB, MIB = 1 << 10, 1 << 20


def test_the_size_of_a_rest_is_expected_from_what_was_read() -> None:
    """With an eighth and 4 KiB to spare. Without experience, each message has the assumed size."""
    sizes = MessageSizes()
    assert sizes.expected_bytes(100) == 115_200 + 4 * KIB
    sizes.note(5_000, 50)
    assert sizes.expected_bytes(80) == 9_000 + 4 * KIB


def test_old_sizes_lose_their_weight() -> None:
    """Messages that become larger are soon expected to be so."""
    sizes = MessageSizes()
    for _ in range(1_000):
        sizes.note(100_000, 1_000)
    for _ in range(300):
        sizes.note(1_000_000, 1_000)
    assert 700_000 < sizes.expected_bytes(1_000) < 1_200_000


def test_an_answer_is_filled_with_the_first_partitions_that_fit() -> None:
    """The first one always fits. The one that does not fit ends the request, so that it is the first of the next."""
    assert fill_answer([("a", 60), ("b", 30), ("c", 20), ("d", 5)], 100) == {"a": 60, "b": 30}
    assert fill_answer([("a", 600), ("b", 1)], 100) == {"a": 600}
    assert fill_answer(iter([]), 100) == {}


@pytest.mark.property
@given(st.lists(st.integers(0, 200), max_size=30), st.integers(1, 500))
def test_every_partition_has_its_turn(wanted: list[int], most: int) -> None:
    """Requests that take the first partitions, one request after the other, take all of them, in order."""
    left = list(enumerate(wanted))
    while left:
        asked = list(fill_answer(left, most).items())
        assert asked == left[: len(asked)]
        assert asked
        assert sum(size for _, size in asked[1:]) + asked[0][1] <= max(most, asked[0][1])
        del left[: len(asked)]


@pytest.mark.parametrize(
    ("asked", "received", "took_s", "following"),
    [
        (MIB, MIB, FAST_S / 2, 2 * MIB),
        (MIB, MIB * 3 // 4, FAST_S / 2, 2 * MIB),
        (MIB, MIB * 3 // 4 - 1, FAST_S / 2, MIB),
        (MIB - 1, MIB, FAST_S / 2, MIB),
        (MIB, MIB, (FAST_S + SLOW_S) / 2, MIB),
        (MIB, MIB, 2 * SLOW_S, MIB // 2),
        (MIB, 0, 2 * SLOW_S, MIB),
    ],
)
def test_a_bite_follows_full_answers(asked: int, received: int, took_s: float, following: int) -> None:
    """It doubles if they are fast, and is halved if they are slow. Other answers prove nothing."""
    bite = BiteSize(MIB, MIB // 16, 4 * MIB)
    bite.note(asked, received, took_s)
    assert bite.bytes == following


@pytest.mark.property
@given(st.lists(st.floats(0, 2), max_size=60))
def test_a_bite_stays_within_its_bounds(times_s: list[float]) -> None:
    """And fast answers lead to the largest bite again, whatever happened before."""
    bite = BiteSize(MIB, MIB // 16, 4 * MIB)
    for took_s in [*times_s, *[0.0] * 6]:
        bite.note(bite.bytes, bite.bytes, took_s)
        assert bite.least <= bite.bytes <= bite.most
    assert bite.bytes == bite.most
