"""
Compare the offsets that an archive has with those that its batches planned, by ranges, and say what explains each one.

Everything here is computed from values: ``archive_verification`` reads them. A range of offsets is ``(start, end)``
without ``end``. A list of ranges is in ascending order, and no two of its ranges overlap or touch. Offsets that occur
more than once are a list of *layers*: the ranges of those that occur at least once, at least twice, and so on.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from typing import Final, NamedTuple

from kiel_groups.model import TopicPartition

__all__ = [
    "COMPACTED",
    "DOUBLED",
    "ENDED",
    "GONE",
    "KINDS",
    "LOST",
    "MISSING",
    "OTHER_LOG",
    "OUT_OF_ORDER",
    "QUARANTINED",
    "UNPLANNED",
    "Range",
    "Account",
    "Difference",
    "Interval",
    "LogCoverage",
    "Rows",
    "common",
    "coverages",
    "compared_with_log",
    "layers",
    "less",
    "minus",
    "missing_in_log",
    "not_begun",
    "size",
    "without_log",
]

Range = tuple[int, int]

#: Differences that are explained: what a side table accounts for, what compaction has removed from the log, and the
#: order of rows in a file: Spark sorts a batch by the folders of its files, and that sort is not stable once it spills.
QUARANTINED: Final = "quarantined"
LOST: Final = "lost"
COMPACTED: Final = "compacted"
OUT_OF_ORDER: Final = "out of order"
#: Differences that are not: planned, and neither in the table nor explained; once more in the table than planned.
MISSING: Final = "missing"
DOUBLED: Final = "doubled"
UNPLANNED: Final = "unplanned"
#: Removed from the log before they were archived; and archived, but not from the log that there is now.
GONE: Final = "gone"
OTHER_LOG: Final = "other log"
#: The batches read no more of a log from some offset on, and no line of a side table says why.
ENDED: Final = "ended"
KINDS: Final = (QUARANTINED, LOST, COMPACTED, OUT_OF_ORDER, MISSING, DOUBLED, UNPLANNED, GONE, OTHER_LOG, ENDED)

_SORTED: Final = "Spark sorts a batch by folders, and the sort keeps no order once it needs the disk"
_UNACCOUNTED: Final = "no later batch continues there, and _losses does not say why: was a file of it deleted?"
#: A bound above all offsets.
_NO_OFFSET: Final = 1 << 63


def layers(ranges: Iterable[Range]) -> list[list[Range]]:
    """Return the layers of ranges that may overlap, in any order. Empty ranges are ignored."""
    steps: dict[int, int] = defaultdict(int)
    for start, end in ranges:
        if start < end:
            steps[start] += 1
            steps[end] -= 1
    found: list[list[Range]] = []
    opened: list[int] = []
    for offset in sorted(steps):
        for _ in range(steps[offset]):
            opened.append(offset)
        for _ in range(-steps[offset]):
            start = opened.pop()
            if len(found) <= len(opened):
                found += [[] for _ in range(len(opened) + 1 - len(found))]
            found[len(opened)].append((start, offset))
    return found


def common(one: Iterable[Range], other: Iterable[Range]) -> list[Range]:
    """Return the offsets that are in both lists."""
    both = layers([*one, *other])
    return both[1] if len(both) > 1 else []


def minus(one: Iterable[Range], other: Iterable[Range]) -> list[Range]:
    """Return the offsets of the first list that are not in the other one."""
    edges = [-1, *(edge for each in other for edge in each), _NO_OFFSET]
    return common(one, zip(edges[::2], edges[1::2], strict=True))


def less(whole: Sequence[Sequence[Range]], taken: Sequence[Range]) -> list[list[Range]]:
    """Return layers in which each offset of ``taken``, which the first layer has, occurs once less."""
    above = [*whole, ()][1:]
    reduced = [[*minus(layer, taken), *common(higher, taken)] for layer, higher in zip(whole, above, strict=True)]
    return layers(each for layer in reduced for each in layer)


def size(ranges: Iterable[Range]) -> int:
    """Return the number of offsets."""
    return sum(end - start for start, end in ranges)


class Interval(NamedTuple):
    """
    Offsets that batches planned to read without a break: from ``begin`` to ``reached``, which is not included.

    ``is_ended`` is set if a later batch does not continue at ``reached``.
    """

    begin: int
    reached: int
    incarnation: int | None = None
    is_ended: bool = False


class Account(NamedTuple):
    """
    A line of a side table: offsets that are in quarantine, or were lost, and why.

    If ``end`` is not above ``start``, it is unknown how many offsets were lost from ``start`` on.
    """

    kind: str
    start: int
    end: int
    reason: str
    incarnation: int | None = None

    @property
    def size(self) -> int:
        """The number of offsets, or 0 if it is unknown."""
        return max(0, self.end - self.start)


@dataclass(slots=True)
class Rows:
    """
    The rows of one partition and incarnation in the files.

    ``runs`` are ranges of offsets that follow each other, and may overlap. ``out_of_order`` are those that, in their
    file, come after a higher offset.
    """

    runs: list[Range]
    out_of_order: list[Range]

    @property
    def count(self) -> int:
        """The number of rows."""
        return size(self.runs)


class Difference(NamedTuple):
    """A range of offsets in which the archive is not what its batches planned, and the reason, if there is one."""

    kind: str
    start: int
    end: int
    reason: str = ""

    @property
    def is_explained(self) -> bool:
        """Whether the offsets are accounted for."""
        return self.kind in (QUARANTINED, LOST, COMPACTED, OUT_OF_ORDER)

    @property
    def offsets(self) -> int:
        """The number of offsets."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class LogCoverage:
    """
    What an archive has of one log: of a partition of one incarnation of a topic.

    ``incarnation`` is None if it is unknown. ``rows`` counts the rows, and ``first`` and ``last`` are the lowest and
    the highest offset of them, or None without rows. ``reached`` is the next offset to archive, or None if no batch
    that the checkpoint still has read this log. ``planned`` are the offsets that the archive ought to account for.
    ``log`` has the first and the next offset of the log now, or None if it was not looked up.
    """

    topic_partition: TopicPartition
    incarnation: int | None
    rows: int
    first: int | None
    last: int | None
    reached: int | None
    planned: tuple[Range, ...]
    differences: tuple[Difference, ...]
    log: Range | None = None

    @property
    def unexplained(self) -> tuple[Difference, ...]:
        """The differences that nothing explains."""
        return tuple(each for each in self.differences if not each.is_explained)

    @property
    def waiting(self) -> int | None:
        """How many offsets of the log are not archived yet, or None if the log was not looked up."""
        return None if self.log is None or self.reached is None else max(0, self.log[1] - self.reached)


