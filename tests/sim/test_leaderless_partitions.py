"""
Partitions without a leader when a group needs their offsets: other partitions do not wait, and no record is skipped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pytest

from kiel_groups.errors import BrokerError, NoOffsetsError
from kiel_groups.group.claims import Phase
from kiel_groups.members.offsets.claim_opening import ClaimOpener
from kiel_groups.members.partition_handler import LogOffsets
from kiel_groups.members.zookeeper import owned_partitions
from kiel_groups.model import TopicPartition
from kiel_groups.zookeeper.session import Session
from tests.sim.checker import Violation
from tests.sim.consumer import Consumer
from tests.sim.invariants.claim_opening import OPENED_S
from tests.sim.topics import create_topic, recreate
from tests.sim.world import World, at_rest

pytestmark = pytest.mark.sim

#: The seconds after which an unopened claim raises an alarm (``drain_alarm_ms``).
ALARM_S = 30.0


def new(*numbers: int) -> set[TopicPartition]:
    """Return the partitions of the topic ``new`` with these numbers."""
    return {TopicPartition("new", number) for number in numbers}


def create_new_topic(
    world: World, partitions: int, leaderless: Iterable[TopicPartition] = (), away_s: float = 0.0
) -> None:
    """Create a topic to which every consumer subscribes. Its ``leaderless`` partitions get leaders after ``away_s``."""
    for partition in leaderless:
        world.lose_leader(partition, away_s)
    create_topic(world, "new", partitions)
    for consumer in world.consumers:
        consumer.subscribe(["t0", "new"])


def stored(world: World, topic: str = "new") -> dict[int, int]:
    """Return the stored offsets by partition number."""
    znodes, folder = world.ensemble.tree.znodes, world.layout.topic_offsets(topic)
    return {int(name): int(znodes[f"{folder}/{name}"].data) for name in world.ensemble.tree.children(folder)}


def flowing(world: World) -> set[TopicPartition]:
    """Return the partitions of the topic ``new`` that consumers have opened."""
    return {partition for consumer in world.consumers for partition in consumer.opened if partition.topic == "new"}


def unopened_claims(consumer: Consumer) -> float:
    """Return the value of the consumer's gauge of unopened claims."""
    return next(value for name, _, value in consumer.metrics.samples() if name == "claims_unopened")


@pytest.mark.parametrize(("reset", "start"), [("earliest", 0), ("latest", 1_000)])
def test_partitions_with_leaders_start_at_once(reset: str, start: int, caplog: pytest.LogCaptureFixture) -> None:
    """
    Partitions with leaders start at once. The other partitions raise an alarm repeatedly, and start at the start of
    their logs when they have leaders.
    """
    with at_rest(members=1, topics=(2,), reset=reset) as world, caplog.at_level(logging.WARNING, "kiel_groups"):
        (consumer,) = world.consumers
        create_new_topic(world, 4, new(1, 3), 3 * ALARM_S)
        world.lose_leader(TopicPartition("new", 1), 2 * ALARM_S + 10.0)
        world.run_for(5.0)
        assert flowing(world) == new(0, 2)
        assert stored(world) == {0: start, 2: start}
        assert unopened_claims(consumer) == 2
        assert consumer.metrics.total("open_alarms") == 0
        world.run_for(2 * ALARM_S)
        assert consumer.metrics.total("open_alarms") == 2
        assert "2 claims of new (new:1, new:3) without a position for 30 s: no leader of new:1" in caplog.text
        world.run_for(ALARM_S - 10.0)
        assert flowing(world) == new(0, 1, 2)
        assert unopened_claims(consumer) == 1
        world.run_for(ALARM_S)
        assert flowing(world) == new(0, 1, 2, 3)
        assert stored(world) == {0: start, 1: 0, 2: start, 3: 0}
        assert unopened_claims(consumer) == 0
        for late in new(1, 3):
            warned = f"{late}: starting at the earliest offset, although auto_offset_reset is 'latest'"
            assert (warned in caplog.text) == (reset == "latest")


def test_one_member_stores_the_first_offsets_of_all_partitions_of_a_topic() -> None:
    """
    One member stores all first offsets of a topic. If members stored theirs one after the other, later members would
    have to start at the earliest offset.
    """
    with at_rest(members=2, topics=(2,), reset="latest") as world:
        create_new_topic(world, 6)
        world.run_for(5.0)
        assert stored(world) == dict.fromkeys(range(6), 1_000)


