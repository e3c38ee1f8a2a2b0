"""A member's registration whose answer is lost."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from kiel_groups.coordination.membership import Membership
from kiel_groups.group.transactions import Operation
from tests.sim.world import at_rest

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("is_new", [True, False])
def test_it_is_found_made_although_the_next_server_is_behind(monkeypatch: pytest.MonkeyPatch, is_new: bool) -> None:
    """Asked for again, it is refused: that is its own znode, and no reason to stop for good."""
    with at_rest(members=2, topics=(4,)) as world:
        consumer = world.join(world.topics) if is_new else world.consumers[0]
        operations, registered = Membership._registration, []

        def losing_its_answer(membership: Membership, topics: Collection[str]) -> list[Operation]:
            if membership._handler is consumer and not registered:
                registered.append(consumer)
                consumer.process.lose("reply")
                behind = next(
                    server
                    for server in world.ensemble.servers
                    if server not in (world.ensemble.leader, consumer.process.server)
                )
                behind.lag_s = 2.0
                # The next connection; this one stays where it is.
                world.timeline.after(0.0, setattr, consumer.process, "only", behind)
            return operations(membership, topics)

        monkeypatch.setattr(Membership, "_registration", losing_its_answer)
        if not is_new:
            world.operator.delete(world.layout.member(str(consumer.member.member_id)))
        world.run_for(10.0)
        assert registered
        consumer.process.only = None
        world.settle(20.0)
        assert len(consumer.flowing) > 0
        assert consumer.metrics.total("sessions_opened") == 2 - is_new
