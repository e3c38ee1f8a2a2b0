"""The store ``broker-v1`` on simulated time: delayed and lost requests, new logs, and offsets that Kafka has lost."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest

from kiel_groups.group.commit_note import NotedText
from kiel_groups.group.znodes.contents import FirstOffsets
from kiel_groups.group.znodes.transactions import Delete
from kiel_groups.members.offsets.kafka_store import COMMIT_PATIENCE_S, REREAD_S
from kiel_groups.members.zookeeper.owned_partitions import LEAVING_S, RENEWAL_S
from kiel_groups.model import OffsetAndMetadata, TopicPartition
from kiel_groups.zookeeper.fenced_writes import FencedWriter
from tests.sim.commits import commit, process_all, process_some
from tests.sim.kafka_groups import KafkaWorld, kafka_group, play_kafka_group
from tests.sim.logs import END
from tests.sim.topics import recreate

pytestmark = pytest.mark.sim

PARTITION = TopicPartition("t0", 0)
#: The seeds of simulated groups; each has faults of the group and of the coordinator.
SEEDS = int(os.environ.get("KAFKA_SIM_SEEDS", "60"))
PIECES = 4


@pytest.fixture
def world() -> Iterator[KafkaWorld]:
    """Provide a settled group of one with one partition."""
    with kafka_group(members=1, topics=(1,), reset="earliest") as made:
        yield made


@pytest.fixture
def pair() -> Iterator[KafkaWorld]:
    """Provide a settled group of one with two topics of one partition each."""
    with kafka_group(members=1, topics=(1, 1), reset="earliest") as made:
        yield made


@pytest.mark.parametrize("piece", range(PIECES))
def test_seeds(piece: int) -> None:
    """Nothing is skipped or delivered by two, whatever fails, and in the end everything is stored."""
    for seed in range(piece, SEEDS, PIECES):
        play_kafka_group(seed)


def test_a_request_that_is_delayed_past_the_release_repeats_records_and_loses_none(world: KafkaWorld) -> None:
    """The next owner starts at the stored offset, and the late request sets its commits back until the next one."""
    (consumer,) = world.consumers
    process_some(world, consumer)
    commit(world, consumer)
    process_some(world, consumer)
    world.coordinator.hold(8.0)
    consumer.leave()
    world.run_for(LEAVING_S + 2.0)
    assert consumer.closed
    assert world.offsets() == {PARTITION: 3}
    world.coordinator.heal()
    successor = world.join(world.topics)
    world.settle(5.0)
    assert successor.finished(PARTITION) == (0, 3), "the delayed request was not performed yet"
    for _ in range(3):
        process_some(world, successor)
    commit(world, successor)
    assert world.offsets() == {PARTITION: 12}
    world.run_for(8.0)
    assert world.offsets() == {PARTITION: 6}, "the late request steps back"
    process_some(world, successor)
    commit(world, successor)
    assert world.offsets() == {PARTITION: 15}


def test_a_release_waits_until_the_coordinator_has_moved(pair: KafkaWorld) -> None:
    """The owner znode is deleted after the commit, and the next owner repeats nothing."""
    (consumer,) = pair.consumers
    process_all(pair, consumer)
    pair.coordinator.move(COMMIT_PATIENCE_S - 2.0)
    consumer.subscribe(["t1"])
    pair.run_for(COMMIT_PATIENCE_S - 3.0)
    assert pair.layout.owner(PARTITION) in pair.ensemble.tree.znodes
    pair.run_for(3.0)
    assert pair.layout.owner(PARTITION) not in pair.ensemble.tree.znodes
    assert pair.offsets()[PARTITION] == 3


def test_a_release_goes_ahead_without_a_coordinator(pair: KafkaWorld) -> None:
    """The partition is not kept from other members for longer than a few commits are repeated."""
    (consumer,) = pair.consumers
    process_all(pair, consumer)
    pair.coordinator.move(90.0)
    consumer.subscribe(["t1"])
    pair.run_for(3 * (COMMIT_PATIENCE_S + REREAD_S))
    assert pair.layout.owner(PARTITION) not in pair.ensemble.tree.znodes
    assert consumer.metrics.total("commits_timed_out") >= 1


def test_a_commit_whose_answers_are_lost_is_looked_up(world: KafkaWorld) -> None:
    """The stored offset and its note tell that the member itself has stored it."""
    (consumer,) = world.consumers
    process_some(world, consumer)
    world.coordinator.lost = 4
    assert commit(world, consumer, COMMIT_PATIENCE_S + 5.0) == {PARTITION}


def test_an_offset_of_another_claim_is_not_the_members_own(world: KafkaWorld) -> None:
    """If all answers are lost, an equal offset of another writer does not confirm the commit."""
    (consumer,) = world.consumers
    process_some(world, consumer)
    stored = world.coordinator.stored[PARTITION]
    # The requests are refused, and the read that follows them is not.
    world.coordinator.move(COMMIT_PATIENCE_S + 0.4)
    world.coordinator.stored[PARTITION] = OffsetAndMetadata(3, stored.metadata.replace('"claim":', '"claim":1'))
    assert commit(world, consumer, COMMIT_PATIENCE_S + 5.0) == frozenset()
    world.run_for(6.0)
    note = NotedText.parse(world.coordinator.stored[PARTITION].metadata).note
    assert note is not None
    assert note.claim == consumer.token(PARTITION), "a later commit has stored the offset"


def test_no_request_is_sent_through_a_shut_gate(world: KafkaWorld) -> None:
    """A member that is cut off from ZooKeeper asks for no commit after its lease; the checker fails otherwise."""
    (consumer,) = world.consumers
    process_some(world, consumer)
    for server in world.ensemble.servers:
        server.frozen = True
    before = world.offsets()
    world.run_for(8.0)
    committing = consumer.process.start(consumer.member.commit_on_session())
    world.run_for(4.0)
    assert world.offsets() == before
    consumer.process.call(committing.cancel)


def test_the_new_log_of_a_topic_is_read_from_its_beginning(world: KafkaWorld) -> None:
    """An owner that is notified stores the start of the new log, with a note that names the new topic."""
    (consumer,) = world.consumers
    process_some(world, consumer)
    commit(world, consumer)
    recreate(world)
    world.run_for(3.0)
    assert world.offsets() == {PARTITION: 0}
    note = NotedText.parse(world.coordinator.stored[PARTITION].metadata).note
    assert note is not None
    assert note.created == world.incarnation("t0")
    assert consumer.metrics.total("offsets_of_deleted_topic") == 1


def test_an_offset_of_a_deleted_topic_is_no_position(world: KafkaWorld) -> None:
    """A group that was stopped while its topic was created again starts at the beginning of the new log."""
    (consumer,) = world.consumers
    process_some(world, consumer)
    consumer.leave()
    world.run_for(3.0)
    recreate(world)
    world.join(world.topics)
    world.settle(10.0)
    assert world.offsets() == {PARTITION: 0}


def test_without_room_for_the_note_offsets_are_stored_without_it(caplog: pytest.LogCaptureFixture) -> None:
    """A small offset.metadata.max.bytes keeps the group neither from reading nor from committing; one line says so."""
    with kafka_group(members=1, topics=(1,), reset="earliest") as world:
        (consumer,) = world.consumers
        consumer.leave()
        world.run_for(3.0)
        world.coordinator.stored.clear()
        world.coordinator.longest_text = 10
        successor = world.join(world.topics)
        world.settle(10.0)
        for _ in range(2):
            process_some(world, successor)
            commit(world, successor)
        world.coordinator.lost = 4
        process_some(world, successor)
        assert commit(world, successor, COMMIT_PATIENCE_S + 5.0) == {PARTITION}, "the offset is found without its note"
        assert world.coordinator.stored == {PARTITION: OffsetAndMetadata(9, "")}
        lines = [record.getMessage() for record in caplog.records if "offset.metadata.max.bytes" in record.getMessage()]
        assert len(lines) == 1
        assert "offsets are stored without it" in lines[0]


def test_an_offset_without_a_note_counts(world: KafkaWorld) -> None:
    """An operator's offset is where the group starts, also if its topic was created again before."""
    (consumer,) = world.consumers
    consumer.leave()
    world.run_for(3.0)
    recreate(world)
    world.coordinator.stored[PARTITION] = OffsetAndMetadata(7, "by an operator")
    world.checker.processed_to[PARTITION, world.incarnation("t0")] = 7
    successor = world.join(world.topics)
    world.settle(10.0)
    assert successor.finished(PARTITION) == (0, 7)


