"""A cluster of the service, with its newest state on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from kiel_groups.ops.actions.cluster_address import ClusterAddress
from kiel_groups.service.cluster_state import ClusterState
from kiel_groups.service.observer import Observer


class ServedCluster:
    """
    One cluster of the service. ``state`` is its newest state. All public methods must be called on the event loop.

    Args:
        name: The name of the cluster in URLs.
        address: The cluster's servers.
        interval_s: The time between two loads of all groups, in seconds.
        changed: Called on the event loop after each change of ``state``, with this cluster and the names of the groups
            that have changed. None means all groups.
    """

    def __init__(
        self,
        name: str,
        address: ClusterAddress,
        interval_s: float,
        changed: Callable[[ServedCluster, Collection[str] | None], None],
    ) -> None:
        self.name = name
        self.address = address
        self.state = ClusterState()
        self._changed = changed
        self._observer = Observer(name, address, interval_s, self._publish)
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Start to observe the cluster, on a thread of the observer."""
        self._loop = asyncio.get_running_loop()
        self._observer.start()

    def stop(self) -> None:
        """Stop observing the cluster. Do not wait for the end of the observer's thread."""
        self._loop = None
        self._observer.stop()

    def refresh(self) -> None:
        """Load all groups soon, such as after a change through this service."""
        self._observer.refresh()

    def _publish(self, state: ClusterState, groups: Collection[str] | None) -> None:
        """Pass a state from the observer's thread to the event loop. After the stop, drop it."""
        if (loop := self._loop) is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._take, state, groups)

    def _take(self, state: ClusterState, groups: Collection[str] | None) -> None:
        self.state = state
        self._changed(self, groups)
