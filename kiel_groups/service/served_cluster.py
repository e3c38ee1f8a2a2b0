"""
Observe the groups of one cluster on threads, and keep the newest state of the cluster on the event loop.

One thread reads what has changed, and publishes each new state. Loads, and reads of whole large groups, run on a second
thread, because they may take many seconds, for which no change of a group should wait.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from http import HTTPStatus
from typing import TypeAlias, TypeVar

from kiel_groups.errors import KielGroupsError
from kiel_groups.ops.actions.cluster_address import ClusterAddress
from kiel_groups.ops.broker_reader import BrokerGroups
from kiel_groups.ops.loaded_groups import LoadedGroups
from kiel_groups.ops.views.group_view import GroupView
from kiel_groups.ops.zookeeper_groups import WatchedGroups, ZooKeeperGroups
from kiel_groups.rest.calls import RestError
from kiel_groups.service.cluster_state import ClusterHistory, ClusterState
from kiel_groups.wording import some
from kiel_groups.workers.rest.client import HttpExchange

log = logging.getLogger(__name__)

T = TypeVar("T")

#: A function that takes each new state, and the groups that have changed in the state. None means all groups.
Publish: TypeAlias = Callable[[ClusterState, Collection[str] | None], None]

#: How soon a group is read again while it rebalances, in seconds, and for how long at most.
_SETTLING_S, _MOST_SETTLING_S = 0.25, 30.0

#: How long further changes of a rebalance are collected after the first one, in seconds.
_COLLECTED_S = 0.02

#: At most one part in five of the time is spent on loads, and on reads of groups that rebalance: the pause after one is
#: at least this many times as long.
_PAUSES = 4

#: The states of groups that will change soon.
_UNSETTLED = frozenset({"moving", "publishing", "joining"})

_Result: TypeAlias = LoadedGroups | list[GroupView]


class _Job:
    """
    A read on a thread of its own.

    Args:
        read: Returns all groups, or views of some groups.
        done: Called on the thread when ``read`` has ended.
    """

    def __init__(self, read: Callable[[], _Result], done: Callable[[], object]) -> None:
        self._began_s = time.monotonic()
        self._future: Future[_Result] = Future()
        self._future.add_done_callback(lambda _: done())
        #: The groups that have changed, or were read, since the read began: the result may be older than their views.
        self.changed: set[str] = set()
        threading.Thread(target=self._run, args=(read,), name="reader of groups", daemon=True).start()

    def is_done(self) -> bool:
        return self._future.done()

    def result(self) -> tuple[_Result, float]:
        """Return the result of the read, and the duration in seconds. If the read failed, raise its error."""
        return self._future.result(), time.monotonic() - self._began_s

    def _run(self, read: Callable[[], _Result]) -> None:
        try:
            self._future.set_result(read())
        except Exception as error:
            self._future.set_exception(error)
        except BaseException as error:  # The observer, which waits for the result, must survive it.
            self._future.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))


class Observer:
    """
    Observes the groups of one cluster, on threads of its own, until it is stopped.

    Args:
        name: The name of the cluster in the log.
        address: The cluster's servers.
        interval_s: The time between two loads of all groups, in seconds. After a slow load, the time is longer.
        publish: Called on the thread with each new state, and with the groups that have changed or None for all.
        pasteable: Returns a text whose commands name the cluster.
    """

    def __init__(
        self,
        name: str,
        address: ClusterAddress,
        interval_s: float,
        publish: Publish,
        pasteable: Callable[[str], str] = str,
    ) -> None:
        self._name = name
        self._address = address
        self._interval_s = interval_s
        self._publish = publish
        self._history = ClusterHistory(pasteable)
        #: The groups that have changed; "" only wakes the thread.
        self._changes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._is_due = False
        #: The groups that rebalance or were read in part, and until when they are read again and again, in monotonic
        #: seconds.
        self._unsettled: dict[str, float] = {}
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name=f"observer of {name}", daemon=True)

    def start(self) -> None:
        """Start the thread that observes the groups."""
        self._thread.start()

    def stop(self) -> None:
        """Tell the thread to stop, and do not wait: a call to a dead server may last until its timeout."""
        self._is_stopped = True
        self._changes.put("")

    def refresh(self) -> None:
        """Load all groups soon, such as after an operator's change. Brokers do not notify clients of changes."""
        self._is_due = True
        self._changes.put("")

    def _run(self) -> None:
        while not self._is_stopped:
            try:
                with self._open() as (load, watched):
                    self._follow(load, watched)
            except Exception as error:
                text = str(error) or type(error).__name__
                if text != self._history.state.error:
                    is_known = isinstance(error, KielGroupsError)
                    log.warning("cluster %s cannot be observed: %s", self._name, text, exc_info=not is_known)
                self._publish(self._history.fail(text), None)
                self._await_changes(self._interval_s)

    @contextmanager
    def _open(self) -> Iterator[tuple[Callable[[], LoadedGroups], WatchedGroups | None]]:
        """
        Yield a function that loads all groups, and the reader of changed groups.

        The reader is None if brokers coordinate the groups, because brokers do not notify clients of changes.
        """
        hosts, timeout_s = self._address.hosts, self._address.timeout_s
        if self._address.is_of_brokers:
            yield partial(BrokerGroups(hosts, timeout_s=timeout_s).load_all, with_lag=True), None
            return
        with ZooKeeperGroups(hosts, timeout_s=timeout_s).watch(self._changes.put) as watched:
            yield watched.load, watched

    def _follow(self, load: Callable[[], LoadedGroups], watched: WatchedGroups | None) -> None:
        """
        Load all groups again and again, and read changed and rebalancing groups meanwhile. Publish each new state.

        Return when the observer is stopped. Raise the error of a read.
        """
        job: _Job | None = None
        self._load_s = self._whole_s = settle_s = 0.0
        while not self._is_stopped:
            now_s = time.monotonic()
            small, large = self._divide_unsettled(now_s)
            if job is None and (self._is_due or now_s >= self._load_s):
                self._is_due = False  # Before the load, which may lack what a later request is about.
                job = _Job(load, self._wake)
            elif job is None and watched is not None and large and now_s >= self._whole_s:
                job = _Job(partial(watched.read, large), self._wake)
            wakes_s = [] if job is not None else [self._load_s, *([self._whole_s] if large else [])]
            wakes_s += [max(settle_s, now_s + _SETTLING_S)] if small else []
            names = self._await_changes(min(wakes_s) - now_s if wakes_s else None)
            published: set[str] | None = set()
            if job is not None and job.is_done():
                published, names, job = self._take(*job.result(), job.changed), names | job.changed, None
            names |= set(small if now_s >= settle_s else ())
            if job is not None:
                job.changed |= names
            if watched is not None and names:
                began_s = time.monotonic()
                published = self._refresh(watched.read_changes(self._history.views(names)), published)
                settle_s = time.monotonic() + _PAUSES * (time.monotonic() - began_s)
            if published is None or published:
                self._publish(self._history.state, published)

    def _divide_unsettled(self, now_s: float) -> tuple[list[str], list[str]]:
        """Return the unsettled small groups, and the unsettled large groups. A job reads the latter."""
        # A group that was read in part is read whole at last, even if that must wait for long.
        views = [
            view
            for view in self._history.views(self._unsettled)
            if view.is_partial or self._unsettled[view.group] > now_s
        ]
        self._unsettled = {view.group: self._unsettled[view.group] for view in views}
        large = [view.group for view in views if view.plan_znodes]
        return [view.group for view in views if not view.plan_znodes], large

    def _take(self, result: _Result, took_s: float, changed: Collection[str]) -> set[str] | None:
        """
        Add the result of a job to the history, and return the groups that it has, or None for all groups.

        The groups ``changed`` were read while the job ran.
        """
        now_s = time.monotonic()
        if not isinstance(result, LoadedGroups):
            self._whole_s = now_s + _PAUSES * took_s
            return self._refresh(result, set())
        self._load_s = now_s + max(self._interval_s, _PAUSES * took_s)
        if self._history.state.error:
            log.info("cluster %s is observed again", self._name)
        self._history.take(result, took_s, changed)
        self._settle(view for view in result.groups if view.group in self._unsettled)
        return None

    def _refresh(self, views: Collection[GroupView], published: set[str] | None) -> set[str] | None:
        """Add newer views to the history. Return the groups to publish: those of ``published``, and those of views."""
        self._history.refresh(views, time.time_ns() // 1_000_000)
        self._settle(views)
        return None if published is None else published.union(view.group for view in views)

    def _settle(self, views: Iterable[GroupView]) -> None:
        for view in views:
            if view.is_partial or view.state in _UNSETTLED:
                self._unsettled.setdefault(view.group, time.monotonic() + _MOST_SETTLING_S)
            else:
                self._unsettled.pop(view.group, None)

    def _wake(self) -> None:
        self._changes.put("")

    def _await_changes(self, limit_s: float | None) -> set[str]:
        """Wait for a change, at most ``limit_s`` seconds, and return the groups that have changed."""
        names: set[str] = set()
        with suppress(queue.Empty):
            names.add(self._changes.get(timeout=None if limit_s is None else max(0.0, limit_s)))
            time.sleep(_COLLECTED_S)
            while True:
                names.add(self._changes.get_nowait())
        return names - {""}


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


def unknown_cluster(name: str, clusters: Iterable[str]) -> RestError:
    """Return the error for a cluster that the service does not show. ``clusters`` are the names that it shows."""
    text = f"the service shows no cluster {name!r:.100}; it shows {some(sorted(clusters))}"
    return RestError(HTTPStatus.NOT_FOUND, text)
