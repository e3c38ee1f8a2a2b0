"""
Verify an archive: compare its topics, its checkpoint, its files and its side tables by offsets, without Spark.

The verification reads only the columns with partitions and offsets, one file after the other. It writes nothing. The
side tables of an archive list the offsets that its files lack: ``_quarantine`` those of bad records, and ``_losses``
those of lost messages.

The first part of this module reads no files. A range of offsets is ``(start, end)`` without ``end``. A list of ranges
is in ascending order, and no two of its ranges overlap or touch. Ranges that overlap are divided into *layers*. Each
layer is a list of ranges. Layer ``n``, from 0, has the offsets that occur more than ``n`` times.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, zip_longest
from typing import Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from kiel_groups.errors import KielGroupsError
from kiel_groups.model import TopicPartition
from kiel_groups.spark.archive_folders import ArchiveFolders
from kiel_groups.spark.checkpoint import OffsetRange, Positions
from kiel_groups.spark.columns import READ_SCHEMA
from kiel_groups.spark.folders import FolderError
from kiel_groups.spark.log_view import LogIdentity, LogView
from kiel_groups.spark.options import ReadOptions
from kiel_groups.spark.read_task import task_rows
from kiel_groups.spark.side_tables import LOSSES, QUARANTINE, read_rows
from kiel_groups.spark.task_planner import ReadTask

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


# ---------------------------------------------------------------------- the archive

#: The topic in the path of a file of the archive.
_TOPIC = re.compile(r".*/topic=([^/]+)/")
#: How many rows of a file are in memory at once.
_ROWS = 1 << 20
#: The runs of a partition that are kept before those that touch are merged.
_MOST_RUNS = 100_000
#: Missing ranges that are closer than this are read from the log at once, with what is between them.
_NEAR = 10_000


@dataclass(frozen=True, slots=True)
class Verification:
    """
    The result of comparing an archive's records with those that its batches planned.

    Args:
        output: The URI of the archive.
        checkpoint: The URI of its checkpoint.
        batch: The number of the last batch whose files the archive lists, or None if it lists no batch.
        logs: The result for each partition and incarnation, in ascending order.
        files: The number of files.
        unreadable: The listed files that cannot be read, with the reasons. The records of these files count as missing.
        compared_with_log: Whether the logs of the brokers were compared, too.
    """

    output: str
    checkpoint: str
    batch: int | None
    logs: tuple[LogCoverage, ...]
    files: int
    unreadable: Mapping[str, str] = field(default_factory=dict)
    compared_with_log: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether all files could be read, and all differences are explained."""
        return not self.unreadable and not any(each.unexplained for each in self.logs)

    def totals(self) -> dict[str, int]:
        """
        Return the numbers of ``rows``, of ``planned`` offsets, and of offsets in each kind of difference.

        ``rows`` is ``planned``, less the quarantined, lost, compacted and missing offsets, plus the doubled and
        unplanned offsets.
        """
        found = dict.fromkeys(("rows", "planned", *KINDS), 0)
        for log in self.logs:
            found["rows"] += log.rows
            found["planned"] += size(log.planned)
            for difference in log.differences:
                found[difference.kind] += difference.offsets
        return found


def verify_archive(
    output: str, *, checkpoint: str | None = None, brokers: str | None = None, zookeeper: str | None = None
) -> Verification:
    """
    Compare an archive with its checkpoint, its side tables and, with ``brokers``, the logs of its topics.

    A run may add to the archive meanwhile. Only batches whose files are listed count.

    Args:
        output: The folder of the archive: a path of this machine, or a URI of a file system that pyarrow supports.
        checkpoint: The folder of the archive's progress. The default is ``_checkpoint`` in the output.
        brokers: Some brokers of the cluster, separated by commas. Without them, offsets that compaction has removed
            look like offsets that are missing.
        zookeeper: The cluster's ZooKeeper servers. They show whether a topic was created again. Without ``brokers``,
            this argument has no effect.

    Raises:
        ConfigError: There is no archive, its checkpoint is damaged, or the brokers are those of another cluster.
        FolderError: A folder cannot be read.
        BrokerError: The brokers could not be reached.
        CoordinationError: ZooKeeper did not answer.
    """
    home = ArchiveFolders.existing(output, checkpoint)
    batch = home.listed_batch()
    table = _Table()
    files = home.files()
    for path in sorted(files):
        table.add(home, path)
    history = {} if batch is None else home.history(batch)
    intervals = _intervals(history)
    accounts = _accounts(home.settings.output_uri, intervals)
    found = [
        each
        for partition in sorted({*table.rows, *intervals, *accounts})
        for each in coverages(
            partition,
            intervals.get(partition, []),
            table.rows.get(partition, {}),
            accounts.get(partition, []),
            whole_history=0 in history,
        )
    ]
    if brokers is not None:
        found = _compared(home, found, intervals, brokers, zookeeper)
    return Verification(
        output=home.settings.output_uri,
        checkpoint=home.settings.checkpoint_uri,
        batch=batch,
        logs=tuple(found),
        files=len(files),
        unreadable=table.unreadable,
        compared_with_log=brokers is not None,
    )


