"""Run the service: observe clusters, and answer requests about them until the service is closed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType

from kiel_groups.metrics import Metrics
from kiel_groups.ops.actions.cluster_address import ClusterAddress
from kiel_groups.rest.server import RestServer
from kiel_groups.rest.settings import RestSettings
from kiel_groups.service.api import Api
from kiel_groups.service.burrow import Burrow
from kiel_groups.service.console import STATIC_FILES, ConnectorsHandler, GroupHandler, GroupsHandler, StaticHandler
from kiel_groups.service.events import EventHandler, Events
from kiel_groups.service.notifications import AFTER_MS, ProblemTracker, Webhook
from kiel_groups.service.served_cluster import ServedCluster
from kiel_groups.wording import some

log = logging.getLogger(__name__)


class Service:
    """
    Observes clusters, and serves their state over HTTP, on the event loop of its caller.

    The constructor opens the listening sockets. ``start`` must follow.

    Args:
        settings: The address to listen on, and the access rules.
        clusters: The addresses of one or more clusters by name.
        interval_s: The time between two loads of all groups of a cluster, in seconds.
        webhook: Gets notifications of problems that need an operator. None sends no notifications.
        restore_folder: Where changes write what they lose. None writes no files.
        leaders: The metrics of the candidates for the lead of groups, by cluster and group.
        worker_tokens: The token of the workers of each cluster whose workers need one, by the cluster's name.
        pasteable: Returns a text whose commands name a cluster by its address.

    Raises:
        ConfigError: The address is in use, or is not one of this machine.
    """

    def __init__(
        self,
        settings: RestSettings,
        clusters: Mapping[str, ClusterAddress],
        *,
        interval_s: float = 5.0,
        webhook: Webhook | None = None,
        restore_folder: Path | None = None,
        leaders: Mapping[tuple[str, str], Metrics] = MappingProxyType({}),
        worker_tokens: Mapping[str, str] = MappingProxyType({}),
        pasteable: Callable[[str, ClusterAddress], str] = lambda text, _: text,
    ) -> None:
        self._server = RestServer(settings)
        #: The URL of the service.
        self.url = self._server.url
        #: The metrics of the service's own work.
        self._metrics = Metrics()
        self._events = Events(self._metrics)
        self._clusters = {
            name: ServedCluster(name, address, interval_s, self._take, worker_tokens.get(name, ""), pasteable)
            for name, address in clusters.items()
        }
        self._webhook = webhook
        self._restore_folder = restore_folder
        self._leaders = leaders
        self._problems = ProblemTracker(AFTER_MS)

    def start(self) -> None:
        """Start to observe the clusters, and to answer requests."""
        if self._webhook is not None:
            self._webhook.start(self._metrics)
        for cluster in self._clusters.values():
            cluster.start()
        of_leaders = [({"cluster": cluster, "group": group}, each) for (cluster, group), each in self._leaders.items()]
        api = Api(self._clusters, [({}, self._metrics), *of_leaders], self._restore_folder)
        routes = (*api.routes(), *Burrow(self._clusters).routes())
        pages = {"clusters": self._clusters}
        self._server.start(
            routes,
            [
                ("/v1/events", EventHandler, {"events": self._events, **pages}),
                ("/", GroupsHandler, pages),
                ("/clusters/([^/]+)/groups/([^/]+)", GroupHandler, pages),
                ("/clusters/([^/]+)/groups/([^/]+)/connectors", ConnectorsHandler, pages),
                ("/static/([a-zA-Z0-9.-]+)", StaticHandler, {"files": STATIC_FILES}),
            ],
            self._metrics,
        )
        log.info("serves %s at %s", some(self._clusters), self.url)

    async def close(self) -> None:
        """End the event streams, stop observing, close the server with its connections, and stop the webhook."""
        self._events.close_all()
        for cluster in self._clusters.values():
            cluster.stop()
        await self._server.close()
        if self._webhook is not None:
            await self._webhook.close()

    def _take(self, cluster: ServedCluster, groups: Collection[str] | None) -> None:
        """Publish a cluster's change to the event streams, and queue due notifications if the cluster is ready."""
        self._events.publish(cluster, groups)
        if self._webhook is not None and cluster.state.is_ready:
            for notification in self._problems.take(cluster.name, cluster.state, time.time_ns() // 1_000_000):
                self._webhook.put(notification)
