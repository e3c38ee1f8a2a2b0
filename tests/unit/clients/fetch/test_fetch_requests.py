"""Fetch requests: which partitions they have, how long a broker may wait, and how bytes are divided."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiel_groups.clients.fetch.fetch_requests import (
    LEAST_SHARE_BYTES,
    SHORT_WAIT_MS,
    BrokerLanes,
    PlannedFetch,
    divide_budget,
)
from kiel_groups.clients.fetch.partition_fetch import PartitionFetch, Phase
from kiel_groups.config import FetchConfig
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit

LONG = 5_000
CONFIG = FetchConfig(max_wait_ms=LONG)


def partition(number: int, *, idle: bool = False, needed_bytes: int = 0) -> PartitionFetch:
    """Return the fetch state of a partition of topic t."""
    return PartitionFetch(TopicPartition("t", number), 1, 0, empty_answers=int(idle), needed_bytes=needed_bytes)


def plan(lanes: BrokerLanes, *ready: PartitionFetch) -> PlannedFetch | None:
    """Add ready partitions to a broker's lanes, and plan the next request."""
    for state in ready:
        lanes.ready[state] = None
        if not state.dropped:
            state.enter(Phase.READY)
    return lanes.plan(CONFIG, 1 << 20)


def test_a_single_request_has_all_partitions_and_waits_long() -> None:
    """
    If no other request to the broker is in flight, the request has all ready partitions, even idle ones, and a long
    wait.
    """
    lanes, hot, idle = BrokerLanes(0), partition(0), partition(1, idle=True)
    planned = plan(lanes, hot, idle)
    assert planned is not None
    assert (set(planned.shares), planned.wait_ms) == ({hot, idle}, LONG)
    assert hot.phase is Phase.FETCHING
    assert not lanes.ready


def test_a_second_request_waits_briefly_and_a_third_is_not_sent() -> None:
    """
    A second request to a broker uses the second lane, with a short wait. A third request is not sent while both lanes
    are in use.
    """
    lanes = BrokerLanes(0)
    first, second = plan(lanes, partition(0)), plan(lanes, partition(1))
    assert first is not None
    assert second is not None
    assert (first.lane, second.lane, second.wait_ms) == (0, 1, SHORT_WAIT_MS)
    assert plan(lanes, partition(2)) is None


def test_idle_partitions_wait_for_a_short_request_to_merge_with() -> None:
    """
    While a short request is in flight, idle partitions are requested only together with a partition that has data.
    After it, one long request has all idle partitions.
    """
    lanes, idle = BrokerLanes(0), partition(2, idle=True)
    assert plan(lanes, partition(0)) is not None
    assert plan(lanes, partition(1)) is not None
    del lanes.in_flight[0]
    assert plan(lanes, idle) is None, "the short request is still in flight"
    hot = partition(3)
    beside = plan(lanes, hot)
    assert beside is not None, "a partition with data does not wait"
    assert set(beside.shares) == {idle, hot}
    lanes.in_flight.clear()
    merged = plan(lanes, partition(4, idle=True))
    assert merged is not None
    assert merged.wait_ms == LONG


def test_dropped_partitions_are_left_out() -> None:
    """A partition that was unassigned after it became ready is not fetched."""
    lanes, dropped = BrokerLanes(0), partition(0)
    dropped.drop()
    assert plan(lanes, dropped) is None
    assert not lanes.ready


def test_large_messages_share_the_budget_and_one_always_fits() -> None:
    """
    Large messages that fit into the budget are requested together. A message above the budget is requested with minimal
    shares for the other partitions.
    """
    small, big, bigger = partition(0), partition(1, needed_bytes=30_000), partition(2, needed_bytes=40_000)
    assert divide_budget([small, big, bigger], 100_000) == {big: 30_000, bigger: 40_000, small: 30_000}
    assert divide_budget([small, big, bigger], 50_000) == {big: 30_000, small: 20_000}, (
        "the next request takes the other"
    )
    assert divide_budget([bigger, big, small], 10_000) == {bigger: 40_000, small: LEAST_SHARE_BYTES}


@pytest.mark.property
@given(
    needs=st.lists(st.sampled_from([0, 0, 5_000, 100_000, 5_000_000]), min_size=1, max_size=40),
    budget=st.integers(1, 1 << 21),
)
def test_shares_keep_to_the_budget(needs: list[int], budget: int) -> None:
    """
    Each partition in a request gets enough bytes for its message. Only a single message or minimal shares may exceed
    the budget.
    """
    partitions = [partition(n, needed_bytes=need) for n, need in enumerate(needs)]
    shares = divide_budget(partitions, budget)
    large = [shares[p] for p in partitions if p.needed_bytes and p in shares]
    plain = [shares[p] for p in partitions if not p.needed_bytes]
    assert shares
    assert len(plain) == needs.count(0)
    assert all(share == p.needed_bytes for p, share in shares.items() if p.needed_bytes)
    assert sum(large[1:]) <= budget
    least = min(LEAST_SHARE_BYTES, budget)
    assert all(share >= least for share in plain)
    if len(large) < 2 and sum(large) + least * len(plain) <= budget:
        assert sum(shares.values()) <= budget
