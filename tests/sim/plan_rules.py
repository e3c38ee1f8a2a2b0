"""What must not happen to plans: generations that go down, and two plans of one generation."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.testing.fake_ensemble import Entry
from kiel_groups.testing.znode_tree import Kind

__all__ = ["PlanRules"]


class PlanRules:
    """Checks what leaders publish."""

    def __init__(self, layout: GroupLayout, violation: Callable[[str], Exception]) -> None:
        self._pointer, self._slices = layout.group_state, f"{layout.group_state}/"
        self._violation = violation
        self.generations: list[int] = []
        #: Called once, when a publication of several transactions begins.
        self.on_publishing: Callable[[], None] | None = None
        self._publishing = False

    def deleted(self) -> None:
        """An operator deleted pointer and slices: generations may begin anew."""
        self.generations.append(0)
        self._publishing = False

    def written(self, entry: Entry) -> None:
        """Check pointer and slices of one entry: the pointer first, for it says whose the slices are."""
        written = [
            change
            for change in entry.changes
            if change.kind is not Kind.DELETED and change.path.startswith(self._pointer)
        ]
        for change in written:
            if change.path == self._pointer:
                self._pointer_changed(json.loads(change.znode.data))
        for change in written:
            if change.path.startswith(self._slices):
                generation = json.loads(change.znode.data)["generation"]
                if self.generations[-1:] != [generation]:
                    raise self._violation(f"a slice of generation {generation} in {self.generations[-1:]}")

    def _pointer_changed(self, fields: dict[str, Any]) -> None:
        generation, last = fields["generation"], self.generations[-1] if self.generations else 0
        if generation < last:
            raise self._violation(f"generation {generation} follows {last}")
        if generation > last:
            self.generations.append(generation)
        elif not self._publishing:
            raise self._violation(f"generation {generation} has two plans")
        self._publishing = fields["state"] == "publishing"
        if self.on_publishing is not None:
            hook, self.on_publishing = self.on_publishing, None
            hook()
