"""
The invariants of a simulated group of programs.

============================  ========================================================================================
rounds                        The generation grows with each round, as long as no operator deletes or garbles the state.
                              Each generation has one set of assignments. When it is published, its members have given
                              all earlier assignments back.
hooks                         ``complete`` brings what was published for that member and generation. ``complete``, and
                              then ``prepare`` or ``lost``; no two hooks at a time (``Program``). The generations of one
                              member id grow.
metadata                      The leader assigns by what each member has offered last, in a protocol that all know.
the end                       Within a time limit after the last fault all members are stable in one generation, which
                              deals each item once. Members that leave keep no task and no znode.
============================  ========================================================================================
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kiel_groups.errors import GroupConfigError, KielGroupsError, ProtocolError
from kiel_groups.group.znodes.contents import DONE
from kiel_groups.group.znodes.round_contents import RoundAssignment, RoundState
from kiel_groups.members.brokers.gate import GenerationGate
from kiel_groups.members.brokers.hooks import JoinedGroup
from tests.fakes.fake_ensemble import Entry
from tests.sim.invariants.invariant import Violation
from tests.sim.programs.program_process import is_expected

if TYPE_CHECKING:
    from tests.sim.programs.program_process import Program
    from tests.sim.programs.program_world import ProgramWorld

__all__ = ["ProgramChecker"]

#: How long after a close tasks that it has cancelled may take to end, in seconds.
ENDING_S = 1.0


class ProgramChecker:
    """Checks a run: programs and the ensemble report what happens."""

    def __init__(self, world: ProgramWorld) -> None:
        self._world = world
        self.completed = self.begun = self.published = 0
        #: The newest round that was written; None if the state was deleted or garbled since.
        self.newest: RoundState | None = None
        #: All sets of assignments that were published in each generation.
        self._sets: dict[int, list[dict[str, bytes]]] = {}
        #: The newest generation that each member id has completed.
        self._generations: dict[str, int] = {}

    def violation(self, text: str) -> Violation:
        """Create a violation, and record it, so that it ends the run even if the product's code catches it."""
        violation = Violation(text)
        self._world.timeline.failures.append(violation)
        return violation

    def step(self) -> None:
        """Do nothing: all checks follow reports."""

    # Reports of the ensemble

    def committed(self, entry: Entry) -> None:
        """Check what was written to the group's state."""
        path = self._world.layout.group_state
        change = next((each for each in entry.changes if each.path == path), None)
        if change is None:
            return
        znode = self._world.ensemble.tree.znodes.get(path)
        try:
            state = None if znode is None else RoundState.parse(znode.data, path)
        except ProtocolError:
            state = None
        if state is None:
            self.newest = None
            return
        before, self.newest = self.newest, state
        if state.state != DONE:
            self.begun += 1
            if before is not None and state.generation <= before.generation:
                raise self.violation(f"round {state.generation} begins after round {before.generation}")
            return
        if before is not None and (before.generation, before.state == DONE) != (state.generation, False):
            raise self.violation(f"round {state.generation} is published after {before}")
        self._published(state)

    def _published(self, state: RoundState) -> None:
        self.published += 1
        found: dict[str, bytes] = {}
        for member_id in state.members:
            path = self._world.layout.assignment(member_id)
            znode = self._world.ensemble.tree.znodes.get(path)
            if znode is None:
                raise self.violation(f"round {state.generation} is published without an assignment of {member_id}")
            stored = RoundAssignment.parse(znode.data, path)
            if (stored.generation, stored.member_id) != (state.generation, member_id):
                raise self.violation(f"round {state.generation} is published with {stored}")
            found[member_id] = stored.assignment
        self._sets.setdefault(state.generation, []).append(found)
        for program in self._world.consumers:
            gate = program.held
            if gate is not None and gate.token.member_id in found:
                raise self.violation(
                    f"round {state.generation} is published, and {program.name} has not given {gate.token} back"
                )

    # Reports of programs

    def assigning(self, leader: Program, joined: JoinedGroup) -> None:
        """Check what the leader assigns by, unless another round has begun that it does not know of."""
        if self.newest is None or self.newest.leader != leader.member_id or self.newest.state == DONE:
            return
        by_id = {program.member_id: program for program in self._world.consumers if program.member_id}
        for member_id, metadata in joined.members.items():
            program = by_id.get(member_id)
            if program is None or program.process.killed or program.znode_id != member_id:
                # The znode of a member whose session is over lasts a little longer, and the member offers anew.
                continue
            if metadata != joined.protocol.encode() + b":" + program.offered:
                raise self.violation(
                    f"{leader.name} assigns by {metadata!r}, and {program.name} offers {program.offered!r}"
                )

    def completing(self, program: Program, gate: GenerationGate, joined: JoinedGroup, assignment: bytes) -> None:
        """Check an assignment that a member takes over."""
        self.completed += 1
        generation, member_id = gate.token
        if assignment not in [each.get(member_id) for each in self._sets.get(generation, ())]:
            raise self.violation(f"{program.name} completes {gate.token} with {assignment!r}, which was not published")
        if generation <= self._generations.get(member_id, 0):
            raise self.violation(f"{program.name} completes {gate.token} after {self._generations[member_id]}")
        self._generations[member_id] = generation

    def stopped(self, program: Program, error: KielGroupsError) -> None:
        """Check an error with which a member stops."""
        refused = isinstance(error, GroupConfigError) and self._world.has_strangers
        if not (refused or is_expected(error)):
            raise self.violation(f"{program.name} stops: {type(error).__name__}: {error}")

    def closed(self, program: Program) -> None:
        """Check soon that a member that has left keeps no task."""
        self._world.timeline.after(ENDING_S, self._check_tasks, program)

    def _check_tasks(self, program: Program) -> None:
        if program.process.killed or program.process.frozen:
            return
        left = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks(program.process.loop)]
        if left:
            raise self.violation(f"{program.name} has left, and keeps {len(left)} tasks: {left}")

    # Conditions: each returns what is missing, or ""

    def unstable(self) -> str:
        """Return why not all live members are stable in one generation, which deals all items once."""
        running = [program for program in self._world.consumers if program.is_running]
        for program in running:
            if not program.is_stable:
                return f"{program.name} is not stable: {program.member._state}, hook {program._running}"
        if (state := self.newest) is None or state.state != DONE:
            return f"the newest round is {state}"
        if sorted(state.members) != sorted(program.member_id for program in running):
            return f"round {state.generation} has {state.members}"
        for program in running:
            assert program.held is not None
            if program.held.token.generation != state.generation:
                return f"{program.name} is in generation {program.held.token.generation}, not {state.generation}"
            if not program.held.is_open(self._world.timeline.now_s):
                return f"the gate of {program.name} is shut"
        items = sorted(item for program in running for item in program.items)
        if items != list(range(self._world.scenario.items)):
            return f"the items are dealt as {items}"
        return ""

    def unclosed(self) -> str:
        """Return which program has not left, and which znode is left."""
        for program in self._world.consumers:
            if program.closing and not (program.closed or program.process.killed):
                return f"{program.name} has not left"
        layout, tree = self._world.layout, self._world.ensemble.tree
        left = [*tree.children(layout.members), *tree.children(layout.election)]
        return f"znodes are left: {left}" if left else ""
