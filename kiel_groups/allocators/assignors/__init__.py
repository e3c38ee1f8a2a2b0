"""
Divide partitions among the members of a broker-coordinated group: the assignors of Java, and ours.

The member that leads such a group runs an assignor, and every member offers the names of its assignors to the broker.
The assignors are pure: they see member ids, topics, and the user data of subscriptions, and read or write no frames.
"""

from kiel_groups.allocators.assignors.allocator_assignor import AllocatorAssignor
from kiel_groups.allocators.assignors.assignor_registry import AssignorChoice, assignors_of
from kiel_groups.allocators.assignors.consumer_assignors import (
    Assignor,
    AssignorMember,
    AssignorOutcome,
    ReportingAssignor,
    run_assignor,
)
from kiel_groups.allocators.assignors.java_assignors import range_assignor, roundrobin_assignor

__all__ = [
    "AllocatorAssignor",
    "Assignor",
    "AssignorChoice",
    "AssignorMember",
    "AssignorOutcome",
    "ReportingAssignor",
    "assignors_of",
    "range_assignor",
    "roundrobin_assignor",
    "run_assignor",
]
