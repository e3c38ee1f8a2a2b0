"""Leaders that come to an end, and who follows them."""

from __future__ import annotations

import pytest

from tests.sim.world import at_rest

pytestmark = pytest.mark.sim


def test_a_leader_that_is_refused_stands_for_election_again() -> None:
    """It does not wait for the regular look: partitions that were added have their owner within seconds."""
    with at_rest(members=2, topics=(4,)) as world:
        (leader,) = (consumer for consumer in world.consumers if consumer.member.leads)
        other = next(consumer for consumer in world.consumers if consumer is not leader)
        for name in world.ensemble.truth.children(world.layout.election):
            world.operator.delete(f"{world.layout.election}/{name}")
        other.kill()
        world.set_partitions("t0", 6)
        world.run_for(12.0)
        assert leader.member.leads
        assert len([p for p in leader.flowing if p.partition >= 4]) == 2


def test_the_next_candidate_leads_when_the_leader_is_gone() -> None:
    """It watches the one before it: the end of that one's session is enough, and no regular look is needed."""
    with at_rest(members=3, topics=(4,)) as world:
        (leader,) = (consumer for consumer in world.consumers if consumer.member.leads)
        others = [consumer for consumer in world.consumers if consumer is not leader]
        leader.kill()
        world.run_for(12.0)
        assert sum(consumer.member.leads for consumer in others) == 1


def test_a_leader_that_resigned_says_nothing_of_owners_any_more() -> None:
    """They are as the next leader wants them, and not as it wanted them itself."""
    with at_rest(members=2, topics=(4,)) as world:
        (leader,) = (consumer for consumer in world.consumers if consumer.member.leads)
        truth, folder = world.ensemble.truth, world.layout.election
        stood = {truth.znodes[f"{folder}/{name}"].data.decode(): name for name in truth.children(folder)}
        world.operator.delete(f"{folder}/{stood[leader.member.member_id or '']}")
        world.join(world.topics)
        world.run_for(180.0)
        assert not leader.member.leads
        assert sum(consumer.member.leads for consumer in world.consumers) == 1
        assert [consumer.metrics.total("ownership_alarms") for consumer in world.consumers] == [0, 0, 0]
