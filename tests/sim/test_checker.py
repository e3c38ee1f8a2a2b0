"""The checker reports violations that are close to an exception of an invariant, and accepts the exceptions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kiel_groups.group.offset_tracker import OffsetTracker
from kiel_groups.group.partition_offsets import PartitionOffsets, PendingReset
from kiel_groups.group.znodes.layout import topic_path
from kiel_groups.group.znodes.transactions import Create
from kiel_groups.members.offsets.owned_offsets import OwnedOffsets
from kiel_groups.model import TopicPartition
from kiel_groups.zookeeper.heartbeat import Heartbeat
from kiel_groups.zookeeper.session import SessionClose
from tests.sim.checker import Violation
from tests.sim.commits import process_some
from tests.sim.consumer import Consumer
from tests.sim.history.topics import NOTIFIED_S
from tests.sim.operations import perform
from tests.sim.scenario import Event
from tests.sim.topics import no_broker_knows, recreate, recreate_within_a_write
from tests.sim.world import World, at_rest

pytestmark = pytest.mark.sim


@pytest.fixture
def world() -> Iterator[World]:
    """Provide a settled group of one, with one partition."""
    with at_rest(members=1, topics=(1,), reset="earliest") as made:
        yield made


def commit(world: World, consumer: Consumer) -> None:
    process_some(world, consumer)
    commit_now(world, consumer)


def commit_now(world: World, consumer: Consumer) -> None:
    consumer.process.start(consumer.member.commit_on_session())
    world.run_for(0.2)


def test_a_member_that_ignores_its_forced_release_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a member whose member znode still exists is excused: it cannot know of the forced release yet."""
    begin = Heartbeat.__init__

    def start_blindly(heartbeat: Heartbeat, session: Any, _proof: str, *rest: Any) -> None:
        begin(heartbeat, session, "/", *rest)

    monkeypatch.setattr(Heartbeat, "__init__", start_blindly)
    with at_rest(members=2, topics=(6,), reset="earliest") as world:
        (victim,) = (number for number, consumer in enumerate(world.consumers) if not consumer.member.leads)
        perform(world, Event(0.0, "force_release", victim, 0.0, 0.0))
        with pytest.raises(Violation, match="its gate is open"):
            world.run_for(30.0)


def test_an_offset_that_moves_back_after_its_znode_was_deleted_is_reported(world: World) -> None:
    """The versions of a new offset znode start at 0 again, but this excuses only writes over an operator's offset."""
    (consumer,) = world.consumers
    (partition,) = world.partitions()
    commit(world, consumer)
    world.operator.delete(world.layout.offset(partition))
    commit(world, consumer)
    commit(world, consumer)
    state = consumer._subscription.offsets.of(partition)
    assert state is not None
    state.finished = 6
    with pytest.raises(Violation, match="takes the offset of t0:0 back from 9 to 6"):
        commit_now(world, consumer)


def test_the_delivery_of_a_record_before_the_stored_offset_is_reported(world: World) -> None:
    """
    The checker reports a delivery before the stored offset. The repeated delivery loses nothing, but the consumer had
    no reason to go back.
    """
    (consumer,) = world.consumers
    (partition,) = world.partitions()
    commit(world, consumer)
    consumer._subscription.offsets.seek(partition, 1)
    with pytest.raises(Violation, match="goes back in t0:0 to 1, and 3 is stored"):
        commit(world, consumer)


@pytest.mark.parametrize(
    ("reset", "found"),
    [
        ("earliest", "goes back in t0:0 to 0, and 6 is stored"),
        ("latest", "continues in t0:0 at 1002, and only what is before 1000 was processed"),
    ],
)
def test_a_delivery_after_a_reset_that_is_not_stored_is_reported(
    monkeypatch: pytest.MonkeyPatch, reset: str, found: str
) -> None:
    """
    The checker reports a delivery after a reset that is not stored, whether the reset moves forward or back. Without
    the stored reset, the next owner would choose again.
    """

    async def store_reset(offsets: OwnedOffsets, partition: TopicPartition, chosen: PendingReset) -> int:
        offsets._tracker.seek(partition, chosen.position)
        return chosen.position

    monkeypatch.setattr(OwnedOffsets, "store_reset", store_reset)
    with at_rest(members=1, topics=(1,), reset=reset) as world:
        (consumer,) = world.consumers
        (partition,) = world.partitions()
        if reset == "earliest":
            commit(world, consumer)
            commit(world, consumer)
            world.cut(partition, 5, 60.0)
        else:
            world.retain(partition, 1_002)
        world.run_for(1.0)
        with pytest.raises(Violation, match=found):
            consumer.work(0.0, 1, 0.1)