def coverages(
    partition: TopicPartition,
    intervals: Sequence[Interval],
    rows: Mapping[int | None, Rows],
    accounts: Collection[Account],
    *,
    whole_history: bool,
) -> list[LogCoverage]:
    """
    Compare the rows of one partition with what its batches planned, for each incarnation of the topic.

    Rows without an incarnation, which files of earlier releases have, count where offsets are missing otherwise.

    Args:
        partition: The partition.
        intervals: The intervals of reading, oldest first. Offsets between two of them were skipped, unless the second
            begins at or before the end of the first: the topic had been created again.
        rows: The rows by incarnation.
        accounts: The lines of the side tables about this partition.
        whole_history: Whether ``intervals`` begins with the first batch. Spark forgets batches: otherwise, rows below
            the first interval belong to earlier batches.
    """
    known = {each.incarnation for each in intervals} | rows.keys() | {each.incarnation for each in accounts}
    unlabelled = layers(rows[None].runs) if None in rows else []
    found = []
    for incarnation in sorted(known - {None}, key=lambda each: each or 0):
        of_it = rows.get(incarnation, Rows([], []))
        inside = [each for each in intervals if each.incarnation == incarnation]
        told = [each for each in accounts if each.incarnation in (incarnation, None)]
        expected = _expected(inside, of_it, told, incarnation, whole_history)
        have = layers(of_it.runs)
        filled = common(minus(expected[0], have[0] if have else []), unlabelled[0]) if expected and unlabelled else []
        unlabelled = less(unlabelled, filled)
        merged = Rows([*of_it.runs, *filled], of_it.out_of_order)
        found.append(_coverage(partition, incarnation, inside, merged, expected, told))
    if None in known:
        left = Rows([each for layer in unlabelled for each in layer], rows[None].out_of_order if None in rows else [])
        inside = [each for each in intervals if each.incarnation is None]
        told = [each for each in accounts if each.incarnation is None] if left.runs or inside or not found else []
        if left.runs or inside or told or left.out_of_order:
            expected = _expected(inside, left, told, None, whole_history)
            found.append(_coverage(partition, None, inside, left, expected, told))
    return found


def _expected(
    intervals: Sequence[Interval],
    rows: Rows,
    accounts: Collection[Account],
    incarnation: int | None,
    whole_history: bool,
) -> list[list[Range]]:
    """Return the offsets that rows or accounts have to cover, in layers: one for each log with these offsets."""
    wanted: list[Range] = [(each.begin, each.reached) for each in intervals]
    # Where a log ended, nothing is known of the offsets up to the beginning of the next one.
    ended = {each.start for each in accounts if not each.size}
    skips = ((one.reached, other.begin) for one, other in pairwise(intervals))
    wanted += [(start, end) for start, end in skips if start < end and start not in ended]
    lowest = min((start for start, _ in rows.runs), default=None)
    if lowest is not None and not intervals:
        wanted.append((lowest, max(end for _, end in rows.runs)))
    elif lowest is not None and not whole_history:
        wanted.append((lowest, min(each.begin for each in intervals)))
    expected = layers(wanted)
    told = [(each.start, each.end) for each in accounts if each.incarnation == incarnation]
    return layers(
        [*(each for layer in expected for each in layer), *minus(_union(told), expected[0] if expected else ())]
    )


def _union(ranges: Iterable[Range]) -> list[Range]:
    found = layers(ranges)
    return found[0] if found else []


