"""The store ``broker-v0`` on simulated time: brokers that write offsets late, and what the checker makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from kiel_groups.config import BROKER_V0
from kiel_groups.coordination.offsets.broker_store import BrokerOffsetStore
from kiel_groups.model import TopicPartition
from tests.sim.consumer import Consumer
from tests.sim.ledger import UNDER_WAY_S, Violation
from tests.sim.test_interrupted_commits import process_some
from tests.sim.test_topics_made_anew import no_broker_knows, recreate, stored
from tests.sim.world import RECONCILE_INTERVAL_MS, World, at_rest

pytestmark = pytest.mark.sim

PARTITION = TopicPartition("t0", 0)
#: Enough for a look without any watch.
LATE_S = 1.5 * RECONCILE_INTERVAL_MS / 1000


@pytest.fixture
def world() -> Iterator[World]:
    """A group of one at rest, with one partition, whose offsets brokers write."""
    with at_rest(members=1, topics=(1,), reset="earliest", store=BROKER_V0) as made:
        yield made


def commit(world: World, consumer: Consumer) -> None:
    process_some(world, consumer)
    world.timeline.run_until(consumer.process.start(consumer.member.commit_on_session()).done, 20.0)


def hold_all(world: World, duration_s: float) -> None:
    for broker in world.brokers.all:
        broker.hold(duration_s)


def test_a_write_that_is_held_past_the_release_repeats_records_and_loses_none(world: World) -> None:
    (holding,) = world.consumers
    commit(world, holding)
    assert stored(world) == [3]
    process_some(world, holding)
    hold_all(world, 10.0)
    holding.leave()
    following = world.join(world.topics)
    world.timeline.run_until(lambda: PARTITION in following.flowing, 9.0)
    assert following.finished(PARTITION) == (3, 3), "nothing of the held write is there yet"
    process_some(world, following)
    for broker in world.brokers.all:
        broker.heal()
    commit(world, following)
    assert stored(world) == [9]
    world.run_for(12.0)
    assert stored(world) == [6], "the late write steps back"
    world.run_for(5.0)
    commit(world, following)
    assert following.metrics.total("commits_superseded") == 1
    commit(world, following)
    assert stored(world) == [9]
    world.close(20.0)


def test_a_release_waits_for_a_commit_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers check nothing: a request that is sent after the release may overwrite what the next owner stores."""
    with at_rest(members=1, topics=(1, 1), reset="earliest", store=BROKER_V0) as world:
        (holding,) = world.consumers
        membership, pausing, claimed = holding.member._member_session, list[bool](), list[bool]()
        assert membership is not None

        async def slowly(offsets: Mapping[TopicPartition, int], metadata: str) -> object:
            if not pausing:
                pausing.append(True)
                await asyncio.sleep(2.0)
            claimed.append(world.layout.owner(PARTITION) in world.ensemble.truth.znodes)
            return await holding.send_commit(offsets, metadata)

        monkeypatch.setattr(membership.owned_partitions._store, "send_commit", slowly)
        process_some(world, holding)
        holding.process.start(holding.member.commit_on_session())
        holding.subscribe(["t1"])
        world.run_for(10.0)
        assert PARTITION not in holding.flowing
        assert claimed
        assert all(claimed)
        assert world.ensemble.truth.znodes[world.layout.offset(PARTITION)].data == b"3"


def test_a_lost_answer_is_asked_for_again(world: World) -> None:
    (holding,) = world.consumers
    for broker in world.brokers.all:
        broker.loses = 1
    commit(world, holding)
    assert stored(world) == [3]
    assert world.ensemble.truth.znodes[world.layout.offset(PARTITION)].version == 4, "stored by three requests"
    commit(world, holding)
    assert stored(world) == [6]


def test_a_late_write_of_the_old_log_is_overwritten_by_the_start_in_the_new_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker writes in no member's name, so that it cannot be told from an operator."""
    (holding,) = world.consumers
    hold_all(world, 5.0)
    process_some(world, holding)
    holding.process.start(holding.member.commit_on_session())
    world.run_for(1.0)
    with monkeypatch.context() as silent:
        no_broker_knows(silent)
        recreate(world)
        world.run_for(1.0)
        process_some(world, holding)
        world.run_for(5.0)
        assert stored(world) == [3]
        world.operator.set(world.layout.offset(PARTITION), b"2")
    world.run_for(20.0)
    assert stored(world) == [0]