@pytest.mark.parametrize(
    ("chosen", "found"),
    [(3, "takes the offset of t0:0 back from 6 to 3"), (7, "commits 7 of t0:0, processed is 6")],
)
def test_a_reset_to_another_offset_than_the_policys_is_reported(
    world: World, monkeypatch: pytest.MonkeyPatch, chosen: int, found: str
) -> None:
    """If the log does not have the position, the member may store only the offset that the reset policy chooses."""
    (consumer,) = world.consumers
    (partition,) = world.partitions()
    commit(world, consumer)
    commit(world, consumer)
    monkeypatch.setattr(PendingReset, "offset_after", lambda *_: chosen)
    world.cut(partition, 5, 60.0)
    with pytest.raises(Violation, match=found):
        world.run_for(1.0)


@pytest.mark.parametrize("cause", ["no reset", "a second one"])
def test_an_offset_that_moves_back_without_a_reset_is_reported(world: World, cause: str) -> None:
    """A reported log range allows a single reset, by the member that received the report."""
    (consumer,) = world.consumers
    (partition,) = world.partitions()
    commit(world, consumer)
    commit(world, consumer)
    if cause == "a second one":
        world.cut(partition, 5, 0.9)
        world.run_for(1.0)
        assert world.history.resets == 1
        commit(world, consumer)
        commit(world, consumer)
    state = consumer._subscription.offsets.of(partition)
    assert state is not None
    state.finished = 0
    with pytest.raises(Violation, match="takes the offset of t0:0 back from 6 to 0"):
        commit_now(world, consumer)


