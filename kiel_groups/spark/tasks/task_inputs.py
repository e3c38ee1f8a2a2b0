"""The settings and tasks that batch and stream readers pass from the driver to the workers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from kiel_groups.spark.options.read_options import ReadOptions
from kiel_groups.spark.options.schema import arrow_schema
from kiel_groups.spark.tasks.read_task import FetchSettings, read_task
from kiel_groups.spark.tasks.task_planner import ReadTask, TaskBounds

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["fetch_settings", "task_bounds", "task_partitions", "task_rows"]

#: Tasks of a batch for each core: with more than one, tasks of different lengths still keep all cores busy.
_TASKS_PER_CORE = 2


def fetch_settings(options: ReadOptions) -> FetchSettings:
    """Return the options that a worker needs."""
    return FetchSettings(
        brokers=options.brokers,
        client_id=options.client_id,
        request_timeout_ms=options.request_timeout_ms,
        poll_timeout_ms=options.poll_timeout_ms,
        fetch_max_bytes=options.fetch_max_bytes,
        max_message_bytes=options.max_message_bytes,
        fail_on_data_loss=options.fail_on_data_loss,
    )


def task_bounds(options: ReadOptions) -> TaskBounds:
    """
    Return the bounds on the number and the size of tasks.

    Spark does not tell a source the number of executors or cores. So without ``maxPartitions``, the driver's own
    number of cores decides.
    """
    return TaskBounds(
        parallelism=_TASKS_PER_CORE * (os.cpu_count() or 1),
        least_tasks=options.min_partitions,
        most_tasks=options.max_partitions,
        most_records=options.max_records_per_partition,
    )


def task_partitions(tasks: Sequence[ReadTask]) -> list[InputPartition]:
    """Wrap tasks for Spark. If there are none, return an empty task, or Spark would create a task of its own."""
    return [InputPartition(task) for task in tasks] or [InputPartition(ReadTask(None, ()))]


def task_rows(partition: InputPartition, settings: FetchSettings, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a task that ``task_partitions`` has wrapped; runs on a worker."""
    return read_task(partition.value, settings, arrow_schema(schema))
