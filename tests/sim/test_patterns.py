"""Members that subscribe to patterns, while topics come and go."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from kiel_groups.group.znodes.contents import GroupState, MemberInfo
from kiel_groups.group.znodes.layout import topic_path
from kiel_groups.members.zookeeper.owned_partitions import UnsubscribedTopics
from kiel_groups.model import TopicPartition
from tests.fakes import simulated_process
from tests.fakes.simulated_process import ENDLESS
from tests.sim.consumer import Consumer
from tests.sim.coordinated.broker_world import brokers_at_rest
from tests.sim.coordinated.member_process import _Topics
from tests.sim.topics import create_topic
from tests.sim.world import World, at_rest

N0, N1 = TopicPartition("n1", 0), TopicPartition("n1", 1)


def _fail(questions: object) -> dict[str, list[str]]:
    raise OSError("no process")


def group_state(world: World) -> GroupState:
    return GroupState.parse(world.ensemble.tree.znodes[world.layout.group_state].data, "")


def registered(world: World, consumer: Consumer) -> int:
    """Return the czxid of a member's znode, which a rejoin or another subscription changes."""
    assert consumer.member.member_id is not None
    return world.ensemble.tree.znodes[world.layout.member(consumer.member.member_id)].czxid


def test_a_new_topic_joins_and_a_deleted_one_leaves_without_a_rejoin() -> None:
    """The member registers its pattern once. Topics that do not match, and internal ones, are not consumed."""
    with at_rest(members=1, topics=(2,)) as world:
        consumer = world.join((), pattern="n|_")
        world.run_for(5.0)
        before = registered(world, consumer)
        assert consumer.topics == frozenset()
        for topic, partitions in [("n1", 2), ("other", 1), ("an1", 1), ("__consumer_offsets", 1)]:
            create_topic(world, topic, partitions)
        world.run_for(5.0)
        assert consumer.topics == {"n1"}
        assert consumer.opened.keys() == {N0, N1}
        assert group_state(world).cause == "new topic n1"
        world.operator.delete(topic_path("n1"))
        del world.topics["n1"]
        world.run_for(5.0)
        assert consumer.topics == consumer.opened.keys() == set()
        assert group_state(world).cause == "deleted topic n1"
        assert registered(world, consumer) == before
        assert world.consumers[0].topics == {"t0"}


def test_a_pattern_that_matches_for_ever_costs_its_members_that_pattern_and_is_named() -> None:
    """The group state names it. Members with topics, and with another pattern, are not affected."""
    with at_rest(members=1, topics=(2,)) as world:
        refused, other = world.join((), pattern=f"{ENDLESS}b"), world.join((), pattern="n")
        create_topic(world, "n1", 2)
        world.settle(30.0)
        assert group_state(world).patterns[f"{ENDLESS}b"].problem == "endless"
        assert refused.topics == frozenset()
        assert other.topics == {"n1"}
        assert refused.opened == {}
        refused.subscribe((), "t0|n1")
        world.run_for(5.0)
        world.settle(30.0)
        assert refused.topics == {"t0", "n1"}


def test_a_new_leader_that_cannot_compare_takes_no_partitions_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """It plans with the matches of the last plan until it can compare."""
    with at_rest(members=1, topics=(2,)) as world:
        consumer = world.join((), pattern="n")
        create_topic(world, "n1", 2)
        world.run_for(5.0)
        tokens = {partition: consumer.token(partition) for partition in (N0, N1)}
        with monkeypatch.context() as patched:
            patched.setattr(simulated_process, "_compare", _fail)
            world.consumers[0].kill()
            world.run_for(20.0)
            assert "no process" in group_state(world).patterns["n"].problem
        world.run_for(20.0)
        assert group_state(world).patterns["n"].problem == ""
        assert {partition: consumer.token(partition) for partition in (N0, N1)} == tokens


def test_a_pattern_that_returns_after_topics_is_followed_at_once() -> None:
    """The plan for the topics lacks the pattern, and no watch was set while the pattern was known."""
    with at_rest(members=1, topics=(2,)) as world:
        (consumer,) = world.consumers
        consumer.subscribe((), "t")
        world.run_for(5.0)
        consumer.subscribe(["t0"])
        world.run_for(5.0)
        consumer.subscribe((), "t")
        world.run_for(5.0)
        assert consumer.topics == {"t0"}
        assert len(consumer.opened) == 2


