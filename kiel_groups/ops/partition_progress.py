"""
The progress of partitions between two views of a group.

One view cannot distinguish a stuck partition from an idle one whose next record has just arrived; two views can.
"""

from __future__ import annotations

from kiel_groups.model import TopicPartition
from kiel_groups.ops.checks import Finding, short_name
from kiel_groups.ops.group_view import GroupView, PartitionView
from kiel_groups.wording import counted, some

__all__ = ["STUCK_MS", "WATCHED_MS", "ProgressTracker"]

#: The default time that a member has for a record; where its watchdog is on, its session ends then.
STUCK_MS = 300_000

#: How long a partition may be behind without a commit between two views: three times the default commit interval.
WATCHED_MS = 15_000


class ProgressTracker:
    """
    Tracks, over successive views of one group, which partitions are behind and since when without a commit.

    A lag by itself proves nothing: the record may have arrived a moment ago. If an earlier view had a lag and the same
    commit, the record has been waiting.
    """

    def __init__(self) -> None:
        #: The partition as last viewed, and since when it is known to be behind that commit.
        self._waiting: dict[TopicPartition, tuple[PartitionView, int]] = {}

    def take(self, view: GroupView, now_ms: int) -> tuple[Finding, ...]:
        """
        Add a view, and return a finding if partitions are stuck by all views so far.

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
        """Whether another view, ``WATCHED_MS`` after the last one, may show a stuck partition."""
        return any(_old(each, now_ms) for each, _ in self._waiting.values())


def _old(partition: PartitionView, now_ms: int) -> bool:
    return now_ms - _last_ms(partition) >= STUCK_MS


def _last_ms(partition: PartitionView) -> int:
    """Return when it last made progress: a commit, or a new owner."""
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
