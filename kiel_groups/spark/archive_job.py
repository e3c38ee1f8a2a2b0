"""
Archive topics as Parquet files, every record exactly once.

Files are in ``topic=…/date=…`` folders. The date is the day (UTC) on which the batch began, or the day of the event.
Spark's checkpoint records the offsets of each batch before the batch is read. Spark's file sink lists the files of each
completed batch. So an interrupted batch is repeated with the same records and the same dates, and its files are listed
once.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Event
from time import monotonic
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import LongType, StringType, StructField, StructType

from kiel_groups.errors import ConfigError, KielGroupsError
from kiel_groups.model import TopicPartition
from kiel_groups.spark.archive_folders import ArchiveFolders
from kiel_groups.spark.archive_table import ROLLS, ArchiveSettings, check_pattern, table_rows
from kiel_groups.spark.batches import BatchBounds
from kiel_groups.spark.checkpoint import Loss, OffsetRange, Positions, Span
from kiel_groups.spark.columns import FIELDS, INCARNATION, READ_SCHEMA, merged_schema
from kiel_groups.spark.drivers import group_name
from kiel_groups.spark.log_view import LogIdentity, LogView
from kiel_groups.spark.offsets import GroupOffsets, refuse_live_group
from kiel_groups.spark.options import EARLIEST, FAIL, Held
from kiel_groups.spark.side_tables import LOSSES, QUARANTINE, SideRow, file_system, read_rows
from kiel_groups.spark.spark_session import Batch, LateWorkerError, run_query, shortened_spark_errors
from kiel_groups.wording import counted

log = logging.getLogger(__name__)

#: How errors name partitions, and topics that do not exist.
_PARTITIONS = re.compile(r"([\w.-]+):(\d{1,10})\b")
_MISSING = re.compile(r"no broker knows the topic ([\w., -]+);")


@dataclass(frozen=True, slots=True)
class ArchivePlan:
    """
    The plan of an archive's next run, as if the run started now.

    ``ranges`` has the offsets to read of every partition, in ascending order, including empty ranges. ``is_new`` means
    that no run has started this archive yet. ``brokers`` has all brokers, as ``host:port``. ``lost`` has the losses
    that the run would record; it is empty if ``fail_on_data_loss`` is set. ``not_archived`` has the reason for each
    topic that the run could not read. ``dropped`` has the topics of earlier runs that the settings do not name. These
    topics keep their positions.
    """

    ranges: tuple[OffsetRange, ...]
    output: str
    checkpoint: str
    is_new: bool
    brokers: tuple[str, ...]
    lost: tuple[Loss, ...] = ()
    not_archived: Mapping[str, str] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()

    @property
    def records(self) -> int:
        """The most records that the run would read. A compacted log has fewer records than offsets."""
        return sum(each.size for each in self.ranges)


def plan_archive(settings: ArchiveSettings, spark: SparkSession | None = None) -> ArchivePlan:
    """
    Plan the next run of an archive, and check its folders, topics, brokers and group. Nothing is archived.

    A topic that cannot be read is left out, if other topics remain. But a first run that does not start at ``earliest``
    needs all topics, because a later run would read the topic from its beginning. Then the error is raised.

    Args:
        settings: The archive.
        spark: A session. It is needed unless the folders are on this machine (``settings.is_local``).

    Raises:
        ConfigError: A topic has never existed, a folder or the cluster belongs to another archive, the group has live
            members, or side tables cannot be written.
        OffsetOutOfRangeError: The next messages of the only topic are lost, and ``fail_on_data_loss`` is set.
        BrokerError: The brokers could not be reached.
    """
    home = ArchiveFolders(settings, spark)
    refuse_live_group(settings.read_options())
    if settings.side_tables:
        file_system(settings.output_uri)
    reached = home.positions()
    known = set() if reached is None else set(reached.spans)
    dropped = sorted({each.topic for each in known} - set(settings.topics)) if settings.topics else []
    failed: dict[str, str] = {}
    while True:
        try:
            plan = _plan(settings, home, reached, {*dropped, *failed}, known)
            return replace(plan, not_archived=failed, dropped=tuple(dropped))
        except KielGroupsError as error:
            topic = topic_of(str(error), known, home.last_topics)
            others = {*settings.topics, *(each.topic for each in known)} - {topic, *dropped, *failed}
            is_sound = reached is not None or settings.start == EARLIEST
            if topic is None or topic in failed or not others or not is_sound:
                raise
            failed[topic] = str(error)


def topic_of(error: str, known: Collection[TopicPartition], named: Collection[str] = ()) -> str | None:
    """
    Return the topic that an error message is about.

    Return None if no topic, or more than one known topic, is found in the message. If the message lists missing topics,
    return the first missing topic, but only if all of them are in ``named``.

    Args:
        error: The message. The error may come from another process as a text.
        known: The partitions of the archive. The address of a broker has the form of a partition, but is not known.
        named: Topics that existed when an earlier run named them.
    """
    if missing := _MISSING.search(error):
        names = missing[1].split(", ")
        return names[0] if set(names) <= set(named) else None
    found = {TopicPartition(topic, int(number)) for topic, number in _PARTITIONS.findall(error)}
    topics = {each.topic for each in found.intersection(known)}
    return topics.pop() if len(topics) == 1 else None


def _plan(
    settings: ArchiveSettings,
    home: ArchiveFolders,
    reached: Positions | None,
    left_out: Collection[str],
    known: set[TopicPartition],
) -> ArchivePlan:
    """Plan a run that reads all topics except ``left_out``. Add the existing partitions of its topics to ``known``."""
    options = replace(settings.read_options(), held=Held(frozenset(left_out)))
    if reached is not None:
        reached = replace(reached, spans={p: span for p, span in reached.spans.items() if p.topic not in left_out})
    with LogView(options, patient=False) as view:
        partitions = view.partitions(all_must_exist=reached is None)
        known.update(partitions)
        brokers = {str(each) for each in (*view.cluster.brokers.values(), *options.brokers)}
        home.check_brokers(brokers)
        lost: list[Loss] = []
        bounds = BatchBounds(view, options, lost.append)
        spans = _start_spans(bounds, reached, partitions, view)
        ranges = _planned_ranges(bounds, spans, view)
        if not set(settings.topics).difference(left_out) <= {each.topic for each in spans}:
            # A topic that was added to the settings does not exist: this raises. Lost topics were handled above.
            view.partitions()
    return ArchivePlan(
        ranges=ranges,
        output=settings.output_uri,
        checkpoint=settings.checkpoint_uri,
        is_new=home.is_new,
        brokers=tuple(sorted(brokers)),
        lost=tuple(lost),
    )


def _start_spans(
    bounds: BatchBounds, reached: Positions | None, partitions: tuple[TopicPartition, ...], view: LogView
) -> dict[TopicPartition, Span]:
    """
    Return the span at which the source would start to read each partition.

    A new archive starts at the offsets that the options name. A later run continues at its checkpoint, and reads
    partitions that the checkpoint lacks from their first offsets.
    """
    if reached is None:
        return {each: Span(start, start) for each, start in bounds.starts(partitions).items()}
    added = view.earliest([each for each in partitions if each not in reached.spans])
    return {each: Span(start, start) for each, start in added.items()} | dict(reached.spans)


def _planned_ranges(
    bounds: BatchBounds, spans: Mapping[TopicPartition, Span], view: LogView
) -> tuple[OffsetRange, ...]:
    """Return the ranges from ``spans`` to the ends of the logs. Record losses or raise an error, as the source does."""
    continued, ends = bounds.continued(spans)
    earliest = view.earliest(ends)
    for partition, span in continued.items():
        if span.to < (first := earliest[partition]):
            what = f"offset {span.to} is to be read next, and the log begins at {first}: retention was faster"
            bounds.on_loss(partition, span.to, what, first, span.incarnation)
    return tuple(
        OffsetRange(each, max(continued[each].to if each in continued else 0, earliest[each]), ends[each])
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
        untimed: The number of records without a time in ``time_field``. Their folders follow from the batch's time.
        group: The group whose offsets were committed. None means that there was no batch yet, that the group's name is
            unknown, or that the offsets were not committed.
        output: The URI of the archive.
        lost: The losses that the run has recorded in ``_losses``, in ascending order.
        bad_records: The bad records that the run has recorded in ``_quarantine``, in ascending order, without their
            bytes. Bad records are damaged messages and values that do not fit their schema.
        not_archived: The topics that could not be read to the end, with the reasons. These topics keep their positions,
            and the next run tries again.
        dropped: Topics of earlier runs that the settings do not name, in ascending order.
    """

    ranges: tuple[OffsetRange, ...]
    records: int
    files: int
    size_bytes: int
    took_s: float
    group: str | None
    output: str
    untimed: int = 0
    lost: tuple[Loss, ...] = ()
    bad_records: tuple[SideRow, ...] = ()
    not_archived: Mapping[str, str] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()


