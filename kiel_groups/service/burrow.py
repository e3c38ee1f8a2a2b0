"""
Serve the requests of Burrow, version 3 of its interface, so that existing dashboards and alarms continue to work.

Burrow's requests about its configuration and notifiers are not served. Burrow lists all topics of a cluster; this
service lists only topics that a group consumes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from kiel_groups.model import TopicPartition
from kiel_groups.ops.views.group_view import PartitionView
from kiel_groups.ops.views.lag_trend import Sample, Verdict
from kiel_groups.rest.calls import Answer, RestCall, Route
from kiel_groups.service.cluster_state import GroupStatus
from kiel_groups.service.served_cluster import ServedCluster

_CLUSTER = "/v3/kafka/([^/]+)"
_CONSUMER = f"{_CLUSTER}/consumer/([^/]+)"

#: Burrow's statuses for trends. Trends that are not listed have the status OK.
_STATUSES: Mapping[Verdict, str] = {"stuck": "STOP", "rewound": "REWIND", "growing": "WARN", "steady": "WARN"}

#: A partition below the highest one of its topic that a group does not consume.
_UNCONSUMED: Mapping[str, Any] = {"offsets": [], "owner": "", "client_id": "", "current-lag": 0}


class Burrow:
    """
    The operations of Burrow's interface. They answer from the newest state of each cluster.

    Args:
        clusters: The served clusters by name.
    """

    def __init__(self, clusters: Mapping[str, ServedCluster]) -> None:
        self._clusters = clusters

    def routes(self) -> tuple[Route, ...]:
        """Return the routes of Burrow's interface."""
        return (
            Route("/burrow/admin", {"GET": self.get_health}),
            Route("/v3/kafka", {"GET": self.list_clusters}),
            Route(_CLUSTER, {"GET": self.get_cluster}),
            Route(f"{_CLUSTER}/topic", {"GET": self.list_topics}),
            Route(f"{_CLUSTER}/topic/([^/]+)", {"GET": self.get_topic}),
            Route(f"{_CLUSTER}/topic/([^/]+)/consumers", {"GET": self.list_consumers_of_topic}),
            Route(f"{_CLUSTER}/consumer", {"GET": self.list_consumers}),
            Route(_CONSUMER, {"GET": self.get_consumer}),
            Route(f"{_CONSUMER}/status", {"GET": self.get_status}),
            Route(f"{_CONSUMER}/lag", {"GET": self.get_lag}),
        )

    async def get_health(self, call: RestCall) -> Answer:
        """Answer that the service runs."""
        return Answer("GOOD", content_type="text/plain")

    async def list_clusters(self, call: RestCall) -> Answer:
        """Answer with the names of the clusters."""
        return _answer(call, "cluster list returned", clusters=sorted(self._clusters))

    async def get_cluster(self, call: RestCall) -> Answer:
        """Answer with the ZooKeeper servers or brokers of a cluster."""
        cluster = self._cluster(call)
        if cluster is None:
            return _not_found(call, "cluster module not found")
        module = {"class-name": "kiel-groups", "servers": cluster.address.hosts.split(",")}
        return _answer(call, "cluster module detail returned", module=module)

    async def list_topics(self, call: RestCall) -> Answer:
        """Answer with the topics of a cluster that groups consume."""
        cluster = self._cluster(call)
        if cluster is None:
            return _not_found(call, "cluster not found")
        return _answer(call, "topic list returned", topics=sorted({each.topic for each in _log_ends(cluster)}))

    async def get_topic(self, call: RestCall) -> Answer:
        """Answer with the log end of each partition of a topic. An unknown end is 0."""
        cluster, topic = self._cluster(call), call.arguments[1]
        ends = (
            {} if cluster is None else {p.partition: end for p, end in _log_ends(cluster).items() if p.topic == topic}
        )
        if not ends:
            return _not_found(call, "cluster or topic not found")
        return _answer(call, "topic offsets returned", offsets=[ends.get(at, 0) for at in range(max(ends) + 1)])

    async def list_consumers_of_topic(self, call: RestCall) -> Answer:
        """Answer with the names of the groups that consume a topic."""
        cluster, topic = self._cluster(call), call.arguments[1]
        if cluster is None:
            return _not_found(call, "cluster not found")
        groups = [
            group
            for group, status in cluster.state.groups.items()
            if any(each.topic_partition.topic == topic for each in status.view.partitions)
        ]
        return _answer(call, "consumers of topic returned", consumers=sorted(groups))

    async def list_consumers(self, call: RestCall) -> Answer:
        """Answer with the names of the groups of a cluster."""
        cluster = self._cluster(call)
        if cluster is None:
            return _not_found(call, "cluster not found")
        return _answer(call, "consumer list returned", consumers=sorted(cluster.state.groups))

    async def get_consumer(self, call: RestCall) -> Answer:
        """
        Answer with recent offsets, owner and lag of each partition of a group, by topic. An unknown lag is 0.

        The number of a partition is its place in the list of its topic. Partitions that the group does not consume are
        filled in without offsets.
        """
        status = self._group(call)
        if status is None:
            return _not_found(call, "cluster or consumer not found")
        topics: dict[str, dict[int, dict[str, Any]]] = {}
        for each in status.view.partitions:
            window = status.windows.get(each.topic_partition)
            topics.setdefault(each.topic_partition.topic, {})[each.topic_partition.partition] = {
                **_UNCONSUMED,
                "offsets": [] if window is None else list(map(_offset, window)),
                "owner": each.owner or "",
                "current-lag": each.lag or 0,
            }
        lists = {topic: [found.get(at, _UNCONSUMED) for at in range(max(found) + 1)] for topic, found in topics.items()}
        return _answer(call, "consumer detail returned", topics=lists)

    async def get_status(self, call: RestCall) -> Answer:
        """Answer with the status of a group, and of each partition whose status is not OK."""
        return self._evaluate(call, every=False)

    async def get_lag(self, call: RestCall) -> Answer:
        """Answer with the status of a group, and of each of its partitions."""
        return self._evaluate(call, every=True)

    def _evaluate(self, call: RestCall, *, every: bool) -> Answer:
        found = self._group(call)
        partitions = [] if found is None else [_partition(found, each) for each in found.view.partitions]
        words = {each["status"] for each in partitions}
        worst = "ERR" if words & {"STOP", "REWIND"} else "WARN" if "WARN" in words else "OK"
        known = [each["complete"] for each in partitions]
        status = {
            "cluster": call.arguments[0],
            "group": call.arguments[1],
            "status": "NOTFOUND" if found is None else worst,
            "complete": sum(known) / len(known) if known else 0.0,
            "partitions": [each for each in partitions if every or each["status"] != "OK"],
            "partition_count": len(partitions),
            "maxlag": max(partitions, key=lambda each: int(each["current_lag"]), default=None),
            "totallag": 0 if found is None else found.view.lag,
        }
        answer = _answer(call, "consumer status returned", status=status)
        return answer if found is not None else replace(answer, status=HTTPStatus.NOT_FOUND)

    def _cluster(self, call: RestCall) -> ServedCluster | None:
        return self._clusters.get(call.arguments[0])

    def _group(self, call: RestCall) -> GroupStatus | None:
        cluster = self._cluster(call)
        return None if cluster is None else cluster.state.groups.get(call.arguments[1])


