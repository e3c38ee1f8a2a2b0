"""
The trend of the lag of partitions over successive samples: growing, falling, stuck and others, by Burrow's rules.

Burrow evaluates commits, which it reads from Kafka. These samples are taken at any time, so a commit is what moves the
committed offset between two of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias, get_args

from kiel_groups.model import TopicPartition
from kiel_groups.ops.views.group_view import GroupView
from kiel_groups.wording import counted, some

#: How the lag of a partition develops; the worst first.
Verdict: TypeAlias = Literal["stuck", "rewound", "growing", "unknown", "steady", "falling", "ok"]

#: The verdicts that need an operator, and ``unknown``, which may hide one.
PROBLEMS: frozenset[Verdict] = frozenset({"stuck", "rewound", "growing", "unknown"})

#: Fewer samples allow no verdict, as in Burrow.
LEAST_SAMPLES = 10

#: Fewer commits do not show whether the lag grows: among four, it rises each time by chance in one of 24 cases.
_LEAST_COMMITS = 4

#: How many samples of a partition are kept: a minute of ``--watch``.
_MOST_SAMPLES = 30


class Sample(NamedTuple):
    """The committed offset of a partition and its log end at a time in epoch milliseconds."""

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
    Return the trend of a partition.

    Without lag at the end, it is ``ok``. Otherwise, the first of these that applies:

    - ``stuck``: the offset has moved, but then not for longer than it moved, and there was lag all that time;
    - ``ok``: at one of the samples there was no lag;
    - ``rewound``: the offset went back;
    - ``stuck``: the offset did not move;
    - ``growing``: the lag was at each commit at least what it was at the one before; ``steady`` if it was always the
      same, which Burrow warns of, too;
    - ``falling``: the lag at the last commit is smaller than at the first; otherwise ``ok``.

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
    """Return the trend of the lag at commits: it rises between them without a meaning."""
    lags = [each.lag for each in commits]
    course = f"a lag of {lags[0]:,}, then {lags[-1]:,}, over {counted(commits, 'commit')}"
    if len(lags) < _LEAST_COMMITS:
        return Trend("unknown", f"only {counted(commits, 'commit')} in {span_ms / 1000:.0f} s: sample for longer")
    if all(before <= after for before, after in pairwise(lags)):
        return Trend("growing" if lags[0] < lags[-1] else "steady", course)
    return Trend("falling", course) if lags[-1] < lags[0] else Trend("ok")


class LagTrends:
    """
    Samples successive views of groups, and returns the trends of their partitions.

    Partitions that a view of their group no longer has are forgotten.

    Args:
        most: How many samples of each partition are kept.
    """

    def __init__(self, most: int = _MOST_SAMPLES) -> None:
        self._most = most
        self._samples: dict[str, dict[TopicPartition, deque[Sample]]] = {}

    def take(self, views: Iterable[GroupView], now_ms: int) -> None:
        """
        Add a sample of each partition whose lag is known.

        Args:
            views: All groups that count from now on.
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
        """Return the trend of each partition of a group; {} if the last views did not have it."""
        return {partition: trend_of(samples) for partition, samples in self._samples.get(group, {}).items()}

    def windows(self, group: str) -> dict[TopicPartition, tuple[Sample, Sample]]:
        """Return the first and the last sample of each partition of a group that has any."""
        return {
            partition: (samples[0], samples[-1])
            for partition, samples in self._samples.get(group, {}).items()
            if samples
        }


def worst_verdict(trends: Mapping[TopicPartition, Trend]) -> Verdict:
    """Return the verdict on a group: the worst one on its partitions, ``ok`` without partitions."""
    found = {each.verdict for each in trends.values()}
    return next((verdict for verdict in get_args(Verdict) if verdict in found), "ok")


def trend_lines(trends: Mapping[TopicPartition, Trend]) -> list[str]:
    """Return a line for each verdict but ``ok``, the worst first: its partitions, and the reason of the first."""
    lines = []
    for verdict in get_args(Verdict):
        found = [partition for partition, trend in trends.items() if trend.verdict == verdict != "ok"]
        if found:
            lines.append(f"{verdict}: {some(found)}: {trends[found[0]].why}")
    return lines