def test_a_claim_that_is_deleted_before_it_is_open_is_made_again() -> None:
    """
    If a claim is deleted before it is open, the member claims again without waiting for a leader. Otherwise, another
    member could own the partition, too.
    """
    with at_rest(members=1, topics=(2,), reset="earliest") as world:
        (consumer,) = world.consumers
        create_new_topic(world, 2, new(1), 60.0)
        world.run_for(5.0)
        (partition,) = new(1)
        owner = world.layout.owner(partition)
        deleted = world.ensemble.tree.znodes[owner].czxid
        world.operator.delete(owner)
        world.run_for(15.0)
        assert world.ensemble.tree.znodes[owner].czxid > deleted
        assert consumer.in_phase(Phase.OPENING) == new(1)


def test_a_claim_that_stays_unopened_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checker's time limit for opening a claim starts when the partition has a leader again."""
    monkeypatch.setattr(owned_partitions, "FIRST_REOPEN_PAUSE_S", 100.0)
    monkeypatch.setattr(owned_partitions, "LONGEST_REOPEN_PAUSE_S", 100.0)
    with at_rest(members=1, topics=(2,), reset="earliest") as world:
        # Longer than two look-ups, which take up to 2 s each: the member then pauses, and the claim stays unopened.
        create_new_topic(world, 2, new(1), 5.0)
        led_s = world.timeline.now_s + 5.0
        with pytest.raises(Violation, match=r"has claimed new:1, and has not opened it for 1\d\.\d s"):
            world.run_for(60.0)
        assert world.timeline.now_s - led_s > OPENED_S


def test_of_members_that_know_different_leaders_only_the_first_starts_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    The first member that stores offsets starts at the end. The second member starts at the earliest offset, because at
    a later end it would skip the records in between.
    """
    with at_rest(members=2, topics=(2,), reset="latest") as world:
        first, second = world.consumers
        log_offsets, asked = Consumer.log_offsets, dict[Consumer, list[str]]({first: [], second: []})

        async def know_half(consumer: Consumer, partitions: Collection[TopicPartition], policy: str) -> LogOffsets:
            asked[consumer].append(policy)
            if len(asked[consumer]) > 1:
                return await log_offsets(consumer, partitions, policy)
            await asyncio.sleep(0.5 if consumer is first else 1.0)
            known = consumer.in_phase(Phase.OPENING) & {*partitions}
            failures = {partition: BrokerError("no leader") for partition in {*partitions} - known}
            return LogOffsets(dict.fromkeys(known, world.log_end), failures)

        for consumer in world.consumers:
            monkeypatch.setattr(consumer, "log_offsets", know_half.__get__(consumer))  # type: ignore[attr-defined]
        create_new_topic(world, 4)
        world.run_for(5.0)
        world.settle(10.0)
        assert [policies[0] for policies in asked.values()] == ["latest", "latest"]
        early = {partition.partition for partition in first.opened if partition.topic == "new"}
        assert stored(world) == {number: 1_000 if number in early else 0 for number in range(4)}
        assert len(early) == 2


def test_first_offsets_that_are_stored_during_a_look_up_are_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    If other offsets of the topic are stored during the look-up, the member keeps them. A partition without an offset
    then starts at the earliest offset.
    """
    get, reads = Session.get, list[str]()

    async def get_later(session: Session, path: str, watcher: Any = None) -> Any:
        if path.endswith("/offsets/new"):
            reads.append(path)
            if len(reads) == 1:
                first = world.operator.transaction()
                first.set_data(path, b"")
                first.create(f"{path}/0", b"1000")
                first.commit_async()
                await asyncio.sleep(1.0)
        return await get(session, path, watcher)

    with at_rest(members=1, topics=(2,), reset="latest") as world:
        monkeypatch.setattr(Session, "get", get_later)
        create_new_topic(world, 2, new(0), 5.0)
        world.run_for(10.0)
        world.settle(5.0)
        assert stored(world) == {0: 1_000, 1: 0}


