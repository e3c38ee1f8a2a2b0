"""Commits of chosen offsets on simulated time: conflicts, lost answers, and interrupted callers, with both stores."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from kiel_groups.config import BROKER_V0, ZOOKEEPER_STORE
from kiel_groups.errors import CommitFailedError, ConfigError, KielGroupsError, SessionLostError
from kiel_groups.model import TopicPartition
from kiel_groups.zookeeper.fenced_writes import FencedWriter
from tests.sim.checker import Violation
from tests.sim.commits import interrupted_commit, process_some
from tests.sim.consumer import Consumer
from tests.sim.world import World, at_rest

pytestmark = pytest.mark.sim

PARTITION = TopicPartition("t0", 0)


@pytest.fixture
def world() -> Iterator[World]:
    """Provide a settled group of one, with one partition."""
    with at_rest(members=1, topics=(1,), reset="earliest") as made:
        yield made


@pytest.fixture(params=[ZOOKEEPER_STORE, BROKER_V0])
def both(request: pytest.FixtureRequest) -> Iterator[World]:
    """Provide a settled group of one, with one partition, for each store."""
    with at_rest(members=1, topics=(1,), reset="earliest", store=request.param) as made:
        yield made


def begin(world: World, consumer: Consumer, offsets: Mapping[TopicPartition, int]) -> asyncio.Task[Any]:
    """Start a commit of chosen offsets, and tell the checker."""
    for partition, offset in offsets.items():
        state = consumer.state_of(partition)
        if state is not None:
            world.checker.commit_chosen(consumer, partition, state.token, offset)
    return consumer.process.start(consumer.member.commit_chosen(offsets))


def commit_chosen(world: World, consumer: Consumer, offsets: Mapping[TopicPartition, int]) -> frozenset[TopicPartition]:
    committing = begin(world, consumer, offsets)
    world.timeline.run_until(committing.done, 30.0)
    result: frozenset[TopicPartition] = committing.result()
    return result


def refusal(world: World, consumer: Consumer, offsets: Mapping[TopicPartition, int]) -> str:
    """Commit chosen offsets, and return the text of the error, which leaves the stored offsets unchanged."""
    before = stored(world)
    with pytest.raises(KielGroupsError) as caught:
        commit_chosen(world, consumer, offsets)
    assert stored(world) == before
    return str(caught.value)


def stored(world: World) -> dict[TopicPartition, bytes]:
    znodes = world.ensemble.tree.znodes
    return {each: znodes[world.layout.offset(each)].data for each in world.partitions()}


def test_an_application_moves_its_offset_within_the_claim(both: World) -> None:
    """Back and forth, with both stores. The next commit without offsets stores what is finished."""
    (consumer,) = both.consumers
    process_some(both, consumer)
    process_some(both, consumer)
    for offset in (6, 4, 0, 5):
        assert commit_chosen(both, consumer, {PARTITION: offset}) == {PARTITION}
        assert stored(both) == {PARTITION: b"%d" % offset}
    committing = consumer.process.start(consumer.member.commit_on_session())
    both.timeline.run_until(committing.done, 5.0)
    assert committing.result() == {PARTITION}
    assert stored(both) == {PARTITION: b"6"}
    assert consumer.metrics.total("commits_superseded") == 0
    both.close(60.0)


def test_offsets_outside_of_the_claim_are_refused(both: World) -> None:
    """The errors name the partition, the bound, and the way to cross it on purpose."""
    (consumer,) = both.consumers
    process_some(both, consumer)
    consumer.leave()
    successor = both.join(both.topics)
    both.settle(60.0)
    process_some(both, successor)
    assert refusal(both, successor, {PARTITION: 2}) == (
        "group g: commit(): t0:0: 2 given, which is before 3, where this claim began or was set; seek() there first to"
        " have the records delivered again"
    )
    assert refusal(both, successor, {PARTITION: 7}) == (
        "group g: commit(): t0:0: 7 given, which is beyond 6, the next offset to deliver; commit what was delivered, or"
        " seek() there first to skip records"
    )
    with pytest.raises(ConfigError):
        commit_chosen(both, successor, {PARTITION: 7})
    assert commit_chosen(both, successor, {PARTITION: 5}) == {PARTITION}


def test_a_partition_of_another_member_is_refused() -> None:
    """The error names the owner. Nothing is stored of the own partition, either, and the member continues."""
    with at_rest(members=2, topics=(2,), reset="earliest") as world:
        one, other = world.consumers
        process_some(world, one)
        (mine,), (foreign,) = one.opened, other.opened
        text = refusal(world, one, {mine: 1, foreign: 0})
        assert text == (
            f"group g: commit(): {foreign} is not owned by this member, {one.member.member_id}, but by"
            f" {other.member.member_id}; its owner commits it"
        )
        nowhere = TopicPartition("t0", 7)
        assert "but by no member; its owner" in refusal(world, one, {nowhere: 0})
        assert one.failure is None
        assert commit_chosen(world, one, {mine: 1}) == {mine}
        path = world.layout.owner(nowhere)
        world.operator.create(path, b"garbage")
        assert f"but by an unknown one ({path}: a consumer id" in refusal(world, one, {nowhere: 0})


def test_a_claim_that_is_not_opened_yet_is_refused() -> None:
    """The member owns the partition, but no record of it was delivered, so the application cannot know an offset."""
    with at_rest(members=1, topics=(1,), reset="earliest") as world:
        (consumer,) = world.consumers
        world.topics["t1"] = 1
        world.lose_leader(TopicPartition("t1", 0), 60.0)
        world.operator.create("/brokers/topics/t1", world.topic_data("t1"))
        consumer.subscribe(["t0", "t1"])
        fresh = TopicPartition("t1", 0)
        world.timeline.run_until(lambda: world.layout.owner(fresh) in world.ensemble.tree.znodes, 20.0)
        with pytest.raises(CommitFailedError, match="yet: it is claimed, and its start is not known; w"):
            commit_chosen(world, consumer, {fresh: 0})


def test_another_writer_is_followed_and_reported(both: World) -> None:
    """The version has changed: the operator's offset stays, delivery continues there, and the error says so."""
    (consumer,) = both.consumers
    process_some(both, consumer)
    both.operator.set(both.layout.offset(PARTITION), b"1")
    assert refusal(both, consumer, {PARTITION: 3}) == (
        "group g: commit(): 3 of t0:0 was not stored: another writer has stored 1, where delivery continues now; commit"
        " from there"
    )
    assert consumer._subscription.offsets.position(PARTITION) == 1
    assert consumer.metrics.total("commits_superseded") == 1
    again = "3 is not committed: it was delivered before delivery started again at 1 (another writer's offset)"
    assert again in refusal(both, consumer, {PARTITION: 3})


