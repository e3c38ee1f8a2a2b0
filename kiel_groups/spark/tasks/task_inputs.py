"""The settings and tasks that batch and stream readers pass from the driver to the workers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from kiel_groups.spark.options import ReadOptions, arrow_schema
from kiel_groups.spark.tasks.read_task import FetchSettings, read_task
from kiel_groups.spark.tasks.task_planner import ReadTask, TaskBounds

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "fetch_settings",
    "task_bounds",
    "task_partitions",
    "task_rows",
    "PortablePickle",
]


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


# Pickle readers and writers for the workers together with the function that unpickles them.
#
# An ordinary pickle only names modules: on a worker without this package, it fails inside of Spark's own code, without
# a hint of the remedy. This pickle contains the code of the function that loads it, which can explain what is missing.


def unpacked(packed: bytes) -> Any:
    """
    Unpickle an object of a ``PortablePickle`` class on a worker that may not have this package.

    Raises:
        RuntimeError: A module is missing; the message names it, the host, its Python and the remedy.
    """
    import platform
    import sys

    from pyspark import cloudpickle

    try:
        kind, state = cloudpickle.loads(packed)
    except ModuleNotFoundError as error:
        raise RuntimeError(
            f"the Spark worker on {platform.node()} (Python {platform.python_version()}, {sys.executable}) has no"
            f" module {error.name}: install kiel-groups[spark] there, or send it along with --py-files (the package)"
            " and --archives (an environment, for what is compiled)"
        ) from None
    made = object.__new__(kind)
    made.__dict__.update(state)
    return made


# cloudpickle sends functions of ``__main__`` as code, and functions of other modules by name.
unpacked.__module__ = "__main__"


class PortablePickle:
    """A base class of objects whose pickles name the missing module if a worker cannot load them."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    def __reduce__(self) -> tuple[Any, ...]:
        packed: bytes = cloudpickle.dumps((type(self), self.__getstate__()))  # type: ignore[no-untyped-call]
        return unpacked, (packed,)
