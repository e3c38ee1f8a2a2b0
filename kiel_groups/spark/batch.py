"""Read a batch: resolve the start and end offsets of topics, and plan the tasks that read the ranges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kiel_groups.spark.log_view import LogView
from kiel_groups.spark.offsets import check_bounds, committed_offsets, resolve
from kiel_groups.spark.options import GROUP, ReadOptions
from kiel_groups.spark.tasks.task_inputs import PortablePickle, fetch_settings, task_bounds, task_partitions, task_rows
from kiel_groups.spark.tasks.task_planner import ReadTask, plan_tasks

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "plan_batch",
    "BatchReader",
]


def plan_batch(options: ReadOptions) -> list[ReadTask]:
    """
    Look up the partitions and offsets of a batch, and plan its tasks.

    Raises:
        ConfigError: The given offsets do not fit the partitions.
        OffsetOutOfRangeError: A log lacks messages of its range, and ``failOnDataLoss`` is set.
        BrokerError: The lookup failed.
    """
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
        ranges = [bounds[partition] for partition in partitions]
        return plan_tasks(ranges, view.leaders(partitions), task_bounds(options))


class BatchReader(PortablePickle, DataSourceReader):
    """A batch reader: Spark calls ``partitions`` in the planning process, and ``read`` on pickled copies on workers."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._settings = fetch_settings(options)
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """
        Plan the tasks of the batch.

        Raises:
            ConfigError: The given offsets do not fit the partitions.
            OffsetOutOfRangeError: A log lacks messages of its range, and ``failOnDataLoss`` is set.
            BrokerError: The lookup failed.
        """
        # Imported here: workers load this module for ``read``, and their first task would wait for this import.
        return task_partitions(plan_batch(self._options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one task; runs on a worker."""
        return task_rows(partition, self._settings, self._schema)
