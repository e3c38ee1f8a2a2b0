"""The store ``broker-v0`` on simulated time: late writes of brokers, and how the checker treats them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pytest

from kiel_groups.config import BROKER_V0
from kiel_groups.errors import BrokerError
from kiel_groups.members.offsets.zookeeper_store import BrokerCommits
from kiel_groups.model import TopicPartition
from tests.sim.checker import Violation
from tests.sim.commits import commit, process_all, process_some
from tests.sim.consumer import Consumer
from tests.sim.history.topics import NOTIFIED_S
from tests.sim.topics import no_broker_knows, recreate, stored_offsets
from tests.sim.world import RECONCILE_INTERVAL_MS, World, at_rest

pytestmark = pytest.mark.sim

PARTITION = TopicPartition("t0", 0)
#: Enough time, in seconds, for a member to reconcile without any watch.
LATE_S = 1.5 * RECONCILE_INTERVAL_MS / 1000


@pytest.fixture
def world() -> Iterator[World]:
    """Provide a settled group of one with one partition, whose offsets brokers write."""
    with at_rest(members=1, topics=(1,), reset="earliest", store=BROKER_V0) as made:
        yield made


@pytest.fixture
def two() -> Iterator[World]:
    """Provide a settled group of one with two partitions, whose offsets brokers write."""
    with at_rest(members=1, topics=(2,), reset="earliest", store=BROKER_V0) as made:
        yield made


def process_and_commit(world: World, consumer: Consumer) -> None:
    """Have the consumer finish three records and commit them."""
    process_some(world, consumer)
    world.timeline.run_until(consumer.process.start(consumer.member.commit_on_session()).done, 20.0)


def delay_all(world: World, duration_s: float) -> None:
    """Have all brokers delay their writes for ``duration_s``."""
    for broker in world.brokers.all:
        broker.hold(duration_s)


def heal_all(world: World) -> None:
    """Have all brokers handle new requests at once."""
    for broker in world.brokers.all:
        broker.heal()


def test_a_write_that_is_delayed_past_the_release_repeats_records_and_loses_none(world: World) -> None:
    (consumer,) = world.consumers
    process_and_commit(world, consumer)
    assert stored_offsets(world) == [3]
    process_some(world, consumer)
    delay_all(world, 10.0)
    consumer.leave()
    successor = world.join(world.topics)
    world.timeline.run_until(lambda: PARTITION in successor.opened, 9.0)
    assert successor.finished(PARTITION) == (3, 3), "the delayed write is not visible yet"
    process_some(world, successor)
    for broker in world.brokers.all:
        broker.heal()
    process_and_commit(world, successor)
    assert stored_offsets(world) == [9]
    world.run_for(12.0)
    assert stored_offsets(world) == [6], "the late write steps back"
    world.run_for(5.0)
    process_and_commit(world, successor)
    assert successor.metrics.total("commits_superseded") == 1
    process_and_commit(world, successor)
    assert stored_offsets(world) == [9]
    world.close(20.0)


def test_no_claim_is_opened_while_brokers_do_not_serve_the_offsets(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member whose commits would be refused delivers no record. It keeps the claim, and asks again."""
    (consumer,) = world.consumers

    async def refusing(consumer: Consumer, partitions: Collection[TopicPartition]) -> object:
        raise BrokerError(f"brokers do not serve the offsets of {len(partitions)} partitions")

    with monkeypatch.context() as refused:
        refused.setattr(Consumer, "fetch_offsets", refusing)
        consumer.leave()
        joined = world.join(world.topics)
        world.run_for(5.0)
        assert world.layout.owner(PARTITION) in world.ensemble.tree.znodes
        assert not joined.opened
    world.run_for(10.0)
    assert PARTITION in joined.opened


