"""Tell a failing run to people: only the events that it needs, and what the product itself said meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Callable
from weakref import ref

from tests.sim.play import Outcome, play
from tests.sim.story import Story, shorten
from tests.sim.world import World

__all__ = ["tell", "shortened"]

LOGGER = "kiel_groups"


def shortened(story: Story) -> Story:
    """The fewest events with which the same kind of thing goes wrong."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        kind = _kind(play(story).error)
        return shorten(story, lambda shorter: _kind(play(shorter).error) == kind) if kind else story
    finally:
        logging.disable(disabled)


def _kind(error: str) -> str:
    """An error without its numbers and names."""
    return " ".join(word for word in error.split() if word.isalpha())


def tell(story: Story, say: Callable[[str], None]) -> Outcome:
    """Play a story and say what is done, what the product logs, and how it ends."""
    how = f"{story.members} members, topics of {story.topics} partitions, {story.reset}"
    how += f", {story.allocator}, offsets in {story.store}"
    say(f"seed {story.seed}: {how}, at most {story.most_operations} operations a transaction")
    logger, handler = logging.getLogger(LOGGER), _Teller(say)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        outcome = play(story, lambda at_s, done: say(f"{at_s:8.3f}  * {done}"), handler.follow)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    say(outcome.trace or "nothing was found")
    return outcome


class _Teller(logging.Handler):
    """Says log records with the moment and the process that they belong to."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say
        #: Not kept: it is thrown away quietly when the story is over.
        self._world: Callable[[], World | None] = lambda: None

    def follow(self, world: World) -> None:
        self._world = ref(world)

    def emit(self, record: logging.LogRecord) -> None:
        world = self._world()
        if world is not None:
            name = getattr(world.timeline.running, "name", "?")
            self._say(f"{world.elapsed_s:8.3f}    {name}: {record.getMessage()}")
