"""The judge of scenarios notices what must not happen, also where it excuses something else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kiel_groups.coordination.member.owner_znodes import OwnerZnodes
from kiel_groups.coordination.offsets.owned_offsets import OwnedOffsets
from kiel_groups.coordination.offsets.zookeeper_store import ZooKeeperOffsetStore
from kiel_groups.coordination.session.heartbeat import Heartbeat
from kiel_groups.coordination.session.session_close import SessionClose
from kiel_groups.group.member.pending_reset import PendingReset
from kiel_groups.group.member.subscription import PartitionState, SubscriptionState
from kiel_groups.group.znodes.layout import topic_path
from kiel_groups.group.znodes.transactions import Create
from kiel_groups.model import TopicPartition
from tests.sim.checker import Violation
from tests.sim.consumer import Consumer
from tests.sim.history.topics import NOTIFIED_S
from tests.sim.operations import perform
from tests.sim.scenario import Event
from tests.sim.test_interrupted_commits import process_some
from tests.sim.test_topics_known_late import recreate_within_a_write
from tests.sim.test_topics_made_anew import no_broker_knows, recreate
from tests.sim.world import World, at_rest

pytestmark = pytest.mark.sim


@pytest.fixture
def world() -> Iterator[World]:
    """A group of one at rest, with one partition."""
    with at_rest(members=1, topics=(1,), reset="earliest") as made:
        yield made


def commit(world: World, consumer: Consumer) -> None:
    process_some(world, consumer)
    commit_now(world, consumer)


def commit_now(world: World, consumer: Consumer) -> None:
    consumer.process.start(consumer.member.commit_on_session())
    world.run_for(0.2)


def test_who_is_released_by_force_and_goes_on_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Excused is only who cannot know it: his member znode stands."""
    begin = Heartbeat.__init__

    def begin_blindly(heartbeat: Heartbeat, client: Any, gate: Any, _proof: str, *rest: Any, **options: Any) -> None:
        begin(heartbeat, client, gate, "/", *rest, **options)

    monkeypatch.setattr(Heartbeat, "__init__", begin_blindly)
    with at_rest(members=2, topics=(6,), reset="earliest") as world:
        (victim,) = (number for number, consumer in enumerate(world.consumers) if not consumer.member.leads)
        perform(world, Event(0.0, "force_release", victim, 0.0, 0.0))
        with pytest.raises(Violation, match="its gate is open"):
            world.run_for(30.0)


def test_who_steps_back_after_an_offset_was_deleted_is_noticed(world: World) -> None:
    """Excused is only what is written over an operator's offset: versions began anew."""
    (holding,) = world.consumers
    (partition,) = world.partitions()
    commit(world, holding)
    world.operator.delete(world.layout.offset(partition))
    commit(world, holding)
    commit(world, holding)
    state = holding._subscription.state(partition)
    assert state is not None
    state.finished = 6
    with pytest.raises(Violation, match="takes the offset of t0:0 back from 9 to 6"):
        commit_now(world, holding)


def test_a_record_before_the_stored_offset_is_noticed(world: World) -> None:
    """Delivering it again is no loss, but nothing told the consumer to step back."""
    (holding,) = world.consumers
    (partition,) = world.partitions()
    commit(world, holding)
    holding._subscription.seek(partition, 1)
    with pytest.raises(Violation, match="goes back in t0:0 to 1, and 3 is stored"):
        commit(world, holding)


@pytest.mark.parametrize(
    ("reset", "found"),
    [
        ("earliest", "goes back in t0:0 to 0, and 6 is stored"),
        ("latest", "goes on in t0:0 at 1002, and only what is before 1000 was processed"),
    ],
)
def test_who_continues_at_a_reset_that_is_not_stored_is_noticed(
    monkeypatch: pytest.MonkeyPatch, reset: str, found: str
) -> None:
    """The next owner would choose again; that goes for both directions."""

    async def store_reset(offsets: OwnedOffsets, partition: TopicPartition, chosen: PendingReset) -> int:
        offsets._subscription.seek(partition, chosen.position)
        return chosen.position

    monkeypatch.setattr(OwnedOffsets, "store_reset", store_reset)
    with at_rest(members=1, topics=(1,), reset=reset) as world:
        (holding,) = world.consumers
        (partition,) = world.partitions()
        if reset == "earliest":
            commit(world, holding)
            commit(world, holding)
            world.cut(partition, 5, 60.0)
        else:
            world.retain(partition, 1_002)
        world.run_for(1.0)
        with pytest.raises(Violation, match=found):
            holding.work(0.0, 1, 0.1)