def test_a_release_waits_for_a_commit_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A release waits for a commit in flight. Brokers check nothing, so a request after the release might overwrite an
    offset of the next owner.
    """
    with at_rest(members=1, topics=(1, 1), reset="earliest", store=BROKER_V0) as world:
        (consumer,) = world.consumers
        send, pausing, claimed = consumer.send_commit, list[bool](), list[bool]()

        async def slowly(offsets: Mapping[TopicPartition, int], metadata: str) -> object:
            if not pausing:
                pausing.append(True)
                await asyncio.sleep(2.0)
            claimed.append(world.layout.owner(PARTITION) in world.ensemble.tree.znodes)
            return await send(offsets, metadata)

        monkeypatch.setattr(consumer, "send_commit", slowly)
        process_some(world, consumer)
        consumer.process.start(consumer.member.commit_on_session())
        consumer.subscribe(["t1"])
        world.run_for(10.0)
        assert PARTITION not in consumer.opened
        assert claimed
        assert all(claimed)
        assert world.ensemble.tree.znodes[world.layout.offset(PARTITION)].data == b"3"


def test_a_commit_whose_answer_is_lost_is_repeated(world: World) -> None:
    (consumer,) = world.consumers
    for broker in world.brokers.all:
        broker.loses = 1
    process_and_commit(world, consumer)
    assert stored_offsets(world) == [3]
    assert world.ensemble.tree.znodes[world.layout.offset(PARTITION)].version == 4, "stored by three requests"
    process_and_commit(world, consumer)
    assert stored_offsets(world) == [6]


def test_a_late_write_of_the_old_log_is_overwritten_by_the_start_in_the_new_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The start in the new log overwrites a broker's late write of the old log. It also overwrites an operator's offset,
    because a broker's write does not identify a member.
    """
    (consumer,) = world.consumers
    delay_all(world, 5.0)
    process_some(world, consumer)
    consumer.process.start(consumer.member.commit_on_session())
    world.run_for(1.0)
    with monkeypatch.context() as silent:
        no_broker_knows(silent)
        recreate(world)
        world.run_for(1.0)
        process_some(world, consumer)
        world.run_for(5.0)
        assert stored_offsets(world) == [3]
        world.operator.set(world.layout.offset(PARTITION), b"2")
    world.run_for(20.0)
    assert stored_offsets(world) == [0]


def test_a_late_write_right_after_the_reset_to_a_new_log_is_the_members_own(world: World) -> None:
    """
    A broker repeats a write of the old log between the reset to the new one and the member's notice of that reset. The
    member takes it for its own, and commits what it has processed in the new log (seed 4890).
    """
    (consumer,) = world.consumers
    process_and_commit(world, consumer)
    recreate(world)
    world.timeline.run_until(lambda: stored_offsets(world) == [0], 20.0)
    consumer.process.freeze()
    world.brokers.all[0]._client.set_async(world.layout.offset(PARTITION), b"3")
    world.timeline.run_until(lambda: stored_offsets(world) == [3], 1.0)
    consumer.process.thaw()
    world.run_for(1.0)
    process_and_commit(world, consumer)
    process_and_commit(world, consumer)
    assert stored_offsets(world) == [6]
    world.close(20.0)


def test_a_late_write_after_a_reset_is_followed_and_the_position_is_chosen_again(world: World) -> None:
    """
    After a reset, an owner follows a late write of a broker, and chooses a position again. The log does not have the
    late offset, so the next owner must not find this offset stored (decision 0016).
    """
    (consumer,) = world.consumers
    process_and_commit(world, consumer)
    delay_all(world, 15.0)
    process_some(world, consumer)
    consumer.process.start(consumer.member.commit_on_session())
    world.run_for(1.0)
    world.retain(PARTITION, 1_500)
    world.timeline.run_until(lambda: stored_offsets(world) == [1_500], 14.0)
    world.timeline.run_until(lambda: stored_offsets(world) == [6], 14.0)
    world.run_for(LATE_S)
    consumer.work(0.0, 3, 0.01)
    assert PARTITION in consumer.fetches.resets, "it fetches from 6, which the log lacks"
    world.run_for(1.0)
    assert stored_offsets(world) == [1_500]


