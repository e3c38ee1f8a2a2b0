"""A batch: what stands between two places of some topics, read once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kiel_groups.spark.options.read_options import ReadOptions
from kiel_groups.spark.tasks.shipping import Shipped
from kiel_groups.spark.tasks.task_inputs import fetch_settings, task_partitions, task_rows

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
        # Imported here: workers, which have this module for its ``read``, would wait for it at their first task.
        from kiel_groups.spark.batch.batch_plan import plan_batch

        return task_partitions(plan_batch(self._options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one task; on a worker."""
        return task_rows(partition, self._settings, self._schema)
