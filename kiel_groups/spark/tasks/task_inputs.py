"""What batch and stream have in common: settings and tasks on their way from the driver to the workers."""

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

#: Tasks of a batch, for each thing that can be done at once: a little more than one evens out their lengths.
_TASKS_EACH = 2


def fetch_settings(options: ReadOptions) -> FetchSettings:
    """What a worker needs to know of the options."""
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
    How many tasks to plan.

    Spark tells a source neither how many executors there are nor their cores: without ``maxPartitions`` it is as if
    they had what the driver's machine has.
    """
    return TaskBounds(
        parallelism=_TASKS_EACH * (os.cpu_count() or 1),
        least_tasks=options.min_partitions,
        most_tasks=options.max_partitions,
        most_records=options.max_records_per_partition,
    )


def task_partitions(tasks: Sequence[ReadTask]) -> list[InputPartition]:
    """Tasks as Spark takes them; one that reads nothing where there are none, which Spark would make up otherwise."""
    return [InputPartition(task) for task in tasks] or [InputPartition(ReadTask(None, ()))]


def task_rows(partition: InputPartition, settings: FetchSettings, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The messages of a task that ``task_partitions`` has sent."""
    return read_task(partition.value, settings, arrow_schema(schema))