def _intervals(history: Mapping[int, Positions]) -> dict[TopicPartition, list[Interval]]:
    """Return the intervals of reading of each partition, oldest first."""
    found: dict[TopicPartition, list[Interval]] = {}
    tokens: dict[TopicPartition, int | None] = {}
    for number in sorted(history):
        for partition in found.keys() - history[number].spans.keys():
            found[partition][-1] = found[partition][-1]._replace(is_ended=True)
        for partition, span in history[number].spans.items():
            known = found.setdefault(partition, [])
            continues = bool(known) and span.token == tokens[partition] and span.to >= known[-1].reached
            tokens[partition] = span.token
            if continues:
                incarnation = span.incarnation if span.incarnation is not None else known[-1].incarnation
                known[-1] = Interval(known[-1].begin, span.to, incarnation)
            else:
                if known:
                    known[-1] = known[-1]._replace(is_ended=True)
                # Before Spark 4.2, only the first batch has its beginning. A new log is read from offset 0.
                begin = 0 if span.token is None and known else span.begin
                known.append(Interval(begin, span.to, span.incarnation))
    return found


def _accounts(
    output_uri: str, intervals: Mapping[TopicPartition, Sequence[Interval]]
) -> dict[TopicPartition, list[Account]]:
    """Return the rows of the side tables by partition, without bad records of batches that are not done."""
    found: dict[TopicPartition, list[Account]] = defaultdict(list)
    for row in read_rows(output_uri, QUARANTINE):
        of_it = [each for each in intervals.get(row.topic_partition, ()) if each.incarnation == row.incarnation]
        end = min(row.end_offset, max((each.reached for each in of_it), default=row.end_offset))
        if row.offset < end:
            account = Account(QUARANTINED, row.offset, end, row.reason, row.incarnation)
            found[row.topic_partition].append(account)
    for row in read_rows(output_uri, LOSSES):
        account = Account(LOST, row.offset, row.end_offset, row.reason, row.incarnation)
        found[row.topic_partition].append(account)
    return found


class _Table:
    """The rows of the archive's files, by partition and incarnation."""

    def __init__(self) -> None:
        self.rows: dict[TopicPartition, dict[int | None, Rows]] = defaultdict(dict)
        self.unreadable: dict[str, str] = {}

    def add(self, home: ArchiveFolders, path: str) -> None:
        """Add the offsets of a file to ``rows``. If the file cannot be read, add it to ``unreadable``."""
        topic = _TOPIC.match(path)
        try:
            if topic is None:
                raise FolderError("its path names no topic")
            with home.opened(path) as source, pq.ParquetFile(source) as file:
                self._add(unquote(topic[1]), file)
        except FileNotFoundError:
            self.unreadable[path] = "it is listed, and not there"
        except (OSError, pa.ArrowException, KielGroupsError) as error:
            self.unreadable[path] = str(error).partition("\n")[0]

    def _add(self, topic: str, file: pq.ParquetFile) -> None:
        columns = [each for each in ("partition", "offset", "incarnation") if each in file.schema_arrow.names]
        #: The highest offset of the file so far.
        highest: dict[tuple[TopicPartition, int | None], int] = {}
        for batch in file.iter_batches(_ROWS, columns=columns):
            for number, incarnation, offsets in _divided(batch):
                partition = TopicPartition(topic, number)
                rows = self.rows[partition].setdefault(incarnation, Rows([], []))
                reached = pc.cumulative_max(offsets, start=highest.get((partition, incarnation), -1))
                behind = offsets.filter(pc.less(offsets, reached))
                highest[partition, incarnation] = reached[-1].as_py()
                rows.runs = _collected([*rows.runs, *_runs(offsets)])
                rows.out_of_order = _collected([*rows.out_of_order, *_runs(behind)])


def _divided(batch: pa.RecordBatch) -> Iterator[tuple[int, int | None, pa.Array]]:
    """Yield each partition and incarnation of the rows in ``batch``, with its offsets in the order of the rows."""
    table = pa.Table.from_batches([batch])
    if "incarnation" not in table.column_names:
        table = table.append_column("incarnation", pa.nulls(len(table), pa.int64()))
    for key in table.group_by(["partition", "incarnation"]).aggregate([]).to_pylist():
        incarnation = key["incarnation"]
        same = pc.is_null(table["incarnation"]) if incarnation is None else pc.equal(table["incarnation"], incarnation)
        rows = table.filter(pc.and_(same, pc.equal(table["partition"], key["partition"])))
        yield key["partition"], incarnation, rows["offset"].combine_chunks()


