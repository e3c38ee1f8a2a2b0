"""
Archive: topics into Parquet, every record exactly once.

Files stand in ``topic=…/date=…`` folders, the date being the day (UTC) on which the batch was begun. Spark's checkpoint
says which offsets each batch has, before it is read, and the lists of its file sink which files: a batch that was cut
short is done again, with the same records and the same date, and counts once.
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
from kiel_groups.spark.checkpoint.query_offsets import OffsetRange, Positions, Span
from kiel_groups.spark.jobs.archive_home import ArchiveHome
from kiel_groups.spark.jobs.archive_plan import plan_archive
from kiel_groups.spark.jobs.archive_settings import ArchiveSettings
from kiel_groups.spark.jobs.query_run import Batch, LateWorkerError, run_query, spark_errors_told
from kiel_groups.spark.offsets.group_offsets import GroupOffsets
from kiel_groups.spark.offsets.log_view import LogView
from kiel_groups.spark.stream.query_driver import group_name

__all__ = ["ArchiveSummary", "archive"]

log = logging.getLogger(__name__)

_STARTS = 4


@dataclass(frozen=True, slots=True)
class ArchiveSummary:
    """
    What one run did.

    Args:
        ranges: The offsets that it added, of every partition that it read, in ascending order.
        records: How many records; with a compacted log fewer than offsets.
        files: How many files it added.
        size_bytes: Their sizes together.
        took_s: From the start of the query to its end, in seconds.
        group: Whose offsets stand there now; None where nothing was planned, or the commit failed, as the log says.
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
    Add to an archive what has come since the last run; with ``interval_s``, go on until ``stopping`` is set.

    Args:
        spark: A session; it is left as it was.
        settings: Which archive, and how.
        on_batch: Called after each batch that had records.
        stopping: Set it, from a signal handler or another thread, to end after the batch under way.

    Returns:
        What was added. It is committed for the group by then, unless ``group`` is None.

    Raises:
        ConfigError: A setting, a topic or a folder that cannot be; the text says what to do.
        BrokerError: The brokers could not be asked.
        KielGroupsError: Spark failed; what was done stays, and the next run goes on from there.
    """
    brokers = plan_archive(settings, spark).brokers
    home = ArchiveHome(settings, spark)
    batches: list[Batch] = []

    def tell(batch: Batch) -> None:
        batches.append(batch)
        on_batch(batch)

    with spark_errors_told(), home.locked(spark):
        # What stands there was looked at before it was locked.
        home = ArchiveHome(settings, spark)
        home.claim(brokers)
        home.sweep()
        before, files = home.positions(), home.files()
        began_s = monotonic()
        _run(lambda: _started(spark, settings), tell, stopping or Event())
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


def _started(spark: SparkSession, settings: ArchiveSettings) -> StreamingQuery:
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
    """The time of a batch is part of its plan: done again, it has the same."""
    now = current_timestamp()
    date = to_date(to_utc_timestamp(now, current_timezone()))
    return rows.select("topic", date.alias("date"), "partition", "offset", now.alias("archived_at"), "key", "value")


def _run(start: Callable[[], StreamingQuery], tell: Callable[[Batch], None], stopping: Event) -> None:
    """Run a query to its end; started again, a few times, where Spark did not wait for its Python to start."""
    for remaining in reversed(range(_STARTS)):
        query = start()
        try:
            run_query(query, tell, stopping)
            return
        except LateWorkerError as error:
            if not remaining or stopping.is_set():
                raise
            log.warning("%s, as is done now, %d times at most", error, remaining)
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
    """Of another interval, which is a log that began anew, all was added."""
    if before is None or after.token not in (None, before.token):
        return after.begin
    return min(before.to, after.to)


def _commit(settings: ArchiveSettings, reached: Positions) -> str | None:
    """What was done by a query that was stopped: it commits a batch with the next one."""
    options = settings.read_options()
    group = group_name(options.group, reached)
    with LogView(options) as view:
        return group if GroupOffsets(view, options).commit(group, reached.offsets()) else None
