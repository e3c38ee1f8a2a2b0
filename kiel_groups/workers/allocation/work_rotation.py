"""
Assign work to workers in turn, as Kafka Connect does.

One cursor runs over the sorted members: first for all connectors, then for all tasks, without a restart in between. So
no two loads differ by more than one, counted over connectors and tasks together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import cycle

from kiel_groups.workers.allocation.work_order import WorkAllocation, work_in_order
from kiel_groups.workers.values.work_ids import Work

__all__ = ["rotate_work"]


def rotate_work(members: Collection[str], works: Collection[Work], previous: Mapping[Work, str]) -> WorkAllocation:
    """Assign work to the sorted members in turn; see ``Allocate``. Previous members do not count."""
    assigned: dict[str, list[Work]] = {member: [] for member in sorted(members)}
    if assigned:
        for member, work in zip(cycle(assigned), work_in_order(works), strict=False):
            assigned[member].append(work)
    return {member: tuple(its) for member, its in assigned.items()}
