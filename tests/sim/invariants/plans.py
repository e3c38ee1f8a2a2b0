"""Plans: their generations, and the assignments that belong to them."""

from __future__ import annotations

from kiel_groups.group.znodes.contents import MemberAssignment, MemberInfo
from tests.fakes.fake_ensemble import Entry
from tests.fakes.simulated_process import EPOCH_MS
from tests.fakes.znode_tree import Change, Kind
from tests.sim.history.history import History
from tests.sim.history.records import PlanWrite
from tests.sim.invariants.invariant import Invariant

__all__ = ["AssignmentsMatchGeneration", "GenerationsGrow", "OnePlanPerGeneration", "PlaceKeptForItsGrace"]


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


class PlaceKeptForItsGrace(Invariant):
    """
    The place of a static member that is away is kept for its grace, until its next process has subscribed.

    That process may have joined long before. While the place is kept, partitions move only for other reasons.
    """

    def __init__(self, history: History) -> None:
        super().__init__(history)
        layout = self.world.layout
        self._members, self._assignments = f"{layout.members}/", f"{layout.group_state}/"
        #: The ids of all members that have ever subscribed, and the stored assignment of each slot.
        self._subscribed: set[str] = set()
        self._stored: dict[str, MemberAssignment] = {}

    def on_entry(self, entry: Entry) -> None:
        for change in entry.changes:
            if change.path.startswith(self._assignments):
                self._assigned(entry, change)
            elif change.path.startswith(self._members) and change.kind is not Kind.DELETED:
                name = change.path.removeprefix(self._members)
                if MemberInfo.parse(name, change.znode.data, change.path).subscribes:
                    self._subscribed.add(name)

    def _assigned(self, entry: Entry, change: Change) -> None:
        slot = change.path.removeprefix(self._assignments)
        before, after = self._stored.pop(slot, None), None
        if not self.history.sessions.is_member(entry):
            return  # an operator may write what cannot be read
        if change.kind is not Kind.DELETED:
            after = self._stored[slot] = MemberAssignment.parse(change.znode.data, change.path)
        # The slot of a dynamic member is its member id.
        if before is None or before.member_id == slot or not self._is_reserved(before):
            return
        if after is None or (after.member_id != before.member_id and after.member_id not in self._subscribed):
            now = "none" if after is None else f"{after.member_id}, which has not subscribed"
            raise self.violation(f"the place of {slot} goes from {before.member_id} to {now}, within its grace")

    def _is_reserved(self, stored: MemberAssignment) -> bool:
        now_ms, since_ms = EPOCH_MS + int(self.world.timeline.now_s * 1000), stored.away_since_ms
        return since_ms is None or now_ms - since_ms < self.world.static_grace_ms
