"""Report a run: its events, reduced to those that a failure needs, and the product's log lines."""

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
    """
    Return the scenario with as few events as possible that still fails in the same way. A passing scenario is
    unchanged.
    """
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        kind = _kind(play(scenario).error)
        return shorten(scenario, lambda shorter: _kind(play(shorter).error) == kind) if kind else scenario
    finally:
        logging.disable(disabled)


def _kind(error: str) -> str:
    """Return the words of an error, without numbers and names."""
    return " ".join(word for word in error.split() if word.isalpha())


def replay(scenario: Scenario, say: Callable[[str], None]) -> Outcome:
    """Play a scenario, and report its events, the product's log lines, and the outcome."""
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
    """Reports log records with the simulated time, and the process that logged them."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say
        #: A weak reference, so that the world can be collected at the end of the scenario.
        self._world: Callable[[], World | None] = lambda: None

    def observe(self, world: World) -> None:
        self._world = ref(world)

    def emit(self, record: logging.LogRecord) -> None:
        world = self._world()
        if world is not None:
            name = getattr(world.timeline.running, "name", "?")
            self._say(f"{world.elapsed_s:8.3f}    {name}: {record.getMessage()}")
