"""What makes a story the same one: all that was written, and all chance that was used up. ``python -m … SEED …``"""

from __future__ import annotations

import hashlib
import logging
import sys
from random import Random

from kiel_groups.testing.fake_ensemble import Entry
from tests.sim.play import play
from tests.sim.story import Story, make_story
from tests.sim.world import World

__all__ = ["fingerprint"]


def fingerprint(story: Story) -> str:
    """Play a story; of two runs that differ anywhere, this differs."""
    digest = hashlib.sha256()
    chance: list[Random] = []

    def committed(entry: Entry) -> None:
        digest.update(f"{entry.zxid} {entry.session_id} {entry.error!r}".encode())
        for change in entry.changes:
            digest.update(f"{change.kind} {change.path} {change.znode}".encode())

    def follow(world: World) -> None:
        # Of the world itself nothing is kept: it is thrown away quietly when the story is over.
        world.ensemble.observers.append(committed)
        chance.append(world.timeline.random)

    outcome = play(story, follow=follow)
    return f"{story.seed} {outcome.steps} {outcome.seconds} {chance[0].random()} {digest.hexdigest()} {outcome.error}"


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    for seed in sys.argv[1:]:
        sys.stdout.write(f"{fingerprint(make_story(int(seed)))}\n")
