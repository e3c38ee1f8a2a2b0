"""
Limit how many partitions one session may own.

Closing a session writes all its ephemeral paths in one transaction. If that is too large for servers, the ensemble
loses its quorum (ZOOKEEPER-4306: 1.25 MB of paths survived, 2.5 MB did not). Partitions beyond the limit get no owner.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from kiel_groups.group.leader.planner import Target
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.model import TopicPartition

__all__ = ["MOST_PATH_BYTES", "TOO_MANY", "limit_claims"]

#: Less than half of the size that survived: a member may still own partitions that its new assignment does not include.
MOST_PATH_BYTES = 512 << 10

#: Reserved for a member's other ephemeral znodes: its member znode, its consumer id and its election znode.
_OTHERS_BYTES = 2 << 10

#: The reason why a partition has no owner although a member subscribes to its topic.
TOO_MANY = f"more than one session can own ({MOST_PATH_BYTES >> 10} KiB of paths); start more members"


def limit_claims(target: Target, layout: GroupLayout, chroot: str) -> Target:
    """
    Return the target without the partitions that exceed the limit of their member.

    Args:
        target: The allocation to limit.
        layout: The group's paths.
        chroot: The chroot, which precedes each path on the server.
    """
    left = MOST_PATH_BYTES - _OTHERS_BYTES
    # The common case is cheap: no member has so many partitions that they would exceed the limit even if every path had
    # the greatest length. 300 bytes are the longest topic name (255), two slashes and the partition number.
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
    """Return the partitions beyond the limit: the last in order, so that successive plans keep the same partitions."""
    surplus = set()
    for partition in sorted(owned):
        left -= chroot_bytes + len(layout.owner(partition))
        if left < 0:
            surplus.add(partition)
    return frozenset(surplus)