def _runs(offsets: pa.Array) -> list[Range]:
    """Return the ranges of consecutive offsets. An offset that occurs twice is in two ranges."""
    if not len(offsets):
        return []
    ascending = offsets.take(pc.array_sort_indices(offsets))
    steps = pc.subtract(ascending.slice(1), ascending.slice(0, len(ascending) - 1))
    breaks = pc.indices_nonzero(pc.not_equal(steps, 1)).to_pylist()
    first = ascending.take(pa.array([0, *(each + 1 for each in breaks)])).to_pylist()
    last = ascending.take(pa.array([*breaks, len(ascending) - 1])).to_pylist()
    return [(start, end + 1) for start, end in zip(first, last, strict=True)]


def _collected(runs: list[Range]) -> list[Range]:
    """Return the runs. If there are many, merge adjacent runs to save memory."""
    return runs if len(runs) < _MOST_RUNS else [each for layer in layers(runs) for each in layer]


# ---------------------------------------------------------------------- the logs


def _compared(
    home: ArchiveFolders,
    found: list[LogCoverage],
    intervals: Mapping[TopicPartition, list[Interval]],
    brokers: str,
    zookeeper: str | None,
) -> list[LogCoverage]:
    """
    Return the results, completed by a comparison with the present logs, and a result for each partition not read yet.

    For each partition, only the result of the log that was read last is compared.

    Raises:
        ConfigError: The brokers belong to another cluster.
        BrokerError: The brokers could not be reached.
        CoordinationError: ZooKeeper did not answer.
    """
    topics = sorted({*home.settings.topics, *(each.topic_partition.topic for each in found)})
    if not topics:
        return found
    given = {"kafka.bootstrap.servers": brokers, "failOnDataLoss": "false", "kiel.onBadRecord": "row"}
    if zookeeper is not None:
        given["kiel.zookeeper.connect"] = zookeeper
    # Not by names: brokers of 0.8 may create every topic that they are asked for, such as one that was deleted.
    given["subscribePattern"] = f"^(?:{'|'.join(map(re.escape, topics))})$"
    options = ReadOptions.parse(given, streaming=False)
    compared = []
    with LogView(options, patient=False) as view:
        read_on = {partition for partition, each in intervals.items() if not each[-1].is_ended}
        there = view.partitions(all_must_exist=False)
        if not read_on <= set(there):
            # A broker that has just started knows no topics yet. This asks another one.
            there = tuple(sorted({*there, *view.partitions(all_must_exist=False)}))
        home.check_brokers({str(each) for each in (*view.cluster.brokers.values(), *options.brokers)})
        identity = LogIdentity(view, options)
        created = identity.incarnations(topics)
        earliest, latest = view.earliest(there), view.latest(there)
        for each in found:
            partition = each.topic_partition
            read = intervals.get(partition, [])
            continues = home.settings.reads(partition.topic)
            is_last = each.incarnation == (read[-1].incarnation if read else None)
            if is_last and continues and partition in read_on - earliest.keys():
                each = without_log(each, GONE, identity.missing(partition))
            elif is_last and partition in earliest:
                if each.incarnation is None or created.get(partition.topic, each.incarnation) == each.incarnation:
                    log = (earliest[partition], latest[partition])
                    present = _present(view, options, partition, missing_in_log(each, log))
                    each = compared_with_log(each, log, present, continues=continues)
                elif continues:
                    each = without_log(each, OTHER_LOG, "the topic was created again since")
            compared.append(each)
    for partition in sorted(set(there) - {each.topic_partition for each in found}):
        # No batch has read it yet.
        log = (earliest[partition], latest[partition])
        compared.append(LogCoverage(partition, None, 0, None, None, log[0], (), (), log))
    return sorted(compared, key=lambda each: each.topic_partition)


def _present(view: LogView, options: ReadOptions, partition: TopicPartition, missing: list[Range]) -> list[Range]:
    """Read the missing ranges from the log of a partition, and return the offsets in them that have messages."""
    if not missing:
        return []
    wanted = [missing[0]]
    for start, end in missing[1:]:
        if start - wanted[-1][1] < _NEAR:
            wanted[-1] = (wanted[-1][0], end)
        else:
            wanted.append((start, end))
    task = ReadTask(view.leaders([partition]), tuple(OffsetRange(partition, *each) for each in wanted))
    schema = StructType([READ_SCHEMA["offset"]])
    found = [run for batch in task_rows(InputPartition(task), options, schema) for run in _runs(batch.column("offset"))]
    return layers(found)[0] if found else []