def archive(
    spark: SparkSession,
    settings: ArchiveSettings,
    *,
    on_batch: Callable[[Batch], None] = lambda batch: None,
    stopping: Event | None = None,
) -> ArchiveSummary:
    """
    Add the records since the last run to an archive. With ``interval_s``, continue until ``stopping`` is set.

    If one of several topics cannot be read, the run continues without this topic. The summary's ``not_archived`` has
    the topic with the reason.

    Args:
        spark: The session to use; it is not stopped.
        settings: The topics to read, and the folders of the archive.
        on_batch: Called after each batch that had records.
        stopping: Set it, from a signal handler or another thread, to stop after the running batch.

    Returns:
        A summary of the added records. Their offsets are committed for the summary's ``group``, unless that is None.

    Raises:
        ConfigError: A setting, a topic or a folder is not valid; the message names the remedy.
        OffsetOutOfRangeError: Records of the only topic were lost before they were archived, and ``fail_on_data_loss``
            is set.
        BrokerError: The brokers could not be reached.
        KielGroupsError: Spark failed; completed batches remain, and the next run continues after them.
    """
    plan = plan_archive(settings, spark)
    if settings.event_time is not None:
        check_pattern(spark, settings.event_time)
    for topic, reason in plan.not_archived.items():
        log.warning("%s is not archived in this run: %s", topic, reason)
    home = ArchiveFolders(settings, spark)
    batches: list[Batch] = []

    with shortened_spark_errors(), home.locked(spark):
        # Read the folders again: another run may have changed them before the lock was taken.
        home = ArchiveFolders(settings, spark)
        home.claim(plan.brokers)
        home.sweep()
        before, files, side_rows = home.positions(), home.files(), _NewRows(settings)

        def record_batch(batch: Batch) -> None:
            batches.append(batch)
            home.check_written(batch.number)
            # A worker may replace a file that is read meanwhile. The last report is at the end of the run.
            with suppress(KielGroupsError):
                side_rows.report()
            on_batch(batch)

        began_s = monotonic()
        try:
            not_archived = _run_without_failing_topics(spark, settings, home, plan, record_batch, stopping or Event())
        except KielGroupsError:
            home.sweep_after(spark)
            raise
        took_s = monotonic() - began_s
        home.sweep()
        after, added = home.positions(), home.files()
        side_rows.report()
    lost = tuple(row.loss for row in side_rows.of(LOSSES))
    return ArchiveSummary(
        ranges=tuple(each for each in _ranges(before, after, lost) if each.topic_partition.topic not in plan.dropped),
        records=sum(batch.records for batch in batches),
        files=len(added.keys() - files.keys()),
        size_bytes=sum(added[path] for path in added.keys() - files.keys()),
        took_s=took_s,
        untimed=sum(batch.counts.get("untimed", 0) for batch in batches),
        group=None if after is None else _commit(settings, after, {*plan.dropped, *not_archived}),
        output=settings.output_uri,
        lost=lost,
        bad_records=tuple(row for row in side_rows.of(QUARANTINE) if after is not None and _is_done(row, after)),
        not_archived=not_archived,
        dropped=plan.dropped,
    )


