"""The metrics of a worker's membership by the names that Kafka Connect gives them."""

from __future__ import annotations

from kiel_groups.kafka_metrics import KAFKA_METRICS
from kiel_groups.metrics import Metrics
from kiel_groups.workers.values.worker_assignment import WorkerAssignment

__all__ = ["WORKER_METRICS_GROUP", "worker_metrics"]

#: The name under which Kafka Connect groups these metrics.
WORKER_METRICS_GROUP = "connect-coordinator-metrics"

#: The metrics that a member of any group has: its joins, its assignments and its heartbeats.
_OF_MEMBERS = tuple(
    metric for metric in KAFKA_METRICS if metric.name.split("-")[0] in {"heartbeat", "last", "join", "sync"}
)


def worker_metrics(registry: Metrics, assignment: WorkerAssignment | None) -> dict[str, dict[str, float | None]]:
    """
    Return the metrics in the form of kafka-python's ``metrics()``: by group, then by name.

    Args:
        registry: The registry of the worker.
        assignment: Its present assignment; None if it has none.
    """
    found = {metric.name: metric.read(registry, 0) for metric in _OF_MEMBERS}
    found["assigned-connectors"] = float(len(assignment.connectors)) if assignment else 0.0
    found["assigned-tasks"] = float(len(assignment.tasks)) if assignment else 0.0
    return {WORKER_METRICS_GROUP: found}
