"""Audits of a large group: unchanged claims, offsets, leaders and topics are checked, and not read one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from kiel_groups.group.znodes.contents import encode_owner
from kiel_groups.group.znodes.layout import partition_state_path, topic_path
from kiel_groups.zookeeper.session import Session
from tests.fakes.znode_tree import Kind
from tests.sim.world import RECONCILE_INTERVAL_MS, World, at_rest

pytestmark = pytest.mark.sim

#: Enough time for two audits of each member, in seconds.
TWO_AUDITS_S = 3 * RECONCILE_INTERVAL_MS / 1000


@pytest.fixture
def world() -> Iterator[World]:
    """Provide a settled group of two that has audited its partitions."""
    with at_rest(members=2, topics=(4, 2)) as made:
        made.run_for(TWO_AUDITS_S)
        yield made


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the paths of all reads from now on, without the leader's of topics."""
    paths: list[str] = []
    read_many = Session._read_many

    async def reading(session: Session, ask: Any, wanted: Sequence[str], watchers: Any) -> list[Any]:
        if not (ask == session.client.get_async and wanted[:1] == [topic_path("t0")]):
            paths.extend(wanted)
        return await read_many(session, ask, wanted, watchers)

    monkeypatch.setattr(Session, "_read_many", reading)
    return paths


def test_an_audit_without_changes_reads_nothing_of_partitions(world: World, asked: list[str]) -> None:
    """The owner znodes, offsets and leaders of all partitions are checked in transactions; topics are not read."""
    world.run_for(TWO_AUDITS_S)
    layout = world.layout
    partitions = world.partitions()
    read = set(asked)
    assert read, "members audit their assignments"
    assert not read & {layout.offset(partition) for partition in partitions}
    assert not read & {topic_path(partition.topic) for partition in partitions}
    states = {partition_state_path(partition) for partition in partitions}
    assert not read & states & world.ensemble.tree.znodes.keys()


def test_topics_are_read_again_after_another_one_was_created(world: World, asked: list[str]) -> None:
    """The creation of any topic may be that of a followed one whose watch was lost."""
    world.operator.create(topic_path("other"), b'{"version":1,"partitions":{}}')
    world.run_for(TWO_AUDITS_S)
    assert {topic_path("t0"), topic_path("t1")} <= set(asked)


def test_an_audit_finds_that_another_session_has_opened_a_claim(world: World) -> None:
    """An owner znode of another session has the version of the member's own, but the offset has another one."""
    (consumer, _) = world.consumers
    partition = min(consumer.opened)
    owner, offset = world.layout.owner(partition), world.layout.offset(partition)
    world.operator.delete(owner)
    world.operator.create(owner, encode_owner("another"), ephemeral=True)
    world.operator.set(offset, b"0")
    world.run_for(TWO_AUDITS_S)
    assert partition not in consumer.opened
    assert consumer.metrics.total("partitions_lost") == 1
    world.operator.delete(owner)
    world.settle(60.0)


def test_the_offsets_of_many_topics_are_rewritten_in_few_transactions() -> None:
    """A member that claims a partition of each of many topics does not send a transaction for each of them."""
    with at_rest(members=1, topics=(1,) * 40) as world:
        offsets = {world.layout.offset(partition) for partition in world.partitions()}
        rewrites = [
            entry
            for entry in world.ensemble.log
            if any(change.kind is Kind.CHANGED and change.path in offsets for change in entry.changes)
        ]
        assert 1 <= len(rewrites) < 10
