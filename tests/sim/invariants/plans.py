"""Plans: their generations, and the assignments that belong to them."""

from __future__ import annotations

from tests.sim.history.records import PlanWrite
from tests.sim.invariants.invariant import Invariant

__all__ = ["AssignmentsMatchGeneration", "GenerationsGrow", "OnePlanPerGeneration"]


class GenerationsGrow(Invariant):
    """The generation of a plan is never lower than that of the previous plan, unless an operator deleted that plan."""

    def on_plan(self, write: PlanWrite) -> None:
        newest = self.history.plans.newest
        if write.generation is not None and write.generation < newest:
            raise self.violation(f"generation {write.generation} follows {newest}")


class OnePlanPerGeneration(Invariant):
    """The group state of a generation is not written again after its publication is done."""

    def on_plan(self, write: PlanWrite) -> None:
        plans = self.history.plans
        if write.generation is not None and write.generation == plans.newest and not plans.is_publishing:
            raise self.violation(f"generation {write.generation} has two plans")


class AssignmentsMatchGeneration(Invariant):
    """Every assignment that is written has the generation of the group state."""

    def on_plan(self, write: PlanWrite) -> None:
        newest = self.history.generations[-1:] if write.generation is None else [write.generation]
        for generation in write.assigned:
            if newest != [generation]:
                raise self.violation(f"an assignment of generation {generation} in {newest}")
