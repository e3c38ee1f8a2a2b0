"""What the leader of a round and the member in the same process tell each other, without ZooKeeper."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from kiel_groups.group.rounds.round_rules import Choice
from kiel_groups.model import MemberId

__all__ = ["RoundExchange"]


class RoundExchange:
    """The round that this process leads at the moment; ``changed`` is called when the leader has gathered it."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        #: The newest generation that the member has read.
        self.newest = 0
        self._generation = 0
        self._choice: Choice | None = None
        self._assignments: asyncio.Future[Mapping[MemberId, bytes]] | None = None

    def choice_of(self, generation: int) -> Choice | None:
        """Return the members of a generation that this process leads; None until they have joined."""
        return self._choice if generation == self._generation else None

    async def assignments_of(self, generation: int, choice: Choice) -> Mapping[MemberId, bytes]:
        """As the leader, wait until the member of this process has brought the assignments of a round."""
        self._assignments = asyncio.get_running_loop().create_future()
        self._generation, self._choice = generation, choice
        self._changed()
        try:
            return await self._assignments
        finally:
            self._choice = self._assignments = None

    def assign(self, generation: int, assignments: Mapping[MemberId, bytes]) -> None:
        """As the member, bring the assignments, if this process still leads that round."""
        if generation == self._generation and self._assignments is not None and not self._assignments.done():
            self._assignments.set_result(assignments)
