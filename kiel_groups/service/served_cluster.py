"""A cluster of the service, with its newest state on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from kiel_groups.ops.actions.cluster_address import ClusterAddress
from kiel_groups.service.cluster_state import ClusterState
from kiel_groups.service.observer import Observer
from kiel_groups.workers.rest.client import HttpExchange

T = TypeVar("T")

#: The requests of one cluster that are carried out at the same time. Each takes a thread and a ZooKeeper session.
_MOST_THREADS = 4

#: How long a worker may take to answer, in seconds, and the largest answer, in bytes. The event loop parses it.
_WORKER_TIMEOUT_S, _LARGEST_ANSWER = 10.0, 16 << 20


class ServedCluster:
    """
    One cluster of the service. ``state`` is its newest state. All public methods must be called on the event loop.

    Args:
        name: The name of the cluster in URLs.
        address: The cluster's servers.
        interval_s: The time between two loads of all groups, in seconds.
        changed: Called on the event loop after each change of ``state``, with this cluster and the names of the groups
            that have changed. None means all groups.
        worker_token: The token of the cluster's workers, or "" if they need no token.
        pasteable: Returns a text whose commands name the cluster.
    """

    def __init__(  # nosec B107 # "" means no token
        self,
        name: str,
        address: ClusterAddress,
        interval_s: float,
        changed: Callable[[ServedCluster, Collection[str] | None], None],
        worker_token: str = "",
        pasteable: Callable[[str, ClusterAddress], str] = lambda text, _: text,
    ) -> None:
        self.name = name
        self.address = address
        self.state = ClusterState()
        #: Sends requests to the cluster's workers.
        self.workers = HttpExchange(worker_token, _WORKER_TIMEOUT_S, _LARGEST_ANSWER)
        #: The URL of the worker of each group that has answered last.
        self.answering: dict[str, str] = {}
        self._changed = changed
        #: Returns a text whose commands name the cluster, so that an operator can paste them.
        self.pasteable: Callable[[str], str] = lambda text: pasteable(text, address)
        self._observer = Observer(name, address, interval_s, self._publish, self.pasteable)
        # Each cluster has threads of its own: calls to dead servers last until their timeout, and would use up threads
        # that requests about other clusters need.
        self._threads = ThreadPoolExecutor(_MOST_THREADS, f"requests of {name}")
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Start to observe the cluster, on a thread of the observer."""
        self._loop = asyncio.get_running_loop()
        self._observer.start()

    def stop(self) -> None:
        """Stop observing the cluster, and drop waiting calls of ``run``. Do not wait for the end of the threads."""
        self._loop = None
        self._observer.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.workers.close()

    def refresh(self) -> None:
        """Load all groups soon, such as after a change through this service."""
        self._observer.refresh()

    async def run(self, work: Callable[[], T]) -> T:
        """Call a function that blocks, on a thread of this cluster, and return its result or raise its error."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _publish(self, state: ClusterState, groups: Collection[str] | None) -> None:
        """Pass a state from the observer's thread to the event loop. After the stop, drop it."""
        if (loop := self._loop) is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._take, state, groups)

    def _take(self, state: ClusterState, groups: Collection[str] | None) -> None:
        self.state = state
        self._changed(self, groups)