def test_a_late_write_after_a_reset_is_followed_and_the_position_is_chosen_again(world: World) -> None:
    """The znode has an offset that the log lacks: the next owner must not find it (decision 0016)."""
    (holding,) = world.consumers
    commit(world, holding)
    hold_all(world, 15.0)
    process_some(world, holding)
    holding.process.start(holding.member.commit_on_session())
    world.run_for(1.0)
    world.retain(PARTITION, 1_500)
    world.timeline.run_until(lambda: stored(world) == [1_500], 14.0)
    world.timeline.run_until(lambda: stored(world) == [6], 14.0)
    world.run_for(LATE_S)
    holding.work(0.0, 3, 0.01)
    assert PARTITION in holding.resets, "it fetches from 6, which the log lacks"
    world.run_for(1.0)
    assert stored(world) == [1_500]


def test_what_a_reset_chose_is_released_without_a_request_to_brokers(world: World) -> None:
    """A broker that is late would write what was finished before over it, and the next owner would continue there."""
    (leaving,) = world.consumers
    commit(world, leaving)
    leaving.work(0.0, 3, 2.0)
    world.retain(PARTITION, 1_500)
    world.run_for(1.0)
    assert leaving.has_chosen(PARTITION)
    hold_all(world, 30.0)
    leaving.leave()
    world.run_for(60.0)
    assert leaving.closed
    assert world.ensemble.truth.znodes[world.layout.offset(PARTITION)].data == b"1500"


def test_a_broker_restores_an_offset_that_was_deleted(world: World) -> None:
    (holding,) = world.consumers
    commit(world, holding)
    world.operator.delete(world.layout.offset(PARTITION))
    world.operator.delete(world.layout.topic_offsets("t0"))
    commit(world, holding)
    assert stored(world) == [6]


# The checker


def test_who_requests_a_commit_after_its_lease_is_noticed(world: World) -> None:
    (holding,) = world.consumers
    commit(world, holding)
    holding.process.stall()
    world.run_for(6.0)
    with pytest.raises(Violation, match="c1 requests brokers to store 3 of t0:0, and its gate is shut"):
        request(holding, 3)


def test_who_requests_more_than_was_processed_is_noticed(world: World) -> None:
    (holding,) = world.consumers
    commit(world, holding)
    with pytest.raises(Violation, match="requests brokers to store 7 of t0:0, processed is 3"):
        request(holding, 7)


def test_who_requests_a_commit_of_what_it_does_not_own_is_noticed(world: World) -> None:
    (holding,) = world.consumers
    other = world.join([])
    world.run_for(1.0)
    commit(world, holding)
    with pytest.raises(Violation, match="c2 requests brokers to store 3 of t0:0, and its claim is not there"):
        request(other, 3)


def test_who_overwrites_a_reset_that_is_there_for_long_is_noticed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Excused is a reset that is made while a broker writes."""
    (holding,) = world.consumers
    commit(world, holding)
    monkeypatch.setattr(BrokerOffsetStore, "_read_own_and_foreign", _nothing_stands)
    world.operator.set(world.layout.offset(PARTITION), b"1")
    world.run_for(UNDER_WAY_S + 0.1)
    process_some(world, holding)
    with pytest.raises(Violation, match="requests brokers to store 6 of t0:0, and an operator set it to 1 long ago"):
        world.run_for(10.0)


def test_who_gives_up_what_it_did_not_even_request_is_noticed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Excused is a request that no broker has answered in time."""
    (holding,) = world.consumers
    commit(world, holding)
    process_some(world, holding)
    monkeypatch.setattr(BrokerOffsetStore, "_send", _at_once)
    with pytest.raises(Violation, match="c1 gives up t0:0 at 3, finished is 6"):
        world.close(20.0)


def request(consumer: Consumer, offset: int) -> None:
    consumer.world.ledger.brokers.requested(consumer, {PARTITION: offset})


async def _nothing_stands(*_: Any) -> Any:
    return {}, {}


async def _at_once(*_: Any) -> None:
    """Nothing is done."""
