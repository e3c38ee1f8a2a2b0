"""The JSON interface of the service, version 1: the state of clusters and groups, and requests that change groups."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from http import HTTPStatus
from itertools import chain
from pathlib import Path
from typing import Any

from kiel_groups.errors import ConfigError
from kiel_groups.metrics import Metrics
from kiel_groups.ops.actions.plans import preview_group, preview_group_of_brokers
from kiel_groups.ops.loaded_groups import unknown_group
from kiel_groups.ops.views.documents import (
    finding_document,
    group_document,
    history_document,
    lag_document,
    outline_document,
)
from kiel_groups.ops.views.lag_trend import worst_verdict
from kiel_groups.ops.views.members import members_document
from kiel_groups.ops.views.plan_preview import GroupChange, preview_document
from kiel_groups.rest.calls import Answer, RestCall, RestError, Route
from kiel_groups.rest.metrics_text import metrics_answer, registry_families, sample_families
from kiel_groups.service import openapi
from kiel_groups.service.actions import Actions
from kiel_groups.service.cluster_state import GroupStatus
from kiel_groups.service.connectors import Connectors
from kiel_groups.service.openapi import answers, asks, describe
from kiel_groups.service.served_cluster import ServedCluster, unknown_cluster
from kiel_groups.wording import some

_CLUSTER = "/v1/clusters/([^/]+)"
_GROUP = f"{_CLUSTER}/groups/([^/]+)"
_CONNECTOR = f"{_GROUP}/connectors/([^/]+)"


#: The arguments in the query of a plan, which are options of 'kiel-groups plan'.
_PLAN_QUERY = {
    "add-member": "How many members join.",
    "remove-member": "A member that leaves; may be given several times.",
    "host": "The host whose members leave.",
    "topic": "A topic of members that join; may be given several times.",
    "partitions": "A topic and its new number of partitions, such as pv=12; may be given several times.",
}


class Api:
    """
    The operations of the JSON interface.

    Args:
        clusters: The served clusters by name.
        registries: The metrics of the service's own work and of its leaders, each with the labels that they get.
        restore_folder: Where changes write what they lose. None writes no files.
    """

    def __init__(
        self,
        clusters: Mapping[str, ServedCluster],
        registries: Sequence[tuple[Mapping[str, str], Metrics]] = (),
        restore_folder: Path | None = None,
    ) -> None:
        self._clusters = clusters
        self._registries = registries
        self._actions = Actions(self._cluster, restore_folder)
        self._connectors = Connectors(self._group)

    def routes(self) -> tuple[Route, ...]:
        """Return the routes of the JSON interface, of the health checks and of the metrics."""
        actions, connectors = self._actions, self._connectors
        return (
            Route("/healthz", {"GET": self.get_health}),
            Route("/readyz", {"GET": self.get_readiness}),
            Route("/metrics", {"GET": self.get_metrics}),
            Route("/v1/openapi.json", {"GET": self.get_description}),
            Route("/v1/clusters", {"GET": self.list_clusters}),
            Route(f"{_CLUSTER}/groups", {"GET": self.list_groups}),
            Route(_GROUP, {"GET": self.get_group, "DELETE": actions.delete_group}),
            Route(f"{_GROUP}/members", {"GET": self.get_members}),
            Route(f"{_GROUP}/allocation", {"GET": self.get_allocation}),
            Route(f"{_GROUP}/history", {"GET": self.get_history}),
            Route(f"{_GROUP}/lag", {"GET": self.get_lag}),
            Route(f"{_GROUP}/findings", {"GET": self.get_findings}),
            Route(f"{_GROUP}/plan", {"GET": self.get_plan}),
            Route(f"{_GROUP}/offsets", {"GET": actions.get_offsets}),
            Route(f"{_GROUP}/offsets/reset", {"POST": actions.reset_offsets}),
            Route(f"{_GROUP}/offsets/import", {"POST": actions.import_offsets}),
            Route(f"{_GROUP}/offsets/copy", {"POST": actions.copy_offsets}),
            Route(f"{_GROUP}/offsets/delete", {"POST": actions.delete_offsets}),
            Route(f"{_GROUP}/config", {"PATCH": actions.configure}),
            Route(f"{_GROUP}/drain", {"POST": actions.drain}),
            Route(f"{_GROUP}/undrain", {"POST": actions.undrain}),
            Route(f"{_GROUP}/rebalance", {"POST": actions.rebalance}),
            Route(f"{_GROUP}/connectors", {"GET": connectors.list_connectors}),
            Route(
                _CONNECTOR,
                {
                    "GET": connectors.get_connector,
                    "PUT": connectors.put_connector,
                    "DELETE": connectors.delete_connector,
                },
            ),
            Route(f"{_CONNECTOR}/status", {"GET": connectors.get_connector_status}),
            Route(f"{_CONNECTOR}/pause", {"POST": connectors.pause_connector}),
            Route(f"{_CONNECTOR}/resume", {"POST": connectors.resume_connector}),
            Route(f"{_CONNECTOR}/restart", {"POST": connectors.restart_connector}),
        )

    @answers(openapi.HEALTH)
    async def get_health(self, call: RestCall) -> Answer:
        """Answer that the service runs: its event loop serves requests."""
        return Answer({"status": "ok"})

    @answers(openapi.READINESS, {503: openapi.READINESS})
    async def get_readiness(self, call: RestCall) -> Answer:
        """
        Answer with 200 if the newest load of the groups of any cluster succeeded, and with 503 otherwise.

        A cluster that cannot be reached must not end the requests about the other clusters. The answer has its error.
        """
        states = {name: cluster.state for name, cluster in self._clusters.items()}
        ready = [state.is_ready for state in states.values()]
        word = "ok" if all(ready) else "partly ready" if any(ready) else "not ready"
        clusters = {
            name: "ok" if state.is_ready else state.error or "the first load is under way"
            for name, state in states.items()
        }
        status = HTTPStatus.OK if any(ready) else HTTPStatus.SERVICE_UNAVAILABLE
        return Answer({"status": word, "clusters": clusters}, status)

    @answers(openapi.TEXT)
    async def get_metrics(self, call: RestCall) -> Answer:
        """Answer with the metrics in Prometheus' text format."""
        try:
            from kiel_groups.service.group_metrics import families, task_samples
        except ImportError:
            return metrics_answer(())
        states = [(name, cluster.state) for name, cluster in self._clusters.items()]
        of_tasks = sample_families(task_samples(states))
        return metrics_answer(chain(families(states, _now_ms()), of_tasks, registry_families(*self._registries)))

    @answers(openapi.DESCRIPTION)
    async def get_description(self, call: RestCall) -> Answer:
        """Answer with the description of this interface, in OpenAPI 3.1."""
        return Answer(describe(self.routes(), self._clusters))

    @answers(openapi.CLUSTERS)
    async def list_clusters(self, call: RestCall) -> Answer:
        """Answer with all clusters: their servers, and the time or error of the newest load of their groups."""
        return Answer({"clusters": [_cluster(each) for each in self._clusters.values()]})

    @answers(openapi.GROUPS)
    async def list_groups(self, call: RestCall) -> Answer:
        """Answer with an outline of all groups of a cluster: groups that need an operator first, then by lag."""
        cluster = self._cluster(call)
        return Answer({**_cluster(cluster), "groups": [_outline(status) for status in in_order(cluster)]})

    @answers(openapi.GROUP)
    async def get_group(self, call: RestCall) -> Answer:
        """Answer with all that is known about a group, as 'kiel-groups describe --json' prints it, and its trend."""
        cluster, status = self._group(call)
        view = status.view
        document = group_document(
            view, status.findings, lag_problem=cluster.state.lag_problem, generations=len(view.history)
        )
        extra = {"is_partial": view.is_partial, "trend": worst_verdict(status.trends), "version": cluster.state.version}
        return Answer({**document, **extra})

    @answers(openapi.MEMBERS)
    async def get_members(self, call: RestCall) -> Answer:
        """Answer with the live members of a group, including members of other clients."""
        return Answer(members_document(self._group(call)[1].view))

    @answers(openapi.ALLOCATION)
    async def get_allocation(self, call: RestCall) -> Answer:
        """Answer with the owner of each partition, and the member to which the newest plan assigns the partition."""
        view = self._group(call)[1].view
        partitions = [
            {
                "topic": each.topic_partition.topic,
                "partition": each.topic_partition.partition,
                "owner": each.owner,
                "target": each.target,
            }
            for each in view.partitions
        ]
        return Answer(
            {"group": view.group, "state": view.state, "generation": view.generation, "partitions": partitions}
        )

    @answers(openapi.HISTORY)
    async def get_history(self, call: RestCall) -> Answer:
        """Answer with the last plans of a group, the newest first. Groups that brokers coordinate have no history."""
        view = self._group(call)[1].view
        return Answer(history_document(view.group, view.history))

    @answers(openapi.LAG)
    async def get_lag(self, call: RestCall) -> Answer:
        """Answer with the lag and trend of each partition, and the course of the group's total lag over time."""
        cluster, status = self._group(call)
        view = status.view
        document = lag_document(view.group, view.partitions, cluster.state.lag_problem, status.trends)
        return Answer({**document, "course": [{"at": at_ms, "lag": lag} for at_ms, lag in status.lags]})

    @answers(openapi.FINDINGS)
    async def get_findings(self, call: RestCall) -> Answer:
        """Answer with the problems of a group. Problems that need an operator come first."""
        status = self._group(call)[1]
        findings = [finding_document(finding) for finding in status.findings]
        return Answer({"group": status.view.group, "findings": findings})

    @asks(_PLAN_QUERY)
    @answers(openapi.PLAN)
    async def get_plan(self, call: RestCall) -> Answer:
        """Answer with the plan that the leader of a group would make after a change. The change is not made."""
        cluster, status = self._group(call)
        change = _group_change(call)
        return Answer(await cluster.run(partial(_preview, cluster, status.view.group, change)))

    def _cluster(self, call: RestCall) -> ServedCluster:
        name = call.arguments[0]
        if name not in self._clusters:
            raise unknown_cluster(name, self._clusters)
        return self._clusters[name]

    def _group(self, call: RestCall) -> tuple[ServedCluster, GroupStatus]:
        cluster, name = self._cluster(call), call.arguments[1]
        state = cluster.state
        if name in state.groups:
            return cluster, state.groups[name]
        if not state.loaded_ms:
            why = state.error or "the first load is under way"
            raise RestError(HTTPStatus.SERVICE_UNAVAILABLE, f"the groups of {cluster.name} are not known yet: {why}")
        raise unknown_group(name, cluster.address.place, list(state.groups))