def test_the_error_names_what_was_stored() -> None:
    """Partitions are independent: the offset of the other one is stored."""
    with at_rest(members=1, topics=(2,), reset="earliest") as world:
        (consumer,) = world.consumers
        one, other = world.partitions()
        consumer.work(0.0, 3, 0.01)
        consumer.work(0.99, 3, 0.01)
        world.run_for(0.1)
        world.operator.set(world.layout.offset(one), b"1")
        with pytest.raises(CommitFailedError, match=r"2 of t0:0 was not stored: .* \(stored: t0:1\)$"):
            commit_chosen(world, consumer, {one: 2, other: 2})
        assert stored(world) == {one: b"1", other: b"2"}


def test_unreadable_data_is_replaced_by_the_second_try(both: World) -> None:
    """The member has to see the data first; the error says that another commit replaces it."""
    (consumer,) = both.consumers
    process_some(both, consumer)
    both.operator.set(both.layout.offset(PARTITION), b"garbage")
    text = refusal(both, consumer, {PARTITION: 2})
    assert "another writer has stored data there that is no offset; commit again to replace it" in text
    assert commit_chosen(both, consumer, {PARTITION: 2}) == {PARTITION}
    assert stored(both) == {PARTITION: b"2"}


def test_a_commit_whose_answer_is_lost_is_reported_as_stored(world: World) -> None:
    (consumer,) = world.consumers
    process_some(world, consumer)
    consumer.process.lose("reply")
    assert commit_chosen(world, consumer, {PARTITION: 2}) == {PARTITION}
    assert consumer.metrics.total("zookeeper_transactions_unknown") == 1
    assert consumer.metrics.total("commits_superseded") == 0


def test_a_commit_whose_request_is_lost_is_sent_again(world: World) -> None:
    (consumer,) = world.consumers
    process_some(world, consumer)
    consumer.process.lose("request")
    assert commit_chosen(world, consumer, {PARTITION: 2}) == {PARTITION}
    assert stored(world) == {PARTITION: b"2"}


def test_a_chosen_commit_after_an_interrupted_one_is_stored(world: World) -> None:
    """The interrupted commit is recognized as the member's own, and the chosen one replaces it, although it is less."""
    (consumer,) = world.consumers
    process_some(world, consumer)
    interrupted_commit(world, consumer)
    assert commit_chosen(world, consumer, {PARTITION: 2}) == {PARTITION}
    assert stored(world) == {PARTITION: b"2"}
    assert consumer.metrics.total("commits_superseded") == 0


def test_an_interrupted_chosen_commit_is_recognized_by_the_next_commit(world: World) -> None:
    (consumer,) = world.consumers
    process_some(world, consumer)
    before = world.history.commits
    committing = begin(world, consumer, {PARTITION: 2})
    world.timeline.run_until(lambda: world.history.commits > before)
    consumer.process.call(committing.cancel)
    following = consumer.process.start(consumer.member.commit_on_session())
    world.timeline.run_until(following.done, 5.0)
    assert following.result() == {PARTITION}
    assert stored(world) == {PARTITION: b"3"}
    assert consumer.metrics.total("commits_superseded") == 0


