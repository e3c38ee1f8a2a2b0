"""The plans that leaders have published."""

from __future__ import annotations

import json

from kiel_groups.group.znodes.layout import GroupLayout
from tests.fakes.fake_ensemble import Entry
from tests.fakes.znode_tree import Kind
from tests.sim.history.records import PlanWrite

__all__ = ["Plans"]


class Plans:
    """The generations, oldest first. 0 stands for the deletion of the plan by an operator."""

    def __init__(self, layout: GroupLayout) -> None:
        self._group_state, self._assignments = layout.group_state, f"{layout.group_state}/"
        self.generations: list[int] = []
        #: Whether the newest plan is still being published.
        self.is_publishing = False

    def write_of(self, entry: Entry) -> PlanWrite | None:
        """Describe the parts of a plan that a member's entry writes, or return None if the entry writes no part."""
        written = [
            change
            for change in entry.changes
            if change.path.startswith(self._group_state) and change.kind is not Kind.DELETED
        ]
        if not written:
            return None
        states = [json.loads(change.znode.data) for change in written if change.path == self._group_state]
        assigned = tuple(
            json.loads(change.znode.data)["generation"]
            for change in written
            if change.path.startswith(self._assignments)
        )
        if states:
            return PlanWrite(states[-1]["generation"], states[-1]["state"], assigned)
        return PlanWrite(None, None, assigned) if assigned else None

    def record(self, write: PlanWrite) -> None:
        if write.generation is not None:
            if write.generation > self.newest:
                self.generations.append(write.generation)
            self.is_publishing = write.state == "publishing"

    def record_deletion(self, entry: Entry) -> None:
        """Record that an operator deleted the group state: generations may start at 1 again."""
        if any(change.kind is Kind.DELETED and change.path == self._group_state for change in entry.changes):
            self.generations.append(0)
            self.is_publishing = False

    @property
    def newest(self) -> int:
        """The newest generation, or 0 before the first generation and after a deletion."""
        return self.generations[-1] if self.generations else 0
