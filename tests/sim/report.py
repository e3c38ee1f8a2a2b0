"""Report a run to people: only the events that a failure needs, and what the product logs meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Callable
from weakref import ref

from tests.sim.play import Outcome, play
from tests.sim.scenario import Scenario, shorten
from tests.sim.world import World

__all__ = ["replay", "shortened"]

LOGGER = "kiel_groups"


def shortened(scenario: Scenario) -> Scenario:
    """Return the scenario with the fewest events that fails in the same way."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        kind = _kind(play(scenario).error)
        return shorten(scenario, lambda shorter: _kind(play(shorter).error) == kind) if kind else scenario
    finally:
        logging.disable(disabled)


def _kind(error: str) -> str:
    """An error without its numbers and names."""
    return " ".join(word for word in error.split() if word.isalpha())


def replay(scenario: Scenario, say: Callable[[str], None]) -> Outcome:
    """Play a scenario, and report what is done, what the product logs, and how it ends."""
    settings = f"{scenario.members} members, topics of {scenario.topics} partitions, {scenario.reset}"
    settings += f", {scenario.allocator}, offsets in {scenario.store}"
    say(f"seed {scenario.seed}: {settings}, at most {scenario.most_operations} operations a transaction")
    logger, handler = logging.getLogger(LOGGER), _LogLines(say)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        outcome = play(scenario, lambda at_s, done: say(f"{at_s:8.3f}  * {done}"), handler.observe)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    say(outcome.traceback or "nothing was found")
    return outcome


class _LogLines(logging.Handler):
    """Reports log records with the moment and the process that they belong to."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say
        #: A weak reference: the world is collected when the scenario is over.
        self._world: Callable[[], World | None] = lambda: None

    def observe(self, world: World) -> None:
        self._world = ref(world)

    def emit(self, record: logging.LogRecord) -> None:
        world = self._world()
        if world is not None:
            name = getattr(world.timeline.running, "name", "?")
            self._say(f"{world.elapsed_s:8.3f}    {name}: {record.getMessage()}")