@pytest.mark.parametrize(
    ("chosen", "found"),
    [(3, "takes the offset of t0:0 back from 6 to 3"), (7, "commits 7 of t0:0, processed is 6")],
)
def test_who_stores_another_offset_than_the_policys_is_noticed(
    world: World, monkeypatch: pytest.MonkeyPatch, chosen: int, found: str
) -> None:
    """A log without the position is a reason for one offset, and for no other."""
    (holding,) = world.consumers
    (partition,) = world.partitions()
    commit(world, holding)
    commit(world, holding)
    monkeypatch.setattr(PendingReset, "offset_after", lambda *_: chosen)
    world.cut(partition, 5, 60.0)
    with pytest.raises(Violation, match=found):
        world.run_for(1.0)


@pytest.mark.parametrize("cause", ["no reset", "a second one"])
def test_who_goes_back_without_a_reason_is_noticed(world: World, cause: str) -> None:
    """A log that lacks a position is a reason once, for who was told so."""
    (holding,) = world.consumers
    (partition,) = world.partitions()
    commit(world, holding)
    commit(world, holding)
    if cause == "a second one":
        world.cut(partition, 5, 0.9)
        world.run_for(1.0)
        assert world.history.resets == 1
        commit(world, holding)
        commit(world, holding)
    state = holding._subscription.state(partition)
    assert state is not None
    state.finished = 0
    with pytest.raises(Violation, match="takes the offset of t0:0 back from 6 to 0"):
        commit_now(world, holding)


def test_who_gives_up_a_partition_and_forgets_its_reset_is_noticed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although what it stores would be right without one."""
    (holding,) = world.consumers
    (partition,) = world.partitions()
    commit(world, holding)
    monkeypatch.setattr(PartitionState, "reset_offset", lambda *_, **__: None)
    holding.work(0.0, 3, 2.0)
    world.retain(partition, 100)
    world.run_for(1.0)
    assert holding.has_pending_reset(partition)
    holding.leave()
    with pytest.raises(Violation, match="gives up t0:0 at 6, and forgets its reset"):
        world.run_for(3.0)


def test_who_skips_to_what_an_operator_had_once_set_is_noticed(world: World) -> None:
    """Excused is who goes on at that very offset."""
    (holding,) = world.consumers
    (partition,) = world.partitions()
    world.operator.set(world.layout.offset(partition), b"1900")
    world.operator.set(world.layout.offset(partition), b"3")
    commit(world, holding)
    world.operator.delete(world.layout.offset(partition))
    commit(world, holding)
    holding._subscription.seek(partition, 1_500)
    with pytest.raises(Violation, match="goes on in t0:0 at 1500"):
        commit(world, holding)


def test_who_hands_over_what_misleads_the_next_one_is_noticed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Excused is only who could not know that the topic was created again; he knows by the time he leaves."""
    (holding,) = world.consumers
    recreate_within_a_write(world, monkeypatch)
    commit(world, holding)
    world.run_for(2.0)
    monkeypatch.setattr(OwnerZnodes, "_is_of_old_log", lambda *_: False)
    holding.leave()
    with pytest.raises(Violation, match="gives up t0:0 at 3 of a log that is gone"):
        world.run_for(2.0)


@pytest.mark.parametrize("when", ["handed out before", "handed out after", "reached later"])
def test_who_is_told_to_go_on_where_he_is_goes_on(world: World, when: str) -> None:
    """Who does not know whether he has committed that very offset himself takes it for his (seed 314916358090)."""
    (holding,) = world.consumers
    (partition,) = world.partitions()
    commit(world, holding)
    if when != "reached later":
        process_some(world, holding)
    if when == "handed out before":
        holding.work(0.0, 3, 0.5)
    world.operator.set(world.layout.offset(partition), b"6")
    if when == "reached later":
        process_some(world, holding)
    if when != "handed out before":
        holding.work(0.0, 3, 0.5)
    holding.process.lose("request")
    holding.process.start(holding.member.commit_on_session())
    world.run_for(1.0)
    assert world.history.stored(partition) == 6
    commit(world, holding)
    assert world.history.stored(partition) == 12


@pytest.mark.parametrize("is_late", [False, True])
def test_who_skips_a_partition_that_came_later_is_noticed(is_late: bool) -> None:
    """Excused is who could not know that it came later: the topic has just been created again (seed 314916384253)."""
    with at_rest(members=1, topics=(1,), reset="latest") as world:
        (consumer,) = world.consumers
        membership = consumer.member._member_session
        assert membership is not None

        def store(number: int) -> None:
            path = world.layout.offset(TopicPartition("t9", number))
            consumer.process.start(membership.session.transact([Create(path, b"%d" % world.log_end)]))
            world.run_for(0.2)

        world.operator.create(topic_path("t9"), b'{"version": 1, "partitions": {"0": [0], "1": [0]}}')
        world.operator.create(world.layout.topic_offsets("t9"))
        store(0)
        if is_late:
            world.run_for(NOTIFIED_S)
            with pytest.raises(Violation, match="the first offset of t9:1 is 1000"):
                store(1)
        else:
            store(1)
            assert world.history.stored(TopicPartition("t9", 1)) == world.log_end