def _coverage(
    partition: TopicPartition,
    incarnation: int | None,
    intervals: Sequence[Interval],
    rows: Rows,
    expected: list[list[Range]],
    accounts: Collection[Account],
) -> LogCoverage:
    have = layers(rows.runs)
    depth = max(len(have), len(expected))
    padded = [[*each, *([[]] * (depth - len(each)))] for each in (expected, have)]
    differences: list[Difference] = []
    for level, (wanted, there) in enumerate(zip(*padded, strict=True)):
        differences += _explained(minus(wanted, there), accounts)
        kind = DOUBLED if level else UNPLANNED
        differences += [Difference(kind, *each) for each in minus(there, wanted)]
    differences += [Difference(OUT_OF_ORDER, *each, _SORTED) for each in _union(rows.out_of_order)]
    differences += _unaccounted_ends(intervals, accounts)
    # A loss without an end: how much of a deleted log came after that offset, nothing tells any more.
    differences += [Difference(each.kind, each.start, each.start, each.reason) for each in accounts if not each.size]
    return LogCoverage(
        topic_partition=partition,
        incarnation=incarnation,
        rows=rows.count,
        first=min((start for start, _ in rows.runs), default=None),
        last=max((end for _, end in rows.runs), default=0) - 1 if rows.runs else None,
        reached=intervals[-1].reached if intervals else None,
        planned=tuple(each for layer in expected for each in layer),
        differences=tuple(sorted(differences, key=lambda each: (each.start, each.end, each.kind))),
    )


def _unaccounted_ends(intervals: Sequence[Interval], accounts: Collection[Account]) -> Iterator[Difference]:
    """Yield where reading has ended without an account. The offsets up to a later interval of the log are planned."""
    accounted = {each.start for each in accounts if each.kind == LOST}
    for one, other in zip_longest(intervals, intervals[1:]):
        is_skip = other is not None and one.reached < other.begin
        if one.is_ended and not is_skip and one.reached not in accounted:
            yield Difference(ENDED, one.reached, one.reached, _UNACCOUNTED)


def _explained(missing: list[Range], accounts: Iterable[Account]) -> list[Difference]:
    """Divide missing offsets by what explains them."""
    found: list[Difference] = []
    told = deque(sorted((each for each in accounts if each.size), key=lambda each: each.start))
    for start, end in missing:
        while start < end:
            # Accounts may overlap: what comes before ``start`` is missing no more, or was never.
            while told and told[0].end <= start:
                told.popleft()
            if not told or told[0].start >= end:
                found.append(Difference(MISSING, start, end))
                break
            if start < told[0].start:
                found.append(Difference(MISSING, start, told[0].start))
                start = told[0].start
            upto = min(end, told[0].end)
            found.append(Difference(told[0].kind, start, upto, told[0].reason))
            start = upto
    return found


def _missing(coverage: LogCoverage) -> list[list[Range]]:
    return layers((each.start, each.end) for each in coverage.differences if each.kind == MISSING)


def missing_in_log(coverage: LogCoverage, log: Range) -> list[Range]:
    """Return the missing offsets that lie within the log: only the log itself tells whether it has them."""
    return common(missing[0], [log]) if (missing := _missing(coverage)) else []


def compared_with_log(
    coverage: LogCoverage, log: Range, present: Sequence[Range], *, continues: bool = True
) -> LogCoverage:
    """
    Complete a comparison by what the log has now.

    Args:
        coverage: The comparison of the files.
        log: The first and the next offset of the log.
        present: The missing offsets that the log has.
        continues: Whether the archive still reads this topic, and so has to continue within the log.
    """
    differences = [each for each in coverage.differences if each.kind != MISSING]
    first, following = log
    for missing in _missing(coverage):
        there = common(missing, present)
        for kind, reason, ranges in (
            (MISSING, "the log of today begins later", common(missing, [(0, first)])),
            (MISSING, "in the log of today", there),
            (COMPACTED, "the log continues without them", minus(common(missing, [log]), there)),
            (MISSING, "the log of today ends before", common(missing, [(following, _NO_OFFSET)])),
        ):
            differences += [Difference(kind, *each, reason) for each in ranges]
    reached = coverage.reached if continues else None
    if reached is not None and following < reached:
        differences.append(Difference(OTHER_LOG, following, reached, "archived, and the log of today ends before"))
    elif reached is not None and reached < first:
        differences.append(Difference(GONE, reached, first, "the log begins later, and no run has accounted for it"))
    ordered = sorted(differences, key=lambda each: (each.start, each.end, each.kind))
    return replace(coverage, differences=tuple(ordered), log=log if continues else None)


def without_log(coverage: LogCoverage, kind: str, reason: str) -> LogCoverage:
    """Add to a comparison that the log that was read is not there any more, for which no run has accounted."""
    reached = coverage.reached or 0
    return replace(coverage, differences=(*coverage.differences, Difference(kind, reached, reached, reason)))


def not_begun(partition: TopicPartition, log: Range) -> LogCoverage:
    """Return the comparison for a partition that no batch has read yet."""
    return LogCoverage(partition, None, 0, None, None, log[0], (), (), log)