def test_an_offset_that_kafka_has_lost_starts_where_the_group_began() -> None:
    """The group began a minute ago at ``latest``. Nothing is skipped, and the loss is logged and counted."""
    with kafka_group(members=1, topics=(1,), reset="latest") as world:
        (consumer,) = world.consumers
        assert world.offsets() == {PARTITION: END}
        process_some(world, consumer)
        consumer.leave()
        world.run_for(70.0)
        world.coordinator.stored.clear()
        world.logs.end += 500
        successor = world.join(world.topics)
        world.settle(10.0)
        assert world.offsets() == {PARTITION: END}
        assert successor.metrics.total("offsets_expired") == 1


def test_a_lost_offset_is_no_alarm_while_the_group_begins() -> None:
    """A second member finds the decision of the first one, which has not stored all offsets yet."""
    with kafka_group(members=3, topics=(9,), reset="latest") as world:
        assert set(world.offsets().values()) == {END}
        assert sum(consumer.metrics.total("offsets_expired") for consumer in world.consumers) == 0


def test_where_the_group_began_may_not_be_in_the_log_any_more(world: KafkaWorld) -> None:
    """The partition then starts at its earliest offset, whatever the reset policy is."""
    (consumer,) = world.consumers
    consumer.leave()
    world.run_for(3.0)
    world.coordinator.stored.clear()
    world.logs.retain(PARTITION, 40)
    world.checker.processed_to[PARTITION, world.incarnation("t0")] = 40
    successor = world.join(world.topics)
    world.settle(10.0)
    assert successor.finished(PARTITION) == (0, 40)


