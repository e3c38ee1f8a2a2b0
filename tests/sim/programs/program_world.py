"""One simulated group of programs with its environment: servers, programs, an operator, and the checker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from kiel_groups.group.znodes.contents import DONE
from tests.fakes.fake_ensemble import Entry
from tests.sim.garbage_collection import deferred_collection
from tests.sim.programs.member_world import MemberWorld
from tests.sim.programs.program_checker import ProgramChecker
from tests.sim.programs.program_process import COMMON, STRANGE, Program
from tests.sim.programs.program_scenario import ProgramScenario, make_program_scenario

__all__ = ["ProgramWorld", "programs_at_rest"]

#: The settings of a group at rest.
AT_REST: dict[str, Any] = {
    "members": 2,
    "items": 6,
    "prepare_s": 0.0,
    "complete_s": 0.0,
    "rebalance_timeout_ms": 15_000,
    "reconcile_interval_ms": 30_000,
    "sync_limit": 4,
    "events": (),
}


class ProgramWorld(MemberWorld):
    """The group of one scenario, with its environment."""

    scenario: ProgramScenario
    checker: ProgramChecker
    consumers: list[Program]  # type: ignore[assignment]

    def __init__(self, scenario: ProgramScenario) -> None:
        super().__init__(scenario)
        self.consumers = []
        self.has_strangers = False
        #: Called once each: when the next round begins, and when it is published.
        self.on_begun: Callable[[Program], None] | None = None
        self.on_published: Callable[[Program], None] | None = None
        self.checker = ProgramChecker(self)
        self.ensemble.observers += [self.checker.committed, self._entry_committed]
        for _ in range(scenario.members):
            self.join()

    def join(self, protocols: Sequence[str] = COMMON) -> Program:
        """Start a program."""
        self.has_strangers |= tuple(protocols) == STRANGE
        program = Program(self, f"p{len(self.consumers) + 1}", protocols)
        self.consumers.append(program)
        return program

    @property
    def running(self) -> list[Program]:
        return [program for program in self.consumers if program.is_running]

    @property
    def leader(self) -> Program:
        """The program whose session leads."""
        return next(each for each in self.running if self._leads(each))

    def _leads(self, program: Program) -> bool:
        session = getattr(program.member._coordination, "_session", None)
        return session is not None and session.leads

    def _entry_committed(self, entry: Entry) -> None:
        if all(change.path != self.layout.group_state for change in entry.changes) or self.checker.newest is None:
            return
        writer = next((each for each in self.running if entry.session_id in each.process.sessions), None)
        if writer is None:
            return
        if self.checker.newest.state == DONE:
            hook, self.on_published = self.on_published, None
        else:
            hook, self.on_begun = self.on_begun, None
        if hook is not None:
            hook(writer)

    def heal(self) -> None:
        """End all faults."""
        self.on_begun = self.on_published = None
        for program in self.consumers:
            if program.offers == STRANGE:
                # It may lead alone, and refuse all others.
                program.kill()
            program.end_hang()
            program.fails = False
        self.heal_environment()

    def settle(self, limit_s: float = 60.0) -> None:
        """Advance the time until all live members are stable in one generation."""
        self.wait(self.checker.unstable, limit_s)


@contextmanager
def programs_at_rest(**changes: Any) -> Iterator[ProgramWorld]:
    """
    Provide a settled group without faults or other events, and kill its processes at the end of the block.

    Args:
        changes: Other values of fields of ``ProgramScenario``.
    """
    with deferred_collection() as killed:
        world = ProgramWorld(replace(make_program_scenario(1), **{**AT_REST, **changes}))
        try:
            if world.running:
                world.settle()
            yield world
        finally:
            for program in world.consumers:
                program.kill()
                killed.append(program.process)
