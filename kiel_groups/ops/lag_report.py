"""Report the lag of a group, partition by partition, 80 columns wide."""

from __future__ import annotations

from collections.abc import Collection

from rich.console import RenderableType

from kiel_groups.ops.partition_view import PartitionView
from kiel_groups.ops.report_parts import lag_text, topic_parts, whole_lag
from kiel_groups.wording import counted

__all__ = ["lag_report"]


def lag_report(group: str, partitions: Collection[PartitionView], lag_problem: str) -> list[RenderableType]:
    """
    Return the report.

    Args:
        group: The group's name.
        partitions: The group's partitions, by topic.
        lag_problem: The reason why some offsets or log ends are unknown; "" if all are known.
    """
    parts: list[RenderableType] = list(topic_parts(partitions, {each.topic_partition for each in partitions}))
    lag = f"{lag_text(partitions)}, in {counted(partitions, 'partition', 'partitions')}"
    return [*parts, f"lag of group {group}: {whole_lag(lag, partitions, lag_problem)}"]
