"""Run the service: observe clusters, and answer requests about them until it is closed."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kiel_groups.ops.actions.cluster_address import ClusterAddress
from kiel_groups.rest.server import RestServer
from kiel_groups.rest.settings import RestSettings
from kiel_groups.service.api import Api
from kiel_groups.service.burrow import Burrow
from kiel_groups.service.console import STATIC, GroupHandler, GroupsHandler, StaticHandler
from kiel_groups.service.events import EventHandler, Events
from kiel_groups.service.served_cluster import ServedCluster
from kiel_groups.wording import some

__all__ = ["Service"]

log = logging.getLogger(__name__)


class Service:
    """
    The service, on the event loop of its caller.

    Args:
        settings: Where to listen, and who may use it.
        clusters: The clusters by name, at least one.
        interval_s: The time between two loads of all groups of a cluster, in seconds.

    Raises:
        ConfigError: The address is in use, or is not one of this machine.
    """

    def __init__(
        self, settings: RestSettings, clusters: Mapping[str, ClusterAddress], *, interval_s: float = 5.0
    ) -> None:
        self._server = RestServer(settings)
        #: Where it listens.
        self.url = self._server.url
        self._events = Events()
        self._clusters = {
            name: ServedCluster(name, address, interval_s, self._events.publish) for name, address in clusters.items()
        }

    def start(self) -> None:
        """Begin to observe the clusters, and to answer requests."""
        for cluster in self._clusters.values():
            cluster.start()
        routes = (*Api(self._clusters).routes(), *Burrow(self._clusters).routes())
        pages = {"clusters": self._clusters}
        self._server.start(
            routes,
            [
                ("/v1/events", EventHandler, {"events": self._events}),
                ("/", GroupsHandler, pages),
                ("/clusters/([^/]+)/groups/([^/]+)", GroupHandler, pages),
                ("/static/([a-zA-Z0-9.-]+)", StaticHandler, {"path": STATIC}),
            ],
        )
        log.info("serves %s at %s", some(self._clusters), self.url)

    async def close(self) -> None:
        """End the streams of events, stop to listen, and stop to observe."""
        self._events.close_all()
        for cluster in self._clusters.values():
            cluster.stop()
        await self._server.close()
