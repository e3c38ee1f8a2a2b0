"""A member that is asked to leave while it joins anew, at each step of that."""

from __future__ import annotations

import pytest

from tests.sim.world import at_rest

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("after_ms", range(10))
def test_leaving_while_joining_anew(after_ms: int) -> None:
    """Its event loop is blocked for a while, and finds both then: the word to leave, and the answer it waited for."""
    with at_rest(members=2, topics=(2,)) as world:
        consumer = world.consumers[0]
        world.operator.delete_async(world.layout.member(consumer.member.member_id or ""))
        world.timeline.run_until(lambda: len(consumer.process.connections) > 1)
        world.run_for(after_ms / 1000)
        consumer.process.block(0.1)
        consumer.leave()
        world.close(40.0)