def test_a_release_without_the_pending_reset_is_reported(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The checker reports a release without the pending reset, although the stored offset would be correct without the
    reset.
    """
    (consumer,) = world.consumers
    (partition,) = world.partitions()
    commit(world, consumer)
    monkeypatch.setattr(PartitionOffsets, "reset_offset", lambda *_, **__: None)
    consumer.work(0.0, 3, 2.0)
    world.retain(partition, 100)
    world.run_for(1.0)
    assert consumer.has_pending_reset(partition)
    consumer.leave()
    with pytest.raises(Violation, match="releases t0:0 at 6, and forgets its reset"):
        world.run_for(3.0)


def test_records_skipped_up_to_an_earlier_offset_of_an_operator_are_reported(world: World) -> None:
    """A consumer that skips records is excused only if it continues at exactly the operator's offset."""
    (consumer,) = world.consumers
    (partition,) = world.partitions()
    world.operator.set(world.layout.offset(partition), b"1900")
    world.operator.set(world.layout.offset(partition), b"3")
    commit(world, consumer)
    world.operator.delete(world.layout.offset(partition))
    commit(world, consumer)
    consumer._subscription.offsets.seek(partition, 1_500)
    with pytest.raises(Violation, match="continues in t0:0 at 1500"):
        commit(world, consumer)


def test_a_release_with_an_offset_of_the_old_log_is_reported(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A release with an offset of the old log is excused only if the member cannot know of the new topic yet. This member
    knows of the topic when it leaves.
    """
    (consumer,) = world.consumers
    recreate_within_a_write(world, monkeypatch)
    commit(world, consumer)
    world.run_for(2.0)
    monkeypatch.setattr(OffsetTracker, "_is_of_old_log", lambda *_: False)
    consumer.leave()
    with pytest.raises(Violation, match="releases t0:0 at 3 of a log that is gone"):
        world.run_for(2.0)


@pytest.mark.parametrize("when", ["delivered before", "delivered after", "reached later"])
def test_an_operators_offset_that_equals_the_consumers_position_is_no_violation(world: World, when: str) -> None:
    """
    A consumer that may have committed the same offset may mistake the operator's offset for its own (seed
    314916358090).
    """
    (consumer,) = world.consumers
    (partition,) = world.partitions()
    commit(world, consumer)
    if when != "reached later":
        process_some(world, consumer)
    if when == "delivered before":
        consumer.work(0.0, 3, 0.5)
    world.operator.set(world.layout.offset(partition), b"6")
    if when == "reached later":
        process_some(world, consumer)
    if when != "delivered before":
        consumer.work(0.0, 3, 0.5)
    consumer.process.lose("request")
    consumer.process.start(consumer.member.commit_on_session())
    world.run_for(1.0)
    assert world.history.stored(partition) == 6
    commit(world, consumer)
    assert world.history.stored(partition) == 12


@pytest.mark.parametrize("is_late", [False, True])
def test_the_end_of_the_log_as_first_offset_of_a_later_partition_is_reported(is_late: bool) -> None:
    """
    A member that stores the end of the log for a later partition is excused only while it cannot know that the topic
    has just been created (seed 314916384253).
    """
    with at_rest(members=1, topics=(1,), reset="latest") as world:
        (consumer,) = world.consumers
        member_session = consumer.member._member_session
        assert member_session is not None

        def store(number: int) -> None:
            path = world.layout.offset(TopicPartition("t9", number))
            consumer.process.start(member_session.session.transact([Create(path, b"%d" % world.log_end)]))
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


def test_a_commit_that_a_cut_off_server_delayed_is_excused(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A delayed commit is excused if its session had not seen the new topic, even if the process's next session had (seed
    999201189842).

    The close of the abandoned session, which would prevent the commit, reaches no server in this test.
    """
    begin = SessionClose.begin

    def close_in_vain(close: SessionClose) -> None:
        begin(close)
        close._give_up_s = 0.0

    monkeypatch.setattr(SessionClose, "begin", close_in_vain)
    with at_rest(members=1, topics=(1,), reset="earliest", sync_limit=30) as world:
        commit_through_a_cut_server(world)


def commit_through_a_cut_server(world: World) -> None:
    (consumer,) = world.consumers
    partitions = world.partitions()
    server = consumer.process.server
    while server is None or server is world.ensemble.leader:
        consumer.process.reset()
        world.run_for(0.5)
        server = consumer.process.server
    process_some(world, consumer)
    world.ensemble.cut(server)
    consumer.process.only = server
    commit = consumer.process.start(consumer.member.commit_on_session())
    recreate(world)
    # The lease ends before the server stops serving, so its delayed commit arrives when the server is connected again.
    world.timeline.run_until(lambda: consumer.gate.shut_reason is not None, 20.0)
    consumer.process.only = None
    world.timeline.run_until(lambda: len(consumer.process.sessions) > 1, 20.0)
    world.run_for(1.0)
    world.ensemble.heal(server)
    world.settle(30.0)
    assert commit.done()
    assert world.history.stored(partitions[0]) == 3
    world.close(20.0)
    world.checker.end(partitions)


def test_a_commit_of_the_old_log_on_a_session_that_has_seen_the_new_topic_is_reported(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a commit on a session that cannot know of the new topic is excused."""
    (consumer,) = world.consumers
    monkeypatch.setattr(OffsetTracker, "recreated", lambda *_: frozenset())
    process_some(world, consumer)
    recreate(world)
    world.run_for(NOTIFIED_S + 0.1)
    commit(world, consumer)
    with pytest.raises(Violation, match="releases t0:0 at 6 of a log that is gone"):
        world.close(20.0)


def test_a_release_need_not_store_what_was_finished_in_a_log_that_is_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A release need not store records that were finished in a deleted log. Here a claim rewrote offset 0 of the old log
    in the new log, which looks like a reset (seed 999201208557).
    """
    (partition,) = world.partitions()
    world.close(20.0)
    world.consumers.clear()
    recreated = recreate_within_a_write(world, monkeypatch)
    newcomer = world.join(world.topics)
    world.timeline.run_until(lambda: partition in newcomer.opened, 5.0)
    process_some(world, newcomer)
    assert recreated
    assert newcomer.finished(partition) == (2, 3)
    world.close(20.0)
    assert world.history.stored(partition) == 0


def test_a_release_that_loses_what_was_finished_in_the_new_log_is_reported(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release may omit only records that were finished in the old log."""
    (consumer,) = world.consumers
    recreate(world)
    world.run_for(2.0)
    process_some(world, consumer)
    monkeypatch.setattr(OffsetTracker, "_offset_to_leave", lambda _, state: state.committed)
    with pytest.raises(Violation, match="releases t0:0 at 0, finished is 3"):
        world.close(20.0)


def test_a_partition_that_is_never_reset_to_its_new_log_is_reported(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner may keep a position in a deleted log only until its reset to the new log is due."""
    monkeypatch.setattr(OffsetTracker, "restart", lambda *_: None)
    recreate(world)
    with pytest.raises(Violation, match=r"not reset to a new log: \[TopicPartition\(topic='t0', partition=0\)"):
        world.settle(30.0)


def test_a_reset_that_replaces_an_operators_offset_in_the_new_log_is_reported(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a member that is opening its claim may replace an operator's offset in the new log (seed 999201219745)."""
    (partition,) = world.partitions()
    (consumer,) = world.consumers
    monkeypatch.setattr(
        consumer.member._member_session.role.offsets.znodes,
        "_through_brokers",
        True,
    )  # type: ignore[union-attr]
    with monkeypatch.context() as silent:
        no_broker_knows(silent)
        recreate(world)
        world.run_for(1.0)
        world.operator.set(world.layout.offset(partition), b"1719")
    with pytest.raises(
        Violation, match="resets t0:0 to the new log, and an operator has set it to 1719 in the new log"
    ):
        world.run_for(10.0)


def test_a_deletion_of_a_claim_that_is_being_opened_excuses_its_owner(world: World) -> None:
    """The opening ends after the deletion, and gives the member no owner znode (seed 7740015)."""
    (consumer,) = world.consumers
    partition = next(iter(world.partitions()))
    world.operator.delete(world.layout.owner(partition))
    assert world.history.owners.is_forced(consumer, partition)
    world.history.owners.open(consumer, partition)
    assert world.history.owners.is_forced(consumer, partition)
