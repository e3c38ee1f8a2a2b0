"""
Let workers keep the work that they had, as far as loads allow that, so that a restart or a join moves little.

Loads differ by at most one, counted over connectors and tasks together. Where some members get one piece more than
others, those that had most get it. So no allocation with such loads moves fewer pieces.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kiel_groups.workers.allocation.work_order import WorkAllocation, work_in_order
from kiel_groups.workers.values.work_ids import Work

__all__ = ["retain_work"]


def retain_work(members: Collection[str], works: Collection[Work], previous: Mapping[Work, str]) -> WorkAllocation:
    """
    Let members keep their work, and assign the rest to those with the least; see ``Allocate``.

    A member that has to give up a part of its work keeps the first pieces, in the order of ``work_in_order``.
    """
    kept: dict[str, list[Work]] = {member: [] for member in sorted(members)}
    if not kept:
        return {}
    ordered = work_in_order(works)
    moving: list[Work] = []
    for work in ordered:
        kept.get(previous.get(work, ""), moving).append(work)
    quotas = _quotas(kept, len(ordered))
    for member, its in kept.items():
        moving += its[quotas[member] :]
        del its[quotas[member] :]
    _fill(kept, quotas, work_in_order(moving))
    return {member: tuple(work_in_order(its)) for member, its in kept.items()}


def _quotas(kept: Mapping[str, Collection[Work]], count: int) -> dict[str, int]:
    """Return how many pieces each member gets; the members that had most get one more if there is a remainder."""
    least, remainder = divmod(count, len(kept))
    by_load = sorted(kept, key=lambda member: (-len(kept[member]), member))
    return {member: least + (place < remainder) for place, member in enumerate(by_load)}


def _fill(kept: Mapping[str, list[Work]], quotas: Mapping[str, int], works: Collection[Work]) -> None:
    """Assign work in turn to the members that are below their quotas, so that each connector's tasks spread."""
    rest = iter(works)
    below = list(kept)
    while below := [member for member in below if len(kept[member]) < quotas[member]]:
        for member in below:
            # The quotas of all members together are the number of all pieces.
            kept[member].append(next(rest))
