"""Lead the rounds of a group of programs: gather the members, have the program assign, publish the assignments."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from kiel_groups.group.planner import Publication
from kiel_groups.group.rounds import (
    Choice,
    Opening,
    RoundInputs,
    choose,
    latecomers,
    opening,
    publication,
    round_cause,
)
from kiel_groups.group.znodes.round_contents import RoundAssignment, RoundMember, RoundState
from kiel_groups.members.programs.round_member import RoundExchange
from kiel_groups.members.zookeeper.leader import MakePlan, PlanRequests, PlanVoid
from kiel_groups.members.zookeeper.planner import WatchedValues
from kiel_groups.model import MemberId
from kiel_groups.wording import counted, some
from kiel_groups.zookeeper.session import Node
from kiel_groups.zookeeper.tasks import SessionContext, SlowStep

__all__ = [
    "RoundPlanner",
]

log = logging.getLogger(__name__)


class RoundPlanner:
    """
    Makes the plans of a group of programs, each of which is a round; see ``PlanMaker``.

    Args:
        context: The process on its session.
        exchange: The member of this process, which makes the assignments.
        rebalance_timeout_s: How long a round waits for members that have to give their assignments back, and after that
            for the assignments.
        requests: Asks the leader to plan.
    """

    def __init__(
        self, context: SessionContext, exchange: RoundExchange, rebalance_timeout_s: float, requests: PlanRequests
    ) -> None:
        self._context = context
        self._session = context.session
        self._layout = context.layout
        self._member_id = context.member_id
        self._exchange = exchange
        self._timeout_s = rebalance_timeout_s
        self._requests = requests
        self._values = WatchedValues(context, self._on_change)
        self._names: set[MemberId] = set()
        self._changed = asyncio.Event()
        #: Set if another process may have written the state of the round under way.
        self._disturbed = asyncio.Event()
        #: The live members of the newest plan.
        self._live: frozenset[MemberId] = frozenset()
        #: The members that the round under way waits for.
        self._late: Sequence[MemberId] = ()
        #: The plan under way.
        self._planning: asyncio.Task[Publication | None] | None = None
        self._cause = ""

    @property
    def alone(self) -> bool:
        """Whether the newest plan knows of no other member."""
        return self._live <= {self._member_id}

    def begin(self) -> None:
        """Keep nothing of an earlier term."""
        self._live = frozenset()

    def forget(self) -> None:
        """Read all members again for the next plan."""
        self._values.forget()
        self._changed.set()
        self._disturbed.set()

    def stop(self) -> None:
        """End the round under way: another process leads, or the session is over."""
        if self._planning is not None:
            self._planning.cancel()

    def published(self, generation: int, moved: int) -> None:
        """Log the end of the round."""
        log.info("group %s: round %d is complete: %s", self._layout.group, generation, self._cause)

    def _on_change(self, what: str) -> None:
        self._changed.set()
        self._requests.changed(what)

    async def read(self) -> MakePlan:
        """Read the members and the newest round."""
        members, state, slots = await asyncio.gather(
            self._members(),
            self._session.get(self._layout.group_state),
            self._session.children(self._layout.group_state),
        )
        nodes = await self._session.get_many([self._layout.assignment(slot) for slot in slots or ()])
        inputs = RoundInputs(
            members=members,
            state=None if state is None else self._values.parsed(RoundState.parse, state, self._layout.group_state),
            state_version=None if state is None else state.version,
            assignments={
                slot: self._generation(slot, node)
                for slot, node in zip(slots or (), nodes, strict=True)
                if node is not None
            },
            known=self._exchange.newest,
        )
        self._live = frozenset(member.member_id for member in members)
        return partial(self._cancellable, inputs)

    def _generation(self, slot: MemberId, node: Node) -> int:
        found = self._values.parsed(RoundAssignment.parse, node, self._layout.assignment(slot))
        return 0 if found is None else found.generation

    async def _members(self) -> Sequence[RoundMember]:
        """Read the live members in the order of their registration; those that cannot be read are left out."""
        names = await self._session.children(self._layout.members, self._values.watcher("members")) or []
        for name in self._names - set(names):
            self._values.drop(f"member {name}")
        self._names = set(names)
        found = await self._values.cached_many("member", sorted(names), self._layout.member, self._registered)
        registered = sorted((each for each in found.values() if each is not None), key=lambda each: each[0])
        return [member for _, member in registered]

    def _registered(self, name: MemberId, node: Node) -> tuple[int, RoundMember] | None:
        parsed = self._values.parsed(partial(RoundMember.parse, name), node, self._layout.member(name))
        return None if parsed is None else (node.czxid, parsed)

    async def _cancellable(self, inputs: RoundInputs, candidate: str, cause: str, since_s: float) -> Publication | None:
        """Make a plan that ``stop`` ends."""
        self._planning = asyncio.ensure_future(self._plan(inputs, candidate))
        try:
            return await self._planning
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            raise PlanVoid("the leader has stopped") from None
        finally:
            self._planning.cancel()

    async def _plan(self, inputs: RoundInputs, candidate: str) -> Publication | None:
        self._cause = round_cause(inputs)
        if not self._cause:
            return None
        now_ms = self._context.runtime.wall_ms()
        begun = opening(
            self._layout, inputs, leader=self._member_id, candidate=candidate, cause=self._cause, now_ms=now_ms
        )
        answer = await self._session.transact(begun.write)
        if not self._requests.check(answer, "a round could not begin"):
            raise PlanVoid("the round was refused")
        log.info("group %s: beginning round %d: %s", self._layout.group, begun.state.generation, self._cause)
        choice, assignments = await self._undisturbed(begun)
        return publication(
            self._layout, begun, choice, assignments, stored=list(inputs.assignments), candidate=candidate
        )

    async def _undisturbed(self, begun: Opening) -> tuple[Choice, Mapping[MemberId, bytes]]:
        """
        Return the members of a round and their assignments.

        Raises:
            PlanVoid: An operator has deleted or overwritten the state of the round, so that members wait for another.
        """
        assigned = asyncio.ensure_future(self._assigned(begun.state.generation))
        disturbed = asyncio.ensure_future(self._state_changed(begun))
        try:
            either: set[asyncio.Future[Any]] = {assigned, disturbed}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not assigned.done():
                disturbed.result()
                raise PlanVoid("the state of the round was deleted or overwritten")
            return assigned.result()
        finally:
            assigned.cancel()
            disturbed.cancel()

    async def _state_changed(self, begun: Opening) -> None:
        """Wait until the state is not the one with which the round has begun."""
        while True:
            self._disturbed.clear()
            node = await self._session.get(self._layout.group_state, self._disturbed.set)
            if node is None or node.version != begun.version:
                return
            await self._disturbed.wait()

    async def _assigned(self, generation: int) -> tuple[Choice, Mapping[MemberId, bytes]]:
        choice = await self._gather(generation)
        self._context.metrics.count("rounds_gathered")
        try:
            async with asyncio.timeout(self._timeout_s):
                return choice, await self._exchange.assignments_of(generation, choice)
        except TimeoutError:
            self._session.end("its program has not made the assignments in time, so it cannot lead")
            raise PlanVoid("the leader's program has not assigned") from None

    async def _gather(self, generation: int) -> Choice:
        """
        Wait until all live members have joined; after the rebalance timeout, continue without the others.

        Raises:
            PlanVoid: The member of this process has not joined, so it cannot assign. Its session was ended.
        """
        with SlowStep(lambda seconds: self._warn_of_late(generation, seconds)):
            members, late = await self._joined(generation)
        if late:
            self._context.metrics.count("rounds_incomplete")
            log.error(
                "group %s: continuing round %d without %s that have not given the last assignment back in %g s: %s;"
                " what they own stays theirs until they release it",
                self._layout.group,
                generation,
                counted(late, "member"),
                self._timeout_s,
                some(late),
            )
        choice = choose(members, generation, self._member_id)
        for member_id, why in choice.refused.items():
            log.error("group %s: member %s is refused: %s", self._layout.group, member_id, why)
        if self._member_id not in choice.members:
            # The group needs another leader, whose program can assign.
            refused = choice.refused.get(self._member_id)
            why = refused or "its program has not given its assignment back in time"
            self._session.end(f"{why}, so it cannot lead")
            raise PlanVoid("the leader's own member has not joined")
        return choice

    async def _joined(self, generation: int) -> tuple[Sequence[RoundMember], Sequence[MemberId]]:
        """Wait until all live members have joined, or the rebalance timeout; return them, and those that have not."""
        loop = asyncio.get_running_loop()
        by_s = loop.time() + self._timeout_s
        while True:
            self._changed.clear()
            members = await self._members()
            self._late = late = latecomers(members, generation)
            if all(member.member_id != self._member_id for member in members):
                # Its znode cannot be read. The member writes it again when it joins.
                late.append(self._member_id)
            if not late or loop.time() >= by_s:
                return members, late
            try:
                async with asyncio.timeout_at(by_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _warn_of_late(self, generation: int, seconds: float) -> None:
        log.warning(
            "group %s: round %d has waited %.0f s for %s to give the last assignment back and join: %s; it continues"
            " without them after %g s",
            self._layout.group,
            generation,
            seconds,
            counted(self._late, "member"),
            some(self._late),
            self._timeout_s,
        )
