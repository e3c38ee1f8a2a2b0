"""Drains: a revoked partition waits only for its own records in flight."""

from __future__ import annotations

import pytest

from tests.sim.world import at_rest

pytestmark = pytest.mark.sim


def test_an_idle_partition_does_not_wait_for_a_busy_one() -> None:
    """
    The new member claims an idle partition without waiting for a busy partition.

    Two of four partitions move to the new member. Each of the four partitions is busy in turn, so twice one of the
    moving partitions is busy.
    """
    claimed = []
    for busy in range(4):
        with at_rest(members=1, topics=(4,)) as world:
            world.consumers[0].work((busy + 0.5) / 4, 3, 20.0)
            newcomer = world.join(world.topics)
            world.run_for(5.0)
            claimed.append(len(newcomer.opened))
    assert sorted(claimed) == [1, 1, 2, 2]
