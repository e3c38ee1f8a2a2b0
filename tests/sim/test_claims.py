"""Claims before any record is delivered: their offsets, and their verification."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from kiel_groups.group.offset_tracker import OffsetTracker
from kiel_groups.group.znodes.layout import GroupLayout, topic_path
from kiel_groups.members.offsets.claim_opening import ClaimOpener
from kiel_groups.members.offsets.zookeeper_store import OffsetZnodes
from kiel_groups.model import TopicPartition
from kiel_groups.zookeeper.fenced_writes import FencedWriter
from kiel_groups.zookeeper.session import Session
from tests.fakes import Host, fake_client
from tests.sim.commits import process_all, process_some
from tests.sim.session_bench import SessionBench, owner_znodes_of
from tests.sim.topics import recreate, stored_offsets
from tests.sim.world import at_rest

pytestmark = pytest.mark.sim


def test_a_claim_of_a_topic_that_was_created_again_starts_at_its_beginning() -> None:
    """
    A claim does not use offsets that are older than the topic. Here the group had no member when the topic was created
    again.
    """
    with at_rest(members=1, topics=(3,), reset="latest") as world:
        world.consumers[-1].leave()
        world.run_for(10.0)
        recreate(world)
        world.join(world.topics)
        world.settle(60.0)
        assert [world.history.stored(partition) for partition in world.partitions()] == [0, 0, 0]


def test_a_claim_gives_its_offsets_new_versions() -> None:
    """A claim rewrites its offsets. A former owner expects the old versions, so ZooKeeper refuses its late writes."""
    with at_rest(members=1, topics=(3,)) as world:
        for claims in (1, 2):
            world.settle(60.0)
            versions = [world.ensemble.tree.znodes[world.layout.offset(p)].version for p in world.partitions()]
            assert versions == [claims] * 3
            world.consumers[-1].leave()
            world.run_for(10.0)
            world.join(world.topics)


def test_an_offset_that_is_reset_during_a_claim_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A claim's rewrite of an offset expects the version that the member has read, so an operator's newer offset stays.
    """
    with at_rest(members=3) as world:
        rewrite, reset = OffsetZnodes.rewrite, list[TopicPartition]()

        async def rewriting(znodes: OffsetZnodes, partitions: Sequence[TopicPartition], found: Any, renew: Any) -> Any:
            if found and not reset:
                reset.append(partitions[0])
                world.operator.set_async(world.layout.offset(partitions[0]), b"7")
                while world.history.stored(partitions[0]) != 7:  # noqa: ASYNC110 -- simulated time
                    await asyncio.sleep(0.01)
            return await rewrite(znodes, partitions, found, renew)

        monkeypatch.setattr(OffsetZnodes, "rewrite", rewriting)
        world.consumers[0].kill()
        world.run_for(40.0)
        (partition,) = reset
        (owner,) = (consumer for consumer in world.consumers if partition in consumer.opened)
        assert world.history.stored(partition) == 7
        assert owner.finished(partition) == (world.ensemble.tree.znodes[world.layout.offset(partition)].version, 7)


def test_verification_finds_a_deleted_claim_on_a_lagging_server() -> None:
    """Verification reads after an answered quorum write, so the server has caught up with that write."""
    bench, layout, partition = SessionBench(servers=2), GroupLayout("g"), TopicPartition("t", 0)
    follower = bench.ensemble.servers[-1]
    bench.process.only = follower
    operator = fake_client(Host(bench.ensemble))

    async def work(session: Session, writer: FencedWriter) -> None:
        owner_znodes = owner_znodes_of(session, writer, OffsetTracker())
        assert await owner_znodes.claim([partition]) == {partition}
        assert await owner_znodes.verify([partition]) == frozenset()
        follower.lag_s = 1.0
        bench.timeline.after(0.0, operator.delete_async, layout.owner(partition))
        await asyncio.sleep(0.3)
        assert layout.owner(partition) not in bench.ensemble.tree.znodes
        assert await session.exists(layout.owner(partition)) is not None
        assert await owner_znodes.verify([partition]) == {partition}

    operator.start()
    bench.run(work)
    assert follower is not bench.ensemble.leader


