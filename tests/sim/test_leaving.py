"""A member that is asked to leave while it joins anew, at each step of that."""

from __future__ import annotations

import logging

import pytest

from kiel_groups.errors import CoordinationError
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


def test_an_error_that_comes_while_it_leaves_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """Once: its last commit may have been refused for good, and nobody supervises the session any more."""
    with at_rest(members=1, topics=(2,)) as world, caplog.at_level(logging.ERROR, "kiel_groups"):
        (consumer,) = world.consumers
        membership = consumer.member._member_session
        assert membership is not None
        consumer.work(0.0, 1, 1.0)
        consumer.leave()
        world.run_for(0.1)
        consumer.process.call(membership.fail, CoordinationError("no rights"))
        world.run_for(5.0)
        assert [line for line in caplog.messages if "no rights" in line] == ["group g: this member stops: no rights"]
