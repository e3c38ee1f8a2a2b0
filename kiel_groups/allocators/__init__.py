"""
Divide partitions among members: the allocators, and the adapter that runs an allocator and checks its result.

The leader of a group runs the group's allocator for every plan. Applications, clients and the command line choose the
allocator. Allocators are pure functions, and do not use ZooKeeper.

An allocator is a function of two lists of strings: the members, and the partitions as ``topic:partition``. Both lists
are sorted as text, so ``t:10`` comes before ``t:2``. Member names may have colons, topic names have no colons. The
function returns ``{member: {topic: [ids]}}``. Members without partitions may be left out of this result.

An allocator that needs more information has a method ``allocate`` (``GroupAllocator``). This method gets one
``GroupSpec``: the subscriptions, capacities, racks and present partitions of members, and the weights, lags and
leaders' racks of partitions.
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
