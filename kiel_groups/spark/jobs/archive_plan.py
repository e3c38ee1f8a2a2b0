"""What the next run of an archive would read: asked of the brokers, written nowhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import SparkSession

from kiel_groups.model import TopicPartition
from kiel_groups.spark.group_offsets import committed_offsets, refuse_live_group
from kiel_groups.spark.jobs.archive_home import ArchiveHome
from kiel_groups.spark.jobs.archive_settings import ArchiveSettings
from kiel_groups.spark.log_view import LogView
from kiel_groups.spark.options import GROUP, ReadOptions
from kiel_groups.spark.positions import OffsetRange, Positions
from kiel_groups.spark.resolving import resolve

__all__ = ["ArchivePlan", "plan_archive"]


@dataclass(frozen=True, slots=True)
class ArchivePlan:
    """
    What there is to read at this moment.

    ``ranges`` has every partition, in ascending order, also those with nothing to read; ``brokers`` are ``host:port``.
    """

    ranges: tuple[OffsetRange, ...]
    output: str
    checkpoint: str
    is_new: bool
    brokers: tuple[str, ...]

    @property
    def records(self) -> int:
        """How many, at most: where a log was compacted, there are fewer records than offsets."""
        return sum(each.size for each in self.ranges)


def plan_archive(settings: ArchiveSettings, spark: SparkSession | None = None) -> ArchivePlan:
    """
    Look what an archive would read, and check what can be checked before it begins.

    Args:
        settings: The archive.
        spark: Needed where its folders are not on this machine (``settings.is_local``).

    Raises:
        ConfigError: A topic that does not exist, a folder that is not this archive's, a group with live members.
        BrokerError: The brokers could not be asked.
    """
    options = settings.read_options()
    home = ArchiveHome(settings, spark)
    refuse_live_group(options)
    with LogView(options, patient=False) as view:
        partitions = view.partitions()
        brokers = {str(each) for each in (*view.cluster.brokers.values(), *options.brokers)}
        home.check_brokers(brokers)
        starts = _starts(options, home.positions(), partitions, view)
        ends = view.latest(partitions)
    return ArchivePlan(
        ranges=tuple(OffsetRange(each, starts[each], max(starts[each], ends[each])) for each in partitions),
        output=settings.output_uri,
        checkpoint=settings.checkpoint_uri,
        is_new=home.is_new,
        brokers=tuple(sorted(brokers)),
    )


def _starts(
    options: ReadOptions, reached: Positions | None, partitions: tuple[TopicPartition, ...], view: LogView
) -> Mapping[TopicPartition, int]:
    """As the source does it: from the checkpoint on; what has appeared since then from its beginning."""
    if reached is not None:
        known = reached.offsets()
        return view.earliest([each for each in partitions if each not in known]) | known
    committed = committed_offsets(view, options.group, partitions) if options.starting == GROUP else {}
    return resolve("startingOffsets", options.starting, partitions, view, committed)
