"""
How much one session may own.

Closing a session writes all its ephemeral paths in one transaction, and a server that cannot take it loses its quorum
(ZOOKEEPER-4306: 1.25 MB of paths survived, 2.5 MB did not). What is beyond the cap stays without an owner.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from kiel_groups.group.leader.planner import Target
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.model import TopicPartition

__all__ = ["MOST_PATH_BYTES", "TOO_MANY", "capped"]

#: Less than half of what survived: what a member is still draining comes on top of what a plan gives it.
MOST_PATH_BYTES = 512 << 10

#: Kept free for a member's other ephemeral znodes: itself, its consumer id, its candidacy.
_OTHERS_BYTES = 2 << 10

#: Why a partition has no owner although there is a member for it.
TOO_MANY = f"more than one session can own ({MOST_PATH_BYTES >> 10} KiB of paths); start more members"


def capped(target: Target, layout: GroupLayout, chroot: str) -> Target:
    """
    The same target without what would be too much for one session.

    Args:
        target: What an allocator decided.
        layout: The group's paths.
        chroot: What stands before each of them at the server.
    """
    left = MOST_PATH_BYTES - _OTHERS_BYTES
    # The common case costs nothing: no member has so many that the longest path of all could matter.
    longest = len(chroot) + len(layout.owners) + 300
    if all(len(owned) * longest <= left for owned in target.allocation.values()):
        return target
    surplus = {slot: _surplus(owned, layout, len(chroot), left) for slot, owned in target.allocation.items()}
    return replace(
        target,
        allocation={slot: owned - surplus[slot] for slot, owned in target.allocation.items()},
        unassigned={**target.unassigned, **dict.fromkeys(frozenset().union(*surplus.values()), TOO_MANY)},
    )


def _surplus(
    owned: Collection[TopicPartition], layout: GroupLayout, chroot_bytes: int, left: int
) -> frozenset[TopicPartition]:
    """The last ones, in order: what fits stays the same from plan to plan."""
    surplus = set()
    for partition in sorted(owned):
        left -= chroot_bytes + len(layout.owner(partition))
        if left < 0:
            surplus.add(partition)
    return frozenset(surplus)
