"""
Limit how many partitions one session may own.

Closing a session writes all its ephemeral paths in one transaction. If that is too large for a server, the ensemble
loses its quorum (ZOOKEEPER-4306: 1.25 MB of paths survived, 2.5 MB did not). Partitions beyond the limit get no owner.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from kiel_groups.group.leader.planner import Target
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.model import TopicPartition

__all__ = ["MOST_PATH_BYTES", "TOO_MANY", "limit_claims"]

#: Less than half of what survived: the claims that a member is still draining come on top of its assignment.
MOST_PATH_BYTES = 512 << 10

#: Reserved for a member's other ephemeral znodes: its member znode, its consumer id, its candidate.
_OTHERS_BYTES = 2 << 10

#: Why a partition has no owner although there is a member for it.
TOO_MANY = f"more than one session can own ({MOST_PATH_BYTES >> 10} KiB of paths); start more members"


def limit_claims(target: Target, layout: GroupLayout, chroot: str) -> Target:
    """
    Return the target without the partitions that would be too many for one session.

    Args:
        target: The allocation that an allocator decided.
        layout: The group's paths.
        chroot: The chroot, which precedes each of these paths on the server.
    """
    left = MOST_PATH_BYTES - _OTHERS_BYTES
    # The common case is cheap: no member owns so many partitions that even paths of the greatest length would be too
    # much. 300 bytes are the longest topic name (255), two slashes and the partition number.
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
    """Return the last partitions in order, those that do not fit: what fits stays the same from plan to plan."""
    surplus = set()
    for partition in sorted(owned):
        left -= chroot_bytes + len(layout.owner(partition))
        if left < 0:
            surplus.add(partition)
    return frozenset(surplus)
