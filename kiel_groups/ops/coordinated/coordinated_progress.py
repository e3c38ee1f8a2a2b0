"""
The problems of a group that only successive views of it show: a long rebalance, missing offsets, no progress.

Coordinators tell neither since when a group rebalances, nor when an offset was committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from kiel_groups.model import TopicPartition
from kiel_groups.ops.coordinated.coordinated_view import CoordinatedGroupView
from kiel_groups.ops.findings import Finding, partition_names, short_name
from kiel_groups.ops.partition_progress import STUCK_MS, WATCHED_MS
from kiel_groups.ops.partition_view import PartitionView
from kiel_groups.wording import counted, some

__all__ = ["CoordinatedProgress"]


class _Since(NamedTuple):
    """A partition as last viewed, and the time of the first view from which on it was like that."""

    partition: PartitionView
    since_ms: int


class CoordinatedProgress:
    """Tracks over successive views of one group what should have changed meanwhile, but has not."""

    def __init__(self) -> None:
        self._rebalancing_since_ms: int | None = None
        self._uncommitted: dict[TopicPartition, _Since] = {}
        self._lagging: dict[TopicPartition, _Since] = {}

    def take(self, view: CoordinatedGroupView, now_ms: int) -> tuple[Finding, ...]:
        """
        Add a view. Return what the views so far show, what needs an operator first.

        Args:
            view: The group as it is now.
            now_ms: Epoch milliseconds.
        """
        if view.state != "rebalancing":
            self._rebalancing_since_ms = None
        elif self._rebalancing_since_ms is None:
            self._rebalancing_since_ms = now_ms
        self._uncommitted = _unmoved(self._uncommitted, view, now_ms, _lacks_offset)
        self._lagging = _unmoved(self._lagging, view, now_ms, lambda each: bool(each.lag))
        found = [*self._rebalancing(view, now_ms), *self._missing_offsets(now_ms), *self._stuck(now_ms)]
        return tuple(sorted(found, key=lambda finding: finding.passing))

    @property
    def suspicion(self) -> str:
        """Why another view, ``WATCHED_MS`` after the last one, may show a problem that needs an operator, or ""."""
        if self._rebalancing_since_ms is not None:
            return "the group rebalances"
        return "assigned partitions have no committed offset" if self._uncommitted else ""

    def _rebalancing(self, view: CoordinatedGroupView, now_ms: int) -> Iterator[Finding]:
        if self._rebalancing_since_ms is None:
            return
        seen_ms = now_ms - self._rebalancing_since_ms
        known = counted(view.members, "member", "members")
        yield Finding(
            "rebalancing",
            f"the group rebalances ({view.broker_state}), with {known} so far"
            + (f", in every look for {seen_ms // 1000} s" if seen_ms >= 1000 else ""),
            "a member does not rejoin: its application is busy or hangs; the logs of members say which they wait for,"
            " and the coordinator removes it after its rebalance timeout",
            passing=seen_ms < WATCHED_MS,
            members=tuple(sorted(view.member_ids)),
        )

    def _missing_offsets(self, now_ms: int) -> Iterator[Finding]:
        missing = list(self._uncommitted.values())
        if missing:
            partitions = [each.partition for each in missing]
            what = counted(partitions, "assigned partition has", "assigned partitions have")
            yield Finding(
                "missing-offset",
                f"{what} records, but no committed offset: {some(partition_names(partitions))}, of "
                f"{some(_owners(partitions))}",
                "look at the log of that member: it does not commit, or the offset has expired"
                " (offsets.retention.minutes)",
                passing=all(now_ms - each.since_ms < WATCHED_MS for each in missing),
                partitions=partition_names(partitions),
            )

    def _stuck(self, now_ms: int) -> Iterator[Finding]:
        stuck = [each for each in self._lagging.values() if now_ms - each.since_ms >= WATCHED_MS]
        if stuck:
            partitions = [each.partition for each in stuck]
            what = counted(partitions, "partition makes", "partitions make")
            seen_ms = max(now_ms - each.since_ms for each in stuck)
            lag = sum(each.lag or 0 for each in partitions)
            yield Finding(
                "stuck",
                f"{what} no progress: lag {lag:,}, and no commit in {seen_ms // 1000} s: "
                f"{some(partition_names(partitions))}, of {some(_owners(partitions))}",
                "look at the log of that member: its application hangs, or does not commit",
                passing=seen_ms < STUCK_MS,
                partitions=partition_names(partitions),
            )


def _lacks_offset(partition: PartitionView) -> bool:
    """Return whether a partition has records, or had some, and no committed offset."""
    return partition.committed is None and bool(partition.log_end)


def _unmoved(
    before: dict[TopicPartition, _Since],
    view: CoordinatedGroupView,
    now_ms: int,
    concerns: Callable[[PartitionView], bool],
) -> dict[TopicPartition, _Since]:
    """Return the assigned partitions of a view that ``concerns`` selects, each with the time since it is unchanged."""
    found = {}
    for each in view.partitions:
        if each.owner is not None and concerns(each):
            last = before.get(each.topic_partition, _Since(each, now_ms))
            is_same = (last.partition.owner, last.partition.committed) == (each.owner, each.committed)
            found[each.topic_partition] = _Since(each, last.since_ms if is_same else now_ms)
    return found


def _owners(partitions: list[PartitionView]) -> list[str]:
    return sorted({short_name(each.owner) for each in partitions if each.owner is not None})
