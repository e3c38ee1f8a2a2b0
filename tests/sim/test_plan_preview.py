"""
``plan`` agrees with what then happens: the preview of a change to a simulated group, and the leader's next plan.

``SIM_PLANS=200 python -m pytest tests/sim/test_plan_preview.py`` plays that many groups.
"""

from __future__ import annotations

import os
from random import Random

import pytest

from kiel_groups.allocators import ALLOCATORS, rack_aware
from kiel_groups.group.planner import Inputs
from kiel_groups.group.znodes.contents import Snapshot, Znode
from kiel_groups.group.znodes.group_settings import encode_weights
from kiel_groups.model import Allocation, Slot, TopicPartition
from kiel_groups.ops.views.plan_preview import GroupChange, changed_inputs, inputs_of, preview_plan, racks_of
from kiel_groups.ops.views.znodes import view_group
from tests.sim.world import STATIC_GRACE_MS, World, at_rest

pytestmark = pytest.mark.sim

SEEDS = int(os.environ.get("SIM_PLANS", "100"))
PIECES = 4
#: How long a join, a leave and two plans take at most.
PLANNED_S = 4.0


def snapshot(world: World) -> Snapshot:
    return {
        path: Znode(znode.data, znode.owner, znode.ctime, znode.mtime, czxid=znode.czxid, mzxid=znode.mzxid)
        for path, znode in world.ensemble.tree.znodes.items()
    }


def now_ms(world: World) -> int:
    return world.consumers[0].process.runtime.wall_ms()


def lags(world: World, znodes: Snapshot) -> dict[TopicPartition, int]:
    view = view_group(world.group, znodes, {each: world.logs[each].end for each in world.partitions()})
    return {each.topic_partition: each.lag for each in view.partitions if each.lag is not None}


def assignments(world: World) -> Allocation:
    return {slot: owned for slot, owned in inputs(world).stored.items() if owned}


def inputs(world: World) -> Inputs:
    return inputs_of(world.group, snapshot(world), now_ms(world), STATIC_GRACE_MS)


def scenario(random: Random, seed: int) -> dict[str, object]:
    return {
        "seed": seed,
        "members": random.randint(2, 5),
        "topics": random.choice([(13,), (7, 5), (5, 4, 3), (3,)]),
        "allocator": random.choice(list(ALLOCATORS)),
        "is_static": random.random() < 0.3,
    }


def change_of(world: World, random: Random) -> GroupChange:
    """Draw a change, which may be none."""
    topic = world.some_topic(random.randrange(9))
    kinds = ["leave", "leave", "weights"]
    # New members and partitions have racks, and a new static member has a name, which the preview cannot know.
    if world.allocator is not rack_aware:
        kinds += ["grow"] if world.is_static else ["grow", "join", "join"]
    kind = random.choice(kinds)
    if kind == "join":
        return GroupChange(added=1, added_on=f"c{len(world.consumers) + 1}")
    if kind == "leave":
        leaving = random.choice(world.consumers)
        return GroupChange(removed=(str(leaving.instance_id or leaving.member.member_id),))
    if kind == "weights":
        weights = {each: float(random.randint(0, 9)) for each in world.partitions()}
        return GroupChange(weights=weights)
    return GroupChange(partitions={topic: world.topics[topic] + random.randint(1, 9)})


def make(world: World, change: GroupChange, topics: frozenset[str]) -> None:
    """Make the change, as members and operators would."""
    for _ in range(change.added):
        world.join(sorted(topics))
    for consumer in world.consumers:
        if (consumer.instance_id or consumer.member.member_id) in change.removed:
            consumer.leave()
    for topic, count in change.partitions.items():
        world.set_partitions(topic, count)
    if change.weights is not None:
        world.operator.create(world.layout.weights, encode_weights(change.weights))


def renamed(allocation: Allocation, before: Inputs, present: set[Slot]) -> Allocation:
    """Return the allocation with the name that a new member has in previews."""
    new = sorted(present - before.members.keys() - before.assignments.keys())
    names = {slot: f"new-{number}" for number, slot in enumerate(new, 1)}
    return {names.get(slot, slot): owned for slot, owned in allocation.items() if owned}


@pytest.mark.parametrize("piece", range(PIECES))
def test_a_preview_is_what_the_leader_then_plans(piece: int) -> None:
    """In groups of all allocators, a join, a leave, a growth and new weights have the allocation of their preview."""
    moved = 0
    for seed in range(piece, SEEDS, PIECES):
        random = Random(f"plan of {seed}")
        with at_rest(**scenario(random, seed)) as world:
            # Joins of the start may still be debounced.
            world.run_for(PLANNED_S)
            znodes, before, change = snapshot(world), inputs(world), change_of(world, random)
            after = changed_inputs(world.group, before, change, znodes, now_ms(world))
            preview = preview_plan(
                world.group,
                before,
                after,
                world.allocator,
                racks=racks_of(world.group, after, znodes),
                lags=lags(world, znodes),
            )
            make(world, change, before.subscribed)
            world.run_for(PLANNED_S + (STATIC_GRACE_MS / 1000 if world.is_static and change.removed else 0.0))
            stored = assignments(world)
            planned = {preview.name(slot) if "-new-" in slot else slot: owned for slot, owned in preview.after.items()}
            expected = {slot: owned for slot, owned in planned.items() if owned}
            assert renamed(stored, before, set(stored)) == expected, (seed, world.allocator, change)
            moved += bool(preview.moves)
    assert moved >= SEEDS // PIECES // 2
