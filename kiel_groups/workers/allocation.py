"""Divide the connectors and tasks (work) of a group among its workers: in turn, or so that workers keep their work."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import cycle
from typing import NamedTuple, TypeAlias

from kiel_groups.allocators.registry import look_up
from kiel_groups.workers.values import ConnectorId, TaskId, Work

#: The work of each member, ordered as by ``work_in_order``. Each member has an entry, even without work.
WorkAllocation: TypeAlias = Mapping[str, tuple[Work, ...]]


#: A function that divides work: it gets the ids of the members that get work, the connectors and tasks to assign, and
#: the member that had each piece of work before, if that is known. The order of these does not matter. If there are no
#: members, no work is assigned.
Allocate: TypeAlias = Callable[[Collection[str], Collection[Work], Mapping[Work, str]], WorkAllocation]


def work_in_order(works: Collection[Work]) -> list[Work]:
    """Return all connectors, sorted by name, and then all tasks, sorted by connector as text, then by number."""
    connectors = sorted(work for work in set(works) if isinstance(work, ConnectorId))
    return [*connectors, *sorted(work for work in set(works) if isinstance(work, TaskId))]


# Assign work to workers in turn, as Kafka Connect does.
#
# One cursor runs over the sorted members: first for all connectors, then for all tasks, without a restart in between.
# So no two loads differ by more than one, counted over connectors and tasks together.


def rotate_work(members: Collection[str], works: Collection[Work], previous: Mapping[Work, str]) -> WorkAllocation:
    """Assign work to the sorted members in turn; see ``Allocate``. The argument ``previous`` is ignored."""
    assigned: dict[str, list[Work]] = {member: [] for member in sorted(members)}
    if assigned:
        for member, work in zip(cycle(assigned), work_in_order(works), strict=False):
            assigned[member].append(work)
    return {member: tuple(its) for member, its in assigned.items()}


# Let workers keep the work that they had, as far as loads allow that, so that a restart or a join moves little.
#
# Connectors and tasks cost differently, so each kind is divided by itself: loads of each kind differ by at most one. If
# some members get one piece more than others, the members that had most pieces get it. So no allocation with such loads
# moves fewer pieces. Among members that had equally many tasks, the members with fewer connectors get the additional
# task.


def retain_work(members: Collection[str], works: Collection[Work], previous: Mapping[Work, str]) -> WorkAllocation:
    """
    Let members keep the work that they had, and assign the other work to members below their share; see ``Allocate``.

    Connectors and tasks are divided separately. The shares of members differ by at most one piece of each kind. A
    member that had more pieces than its share keeps the first pieces, in the order of ``work_in_order``.
    """
    assigned: dict[str, list[Work]] = {member: [] for member in sorted(members)}
    if assigned:
        ordered = work_in_order(works)
        _retain(assigned, [work for work in ordered if isinstance(work, ConnectorId)], previous)
        _retain(assigned, [work for work in ordered if isinstance(work, TaskId)], previous)
    return {member: tuple(its) for member, its in assigned.items()}


def _retain(assigned: dict[str, list[Work]], works: Sequence[Work], previous: Mapping[Work, str]) -> None:
    """
    Divide work of one kind, given in order, and add the work to ``assigned``. Members keep work up to their share.
    """
    kept: dict[str, list[Work]] = {member: [] for member in assigned}
    moving: list[Work] = []
    for work in works:
        kept.get(previous.get(work, ""), moving).append(work)
    least, remainder = divmod(len(works), len(kept))
    by_load = sorted(kept, key=lambda member: (-len(kept[member]), len(assigned[member]), member))
    quotas = {member: least + (place < remainder) for place, member in enumerate(by_load)}
    for member, its in kept.items():
        moving += its[quotas[member] :]
        del its[quotas[member] :]
    _fill(kept, quotas, work_in_order(moving))
    for member, its in kept.items():
        assigned[member] += work_in_order(its)


def _fill(kept: Mapping[str, list[Work]], quotas: Mapping[str, int], works: Collection[Work]) -> None:
    """Assign work in turn to the members below their quotas. So the tasks of one connector go to several members."""
    rest = iter(works)
    below = list(kept)
    while below := [member for member in below if len(kept[member]) < quotas[member]]:
        for member in below:
            # The quotas of all members together are the number of all pieces.
            kept[member].append(next(rest))


class WorkAllocator(NamedTuple):
    """
    A way to divide work among workers.

    Args:
        allocate: The function that divides the work.
        sees_owners: Whether the function needs to know which member had which work.
    """

    allocate: Allocate
    sees_owners: bool


WORK_ALLOCATORS: Mapping[str, WorkAllocator] = {
    "round_robin": WorkAllocator(rotate_work, sees_owners=False),
    "sticky": WorkAllocator(retain_work, sees_owners=True),
}


def work_allocator(name: str, setting: str = "work_allocator") -> WorkAllocator:
    """
    Return the work allocator of this name.

    Args:
        name: A key of ``WORK_ALLOCATORS``.
        setting: The setting to name in an error.

    Raises:
        ConfigError: There is no allocator of that name; the text lists the names.
    """
    return look_up(name, WORK_ALLOCATORS, "allocator of work", setting)