def test_a_commit_that_a_cut_server_held_up_is_excused(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Its session had not seen the new topic; the same process's next session had (seed 999201189842).

    Here the close of the given-up session reaches no server: it would end the commit.
    """
    begin = SessionClose.begin

    def begin_in_vain(close: SessionClose) -> None:
        begin(close)
        close._give_up_s = 0.0

    monkeypatch.setattr(SessionClose, "begin", begin_in_vain)
    with at_rest(members=1, topics=(1,), reset="earliest", sync_limit=30) as world:
        commit_through_a_cut_server(world)


def commit_through_a_cut_server(world: World) -> None:
    (holding,) = world.consumers
    partitions = world.partitions()
    server = holding.process.server
    while server is None or server is world.ensemble.leader:
        holding.process.reset()
        world.run_for(0.5)
        server = holding.process.server
    process_some(world, holding)
    world.ensemble.cut(server)
    holding.process.only = server
    commit = holding.process.start(holding.member.commit_on_session())
    recreate(world)
    # The lease runs out, and the server's patience does not: what it held is on its way when it is back.
    world.timeline.run_until(lambda: holding.member.gate.shut_reason is not None, 20.0)
    holding.process.only = None
    world.timeline.run_until(lambda: len(holding.process.sessions) > 1, 20.0)
    world.run_for(1.0)
    world.ensemble.heal(server)
    world.settle(30.0)
    assert commit.done()
    assert world.history.stored(partitions[0]) == 3
    world.close(20.0)
    world.checker.end(partitions)


def test_a_commit_of_the_old_log_on_a_session_that_has_seen_the_new_topic_is_noticed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Excused is only a session that could not know."""
    (holding,) = world.consumers
    monkeypatch.setattr(SubscriptionState, "mark_recreated", lambda *_: frozenset())
    process_some(world, holding)
    recreate(world)
    world.run_for(NOTIFIED_S + 0.1)
    commit(world, holding)
    with pytest.raises(Violation, match="gives up t0:0 at 6 of a log that is gone"):
        world.close(20.0)


def test_what_was_finished_in_a_log_that_is_gone_is_not_missed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim has stored the 0 of the old log in the new one, which looks like a start: seed 999201208557."""
    (partition,) = world.partitions()
    world.close(20.0)
    world.consumers.clear()
    recreated = recreate_within_a_write(world, monkeypatch)
    claiming = world.join(world.topics)
    world.timeline.run_until(lambda: partition in claiming.opened, 5.0)
    process_some(world, claiming)
    assert recreated
    assert claiming.finished(partition) == (2, 3)
    world.close(20.0)
    assert world.history.stored(partition) == 0


def test_who_gives_up_what_it_has_finished_in_the_new_log_is_noticed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Excused is only what was finished in the old one."""
    (holding,) = world.consumers
    recreate(world)
    world.run_for(2.0)
    process_some(world, holding)
    monkeypatch.setattr(OwnerZnodes, "_offset_to_leave", lambda _, state: state.committed)
    with pytest.raises(Violation, match="gives up t0:0 at 0, finished is 3"):
        world.close(20.0)


def test_who_never_starts_over_is_noticed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is finished in a log that is gone is excused for as long as it takes to start over, and no longer."""
    monkeypatch.setattr(SubscriptionState, "reset_recreated", lambda *_: None)
    recreate(world)
    with pytest.raises(Violation, match=r"not started over in a new log: \[TopicPartition\(topic='t0', partition=0\)"):
        world.settle(30.0)


def test_who_overwrites_what_an_operator_has_set_in_the_new_log_is_noticed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Excused is only a claim that is being opened (seed 999201219745)."""
    (partition,) = world.partitions()
    monkeypatch.setattr(ZooKeeperOffsetStore, "versions_identify_writers", False)
    with monkeypatch.context() as silent:
        no_broker_knows(silent)
        recreate(world)
        world.run_for(1.0)
        world.operator.set(world.layout.offset(partition), b"1719")
    with pytest.raises(Violation, match="starts t0:0 over, and an operator has set it to 1719 in the new log"):
        world.run_for(10.0)
