"""Report a run: its events, reduced to those that a failure needs, and the product's log lines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from weakref import ref

from tests.sim.coordinated.broker_play import play_brokers
from tests.sim.coordinated.broker_scenario import make_broker_scenario
from tests.sim.outcome import Outcome
from tests.sim.play import play
from tests.sim.programs.program_play import play_programs
from tests.sim.programs.program_scenario import make_program_scenario
from tests.sim.scenario import AnyScenario, Eventful, make_scenario, shorten
from tests.sim.worker_groups.worker_play import play_workers
from tests.sim.worker_groups.worker_scenario import make_worker_scenario

__all__ = ["GROUPS", "Groups", "replay", "shortened"]


class Groups(NamedTuple):
    """A kind of groups: how the scenario of a seed is drawn, and how it is played."""

    make: Callable[[int], Any]
    play: Callable[..., Outcome]


#: The kinds of groups: by what coordinates their consumers, and those of programs and of workers on ZooKeeper.
GROUPS: Mapping[str, Groups] = {
    "zookeeper": Groups(make_scenario, play),
    "brokers": Groups(make_broker_scenario, play_brokers),
    "programs": Groups(make_program_scenario, play_programs),
    "workers": Groups(make_worker_scenario, play_workers),
}

LOGGER = "kiel_groups"


def shortened(scenario: AnyScenario, groups: Groups) -> AnyScenario:
    """
    Return the scenario with as few events as possible that still fails in the same way. A passing scenario is
    unchanged.
    """
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        kind = _kind(groups.play(scenario).error)
        return shorten(scenario, lambda shorter: _kind(groups.play(shorter).error) == kind) if kind else scenario
    finally:
        logging.disable(disabled)


def _kind(error: str) -> str:
    """Return the words of an error, without numbers and names."""
    return " ".join(word for word in error.split() if word.isalpha())


def replay(scenario: Eventful, groups: Groups, say: Callable[[str], None]) -> Outcome:
    """Play a scenario, and report its events, the product's log lines, and the outcome."""
    say(f"seed {scenario.seed}: {scenario.settings}")
    logger, handler = logging.getLogger(LOGGER), _LogLines(say)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        outcome = groups.play(scenario, lambda at_s, done: say(f"{at_s:8.3f}  * {done}"), handler.observe)
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
        self._world: Callable[[], Any] = lambda: None

    def observe(self, world: object) -> None:
        self._world = ref(world)

    def emit(self, record: logging.LogRecord) -> None:
        world = self._world()
        if world is not None:
            name = getattr(world.timeline.running, "name", "?")
            self._say(f"{world.elapsed_s:8.3f}    {name}: {record.getMessage()}")
