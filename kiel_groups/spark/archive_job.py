"""
Archive topics as Parquet files, every record exactly once.

Files are in ``topic=…/date=…`` folders; the date is the day (UTC) on which the batch began. Spark's checkpoint records
the offsets of each batch before the batch is read, and the lists of Spark's file sink record its files. So an
interrupted batch is repeated with the same records and the same date, and its files are listed once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Event
from time import monotonic

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import current_timestamp, current_timezone, to_date, to_utc_timestamp
from pyspark.sql.streaming.query import StreamingQuery

from kiel_groups.model import TopicPartition
from kiel_groups.spark.archive_folders import ArchiveFolders, ArchiveSettings
from kiel_groups.spark.batches import BatchBounds
from kiel_groups.spark.checkpoint import OffsetRange, Positions, Span
from kiel_groups.spark.drivers import group_name
from kiel_groups.spark.log_view import LogView
from kiel_groups.spark.offsets import GroupOffsets, handle_data_loss, refuse_live_group, resolve
from kiel_groups.spark.options import ReadOptions
from kiel_groups.spark.spark_session import Batch, LateWorkerError, run_query, shortened_spark_errors
from kiel_groups.wording import counted

__all__ = ["ArchivePlan", "ArchiveSummary", "archive", "plan_archive"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ArchivePlan:
    """
    The ranges that the next run of an archive would read if it started now.

    ``ranges`` has every partition, in ascending order, even if there is nothing to read. ``brokers`` are ``host:port``.
    """

    ranges: tuple[OffsetRange, ...]
    output: str
    checkpoint: str
    is_new: bool
    brokers: tuple[str, ...]

    @property
    def records(self) -> int:
        """The most records that the run would read; a compacted log has fewer records than offsets."""
        return sum(each.size for each in self.ranges)


def plan_archive(settings: ArchiveSettings, spark: SparkSession | None = None) -> ArchivePlan:
    """
    Look up the ranges that the next run of an archive would read, and check its folders, topics, brokers and group.

    Args:
        settings: The archive.
        spark: A session; needed unless the folders are on this machine (``settings.is_local``).

    Raises:
        ConfigError: A topic does not exist, a folder or the cluster is another archive's, or the group has live
            members.
        OffsetOutOfRangeError: The next messages to read are lost, and ``fail_on_data_loss`` is set.
        BrokerError: The brokers could not be reached.
    """
    options = settings.read_options()
    home = ArchiveFolders(settings, spark)
    refuse_live_group(options)
    reached = home.positions()
    with LogView(options, patient=False) as view:
        partitions = view.partitions(all_must_exist=reached is None)
        brokers = {str(each) for each in (*view.cluster.brokers.values(), *options.brokers)}
        home.check_brokers(brokers)
        starts = _starts(options, reached, partitions, view)
        ranges = _planned_ranges(options, starts, view)
        if not set(settings.topics) <= {each.topic for each in starts}:
            # A topic that was added to the settings does not exist: this raises. Lost topics were handled above.
            view.partitions()
    return ArchivePlan(
        ranges=ranges,
        output=settings.output_uri,
        checkpoint=settings.checkpoint_uri,
        is_new=home.is_new,
        brokers=tuple(sorted(brokers)),
    )


def _starts(
    options: ReadOptions, reached: Positions | None, partitions: tuple[TopicPartition, ...], view: LogView
) -> dict[TopicPartition, int]:
    """
    Return the start offsets that the source would choose.

    A new archive starts as the options say. A later run continues at its checkpoint, and reads newer partitions from
    their first offsets.
    """
    if reached is not None:
        known = reached.offsets()
        return view.earliest([each for each in partitions if each not in known]) | known
    return resolve("startingOffsets", options.starting, partitions, view, options.group)


def _planned_ranges(
    options: ReadOptions, starts: Mapping[TopicPartition, int], view: LogView
) -> tuple[OffsetRange, ...]:
    """Return the ranges from ``starts`` to the ends of the logs. Handle data loss as the source does."""
    bounds = BatchBounds(view, options)
    spans = {partition: Span(start, start) for partition, start in starts.items()}
    ends = bounds.ends(spans)
    spans = bounds.without_losses(spans, ends)
    earliest = view.earliest(ends)
    for partition, span in spans.items():
        if span.to < earliest[partition]:
            handle_data_loss(
                f"{partition}: offset {span.to} is to be read next, and the log begins at {earliest[partition]}",
                fail_on_data_loss=options.fail_on_data_loss,
            )
    return tuple(
        OffsetRange(each, max(spans[each].to if each in spans else 0, earliest[each]), ends[each])
        for each in sorted(ends)
    )


_MAX_STARTS = 4


@dataclass(frozen=True, slots=True)
class ArchiveSummary:
    """
    The results of one run of an archive.

    Args:
        ranges: The range of offsets that the run added for each partition, in ascending order; it may be empty.
        records: The number of records that the run added; a compacted log has fewer records than offsets.
        files: The number of files that the run added.
        size_bytes: The total size of these files.
        took_s: The time from the start of the query to its end, in seconds.
        group: The group whose offsets were committed. None means that there was no batch yet, that the group's name is
            unknown, or that the offsets could not be committed.
        output: The URI of the archive.
    """

    ranges: tuple[OffsetRange, ...]
    records: int
    files: int
    size_bytes: int
    took_s: float
    group: str | None
    output: str


def archive(
    spark: SparkSession,
    settings: ArchiveSettings,
    *,
    on_batch: Callable[[Batch], None] = lambda batch: None,
    stopping: Event | None = None,
) -> ArchiveSummary:
    """
    Add the records since the last run to an archive. With ``interval_s``, continue until ``stopping`` is set.

    Args:
        spark: The session to use; it is not stopped.
        settings: The topics to read, and the folders of the archive.
        on_batch: Called after each batch that had records.
        stopping: Set it, from a signal handler or another thread, to stop after the running batch.

    Returns:
        A summary of the added records. Their offsets are committed for the summary's ``group``, unless it is None.

    Raises:
        ConfigError: A setting, a topic or a folder is not valid; the message names the remedy.
        OffsetOutOfRangeError: Records were lost before they were archived, and ``fail_on_data_loss`` is set.
        BrokerError: The brokers could not be reached.
        KielGroupsError: Spark failed; completed batches remain, and the next run continues after them.
    """
    brokers = plan_archive(settings, spark).brokers
    home = ArchiveFolders(settings, spark)
    batches: list[Batch] = []

    def record_batch(batch: Batch) -> None:
        batches.append(batch)
        on_batch(batch)

    with shortened_spark_errors(), home.locked(spark):
        # Read the folders again: another run may have changed them before the lock was taken.
        home = ArchiveFolders(settings, spark)
        home.claim(brokers)
        home.sweep()
        before, files = home.positions(), home.files()
        began_s = monotonic()
        _run(lambda: _start_query(spark, settings), record_batch, stopping or Event())
        took_s = monotonic() - began_s
        home.sweep()
        after, added = home.positions(), home.files()
    return ArchiveSummary(
        ranges=_ranges(before, after),
        records=sum(batch.records for batch in batches),
        files=len(added.keys() - files.keys()),
        size_bytes=sum(added[path] for path in added.keys() - files.keys()),
        took_s=took_s,
        group=None if after is None else _commit(settings, after),
        output=settings.output_uri,
    )


def _start_query(spark: SparkSession, settings: ArchiveSettings) -> StreamingQuery:
    rows = spark.readStream.format("kiel").options(**settings.source_options()).load()
    writer = (
        _columns(rows)
        .writeStream.format("parquet")
        .partitionBy("topic", "date")
        .option("checkpointLocation", settings.checkpoint_uri)
    )
    if settings.interval_s is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{settings.interval_s * 1000:.0f} milliseconds")
    return writer.start(settings.output_uri)


def _columns(rows: DataFrame) -> DataFrame:
    """Select the archive's columns. A repeated batch keeps its date, because Spark stores the time of the planning."""
    now = current_timestamp()
    date = to_date(to_utc_timestamp(now, current_timezone()))
    return rows.select("topic", date.alias("date"), "partition", "offset", now.alias("archived_at"), "key", "value")


