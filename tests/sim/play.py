"""Play a story from its beginning to its end, and say how it went."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import kazoo.client

from kiel_groups.coordination.zookeeper import runtime
from kiel_groups.group.znodes import transactions
from kiel_groups.testing import SimulatedRuntime
from tests.sim.acts import perform
from tests.sim.quiet_end import quiet_end
from tests.sim.story import Story
from tests.sim.world import World

__all__ = ["Outcome", "play"]

#: After the last fault every partition is owned within so many seconds: a session ends, another member's leader plans.
SETTLED_S = 60.0
LEAVING_S = 40.0


@dataclass(frozen=True)
class Outcome:
    """How a story went; ``error`` is what was found, "" where nothing was, ``trace`` where in the code."""

    story: Story
    steps: int
    seconds: float
    cpu_s: float
    hand_outs: int
    commits: int
    generations: int
    error: str
    trace: str


def play(
    story: Story,
    tell: Callable[[float, str], None] = lambda at_s, done: None,
    follow: Callable[[World], None] = lambda world: None,
) -> Outcome:
    """
    Play a story.

    Args:
        story: What happens.
        tell: Called with each event's moment and what was done.
        follow: Called with the world before the first of them.
    """
    with quiet_end():
        return _played(story, tell, follow)


def _played(story: Story, tell: Callable[[float, str], None], follow: Callable[[World], None]) -> Outcome:
    began_s = time.process_time()
    world = World(story)
    follow(world)
    error = trace = ""
    with runtime.replaced(SimulatedRuntime(world.timeline)), _small_transactions(story.most_operations), _known_paths():
        try:
            _play(world, story, tell)
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
            trace = "".join(traceback.format_exception(raised))
    for consumer in world.consumers:
        consumer.kill()
    return Outcome(
        story,
        world.timeline.steps,
        world.elapsed_s,
        time.process_time() - began_s,
        world.ledger.hand_outs,
        world.ledger.commits,
        len(world.ledger.plans.generations),
        error,
        trace,
    )


def _play(world: World, story: Story, tell: Callable[[float, str], None]) -> None:
    for event in story.events:
        world.run_for(max(0.0, event.at_s - world.elapsed_s))
        tell(event.at_s, perform(world, event))
    if not any(consumer.lives for consumer in world.consumers):
        world.join(world.topics)
    world.heal()
    world.ledger.plans.on_publishing = None
    tell(world.elapsed_s, "all faults end")
    world.settle(SETTLED_S)
    owned = world.partitions()
    tell(world.elapsed_s, "everybody leaves")
    world.close(LEAVING_S)
    world.ledger.check_started_over(owned)


@contextmanager
def _small_transactions(most_operations: int) -> Iterator[None]:
    """A group of five needs several transactions for its slices then, as one of a thousand does otherwise."""
    before = transactions.MOST_OPERATIONS
    transactions.MOST_OPERATIONS = most_operations
    try:
        yield
    finally:
        transactions.MOST_OPERATIONS = before


@contextmanager
def _known_paths() -> Iterator[None]:
    """kazoo spells each path anew for each request; of one story they are always the same."""
    before = kazoo.client._prefix_root
    kazoo.client._prefix_root = lru_cache(maxsize=None)(before)
    try:
        yield
    finally:
        kazoo.client._prefix_root = before
