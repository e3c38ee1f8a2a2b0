"""Put work and workers in the order in which they are assigned, and count loads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol, TypeAlias

from kiel_groups.workers.values.work_ids import ConnectorId, TaskId, Work

__all__ = ["Allocate", "WorkAllocation", "work_in_order"]

#: The work of each member, ordered as by ``work_in_order``. Each member has an entry, even without work.
WorkAllocation: TypeAlias = Mapping[str, tuple[Work, ...]]


class Allocate(Protocol):
    """A function that divides work among members."""

    def __call__(
        self, members: Collection[str], works: Collection[Work], previous: Mapping[Work, str]
    ) -> WorkAllocation:
        """
        Return the work of each member. The order of the arguments does not matter.

        Args:
            members: The ids of the members that get work. If there are none, no work is assigned.
            works: The connectors and tasks to assign.
            previous: The member that had each piece of work before, if it is known.
        """


def work_in_order(works: Collection[Work]) -> list[Work]:
    """Return all connectors, sorted by name, and then all tasks, sorted by connector as text, then by number."""
    connectors = sorted(work for work in set(works) if isinstance(work, ConnectorId))
    return [*connectors, *sorted(work for work in set(works) if isinstance(work, TaskId))]
