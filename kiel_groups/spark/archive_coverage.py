"""
Compare the rows of an archive with the offsets that its batches planned, by ranges of offsets.

A range of offsets is ``(start, end)`` without ``end``. A list of ranges is in ascending order, and no two of its ranges
overlap or touch. Ranges that overlap are divided into *layers*. Each layer is a list of ranges. Layer ``n``, from 0,
has the offsets that occur more than ``n`` times.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from typing import Final, NamedTuple

from kiel_groups.model import TopicPartition

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
    """Divide ranges into layers. The ranges may overlap and be in any order. Empty ranges are ignored."""
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
    """Return the ranges of the offsets that are in ``one`` and also in ``other``."""
    both = layers([*one, *other])
    return both[1] if len(both) > 1 else []


def minus(one: Iterable[Range], other: Iterable[Range]) -> list[Range]:
    """Return the ranges of the offsets that are in ``one`` and not in ``other``."""
    edges = [-1, *(edge for each in other for edge in each), _NO_OFFSET]
    return common(one, zip(edges[::2], edges[1::2], strict=True))


def less(whole: Sequence[Sequence[Range]], taken: Sequence[Range]) -> list[list[Range]]:
    """
    Remove one occurrence of each offset in ``taken``, and return the layers that remain.

    Layer 0 must contain all offsets of ``taken``.
    """
    above = [*whole, ()][1:]
    reduced = [[*minus(layer, taken), *common(higher, taken)] for layer, higher in zip(whole, above, strict=True)]
    return layers(each for layer in reduced for each in layer)


def size(ranges: Iterable[Range]) -> int:
    """Return the number of offsets in ranges. An offset counts once for each range that contains it."""
    return sum(end - start for start, end in ranges)


class Interval(NamedTuple):
    """
    Offsets that consecutive batches planned to read: from ``begin`` (inclusive) to ``reached`` (exclusive).

    ``is_ended`` is set if a later batch does not continue at ``reached``.
    """

    begin: int
    reached: int
    incarnation: int | None = None
    is_ended: bool = False


class Account(NamedTuple):
    """
    A row of a side table: a range of quarantined or lost offsets, with the reason.

    If ``end`` is not above ``start``, offsets from ``start`` on were lost, and their number is unknown.
    """

    kind: str
    start: int
    end: int
    reason: str
    incarnation: int | None = None

    @property
    def size(self) -> int:
        """The number of offsets in the range, or 0 if unknown."""
        return max(0, self.end - self.start)


@dataclass(slots=True)
class Rows:
    """
    The rows that the archive's files have of one partition and incarnation.

    ``runs`` are ranges of consecutive offsets. Two of these ranges may overlap. ``out_of_order`` has the ranges of the
    offsets that come after a higher offset in their file.
    """

    runs: list[Range]
    out_of_order: list[Range]

    @property
    def count(self) -> int:
        """The number of rows. A row that occurs twice counts twice."""
        return size(self.runs)


class Difference(NamedTuple):
    """A range of offsets in which the archive differs from what its batches planned, with the reason if it is known."""

    kind: str
    start: int
    end: int
    reason: str = ""

    @property
    def is_explained(self) -> bool:
        """Whether a side table, compaction or Spark's sort explains the difference."""
        return self.kind in (QUARANTINED, LOST, COMPACTED, OUT_OF_ORDER)

    @property
    def offsets(self) -> int:
        """The number of offsets in the range."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class LogCoverage:
    """
    The result for one log: the log of one partition in one incarnation of its topic.

    ``incarnation`` is the creation zxid of the topic, or None if it is unknown. ``rows`` is the number of rows.
    ``first`` and ``last`` are the lowest and the highest offset of the rows, or None without rows. ``reached`` is the
    next offset to archive. It is None if no batch in the checkpoint has read this log. ``planned`` has the ranges that
    the archive must contain or explain. ``log`` has the first and the next offset of the present log, or is None if
    the log was not looked up.
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
        """The differences without an explanation."""
        return tuple(each for each in self.differences if not each.is_explained)

    @property
    def waiting(self) -> int | None:
        """The number of offsets of the log that are not archived yet, or None if ``log`` or ``reached`` is None."""
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
    Compare the rows of one partition with the offsets that its batches planned, for each incarnation of the topic.

    Files of earlier releases have rows without an incarnation. Such a row counts for an incarnation that lacks its
    offset.

    Args:
        partition: The partition.
        intervals: The intervals of reading, oldest first. Offsets between two intervals were skipped. If the second
            interval begins at or before the end of the first, the topic had been created again.
        rows: The rows by incarnation.
        accounts: The rows of the side tables about this partition.
        whole_history: Whether ``intervals`` begins with the first batch. If not, Spark has deleted earlier batches from
            the checkpoint, and rows below the first interval belong to these batches.
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
    """
    Return the layers of the offsets that rows or accounts must cover.

    An offset is in several layers if several logs had this offset.
    """
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
    """
    Yield a difference for each offset at which batches stopped reading a log, unless a row of ``_losses`` explains it.

    An end before a skipped range gives no difference, because the skipped offsets count as planned.
    """
    accounted = {each.start for each in accounts if each.kind == LOST}
    for one, other in zip_longest(intervals, intervals[1:]):
        is_skip = other is not None and one.reached < other.begin
        if one.is_ended and not is_skip and one.reached not in accounted:
            yield Difference(ENDED, one.reached, one.reached, _UNACCOUNTED)


def _explained(missing: list[Range], accounts: Iterable[Account]) -> list[Difference]:
    """Divide missing offsets into differences, each explained by a row of a side table, or of the kind ``MISSING``."""
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
    """Return the missing offsets that lie within the bounds ``log`` of the present log, which may still have them."""
    return common(missing[0], [log]) if (missing := _missing(coverage)) else []


def compared_with_log(
    coverage: LogCoverage, log: Range, present: Sequence[Range], *, continues: bool = True
) -> LogCoverage:
    """
    Return the comparison of the files, completed by a comparison with the present log.

    Args:
        coverage: The comparison of the files.
        log: The first and the next offset of the log.
        present: The missing offsets that the log has.
        continues: Whether the archive still reads this topic. If so, its next offset must be within the log.
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
    """Return the comparison with one more difference, for a log that no longer exists."""
    reached = coverage.reached or 0
    return replace(coverage, differences=(*coverage.differences, Difference(kind, reached, reached, reason)))