def test_a_contended_partition_is_not_claimed(bench: SessionBench) -> None:
    """A member does not claim a partition whose owner znode belongs to another session."""
    layout, partition = GroupLayout("g"), TopicPartition("t", 0)
    other = fake_client(Host(bench.ensemble))

    async def claim(session: Session, writer: FencedWriter) -> frozenset[TopicPartition]:
        owner_znodes = owner_znodes_of(session, writer, OffsetTracker())
        await session.ensure([layout.topic_owners("t")])
        other.create_async(layout.owner(partition), b"other", ephemeral=True)
        while layout.owner(partition) not in bench.ensemble.tree.znodes:
            await session.exists(layout.owner(partition))
        # ``freed`` skips the check for an existing owner, so only the creation detects the other owner.
        return await owner_znodes.claim([partition], freed=[partition])

    other.start()
    assert bench.run(claim) == frozenset()


def test_many_partitions_of_others_are_refused_at_once(bench: SessionBench) -> None:
    """After a refusal the owners are read, so that every other contended partition does not cost a transaction."""
    layout, partitions = GroupLayout("g"), [TopicPartition("t", number) for number in range(60)]
    taken = partitions[::2]
    other = fake_client(Host(bench.ensemble))

    async def claim(session: Session, writer: FencedWriter) -> tuple[frozenset[TopicPartition], int]:
        owner_znodes = owner_znodes_of(session, writer, OffsetTracker())
        await session.ensure([layout.topic_owners("t")])
        for partition in taken:
            other.create_async(layout.owner(partition), b"other", ephemeral=True)
        while layout.owner(taken[-1]) not in bench.ensemble.tree.znodes:
            await session.exists(layout.owner(taken[-1]))
        before = len(bench.proofs)
        return await owner_znodes.claim(partitions, freed=partitions), len(bench.proofs) - before

    other.start()
    assert bench.run(claim) == (frozenset(partitions) - frozenset(taken), 1)


def test_a_topic_that_is_only_deleted_during_a_claim_has_no_new_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the topic is deleted during a claim, its offsets are kept until the topic is created again."""
    with at_rest(members=1, topics=(4,), reset="earliest") as world:
        (consumer,) = world.consumers
        process_all(world, consumer)
        partitions = world.partitions()
        world.close(20.0)
        complete = ClaimOpener._find_or_create

        async def completing(opener: ClaimOpener, topic: str, *rest: Any, **options: Any) -> Any:
            monkeypatch.undo()
            world.operator.delete_async(topic_path("t0"))
            await asyncio.sleep(0.3)
            return await complete(opener, topic, *rest, **options)

        monkeypatch.setattr(ClaimOpener, "_find_or_create", completing)
        joined = world.join(world.topics)
        world.run_for(6.0)
        znodes = world.ensemble.tree.znodes
        assert [int(znodes[world.layout.offset(partition)].data) for partition in partitions] == [3, 3, 3, 3]
        world.operator.create(topic_path("t0"), world.topic_data("t0"))
        world.run_for(6.0)
        world.settle(20.0)
        assert stored_offsets(world) == [0, 0, 0, 0]
        assert set(joined.opened) == set(partitions)


def test_the_log_says_why_a_partition_starts_where_it_does(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), at_rest(members=1, topics=(6,), reset="earliest") as world:
        (consumer,) = world.consumers
        first = [f"t0:{number} at 0 (by auto_offset_reset, without a stored offset)" for number in range(4)]
        assert f"group g: opened 6 partitions: {', '.join(first)} and 2 more" in caplog.messages
        process_some(world, consumer)
        consumer.leave()
        world.run_for(5.0)
        world.join(world.topics)
        world.settle(60.0)
    stored = [f"t0:{number} at {3 if number == 0 else 0} (the stored offset)" for number in range(4)]
    assert f"group g: opened 6 partitions: {', '.join(stored)} and 2 more" in caplog.messages
