"""The service's metrics of clusters and groups, for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from kiel_groups.service.cluster_state import ClusterState, GroupStatus


def families(states: Collection[tuple[str, ClusterState]], now_ms: int) -> Iterator[Metric]:
    """
    Yield all metrics of these clusters and their groups.

    Args:
        states: The name and newest state of each cluster.
        now_ms: The present time in epoch milliseconds.
    """
    for of_cluster in _OF_CLUSTERS:
        values = of_cluster.kind(of_cluster.name, of_cluster.meaning, labels=("cluster",))
        for name, state in states:
            if state.loaded_ms or of_cluster in _BEFORE_LOAD:
                values.add_metric((name,), of_cluster.value(state, now_ms))
        yield values
    groups = [(name, status) for name, state in states for status in state.groups.values()]
    for each in _OF_GROUPS:
        family = GaugeMetricFamily(each.name, each.meaning, labels=("cluster", "group"))
        for name, status in groups:
            if (value := each.value(status, now_ms)) is not None:
                family.add_metric((name, status.view.group), value)
        yield family
    for split in _OF_PARTS:
        parts = split.kind(split.name, split.meaning, labels=("cluster", "group", split.label))
        for name, status in groups:
            for part, count in sorted(split.counts(status).items()):
                parts.add_metric((name, status.view.group, part), count)
        yield parts


def task_samples(states: Iterable[tuple[str, ClusterState]]) -> Iterator[tuple[str, dict[str, str], int | float]]:
    """Yield the name, the labels and the value of each metric that the tasks of workers have in their statuses."""
    for cluster, state in states:
        for group, status in state.groups.items():
            for connector, task, found in status.view.statuses:
                own = {"cluster": cluster, "group": group, "connector": connector, "task": str(task)}
                for name, labels, value in found.metrics:
                    yield name, {**dict(labels), **own}, value


class _OfCluster(NamedTuple):
    """A metric of clusters. ``value`` takes a cluster's state and the time in epoch milliseconds."""

    kind: type[GaugeMetricFamily] | type[CounterMetricFamily]
    name: str
    meaning: str
    value: Callable[[ClusterState, int], float]


#: The metrics of clusters that have a value before the first load.
_BEFORE_LOAD = (
    _OfCluster(
        GaugeMetricFamily,
        "kiel_cluster_up",
        "1 if the newest load of the groups succeeded.",
        lambda state, _: state.is_ready,
    ),
    _OfCluster(
        CounterMetricFamily, "kiel_cluster_loads", "Successful loads of all groups.", lambda state, _: state.loads
    ),
    _OfCluster(
        CounterMetricFamily,
        "kiel_cluster_failed_loads",
        "Failed loads of all groups.",
        lambda state, _: state.failed_loads,
    ),
)

_OF_CLUSTERS = (
    *_BEFORE_LOAD,
    _OfCluster(
        GaugeMetricFamily,
        "kiel_cluster_age_seconds",
        "The age of what is known of the groups.",
        lambda state, now_ms: max(0, now_ms - state.loaded_ms) / 1000,
    ),
    _OfCluster(
        GaugeMetricFamily,
        "kiel_cluster_load_seconds",
        "How long the newest load took.",
        lambda state, _: state.took_s,
    ),
    _OfCluster(GaugeMetricFamily, "kiel_cluster_brokers", "Live brokers.", lambda state, _: state.brokers),
    _OfCluster(
        GaugeMetricFamily,
        "kiel_cluster_groups",
        "Groups, those without members, too.",
        lambda state, _: len(state.groups),
    ),
)


class _OfGroup(NamedTuple):
    """
    A gauge of groups.

    ``value`` takes a group's status and the time in epoch milliseconds. It returns None if the value is unknown.
    """

    name: str
    meaning: str
    value: Callable[[GroupStatus, int], float | None]


_OF_GROUPS = (
    _OfGroup(
        "kiel_group_members",
        "Live members, those of other clients, too.",
        lambda status, _: status.view.size + len(status.view.foreign_members),
    ),
    _OfGroup(
        "kiel_group_partitions",
        "Partitions in which the group has an offset, an owner or a plan.",
        lambda status, _: len(status.view.partitions),
    ),
    _OfGroup("kiel_group_owned_partitions", "Partitions with an owner.", lambda status, _: status.view.owned),
    _OfGroup(
        "kiel_group_unowned_partitions",
        "Partitions of subscribed topics without an owner.",
        lambda status, _: len(status.unowned_since_ms),
    ),
    _OfGroup(
        "kiel_group_unowned_seconds",
        "For how long a partition has been without an owner: the longest time.",
        lambda status, now_ms: max(0, now_ms - min(status.unowned_since_ms.values(), default=now_ms)) / 1000,
    ),
    _OfGroup(
        "kiel_group_lag_records",
        "Records from the committed offsets to the ends of the logs.",
        lambda status, _: status.view.known_lag,
    ),
    _OfGroup(
        "kiel_group_partitions_of_unknown_lag",
        "Partitions without a known offset or log end.",
        lambda status, _: sum(each.lag is None for each in status.view.partitions),
    ),
    _OfGroup("kiel_group_generation", "The number of the newest plan.", lambda status, _: status.view.generation),
)


class _OfParts(NamedTuple):
    """A metric of groups with an additional label. ``counts`` takes a group's status, and returns values by label."""

    kind: type[GaugeMetricFamily] | type[CounterMetricFamily]
    name: str
    label: str
    meaning: str
    counts: Callable[[GroupStatus], dict[str, int]]


def _lags(status: GroupStatus) -> dict[str, int]:
    lags: Counter[str] = Counter()
    for each in status.view.partitions:
        if each.lag is not None:
            lags[each.topic_partition.topic] += each.lag
    return lags


_OF_PARTS = (
    _OfParts(GaugeMetricFamily, "kiel_group_topic_lag_records", "topic", "The lag in one topic.", _lags),
    _OfParts(
        GaugeMetricFamily,
        "kiel_group_findings",
        "kind",
        "Problems that need an operator, those of 'kiel-groups describe'.",
        lambda status: Counter(finding.kind for finding in status.findings if not finding.passing),
    ),
    _OfParts(
        GaugeMetricFamily,
        "kiel_group_stalled_tasks",
        "connector",
        "Running connectors and tasks that report a problem.",
        lambda status: Counter(connector for connector, task, found in status.view.statuses if found.problem),
    ),
    _OfParts(
        CounterMetricFamily,
        "kiel_group_rebalances",
        "cause",
        "Plans since the service started, by their first cause.",
        lambda status: dict(status.rebalances),
    ),
)
