"""Look up the ranges that the next run of an archive would read, without reading or archiving them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import SparkSession

from kiel_groups.model import TopicPartition
from kiel_groups.spark.checkpoint.query_offsets import OffsetRange, Positions, Span
from kiel_groups.spark.jobs.archive_folders import ArchiveFolders
from kiel_groups.spark.jobs.archive_settings import ArchiveSettings
from kiel_groups.spark.offsets.group_offsets import committed_offsets, refuse_live_group
from kiel_groups.spark.offsets.log_view import LogView
from kiel_groups.spark.offsets.query_bounds import handle_data_loss, resolve
from kiel_groups.spark.options.read_options import GROUP, ReadOptions
from kiel_groups.spark.stream.microbatches import BatchBounds

__all__ = ["ArchivePlan", "plan_archive"]


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
        ranges = _ranges(options, starts, view)
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
    committed = committed_offsets(view, options.group, partitions) if options.starting == GROUP else {}
    return resolve("startingOffsets", options.starting, partitions, view, committed)


def _ranges(options: ReadOptions, starts: Mapping[TopicPartition, int], view: LogView) -> tuple[OffsetRange, ...]:
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