def test_an_added_partition_starts_at_its_earliest_offset() -> None:
    """So nothing is skipped that was written before the group noticed it, also under ``latest``."""
    with kafka_group(members=1, topics=(1,), reset="latest") as world:
        world.set_partitions("t0", 2)
        world.settle(10.0)
        world.run_for(2.0)
        assert world.offsets() == {PARTITION: END, TopicPartition("t0", 1): 0}


def test_unreadable_first_offsets_are_replaced_by_earliest_ones(world: KafkaWorld) -> None:
    """The group has begun to read the topic, so no partition without an offset may start at ``latest``."""
    (consumer,) = world.consumers
    consumer.leave()
    world.run_for(3.0)
    world.checker.is_strict = False
    world.operator.set(world.layout.topic_starts("t0"), b"garbage")
    world.coordinator.stored.clear()
    successor = world.join(world.topics)
    world.settle(10.0)
    assert successor.finished(PARTITION) == (0, 0)
    data = world.ensemble.tree.znodes[world.layout.topic_starts("t0")].data
    assert FirstOffsets.parse(data, "").offsets == {0: 0}


def test_idle_partitions_are_committed_again(world: KafkaWorld) -> None:
    """Brokers drop an offset a day after its commit, so an owner renews it although nothing has changed."""
    world.coordinator.stored.clear()
    world.run_for(RENEWAL_S + 10.0)
    assert world.offsets() == {PARTITION: 0}


def test_a_claim_of_another_member_is_not_deleted(pair: KafkaWorld) -> None:
    """An operator deletes the owner znode of a member that releases it, and another member claims the partition."""
    (consumer,) = pair.consumers
    pair.checker.is_strict = False
    owner = pair.layout.owner(PARTITION)
    pair.operator.delete(owner)
    pair.operator.create(owner, b"another-0", ephemeral=True)
    consumer.subscribe(["t1"])
    pair.run_for(5.0)
    assert pair.ensemble.tree.znodes[owner].data == b"another-0"


def test_a_claim_that_is_released_before_it_is_open_stores_nothing(
    pair: KafkaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even while the release is in flight to ZooKeeper: the next owner may have stored its commits by then."""
    (consumer,) = pair.consumers
    consumer.subscribe(["t1"])
    pair.run_for(3.0)
    pair.coordinator.refuses = True
    consumer.subscribe(["t0", "t1"])
    pair.run_for(3.0)
    assert pair.layout.owner(PARTITION) in pair.ensemble.tree.znodes
    assert PARTITION not in consumer.opened
    write = FencedWriter.write

    async def answer_late(writer: FencedWriter, items: Any, *rest: Any, **settings: Any) -> Any:
        outcome = await write(writer, items, *rest, **settings)
        if any(isinstance(each, Delete) for operations in items.values() for each in operations):
            await asyncio.sleep(4.0)
        return outcome

    monkeypatch.setattr(FencedWriter, "write", answer_late)
    session = consumer.member._member_session
    assert session is not None
    # An earlier task that opens claims of the topic may find that this one is not wanted any more.
    consumer.process.start(session.role.owned_partitions._owner_znodes.release_stored([PARTITION]))
    pair.run_for(0.5)
    assert pair.layout.owner(PARTITION) not in pair.ensemble.tree.znodes
    # The checker refuses requests without a claim.
    pair.run_for(4.0)
