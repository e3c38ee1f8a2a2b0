"""Changes between a read from ZooKeeper and the use of its answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pytest

from kiel_groups.group.znodes.layout import topic_path
from kiel_groups.members.offsets.claim_opening import ClaimOpener
from kiel_groups.members.partition_handler import LogOffsets
from kiel_groups.model import TopicPartition
from kiel_groups.zookeeper.session import Session
from tests.sim.consumer import Consumer
from tests.sim.topics import create_topic
from tests.sim.world import World, at_rest

pytestmark = pytest.mark.sim

#: Enough time for a watch, in seconds; less than the shortest time until a member reconciles.
SOON_S = 5.0


@pytest.fixture
def world() -> Iterator[World]:
    """Provide a settled group of one."""
    with at_rest(members=1, topics=(4,), reset="earliest") as made:
        yield made


def test_an_assignment_that_changes_while_it_is_read_is_read_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    If the watch of an assignment fires before the member uses the answer, the answer is outdated. The member keeps the
    hint and reads again.
    """
    consumer, get, changed = world.consumers[0], Session.get, []
    path = world.layout.assignment(str(consumer.member.member_id))
    data = world.ensemble.tree.znodes[path].data

    async def slow(session: Session, asked: str, watcher: Any = None) -> Any:
        node = await get(session, asked, watcher)
        if asked == path and watcher is not None and not changed:
            changed.append(path)
            world.operator.set_async(path, json.dumps(json.loads(data) | {"generation": 0, "partitions": {}}).encode())
            await asyncio.sleep(1.0)
        return node

    monkeypatch.setattr(Session, "get", slow)
    assert consumer.opened
    world.operator.set(path, data)
    world.run_for(SOON_S)
    assert changed
    assert not consumer.opened


def test_a_claim_that_is_replaced_during_the_look_up_is_not_opened(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    If the owner znode is deleted and another session creates it while the member looks up the start position, the
    member does not open its claim.
    """
    log_offsets, partition = Consumer.log_offsets, TopicPartition("new", 1)
    owner, taken = world.layout.owner(partition), []

    async def slow(asked: Consumer, partitions: Collection[TopicPartition], policy: str) -> LogOffsets:
        if not taken:
            taken.append(owner)
            world.operator.delete_async(owner)
            world.operator.create_async(owner, b"another-0", ephemeral=True)
            await asyncio.sleep(1.0)
        return await log_offsets(asked, partitions, policy)

    monkeypatch.setattr(Consumer, "log_offsets", slow)
    create_topic(world, "new", 2)
    consumer = world.join({"new"})
    world.run_for(SOON_S)
    assert taken
    assert world.ensemble.tree.znodes[owner].data == b"another-0"
    assert set(consumer.opened) == {TopicPartition("new", 0)}


def test_positions_are_not_used_after_their_topic_was_created_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The positions are of the old log; the member has no open partition to be notified of the new one."""
    consumer, open_claims, recreated = world.consumers[0], ClaimOpener.open, []

    async def slow(opener: ClaimOpener, topic: str, partitions: Sequence[TopicPartition]) -> Any:
        starts = await open_claims(opener, topic, partitions)
        if not recreated:
            recreated.append("t0")
            world.operator.delete_async(topic_path("t0"))
            world.operator.create_async(topic_path("t0"), world.topic_data("t0"))
            await asyncio.sleep(1.0)
        return starts

    for _ in range(4):
        consumer.work(0.0, 3, 0.01)
    world.run_for(SOON_S + 1.0)
    assert {world.history.stored(partition) for partition in world.partitions()} == {3}
    monkeypatch.setattr(ClaimOpener, "open", slow)
    world.operator.delete(world.layout.member(str(consumer.member.member_id)))
    world.run_for(2 * SOON_S)
    assert recreated
    world.settle(20.0)
    found = [consumer.finished(partition) for partition in world.partitions()]
    assert [None if state is None else state[1] for state in found] == [0] * 4
    assert {world.history.stored(partition) for partition in world.partitions()} == {0}
