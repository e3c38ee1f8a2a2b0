"""
The reset of a position that its partition's log lacks: retention passed it, or the log was truncated.

A reset is *chosen* when the log's range is known, and *stored* once no older record is buffered or in flight. The
stored offset never skips an unfinished record that the log still has (decision 0016).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PendingReset"]


@dataclass(frozen=True, slots=True, eq=False)
class PendingReset:
    """
    A position that was chosen for a partition and is not stored yet.

    ``lost`` is the position that the log lacks. ``start`` and ``end`` are the log's first and next offset at the time
    of the choice. ``position`` is the offset at which the reset policy continues.
    """

    lost: int
    start: int
    end: int
    position: int

    def offset_after(self, done: int) -> int:
        """
        Return the offset to store if all records before the offset ``done`` are done.

        Records between ``done`` and the lost position that the log still has must be delivered. If there are any, the
        reset may move the offset back, but not forward past them.
        """
        owed = max(done, self.start)
        return min(owed, self.position) if owed < min(self.lost, self.end) else self.position
