"""The reader of a batch query, which reads the messages between two offsets of each partition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kiel_groups.spark.options.read_options import ReadOptions
from kiel_groups.spark.tasks.shipping import PortablePickle
from kiel_groups.spark.tasks.task_inputs import fetch_settings, task_partitions, task_rows

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BatchReader"]


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
        from kiel_groups.spark.batch.batch_plan import plan_batch

        return task_partitions(plan_batch(self._options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one task; runs on a worker."""
        return task_rows(partition, self._settings, self._schema)