def _log_ends(cluster: ServedCluster) -> dict[TopicPartition, int]:
    """Return the log ends of the partitions that groups consume, where they are known."""
    return {
        each.topic_partition: each.log_end
        for status in cluster.state.groups.values()
        for each in status.view.partitions
        if each.log_end is not None
    }


def _partition(status: GroupStatus, partition: PartitionView) -> dict[str, Any]:
    trend = status.trends.get(partition.topic_partition)
    window = status.windows.get(partition.topic_partition)
    return {
        "topic": partition.topic_partition.topic,
        "partition": partition.topic_partition.partition,
        "owner": partition.owner or "",
        "client_id": "",
        "status": "OK" if trend is None else _STATUSES.get(trend.verdict, "OK"),
        "start": None if window is None else _offset(window[0]),
        "end": None if window is None else _offset(window[1]),
        "current_lag": partition.lag or 0,
        "complete": 0.0 if trend is None or trend.verdict == "unknown" else 1.0,
    }


def _offset(sample: Sample) -> dict[str, Any]:
    return {
        "offset": sample.committed,
        "timestamp": sample.at_ms,
        "observedAt": sample.at_ms,
        "lag": sample.lag,
    }


def _answer(call: RestCall, message: str, **fields: object) -> Answer:
    request = {"url": call.path, "host": call.host}
    return Answer({"error": False, "message": message, **fields, "request": request})


def _not_found(call: RestCall, message: str) -> Answer:
    document = {"error": True, "message": message, "request": {"url": call.path, "host": call.host}}
    return Answer(document, HTTPStatus.NOT_FOUND)