class _NewRows:
    """
    The rows that the processes of a run add to the archive's side tables.

    The side tables ``_quarantine`` and ``_losses`` list the offsets that the archive lacks, with the reasons.
    """

    def __init__(self, settings: ArchiveSettings) -> None:
        self._output = settings.output_uri
        self._known = {table: set(read_rows(self._output, table)) for table in settings.side_tables}
        self._logged: set[SideRow] = set()

    def of(self, table: str) -> list[SideRow]:
        """Return the new rows of a table, in ascending order of partitions and offsets."""
        known = self._known.get(table)
        return [] if known is None else [row for row in read_rows(self._output, table) if row not in known]

    def report(self) -> None:
        """Log a warning for each row that was added since the last call."""
        for table in self._known:
            for row in self.of(table):
                if row not in self._logged:
                    self._logged.add(row)
                    bad = f"{row.topic_partition} at offset {row.offset}: {row.reason}"
                    what = bad if table == QUARANTINE else str(row.loss)
                    log.warning("%s; continuing with the messages that are left", what)


def _is_done(row: SideRow, reached: Positions) -> bool:
    """Return whether the batch with a bad record is done. Failed tasks have recorded bad records, too."""
    span = reached.spans.get(row.topic_partition)
    return span is not None and (row.offset < span.to or row.incarnation != span.incarnation)


