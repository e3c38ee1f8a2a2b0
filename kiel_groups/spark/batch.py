"""A batch: what stands between two places of some topics, read once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kiel_groups.spark.group_offsets import committed_offsets
from kiel_groups.spark.log_view import LogView
from kiel_groups.spark.options import GROUP, ReadOptions
from kiel_groups.spark.planning import plan_tasks
from kiel_groups.spark.positions import OffsetRange
from kiel_groups.spark.resolving import check_bounds, resolve
from kiel_groups.spark.shipping import Shipped
from kiel_groups.spark.tasks import fetch_settings, task_bounds, task_partitions, task_rows

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BatchReader"]


class BatchReader(Shipped, DataSourceReader):
    """Made in a planner's process, which asks the brokers in ``partitions``; what ``read`` needs goes to workers."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._settings = fetch_settings(options)
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """
        The tasks of the batch.

        Raises:
            ConfigError: Offsets that do not fit the partitions.
            OffsetOutOfRangeError: A log does not have what is to be read.
            BrokerError: The brokers could not be asked.
        """
        options = self._options
        with LogView(options) as view:
            partitions = view.partitions()
            committed = committed_offsets(view, options.group, partitions) if options.starting == GROUP else {}
            starts = resolve("startingOffsets", options.starting, partitions, view, committed)
            ends = resolve("endingOffsets", options.ending, partitions, view, {})
            bounds = check_bounds(
                starts,
                ends,
                view.earliest(partitions),
                view.latest(partitions),
                fail_on_data_loss=options.fail_on_data_loss,
            )
            ranges = [OffsetRange(partition, *bounds[partition]) for partition in partitions]
            return task_partitions(plan_tasks(ranges, view.leaders(partitions), task_bounds(options)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one task; on a worker."""
        return task_rows(partition, self._settings, self._schema)
