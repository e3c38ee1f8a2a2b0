"""
The trend of the lag: Burrow's verdicts, from samples taken between the commits that Burrow would read.

The facts of ``BURROW`` are the cases of its evaluator (``core/internal/evaluator/caching_test.go``): commits, later log
ends, and its status.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import pytest

from kiel_groups.model import TopicPartition
from kiel_groups.ops.views.group_view import GroupView, PartitionView
from kiel_groups.ops.views.lag_trend import (
    LEAST_SAMPLES,
    LagTrends,
    Sample,
    Trend,
    trend_lines,
    trend_of,
    worst_verdict,
)

pytestmark = pytest.mark.unit


class Commit(NamedTuple):
    """A commit: its time in milliseconds, its offset, and the lag at that time; None if Burrow does not know it."""

    at_ms: int
    offset: int
    lag: int | None


@dataclass(frozen=True)
class Case:
    """Commits, log ends at equal distances from the last commit to ``now_s``, our verdict, and Burrow's status."""

    commits: tuple[Commit, ...]
    ends: tuple[int, ...]
    now_s: int
    verdict: str
    status: str

    def samples(self) -> list[Sample]:
        """Return what samples at a quarter of the least distance between commits, and now, see."""
        times = [commit.at_ms for commit in self.commits]
        step = max(1, min(after - before for before, after in pairwise(times)) // 4)
        last, now_ms = self.commits[-1], self.now_s * 1000
        late = [last.at_ms + (number + 1) * (now_ms - last.at_ms) // len(self.ends) for number in range(len(self.ends))]
        found = []
        for at_ms in sorted({*range(times[0], last.at_ms, step), *times, *range(last.at_ms, now_ms, step), now_ms}):
            commit = self.commits[bisect_right(times, at_ms) - 1]
            if at_ms > last.at_ms:
                end = next(end for at, end in zip(late, self.ends, strict=True) if at >= at_ms)
            elif commit.lag is None:
                continue
            else:
                # Between two commits, the log goes on at the speed of the last one.
                end = commit.offset + commit.lag + (at_ms - commit.at_ms) // 100
            found.append(Sample(at_ms, commit.offset, end))
        return found


def commits(*lags: int | None, offsets: tuple[int, ...] = (1000, 2000, 3000, 4000, 5000)) -> tuple[Commit, ...]:
    """Return a commit every 100 s."""
    return tuple(
        Commit(100_000 * number, offset, lag) for number, (offset, lag) in enumerate(zip(offsets, lags, strict=True), 1)
    )


SAME = (1000,) * 5
CAUGHT_UP = (0, 50, 100, 150, 200)
BEHIND = (50, 100, 150, 200, 250)
#: A commit a second, each without lag.
EACH_SECOND = tuple(
    Commit(at_ms, 792_748_079 + number, 0)
    for number, at_ms in enumerate(
        1_512_224_000_000 + at
        for at in (
            618_356,
            619_362,
            620_366,
            621_367,
            622_370,
            623_373,
            624_378,
            625_379,
            626_383,
            627_383,
            628_383,
            629_388,
            630_391,
            631_394,
            632_397,
        )
    )
)
#: Case 11: between the commits of case 0 are others whose lag is unknown.
WITH_UNKNOWN = tuple(
    Commit(50_000 * number, 500 * number, None if number % 2 else 25 * (number - 2)) for number in range(2, 12)
)

BURROW = {
    "0: no lag at the first commit": Case(commits(*CAUGHT_UP), (5200,), 600, "ok", "OK"),
    "1: idle for as long as it committed": Case(commits(*CAUGHT_UP), (5200,), 900, "ok", "OK"),
    "2: idle for longer": Case(commits(*CAUGHT_UP), (5200,), 1000, "stuck", "STOP"),
    "3: idle for longer, always behind": Case(commits(*BEHIND), (5250,), 1000, "stuck", "STOP"),
    "4: one offset, at first without lag": Case(commits(*CAUGHT_UP, offsets=SAME), (1200,), 600, "ok", "OK"),
    "5: one offset": Case(commits(100, 150, 200, 250, 300, offsets=SAME), (1300,), 600, "stuck", "STALL"),
    "6: one offset and one lag": Case(commits(*[100] * 5, offsets=SAME), (1100,), 600, "stuck", "STALL"),
    "7: the offset goes back": Case(
        commits(100, 150, 200, 1250, 300, offsets=(1000, 2000, 3000, 2000, 4000)), (4300,), 600, "rewound", "REWIND"
    ),
    "8: no lag now": Case(commits(*BEHIND), (5000,), 1000, "ok", "OK"),
    "9: idle since new records came": Case(
        EACH_SECOND, (792_748_500, 792_748_600, 792_748_800, 792_749_000, 792_749_024), 1_512_224_650, "stuck", "STOP"
    ),
    "10: the only new record has just come": Case(
        EACH_SECOND, (792_748_093, 792_748_093, 792_748_093, 792_748_094), 1_512_224_650, "ok", "OK"
    ),
    "11: some lags are unknown": Case(WITH_UNKNOWN, (5700,), 600, "ok", "OK"),
    # Burrow's rule about a lag that does not fall is part of its cases; none has the status alone.
    "3, before it is idle": Case(commits(*BEHIND), (5250,), 600, "growing", "WARN"),
    "a lag that falls once": Case(commits(250, 300, 100, 150, 200), (5200,), 600, "falling", "OK"),
    "a lag that falls between": Case(commits(50, 100, 60, 200, 250), (5250,), 600, "ok", "OK"),
    "a lag that stays": Case(commits(*[100] * 5), (5100,), 600, "steady", "WARN"),
}


@pytest.mark.parametrize("case", BURROW.values(), ids=BURROW)
def test_each_case_of_burrow_has_its_verdict(case: Case) -> None:
    """The verdict is Burrow's; its STOP and STALL are both "stuck", and its OK may be "falling"."""
    samples = case.samples()
    assert len(samples) >= LEAST_SAMPLES
    trend = trend_of(samples)
    assert trend.verdict == case.verdict
    assert bool(trend.why) == (trend.verdict != "ok")


def test_few_samples_allow_no_verdict() -> None:
    """Nine samples, or ten with fewer than four commits, are too few, whatever they show; the reason says so."""
    samples = [Sample(number * 1000, 10, 20) for number in range(LEAST_SAMPLES)]
    assert trend_of(samples) == Trend("stuck", "no commit for 9 s, with a lag of 10")
    assert trend_of(samples[1:]) == Trend("unknown", "9 of the 10 samples of a known lag that a verdict needs")
    assert trend_of([*samples[1:], Sample(10_000, 11, 30)]) == Trend(
        "unknown", "only 1 commit in 9 s: sample for longer"
    )


def view(group: str, **offsets: tuple[int | None, int | None]) -> GroupView:
    partitions = [PartitionView(TopicPartition(topic, 0), None, *found) for topic, found in offsets.items()]
    return GroupView(group, (), tuple(partitions))


def test_trends_are_kept_for_each_group_within_bounds() -> None:
    """Old samples, and partitions and groups that the last views lack, are forgotten. An unknown lag is no sample."""
    trends = LagTrends(most=LEAST_SAMPLES)
    for number in range(20):
        trends.take([view("g", t=(5 + max(0, 10 - number), 99), u=(1, 1), v=(None, 7)), view("h", t=(1, 1))], number)
    found = trends.trends("g")
    assert {partition.topic: trend.verdict for partition, trend in found.items()} == {
        "t": "stuck",
        "u": "ok",
        "v": "unknown",
    }
    assert worst_verdict(found) == "stuck"
    assert trend_lines(found) == [
        "stuck: t:0: no commit for 0 s, with a lag of 94",
        "unknown: v:0: 0 of the 10 samples of a known lag that a verdict needs",
    ]
    trends.take([view("g", u=(1, 1))], 21)
    assert (trends.trends("h"), list(trends.trends("g"))) == ({}, [TopicPartition("u", 0)])
    assert worst_verdict({}) == "ok"