def _run_without_failing_topics(
    spark: SparkSession,
    settings: ArchiveSettings,
    home: ArchiveFolders,
    plan: ArchivePlan,
    on_batch: Callable[[Batch], None],
    stopping: Event,
) -> dict[str, str]:
    """
    Run the query to its end. If one of several topics makes it fail, start it again without that topic.

    Returns:
        The topics that are not archived, with the reasons, including the topics that the plan has left out.
    """
    failed = dict(plan.not_archived)
    known = {each.topic_partition for each in plan.ranges}
    held = home.hold({*plan.dropped, *failed})
    while True:
        try:
            _run(partial(_start_query, spark, settings, held), on_batch, stopping)
            return failed
        except KielGroupsError as error:
            topic = topic_of(str(error), known)
            if topic is None or topic in held or not {each.topic for each in known} - {topic, *held}:
                raise
            try:
                held = home.hold({*held, topic})
            except ConfigError as refused:
                raise error from refused
            log.warning("%s is not archived any more in this run: %s", topic, error)
            failed[topic] = str(error)
            home.sweep_after(spark)
            if stopping.is_set():
                return failed


#: The columns that an archive reads.
_COLUMNS = (
    *(READ_SCHEMA[name] for name in ("topic", "partition", "offset", "key", "value")),
    StructField(INCARNATION, LongType()),
)


def _start_query(spark: SparkSession, settings: ArchiveSettings, held: Mapping[str, Any]) -> StreamingQuery:
    options = {**settings.source_options(), "kiel.archive.held": json.dumps(held)}
    fields, counts_bad = merged_schema(settings.schemas), settings.bad_records != FAIL
    columns = StructType(list(_COLUMNS))
    if counts_bad:
        columns.add("error", StringType())
    if fields.fields:
        columns.add(FIELDS, fields)
    rows = spark.readStream.format("kiel").schema(columns).options(**options).load()
    table = table_rows(
        rows, roll=settings.roll, time_field=settings.event_time, fields=fields.fieldNames(), counts_bad=counts_bad
    )
    writer = (
        table.writeStream.format("parquet")
        .partitionBy("topic", *ROLLS[settings.roll])
        .option("checkpointLocation", settings.checkpoint_uri)
    )
    if settings.interval_s is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{settings.interval_s * 1000:.0f} milliseconds")
    return writer.start(settings.output_uri)


def _run(start: Callable[[], StreamingQuery], on_batch: Callable[[Batch], None], stopping: Event) -> None:
    """
    Start a query, and wait for its end.

    If Spark gives up on a Python process that starts too slowly, start the query again, up to ``_MAX_STARTS`` times in
    all.
    """
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


def _ranges(before: Positions | None, after: Positions | None, lost: Collection[Loss]) -> tuple[OffsetRange, ...]:
    starts: Mapping[TopicPartition, Span] = {} if before is None else before.spans
    spans = {} if after is None else after.spans
    new_logs = {loss.topic_partition for loss in lost if loss.end is None}
    return tuple(
        OffsetRange(each, _start(starts.get(each), span, is_new=each in new_logs), span.to, span.incarnation)
        for each, span in sorted(spans.items())
    )


def _start(before: Span | None, after: Span, *, is_new: bool) -> int:
    """Return the first offset that a run has added: the end of the previous run, or the start of a new log."""
    if before is None or is_new or (after.token not in (None, before.token) and after.begin < before.to):
        return after.begin
    return min(before.to, after.to)


def _commit(settings: ArchiveSettings, reached: Positions, left_out: Collection[str]) -> str | None:
    """
    Commit the end of the last batch, without the topics ``left_out``, and return the name of the group.

    Return None if the commit failed, or if the group's name is unknown. The query itself commits a batch only when it
    plans the next batch, so it does not commit the last batch.
    """
    options = settings.read_options()
    group = group_name(options, reached)
    with LogView(options) as view:
        spans = {partition: span for partition, span in reached.spans.items() if partition.topic not in left_out}
        outdated = LogIdentity(view, options).recreated(spans)
        offsets = {partition: span.to for partition, span in spans.items() if partition not in outdated}
        return group if GroupOffsets(view, options).commit(group, offsets) else None
