"""What gets on between looks at a group: a partition that stands still can only be told from an idle one in time."""

from __future__ import annotations

from kiel_groups.model import TopicPartition
from kiel_groups.ops.checks import Finding, short_name
from kiel_groups.ops.group_view import GroupView, PartitionView
from kiel_groups.wording import counted, some

__all__ = ["STUCK_MS", "WATCHED_MS", "Progress"]

#: So long a member has for a record: where its watchdog is on, and as it is unless told, the session ends then.
STUCK_MS = 300_000

#: So long nothing may be committed of what is there to be read: three times the interval of commits that nobody set.
WATCHED_MS = 15_000


class Progress:
    """
    The partitions of one group that are behind, and since when without a commit, over looks that are taken in.

    A lag by itself says nothing: the record may have come a moment ago. One that was there before, with the same
    commit, has been waiting.
    """

    def __init__(self) -> None:
        #: What was committed, and since when it is known that more is there.
        self._waiting: dict[TopicPartition, tuple[PartitionView, int]] = {}

    def take(self, view: GroupView, now_ms: int) -> tuple[Finding, ...]:
        """
        What is stuck, as far as looks can tell by now.

        Args:
            view: The group as it was seen now.
            now_ms: Epoch milliseconds.
        """
        waiting = {}
        for each in view.partitions:
            if each.lag and each.owner in view.member_ids:
                before, since_ms = self._waiting.get(each.topic_partition, (each, now_ms))
                stands = before.owner == each.owner and before.committed_ms == each.committed_ms
                waiting[each.topic_partition] = (each, since_ms if stands else now_ms)
        self._waiting = waiting
        stuck = [each for each, since_ms in waiting.values() if now_ms - since_ms >= WATCHED_MS and _old(each, now_ms)]
        return (_finding(stuck, now_ms),) if stuck else ()

    def suspects(self, now_ms: int) -> bool:
        """Whether another look, ``WATCHED_MS`` after this one, may find something."""
        return any(_old(each, now_ms) for each, _ in self._waiting.values())


def _old(partition: PartitionView, now_ms: int) -> bool:
    return now_ms - _last_ms(partition) >= STUCK_MS


def _last_ms(partition: PartitionView) -> int:
    """When it last got on: a commit, or a new owner."""
    return max(partition.committed_ms or 0, partition.claimed_ms or 0)


def _finding(stuck: list[PartitionView], now_ms: int) -> Finding:
    names = tuple(each.topic_partition for each in stuck)
    members = tuple(sorted({each.owner for each in stuck if each.owner is not None}))
    minutes = min(now_ms - _last_ms(each) for each in stuck) // 60_000
    lag = sum(each.lag or 0 for each in stuck)
    return Finding(
        "stuck",
        f"{counted(stuck, 'partition does', 'partitions do')} not get on: {lag:,} behind, and no commit for {minutes}"
        f" min: {some(names)}, held by {some(map(short_name, members))}",
        "look at the log of that member: its application hangs, or does not commit; 'kiel-groups release' takes from it"
        " what it holds",
        partitions=names,
        members=members,
    )
