"""
The reset of a position that is not in its partition's log: retention overtook it, or the log was cut.

A reset is *chosen* when the log's range is known, and *stored* once nothing older is buffered or in flight. What is
stored never skips a record that the log still has and that nobody has finished (decision 0016).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PendingReset"]


@dataclass(frozen=True, slots=True, eq=False)
class PendingReset:
    """
    A position chosen for a partition, not stored yet.

    ``lost`` is the position that the log does not have; ``start`` and ``end`` are the log's first and next offset at
    the time of the choice; ``position`` is where the policy continues.
    """

    lost: int
    start: int
    end: int
    position: int

    def offset_after(self, done: int) -> int:
        """
        The next offset to store where everything before ``done`` is done.

        Records between ``done`` and the lost position that are still in the log must still be delivered. If there are
        any, the reset may move the offset back, but not forward past them.
        """
        owed = max(done, self.start)
        return min(owed, self.position) if owed < min(self.lost, self.end) else self.position