def test_another_pattern_with_the_same_topics_moves_nothing() -> None:
    """The plan changes no assignment, so the member waits for the group state. Its claims stay."""
    with at_rest(members=1, topics=(2,)) as world:
        (consumer,) = world.consumers
        consumer.subscribe((), "t0|n")
        world.run_for(5.0)
        tokens = {partition: consumer.token(partition) for partition in consumer.opened}
        consumer.subscribe((), "t.*")
        assert consumer.topics == frozenset()
        world.run_for(5.0)
        assert consumer.topics == {"t0"}
        assert {partition: consumer.token(partition) for partition in consumer.opened} == tokens
        assert len(tokens) == 2


def test_a_leader_that_knows_no_patterns_assigns_nothing_to_the_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A leader of an earlier version reads an empty subscription: the member waits, and a later leader assigns to it.
    """
    parse = MemberInfo.parse
    with at_rest(members=1, topics=(2,)) as world:
        monkeypatch.setattr(MemberInfo, "parse", lambda *given: replace(parse(*given), pattern=None))
        create_topic(world, "n1", 2)
        consumer = world.join((), pattern="[tn]")
        world.run_for(10.0)
        assert consumer.opened == {}
        assert group_state(world).patterns == {}
        monkeypatch.undo()
        world.consumers[0].kill()
        world.run_for(20.0)
        world.settle(30.0)
        assert consumer.topics == {"t0", "n1"}
        assert N0 in consumer.opened


def test_owned_partitions_are_assigned_once_their_topic_is_known_to_match(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their records are delivered then, also while ZooKeeper does not answer what the member reads next."""
    check = UnsubscribedTopics.check

    async def late(*arguments: Any) -> None:
        await asyncio.sleep(5.0)
        await check(*arguments)

    with at_rest(members=1, topics=(2,)) as world:
        world.join((), pattern="t")
        world.run_for(5.0)
        consumer = world.consumers[0]
        (owned,) = consumer.opened
        monkeypatch.setattr(UnsubscribedTopics, "check", late)
        consumer.subscribe((), "t")
        assert not consumer.is_assigned(owned)
        world.run_for(2.0)
        assert consumer.topics == {"t0"}
        assert consumer.opened.keys() == {owned}
        assert consumer.is_assigned(owned)


def test_all_members_offer_a_new_topic_in_one_rebalance_of_brokers() -> None:
    """The first member that notices the topic joins again; the others look for new topics in that rebalance."""
    with brokers_at_rest(members=1, topics=(2,), metadata_max_age_ms=5_000) as world:
        consumers = [world.join((), "[tn]") for _ in range(3)]
        world.wait("unowned", 30.0)
        assert all(consumer.topics == {"t0"} for consumer in consumers)
        (before,) = {consumer.member._member._state.generation for consumer in consumers}
        world.add_topic(3)
        world.run_for(15.0)
        world.wait("unowned", 30.0)
        assert all(consumer.topics == {"t0", "n0"} for consumer in consumers)
        assert {consumer.member._member._state.generation for consumer in consumers} == {before + 1}
        world.remove_topic(0)
        world.run_for(15.0)
        world.wait("unowned", 30.0)
        assert all(consumer.topics == {"t0"} for consumer in consumers)


async def _late(_: _Topics) -> frozenset[str]:
    await asyncio.sleep(20.0)
    return frozenset()


async def _none(_: _Topics) -> frozenset[str]:
    return frozenset()


@pytest.mark.parametrize(
    "broken",
    [(simulated_process, "_compare", _fail), (_Topics, "all_topics", _none), (_Topics, "all_topics", _late)],
)
def test_a_first_comparison_through_brokers_that_fails_is_repeated_soon(
    broken: tuple[object, str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that has just started lists no topic, which is no answer. The metadata is old only after 5 minutes."""
    with brokers_at_rest(members=1, topics=(2,), metadata_max_age_ms=300_000) as world:
        with monkeypatch.context() as patched:
            patched.setattr(*broken)
            consumer = world.join((), "t")
            world.run_for(12.0)
            assert consumer.topics == frozenset()
        world.run_for(30.0)
        assert consumer.topics == {"t0"}