def test_a_chosen_offset_is_released_without_a_request_to_brokers(world: World) -> None:
    """
    An owner releases a chosen offset without a request to brokers. A delayed broker could overwrite a requested offset
    with an older offset, at which the next owner would continue.
    """
    (leaving,) = world.consumers
    process_and_commit(world, leaving)
    leaving.work(0.0, 3, 2.0)
    world.retain(PARTITION, 1_500)
    world.run_for(1.0)
    assert leaving.has_pending_reset(PARTITION)
    delay_all(world, 30.0)
    leaving.leave()
    world.run_for(60.0)
    assert leaving.closed
    assert world.ensemble.tree.znodes[world.layout.offset(PARTITION)].data == b"1500"


def test_an_operators_offset_that_equals_the_next_commit_is_not_requested(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what the member has requested may be its own. It adopts the operator's offset (seed 7000312)."""
    (consumer,) = world.consumers
    requested = list[Mapping[TopicPartition, int]]()

    async def record(offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        requested.append(offsets)

    monkeypatch.setattr(consumer, "send_commit", record)
    consumer.work(0.0, 3, 0.01)
    world.run_for(0.02)
    world.operator.set(world.layout.offset(PARTITION), b"3")
    world.timeline.run_until(consumer.process.start(consumer.member.commit_on_session()).done, 20.0)
    assert requested == []
    assert consumer.metrics.total("commits_superseded") == 1


def test_a_broker_restores_a_deleted_offset(world: World) -> None:
    (consumer,) = world.consumers
    process_and_commit(world, consumer)
    world.operator.delete(world.layout.offset(PARTITION))
    world.operator.delete(world.layout.topic_offsets("t0"))
    process_and_commit(world, consumer)
    assert stored_offsets(world) == [6]


# The checker


def test_the_checker_accepts_a_commit_over_an_offset_that_was_garbled_before_the_member_read_it(world: World) -> None:
    """
    The checker accepts the commit if an operator sets an offset and garbles it at once. The member keeps its position
    and learns of no epoch.
    """
    (consumer,) = world.consumers
    process_and_commit(world, consumer)
    for data in (b"1", b"garbage"):
        world.operator.set(world.layout.offset(PARTITION), data)
    process_some(world, consumer)
    world.run_for(LATE_S)
    process_and_commit(world, consumer)
    assert stored_offsets(world) == [9]


def replace_while_it_is_read(world: World, consumer: Consumer) -> None:
    """
    Have a broker's late write replace an operator's offset that the member has read and not adopted yet.

    The member has requested 3 long ago; one broker has stored it, and another one executes this request again. At that
    moment the member has found the operator's 467, and waits for its commit of another partition.

    With other seeds, the member's periodic commit may come first: it stores 6 before the operator's 467, or adopts
    467 before the late write. Then this order of events does not exist, and the assertion below fails (22 of 300 seeds;
    in each of them, the member follows the late write and commits what it has processed, and the checker agrees).
    """
    delay_all(world, 10.0)
    process_all(world, consumer)
    committing = consumer.process.start(consumer.member.commit_on_session())
    world.run_for(0.1)
    heal_all(world)
    world.timeline.run_until(committing.done, 5.0)
    assert stored_offsets(world) == [3, 3]
    world.run_for(9.0 - 2.0)
    process_all(world, consumer)
    world.operator.set(world.layout.offset(PARTITION), b"467")
    delay_all(world, 2.5)
    committing = consumer.process.start(consumer.member.commit_on_session())
    path = world.layout.offset(PARTITION)
    world.timeline.run_until(lambda: world.ensemble.tree.znodes[path].data == b"3", 5.0)
    assert consumer.finished(PARTITION) == (2, 6), "the member has not adopted the operator's offset yet"
    heal_all(world)
    world.timeline.run_until(committing.done, 10.0)


def test_a_late_write_while_the_member_adopts_an_operators_offset_is_followed_next(two: World) -> None:
    """
    A member may adopt and deliver from an operator's offset that a broker's late write has just replaced. Its next
    commit stores nothing beyond the late write: the member follows it, and delivers the records from there
    (seed 512125583301).
    """
    (consumer,) = two.consumers
    replace_while_it_is_read(two, consumer)
    assert consumer.finished(PARTITION) == (3, 467)
    process_all(two, consumer)
    assert consumer.finished(PARTITION) == (3, 470)
    commit(two, consumer)
    assert consumer.finished(PARTITION) == (4, 3)
    process_and_commit(two, consumer)
    assert two.history.stored(PARTITION) == 6
    two.close(20.0)


@pytest.mark.parametrize("end", ["kill", "leave"])
def test_the_next_owner_begins_at_a_late_write_that_the_former_owner_has_not_seen(two: World, end: str) -> None:
    """An offset that the former owner has adopted, and that a late write has replaced, does not skip records."""
    (consumer,) = two.consumers
    replace_while_it_is_read(two, consumer)
    process_all(two, consumer)
    assert consumer.finished(PARTITION) == (3, 470)
    getattr(consumer, end)()
    successor = two.join(two.topics)
    two.timeline.run_until(lambda: PARTITION in successor.opened, 30.0)
    assert successor.finished(PARTITION) == (5, 3), "the claim has written the offset again"


def test_the_checker_finds_records_skipped_after_an_offset_that_a_late_write_has_replaced(two: World) -> None:
    """A member that has adopted such an offset continues exactly there."""
    (consumer,) = two.consumers
    replace_while_it_is_read(two, consumer)
    consumer._subscription.offsets.seek(PARTITION, 468)
    with pytest.raises(Violation, match="c1 continues in t0:0 at 468, and only what is before 467 was processed"):
        process_all(two, consumer)


def test_the_checker_finds_a_late_write_that_is_not_followed(two: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (consumer,) = two.consumers
    replace_while_it_is_read(two, consumer)
    monkeypatch.setattr(BrokerCommits, "read", _find_nothing)
    with pytest.raises(Violation, match="c1 has not followed the offset of t0:0 that a broker set late for"):
        two.run_for(2 * LATE_S)


def test_the_checker_finds_a_request_after_the_lease(world: World) -> None:
    (consumer,) = world.consumers
    process_and_commit(world, consumer)
    consumer.process.stall()
    world.run_for(6.0)
    with pytest.raises(Violation, match="c1 requests brokers to store 3 of t0:0, and its gate is shut"):
        request(consumer, 3)


def test_the_checker_finds_a_request_beyond_what_was_processed(world: World) -> None:
    (consumer,) = world.consumers
    process_and_commit(world, consumer)
    with pytest.raises(Violation, match="requests brokers to store 7 of t0:0, processed is 3"):
        request(consumer, 7)


def test_the_checker_finds_a_request_without_a_claim(world: World) -> None:
    (consumer,) = world.consumers
    other = world.join([])
    world.run_for(1.0)
    process_and_commit(world, consumer)
    with pytest.raises(Violation, match="c2 requests brokers to store 3 of t0:0, and its claim is not there"):
        request(other, 3)


def test_the_checker_finds_a_request_over_an_old_reset(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The checker accepts a request to overwrite an operator's offset only if the offset was set right before the request.
    """
    (consumer,) = world.consumers
    process_and_commit(world, consumer)
    monkeypatch.setattr(BrokerCommits, "read", _find_nothing)
    world.operator.set(world.layout.offset(PARTITION), b"1")
    world.run_for(NOTIFIED_S + 0.1)
    process_some(world, consumer)
    with pytest.raises(Violation, match="requests brokers to store 6 of t0:0, and an operator set it to 1 long ago"):
        world.run_for(10.0)


def test_the_checker_finds_a_release_without_a_request(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A member may release a partition at an older offset only if it has requested brokers to store the newer offset.
    """
    (consumer,) = world.consumers
    process_and_commit(world, consumer)
    process_some(world, consumer)
    monkeypatch.setattr(BrokerCommits, "_send", _send_nothing)
    with pytest.raises(Violation, match="c1 releases t0:0 at 3, finished is 6"):
        world.close(20.0)


def request(consumer: Consumer, offset: int) -> None:
    """Report a commit request of the consumer to the checker."""
    consumer.world.checker.commit_requested(consumer, {PARTITION: offset})


async def _find_nothing(*_: Any) -> Any:
    return {}


async def _send_nothing(*_: Any) -> None:
    """Replace the sending of a request by nothing."""
