"""
The progress of partitions between two views of a group.

One view cannot distinguish a stuck partition from an idle one whose next record has just arrived; two views can.
"""

from __future__ import annotations

from kiel_groups.model import TopicPartition
from kiel_groups.ops.findings import Finding, short_name
from kiel_groups.ops.group_view import GroupView
from kiel_groups.ops.partition_view import PartitionView
from kiel_groups.wording import counted, some

__all__ = ["STUCK_MS", "WATCHED_MS", "ProgressTracker"]

#: The default of ``max_poll_interval_ms``: the time after which the watchdog ends the session of a member that hangs.
STUCK_MS = 300_000

#: How long a partition may lag between two views without a commit: three times the default commit interval.
WATCHED_MS = 15_000


class ProgressTracker:
    """
    Tracks over successive views of one group which partitions lag, and since when they have had no commit.

    A lag in one view proves nothing, because the record may have just arrived. If an earlier view had a lag and the
    same commit, the record has been waiting since then.
    """

    def __init__(self) -> None:
        #: Each lagging partition as last viewed, and the time of the first view with that commit and a lag.
        self._waiting: dict[TopicPartition, tuple[PartitionView, int]] = {}

    def take(self, view: GroupView, now_ms: int) -> tuple[Finding, ...]:
        """
        Add a view. Return a finding if the views so far show stuck partitions.

        Args:
            view: The group as it is now.
            now_ms: Epoch milliseconds.
        """
        waiting = {}
        for each in view.partitions:
            if each.lag and each.owner in view.member_ids:
                before, since_ms = self._waiting.get(each.topic_partition, (each, now_ms))
                is_unmoved = before.owner == each.owner and before.committed_ms == each.committed_ms
                waiting[each.topic_partition] = (each, since_ms if is_unmoved else now_ms)
        self._waiting = waiting
        stuck = [each for each, since_ms in waiting.values() if now_ms - since_ms >= WATCHED_MS and _old(each, now_ms)]
        return (_finding(stuck, now_ms),) if stuck else ()

    def suspects(self, now_ms: int) -> bool:
        """Return whether another view, ``WATCHED_MS`` after the last view, may show a stuck partition."""
        return any(_old(each, now_ms) for each, _ in self._waiting.values())


def _old(partition: PartitionView, now_ms: int) -> bool:
    return now_ms - _last_ms(partition) >= STUCK_MS


def _last_ms(partition: PartitionView) -> int:
    """Return the time of the partition's last commit or claim."""
    return max(partition.committed_ms or 0, partition.claimed_ms or 0)


def _finding(stuck: list[PartitionView], now_ms: int) -> Finding:
    names = tuple(each.topic_partition for each in stuck)
    members = tuple(sorted({each.owner for each in stuck if each.owner is not None}))
    minutes = min(now_ms - _last_ms(each) for each in stuck) // 60_000
    lag = sum(each.lag or 0 for each in stuck)
    return Finding(
        "stuck",
        f"{counted(stuck, 'partition makes', 'partitions make')} no progress: lag {lag:,}, and no commit for {minutes}"
        f" min: {some(names)}, owned by {some(map(short_name, members))}",
        "look at the log of that member: its application hangs, or does not commit; 'kiel-groups release' takes its"
        " partitions from it",
        partitions=names,
        members=members,
    )
