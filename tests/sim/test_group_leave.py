"""Members that are asked to leave."""

from __future__ import annotations

import logging

import pytest

from kiel_groups.errors import CoordinationError
from tests.sim.world import at_rest

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("after_ms", range(10))
def test_a_member_leaves_while_it_joins_again(after_ms: int) -> None:
    """
    A member leaves although, after a block, its event loop finds the request to leave together with the answer that the
    join waited for.
    """
    with at_rest(members=2, topics=(2,)) as world:
        consumer = world.consumers[0]
        world.operator.delete_async(world.layout.member(consumer.member.member_id or ""))
        world.timeline.run_until(lambda: len(consumer.process.connections) > 1)
        world.run_for(after_ms / 1000)
        consumer.process.block(0.1)
        consumer.leave()
        world.close(40.0)


def test_an_error_while_a_member_leaves_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """An error while a member leaves is logged once, although the session supervisor no longer runs."""
    with at_rest(members=1, topics=(2,)) as world, caplog.at_level(logging.ERROR, "kiel_groups"):
        (consumer,) = world.consumers
        member_session = consumer.member._member_session
        assert member_session is not None
        consumer.work(0.0, 1, 1.0)
        consumer.leave()
        world.run_for(0.1)
        consumer.process.call(member_session.fail, CoordinationError("no rights"))
        world.run_for(5.0)
        assert [line for line in caplog.messages if "no rights" in line] == ["group g: this member stops: no rights"]