def test_nothing_of_the_old_log_is_stored(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic is created again while the commit waits for its turn: right before it is sent, it is dropped."""
    (consumer,) = world.consumers
    process_some(world, consumer)
    wait_ready, begun = FencedWriter.wait_ready, list[bool]()

    async def waiting(writer: FencedWriter) -> None:
        if not begun:
            begun.append(True)
            world.recreate_topic("t0", 0.0, 3.0)
            await asyncio.sleep(0.5)
        await wait_ready(writer)

    monkeypatch.setattr(FencedWriter, "wait_ready", waiting)
    committing = begin(world, consumer, {PARTITION: 2})
    world.timeline.run_until(committing.done, 5.0)
    with pytest.raises(CommitFailedError, match="2 of t0:0 was not stored: its topic was created again"):
        committing.result()
    world.settle(60.0)
    assert stored(world) == {PARTITION: b"0"}


def test_an_outdated_partition_is_refused_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (consumer,) = world.consumers
    process_some(world, consumer)
    consumer._subscription.offsets.recreated("t0", 1 << 40)
    with pytest.raises(CommitFailedError, match="t0:0: 2 is not committed: its topic was created again"):
        commit_chosen(world, consumer, {PARTITION: 2})


def test_brokers_that_do_not_answer_are_reported() -> None:
    """The commit may be stored late, so the error says that; the offset is then recognized as the member's own."""
    with at_rest(members=1, topics=(1,), reset="earliest", store=BROKER_V0) as world:
        (consumer,) = world.consumers
        process_some(world, consumer)
        for broker in world.brokers.all:
            broker.hold(20.0)
        committing = begin(world, consumer, {PARTITION: 2})
        world.timeline.run_until(committing.done, 15.0)
        with pytest.raises(CommitFailedError, match=r"brokers did not confirm it in time, .* they may still store it"):
            committing.result()
        assert consumer.failure is None
        world.run_for(30.0)
        assert stored(world)[PARTITION] in (b"2", b"3")


def test_a_commit_without_a_session_is_refused(world: World) -> None:
    (consumer,) = world.consumers
    process_some(world, consumer)
    consumer.process.stall()
    world.run_for(12.0)
    committing = begin(world, consumer, {PARTITION: 2})
    world.timeline.run_until(committing.done, 5.0)
    with pytest.raises(SessionLostError, match="no session to commit with"):
        committing.result()
    consumer.process.resume()
    world.settle(60.0)


@pytest.mark.parametrize("killed", [True, False])
def test_a_member_that_dies_between_send_and_answer(world: World, killed: bool) -> None:
    """The next owner starts where the commit was stored: chosen offsets lose nothing, and repeat what is after them."""
    (consumer,) = world.consumers
    process_some(world, consumer)
    before = world.history.commits
    begin(world, consumer, {PARTITION: 2})
    world.timeline.run_until(lambda: world.history.commits > before)
    consumer.kill() if killed else consumer.process.stall()
    successor = world.join(world.topics)
    world.timeline.run_until(lambda: PARTITION in successor.opened, 60.0)
    assert successor._subscription.offsets.position(PARTITION) == 2
    if not killed:
        consumer.process.resume()


def test_another_claim_stores_nothing_that_was_chosen_before(world: World) -> None:
    """A chosen commit waits for the lock while its claim ends; under the next claim, the bounds are the new ones."""
    (consumer,) = world.consumers
    process_some(world, consumer)
    session = consumer.member._member_session
    assert session is not None
    writing = session.role.offsets.owned.writing
    held: asyncio.Task[Any] = consumer.process.start(writing.acquire())
    world.timeline.run_until(held.done, 5.0)
    committing = begin(world, consumer, {PARTITION: 2})
    world.run_for(0.1)
    consumer._subscription.offsets.end([PARTITION])
    consumer.process.call(writing.release)
    world.timeline.run_until(committing.done, 5.0)
    with pytest.raises(CommitFailedError, match="is not owned by this member"):
        committing.result()


@pytest.mark.parametrize("how", ["not chosen", "chosen under another claim", "chosen below the claim"])
def test_the_checker_reports_any_other_commit_that_moves_back(world: World, how: str) -> None:
    """Only the very offset that the application has chosen, under this claim, may be below the stored one."""
    (consumer,) = world.consumers
    process_some(world, consumer)
    consumer.leave()
    successor = world.join(world.topics)
    world.settle(60.0)
    process_some(world, successor)
    state = successor.state_of(PARTITION)
    assert state is not None
    assert (state.floor, state.finished) == (3, 6)
    assert commit_chosen(world, successor, {PARTITION: 5}) == {PARTITION}
    token = state.token - (how == "chosen under another claim")
    offset = 2 if how == "chosen below the claim" else 4
    state.floor = 0
    if how != "not chosen":
        world.checker.commit_chosen(successor, PARTITION, token, offset)
    successor.process.start(successor.member.commit_chosen({PARTITION: offset}))
    with pytest.raises(Violation, match=f"takes the offset of t0:0 back from 5 to {offset}"):
        world.run_for(1.0)
