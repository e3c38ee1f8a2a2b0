"""
Who gets which partition: plain functions of members and partitions, and the adapter that runs and checks them.

An allocator is given two lists of strings, the members and the partitions as ``topic:partition``, both sorted as text
(so ``t:10`` comes before ``t:2``; members may hold colons, topics hold none), and returns ``{member: {topic: [ids]}}``.
Members that get nothing may be left out. An allocator that is to see more, what members have now for instance, offers
``allocate`` besides (``GroupAllocator``), and one that is to know what partitions weigh, ``weighing``
(``WeighingAllocator``).
"""

from kiel_groups.allocators.adapter import (
    AllocationOutcome,
    Allocator,
    GroupAllocator,
    WeighingAllocator,
    allocator_name,
    run_allocator,
)
from kiel_groups.allocators.named import ALLOCATORS, allocator_of, named_allocator
from kiel_groups.allocators.round_robin import round_robin
from kiel_groups.allocators.sticky import sticky
from kiel_groups.allocators.validation import validate
from kiel_groups.allocators.weighted import loads_of, weighted

__all__ = [
    "ALLOCATORS",
    "Allocator",
    "AllocationOutcome",
    "GroupAllocator",
    "WeighingAllocator",
    "allocator_name",
    "allocator_of",
    "loads_of",
    "named_allocator",
    "round_robin",
    "run_allocator",
    "sticky",
    "validate",
    "weighted",
]
