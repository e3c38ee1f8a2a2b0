"""Plan the tasks of a batch from its options and the brokers' answers."""

from __future__ import annotations

from kiel_groups.spark.offsets.group_offsets import committed_offsets
from kiel_groups.spark.offsets.log_view import LogView
from kiel_groups.spark.offsets.query_bounds import check_bounds, resolve
from kiel_groups.spark.options.read_options import GROUP, ReadOptions
from kiel_groups.spark.tasks.task_inputs import task_bounds
from kiel_groups.spark.tasks.task_planner import ReadTask, plan_tasks

__all__ = ["plan_batch"]


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
