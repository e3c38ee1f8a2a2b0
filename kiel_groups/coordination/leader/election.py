"""The driver of the leader election: it performs what ``group.leader.candidate`` decides, on one session."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kiel_groups.coordination.session.session_context import SessionContext
from kiel_groups.group.leader import candidate
from kiel_groups.group.znodes.transactions import Check, Create, Done, Refused

__all__ = ["Election"]

log = logging.getLogger(__name__)

#: The pause before a refused attempt to join the election is repeated, in seconds.
CANDIDACY_PAUSE_S = 0.2


class Election:
    """
    Takes part in a group's election on one session.

    The election znode is only created while the znode ``proof`` exists: the member znode, or the election folder for an
    allocator process. ``on_leading`` is called when this candidate becomes the leader, and when a later check confirms
    that it still leads. The arguments are the path of the election znode and whether another candidate was ahead
    before. ``on_resigned`` is called when this candidate is no longer the leader.
    """

    def __init__(
        self,
        context: SessionContext,
        proof: str,
        on_leading: Callable[[str, bool], None],
        on_resigned: Callable[[], None],
    ) -> None:
        self._session = context.session
        self._layout = context.layout
        self._member_id = context.member_id
        self._tasks = context.tasks
        self._metrics = context.metrics
        self._proof = proof
        self._on_leading = on_leading
        self._on_resigned = on_resigned
        self._candidate = candidate.Candidate(context.runtime.unique_name())

    @property
    def leads(self) -> bool:
        return self._candidate.leads

    def feed(self, event: candidate.Event) -> None:
        """Apply an event, and perform its effects."""
        before = self._candidate
        self._candidate, effects = candidate.step(before, event)
        if self._candidate.followed and not before.followed:
            log.info("group %s: %s is standing by, another process leads", self._layout.group, self._member_id)
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: candidate.Effect) -> None:
        match effect:
            case candidate.CreateCandidate():
                self._tasks.start(self._create())
            case candidate.ReadCandidates():
                self._tasks.start(self._read())
            case candidate.WatchPredecessor(name):
                self._tasks.start(self._watch(name))
            case candidate.BecomeLeader(name, succeeds):
                self._on_leading(f"{self._layout.election}/{name}", succeeds)
            case candidate.ResignLeader():
                self._on_resigned()

    async def _create(self) -> None:
        answer = await self._session.transact(
            [
                Check(self._proof),
                Create(
                    self._layout.candidate_prefix(self._candidate.uuid),
                    self._member_id.encode(),
                    ephemeral=True,
                    sequence=True,
                ),
            ]
        )
        if isinstance(answer, Refused):
            # Either the member znode was deleted, which the heartbeat will find, or the election folder was.
            self._metrics.count("candidacies_refused")
            log.warning("group %s: could not join the election (%s); retrying", self._layout.group, answer.failure.name)
            await self._session.ensure(self._layout.parents)
            await asyncio.sleep(CANDIDACY_PAUSE_S)
        name = answer.paths[1] if isinstance(answer, Done) else None
        self.feed(candidate.Created(name.rpartition("/")[2] if name else None))

    async def _read(self) -> None:
        names = await self._session.children(self._layout.election)
        self.feed(candidate.Candidates(tuple(names or ())))

    async def _watch(self, name: str) -> None:
        path = f"{self._layout.election}/{name}"
        if await self._session.exists(path, self._changed) is None:
            self._changed()

    def _changed(self) -> None:
        self.feed(candidate.PredecessorGone())
