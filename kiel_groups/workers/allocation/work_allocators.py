"""The allocators of work by name, and the protocol by whose name the workers of a group agree on one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kiel_groups.allocators.registry import look_up
from kiel_groups.workers.allocation.work_order import Allocate
from kiel_groups.workers.allocation.work_retention import retain_work
from kiel_groups.workers.allocation.work_rotation import rotate_work

__all__ = ["WORK_ALLOCATORS", "WorkAllocator", "work_allocator"]


class WorkAllocator(NamedTuple):
    """
    An allocator of work.

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
    Return an allocator by its name.

    Args:
        name: One of ``WORK_ALLOCATORS``.
        setting: The setting to name in an error.

    Raises:
        ConfigError: There is no allocator of that name; the text lists the names.
    """
    return look_up(name, WORK_ALLOCATORS, "allocator of work", setting)