def test_stored_offsets_are_used_without_asking_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    When a group without members gets a member again, the member uses stored offsets without asking brokers. Meanwhile
    the topic has grown, and no broker answers for a minute.
    """
    with at_rest(members=1, topics=(3,), reset="earliest") as world:
        world.close(20.0)
        world.set_partitions("t0", 5)
        log_offsets = Consumer.log_offsets

        async def answer_late(consumer: Consumer, partitions: Collection[TopicPartition], policy: str) -> LogOffsets:
            await asyncio.sleep(60.0)
            return await log_offsets(consumer, partitions, policy)

        monkeypatch.setattr(Consumer, "log_offsets", answer_late)
        monkeypatch.setattr(world, "has_leader", lambda partition: False)
        returned = world.join(world.topics)
        world.timeline.run_until(lambda: len(returned.opened) == 3, 5.0)
        assert {partition.partition for partition in returned.opened} == {0, 1, 2}
        assert len(returned.in_phase(Phase.OPENING)) == 2


@pytest.mark.parametrize("damage", ["created again", "garbled"])
def test_invalid_offsets_of_partitions_with_leaders_are_replaced(damage: str) -> None:
    """
    Offsets of an earlier incarnation of the topic, and offsets that are no numbers, are replaced once the partition has
    a leader.
    """
    with at_rest(members=1, topics=(4,), reset="earliest") as world:
        world.close(20.0)
        if damage == "garbled":
            for number in range(4):
                world.operator.set(world.layout.offset(TopicPartition("t0", number)), b"garbage")
        else:
            recreate(world)
        for number in (0, 2):
            world.lose_leader(TopicPartition("t0", number), 40.0)
        returned = world.join(world.topics)
        world.run_for(5.0)
        assert {partition.partition for partition in returned.opened} == {1, 3}
        assert {partition.partition for partition in returned.in_phase(Phase.OPENING)} == {0, 2}
        world.run_for(40.0 + OPENED_S)
        assert stored(world, "t0") == dict.fromkeys(range(4), 0)
        world.settle(1.0)


@pytest.mark.parametrize("missing", ["grown", "garbled"])
def test_without_a_reset_policy_a_partition_without_offset_is_refused(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """
    The application gets the error of a partition without an offset repeatedly, until an operator sets an offset. The
    other partitions are read.
    """
    refusals: list[NoOffsetsError] = []
    monkeypatch.setattr(Consumer, "start_unknown", lambda consumer, topic, error: refusals.append(error))
    monkeypatch.setattr("tests.sim.invariants.claim_opening.OPENED_S", 1_000.0)
    with at_rest(members=1, topics=(3,), reset="earliest") as world:
        world.close(20.0)
        if missing == "grown":
            world.set_partitions("t0", 4)
        else:
            world.operator.set(world.layout.offset(TopicPartition("t0", 2)), b"garbage")
        world.reset = "none"
        # The group's settings have another policy.
        world.operator.delete(world.layout.config)
        returned = world.join(world.topics)
        world.run_for(20.0)
        sound = {0, 1, 2} if missing == "grown" else {0, 1}
        assert {partition.partition for partition in returned.opened} == sound
        assert len(refusals) > 1
        (number,) = {0, 1, 2, 3 if missing == "grown" else 2} - sound
        assert f"group g has no offsets of t0:{number}, and auto_offset_reset is 'none'" in str(refusals[0])
        world.operator.ensure_path(world.layout.offset(TopicPartition("t0", number)))
        world.operator.set(world.layout.offset(TopicPartition("t0", number)), b"7")
        world.run_for(10.0)
        assert returned._subscription.offsets.position(TopicPartition("t0", number)) == 7


def test_an_alarm_is_raised_while_a_look_up_hangs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The alarm does not wait for the end of the look-up."""
    open_claims = ClaimOpener.open

    async def hang(opener: ClaimOpener, topic: str, partitions: Sequence[TopicPartition]) -> object:
        await asyncio.sleep(100.0)
        return await open_claims(opener, topic, partitions)

    with at_rest(members=1, topics=(2,), reset="earliest") as world:
        (consumer,) = world.consumers
        monkeypatch.setattr(ClaimOpener, "open", hang)
        monkeypatch.setattr("tests.sim.invariants.claim_opening.OPENED_S", 1_000.0)
        create_new_topic(world, 1)
        world.run_for(ALARM_S + 5.0)
        assert consumer.metrics.total("open_alarms") == 1
        assert "ZooKeeper or the brokers have not answered yet" in caplog.text
