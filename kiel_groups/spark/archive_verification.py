"""
Verify an archive: compare its topics, its checkpoint, its files and its side tables by offsets, without Spark.

The verification reads only the columns with partitions and offsets, one file after the other. It writes nothing. The
side tables of an archive list the offsets that its files lack: ``_quarantine`` those of bad records, and ``_losses``
those of lost messages.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from kiel_groups.errors import KielGroupsError
from kiel_groups.model import TopicPartition
from kiel_groups.spark.archive_coverage import (
    GONE,
    KINDS,
    LOST,
    OTHER_LOG,
    QUARANTINED,
    Account,
    Interval,
    LogCoverage,
    Range,
    Rows,
    compared_with_log,
    coverages,
    layers,
    missing_in_log,
    size,
    without_log,
)
from kiel_groups.spark.archive_folders import ArchiveFolders
from kiel_groups.spark.checkpoint import OffsetRange, Positions
from kiel_groups.spark.columns import READ_SCHEMA
from kiel_groups.spark.folders import FolderError
from kiel_groups.spark.log_view import LogIdentity, LogView
from kiel_groups.spark.options import ReadOptions
from kiel_groups.spark.read_task import task_rows
from kiel_groups.spark.side_tables import LOSSES, QUARANTINE, read_rows
from kiel_groups.spark.task_planner import ReadTask

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
    Compare the results with the present logs. Return the completed results, and one for each partition not read yet.

    A partition that was created again has several results, one for each of its logs. Only the result of the log that
    was read last is compared; the others are returned as they are.

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
