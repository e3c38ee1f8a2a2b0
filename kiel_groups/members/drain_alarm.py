"""Report partitions that a member cannot release yet because the application is busy, and with which work."""

from __future__ import annotations

import logging
from collections.abc import Collection

from kiel_groups.members.partition_handler import PartitionHandler
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wording import counted

__all__ = ["report_slow_drain"]

log = logging.getLogger(__name__)


def report_slow_drain(
    group: str, partitions: Collection[TopicPartition], seconds: float, handler: PartitionHandler, metrics: Metrics
) -> None:
    """
    Log an error: the application has held up the release of these partitions for ``seconds``; count ``drain_alarms``.

    Hooks run one at a time, so a hook for other partitions may be the cause, too.
    """
    metrics.count("drain_alarms")
    works = handler.in_progress()
    hooks = [work.hook for work in works if work.hook]
    is_processing = any(not work.hook and not work.partitions.isdisjoint(partitions) for work in works)
    log.error(
        "group %s: cannot release %s, first %s, for %.0f s now: %s; other members wait for them",
        group,
        counted(partitions, "partition"),
        min(partitions),
        seconds,
        f"the listener's {hooks[0]} is still running"
        if hooks and not is_processing
        else "the application is still processing records",
    )