def _run(start: Callable[[], StreamingQuery], on_batch: Callable[[Batch], None], stopping: Event) -> None:
    """Run a query to its end. Start it up to ``_MAX_STARTS`` times if Spark gives up on a slowly starting process."""
    for remaining in reversed(range(_MAX_STARTS)):
        query = start()
        try:
            run_query(query, on_batch, stopping)
            return
        except LateWorkerError as error:
            if not remaining or stopping.is_set():
                raise
            log.warning("%s: starting the query again, at most %s", error, counted(remaining, "more time"))
        finally:
            query.stop()


def _ranges(before: Positions | None, after: Positions | None) -> tuple[OffsetRange, ...]:
    starts: Mapping[TopicPartition, Span] = {} if before is None else before.spans
    spans = {} if after is None else after.spans
    return tuple(
        OffsetRange(partition, _start(starts.get(partition), span), span.to)
        for partition, span in sorted(spans.items())
    )


def _start(before: Span | None, after: Span) -> int:
    """Return where the added offsets begin: at the previous end, or at the start of a new interval of reading."""
    if before is None or after.token not in (None, before.token):
        return after.begin
    return min(before.to, after.to)


def _commit(settings: ArchiveSettings, reached: Positions) -> str | None:
    """
    Commit the end of the last batch, and return the name of the group.

    Return None if the commit failed, commits are off, or the group's name is unknown. The query itself commits each
    batch only when it plans the next batch.
    """
    options = settings.read_options()
    group = group_name(options, reached)
    with LogView(options) as view:
        return group if GroupOffsets(view, options).commit(group, reached.offsets()) else None
