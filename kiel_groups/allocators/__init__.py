"""
Divide partitions among members: allocators as plain functions, and the adapter that runs one and checks its result.

The leader runs one for every plan; applications, clients and the command line choose it; ``ops`` shows its loads.
Allocators are pure. They see members and partitions as strings, and nothing of ZooKeeper.

An allocator is a function of two lists of strings, the members and the partitions as ``topic:partition``, both sorted
as text (so ``t:10`` comes before ``t:2``; member names may have colons, topic names have none). It returns ``{member:
{topic: [ids]}}``; members without partitions may be left out. An allocator that needs more has a method ``allocate``
(``GroupAllocator``), which gets one ``GroupSpec``: subscriptions, capacities, racks and present partitions of members,
and weights, lags and leaders' racks of partitions.
"""

from kiel_groups.allocators.adapter import AllocationOutcome, allocator_name, run_allocator, validate
from kiel_groups.allocators.contiguous_ranges import range_allocator
from kiel_groups.allocators.group_spec import Allocator, GroupAllocator, GroupSpec, MemberSpec, PartitionSpec
from kiel_groups.allocators.rack_aware import rack_aware
from kiel_groups.allocators.registry import ALLOCATORS, allocator_of, installed_allocators, named_allocator
from kiel_groups.allocators.round_robin import round_robin
from kiel_groups.allocators.sticky import sticky
from kiel_groups.allocators.weighted import lag_aware, loads_of, weighted

__all__ = [
    "ALLOCATORS",
    "Allocator",
    "AllocationOutcome",
    "GroupAllocator",
    "GroupSpec",
    "MemberSpec",
    "PartitionSpec",
    "allocator_name",
    "allocator_of",
    "installed_allocators",
    "lag_aware",
    "loads_of",
    "named_allocator",
    "rack_aware",
    "range_allocator",
    "round_robin",
    "run_allocator",
    "sticky",
    "validate",
    "weighted",
]
