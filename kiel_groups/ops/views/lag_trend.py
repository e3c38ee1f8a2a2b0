"""
Determine the trend of the lag of partitions from successive samples, such as growing or stuck, by Burrow's rules.

Burrow reads each commit from Kafka. Samples are taken independently of commits. So a commit is assumed between two
samples if their committed offsets differ.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias, get_args

from kiel_groups.model import TopicPartition
from kiel_groups.ops.views.group_view import GroupView
from kiel_groups.wording import counted, some

#: The developments of the lag of a partition, the worst first.
Verdict: TypeAlias = Literal["stuck", "rewound", "growing", "unknown", "steady", "falling", "ok"]

#: The verdicts that need an operator, and ``unknown``, because it may hide such a verdict.
PROBLEMS: frozenset[Verdict] = frozenset({"stuck", "rewound", "growing", "unknown"})

#: Fewer samples allow no verdict, as in Burrow.
LEAST_SAMPLES = 10

#: Fewer commits do not show whether the lag grows: among four commits, the lag rises each time by chance in one of 24
#: cases.
_LEAST_COMMITS = 4

#: How many samples of a partition are kept: a minute of ``--watch``.
_MOST_SAMPLES = 30


class Sample(NamedTuple):
    """The committed offset and the log end of a partition at a time in epoch milliseconds."""

    at_ms: int
    committed: int
    log_end: int

    @property
    def lag(self) -> int:
        return max(0, self.log_end - self.committed)


class Trend(NamedTuple):
    """The verdict on a partition's lag. ``why`` is the reason as text, or "" if the verdict is ``ok``."""

    verdict: Verdict
    why: str = ""


def trend_of(samples: Sequence[Sample]) -> Trend:
    """
    Return the trend of a partition's lag.

    The first of these rules that applies gives the verdict:

    - ``unknown``: there are fewer than ``LEAST_SAMPLES`` samples;
    - ``ok``: the last sample has no lag;
    - ``stuck``: the offset moved at first, then stayed for a longer time than it moved, with lag at all these samples;
    - ``ok``: at least one sample has no lag;
    - ``rewound``: the offset went back;
    - ``stuck``: the offset did not move;
    - ``unknown``: there are fewer than four commits;
    - ``steady``: all commits have the same lag; Burrow also warns of a steady lag;
    - ``growing``: the lag at each commit is at least the lag at the commit before;
    - ``falling``: the lag at the last commit is smaller than the lag at the first commit;
    - ``ok``: no other rule applies.

    Args:
        samples: The samples of one partition, the oldest first.
    """
    if len(samples) < LEAST_SAMPLES:
        return Trend("unknown", f"{len(samples)} of the {LEAST_SAMPLES} samples of a known lag that a verdict needs")
    first, last = samples[0], samples[-1]
    if not last.lag:
        return Trend("ok")
    commits = [after for before, after in pairwise(samples) if after.committed != before.committed]
    moved_ms = commits[-1].at_ms if commits else first.at_ms
    idle = f"no commit for {(last.at_ms - moved_ms) / 1000:.0f} s, with a lag of {last.lag:,}"
    if last.at_ms - moved_ms > moved_ms - first.at_ms > 0 and all(
        each.lag for each in samples if each.at_ms > moved_ms
    ):
        return Trend("stuck", idle)
    if not all(each.lag for each in samples):
        return Trend("ok")
    for before, after in pairwise(samples):
        if after.committed < before.committed:
            return Trend("rewound", f"the committed offset went back from {before.committed:,} to {after.committed:,}")
    return _trend_of_commits(commits, last.at_ms - first.at_ms) if commits else Trend("stuck", idle)


def _trend_of_commits(commits: Sequence[Sample], span_ms: int) -> Trend:
    """Return the trend of the lag at commits. Other samples do not count: between two commits, the lag always rises."""
    lags = [each.lag for each in commits]
    course = f"a lag of {lags[0]:,}, then {lags[-1]:,}, over {counted(commits, 'commit')}"
    if len(lags) < _LEAST_COMMITS:
        return Trend("unknown", f"only {counted(commits, 'commit')} in {span_ms / 1000:.0f} s: sample for longer")
    if all(before <= after for before, after in pairwise(lags)):
        return Trend("growing" if lags[0] < lags[-1] else "steady", course)
    return Trend("falling", course) if lags[-1] < lags[0] else Trend("ok")


class LagTrends:
    """
    Takes samples from successive views of groups, and determines the trends of their partitions.

    Samples of groups and partitions that the last views do not have are dropped.

    Args:
        most: How many samples of each partition are kept.
    """

    def __init__(self, most: int = _MOST_SAMPLES) -> None:
        self._most = most
        self._samples: dict[str, dict[TopicPartition, deque[Sample]]] = {}

    def take(self, views: Iterable[GroupView], now_ms: int) -> None:
        """
        Add a sample of each partition whose lag is known, and drop the samples of missing groups and partitions.

        Args:
            views: All groups to keep.
            now_ms: Epoch milliseconds.
        """
        before, self._samples = self._samples, {}
        for view in views:
            known = before.get(view.group, {})
            samples = self._samples[view.group] = {
                each.topic_partition: known.get(each.topic_partition) or deque(maxlen=self._most)
                for each in view.partitions
            }
            for each in view.partitions:
                if each.committed is not None and each.log_end is not None:
                    samples[each.topic_partition].append(Sample(now_ms, each.committed, each.log_end))

    def trends(self, group: str) -> dict[TopicPartition, Trend]:
        """Return the trend of each partition of a group, or {} if the last views did not have the group."""
        return {partition: trend_of(samples) for partition, samples in self._samples.get(group, {}).items()}

    def windows(self, group: str) -> dict[TopicPartition, tuple[Sample, Sample]]:
        """Return the first and the last kept sample of each partition of a group. Unsampled partitions are left out."""
        return {
            partition: (samples[0], samples[-1])
            for partition, samples in self._samples.get(group, {}).items()
            if samples
        }


def worst_verdict(trends: Mapping[TopicPartition, Trend]) -> Verdict:
    """Return the verdict on a group: the worst verdict on its partitions, or ``ok`` without partitions."""
    found = {each.verdict for each in trends.values()}
    return next((verdict for verdict in get_args(Verdict) if verdict in found), "ok")


def trend_lines(trends: Mapping[TopicPartition, Trend]) -> list[str]:
    """
    Return a line for each verdict of partitions except ``ok``, the worst verdict first.

    A line has the partitions with this verdict, and the reason for the first partition.
    """
    lines = []
    for verdict in get_args(Verdict):
        found = [partition for partition, trend in trends.items() if trend.verdict == verdict != "ok"]
        if found:
            lines.append(f"{verdict}: {some(found)}: {trends[found[0]].why}")
    return lines