def in_order(cluster: ServedCluster) -> list[GroupStatus]:
    """Return the groups of a cluster: groups that need an operator first, then by descending lag, then by name."""
    return sorted(
        cluster.state.groups.values(),
        key=lambda status: (not status.needs_operator, -status.view.lag, status.view.group),
    )


def _cluster(cluster: ServedCluster) -> dict[str, Any]:
    state = cluster.state
    return {
        "cluster": cluster.name,
        "coordination": cluster.address.coordination,
        "hosts": cluster.address.hosts,
        "version": state.version,
        "loaded_at": state.loaded_ms or None,
        "error": state.error or None,
        "problems": list(state.problems),
        "brokers": state.brokers,
        "lag_problem": state.lag_problem or None,
    }


def _outline(status: GroupStatus) -> dict[str, Any]:
    return {
        **outline_document(status.view, with_lag=True),
        "state": status.view.state,
        "trend": worst_verdict(status.trends),
        "partitions": len(status.view.partitions),
        "unowned": len(status.unowned_since_ms),
        "findings": [finding_document(finding) for finding in status.findings],
    }


def _group_change(call: RestCall) -> GroupChange:
    """Return the change that a query describes. Its arguments are named like the options of 'kiel-groups plan'."""
    if unknown := sorted(call.query.keys() - _PLAN_QUERY.keys()):
        raise ConfigError(f"{unknown[0]!r:.100} in the query; expected {some(sorted(_PLAN_QUERY))}")
    if len(hosts := call.query.get("host", ())) > 1:
        raise ConfigError(f"host: given {len(hosts)} times; expected one host")
    grown = {}
    for each in call.query.get("partitions", ()):
        topic, separator, count = each.rpartition("=")
        if not separator:
            raise ConfigError(f"partitions: {each!r:.100} given; expected a topic and a number, such as pv=12")
        grown[topic] = _number("partitions", count)
    return GroupChange(
        added=sum(_number("add-member", each) for each in call.query.get("add-member", ())),
        removed=tuple(call.query.get("remove-member", ())),
        host=next(iter(hosts), ""),
        topics=tuple(call.query.get("topic", ())),
        partitions=grown,
    )


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 6):
        raise ConfigError(f"{name}: {text!r:.100} given; expected a number of at most six digits")
    return int(text)


def _preview(cluster: ServedCluster, group: str, change: GroupChange) -> dict[str, Any]:
    timeout_s = cluster.address.timeout_s
    preview = cluster.address.ask(
        lambda client: preview_group(client, group, change, timeout_s=timeout_s),
        lambda session: preview_group_of_brokers(session, group, change),
    )
    return preview_document(preview, only_moves=False)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
