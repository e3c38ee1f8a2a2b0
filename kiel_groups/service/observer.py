"""Observe the groups of one cluster on a thread: load all groups at intervals, and read a group when it changes."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeAlias

from kiel_groups.errors import KielGroupsError
from kiel_groups.ops.actions.cluster_address import ClusterAddress
from kiel_groups.ops.broker_reader import BrokerGroups
from kiel_groups.ops.loaded_groups import LoadedGroups
from kiel_groups.ops.views.group_view import GroupView
from kiel_groups.ops.zookeeper_reader import ZooKeeperGroups
from kiel_groups.service.cluster_state import ClusterHistory, ClusterState

log = logging.getLogger(__name__)

#: A function that takes each new state, and the groups that have changed in the state. None means all groups.
Publish: TypeAlias = Callable[[ClusterState, Collection[str] | None], None]

#: How soon a group is read again while it rebalances, in seconds, and for how long at most.
_SETTLING_S, _MOST_SETTLING_S = 0.25, 30.0

#: How long further changes of a rebalance are collected after the first one, in seconds.
_COLLECTED_S = 0.02

#: At most one part in five of the time is spent on loads: the pause after one is at least this many times as long.
_PAUSES = 4

#: The states of groups that will change soon.
_UNSETTLED = frozenset({"moving", "publishing", "joining"})

_Read: TypeAlias = Callable[[Collection[str]], Collection[GroupView]]


class Observer:
    """
    Observes the groups of one cluster, on a thread of its own, until it is stopped.

    Args:
        name: The name of the cluster in the log.
        address: The cluster's servers.
        interval_s: The time between two loads of all groups, in seconds. After a slow load, the time is longer.
        publish: Called on the thread with each new state, and with the groups that have changed or None for all.
    """

    def __init__(self, name: str, address: ClusterAddress, interval_s: float, publish: Publish) -> None:
        self._name = name
        self._address = address
        self._interval_s = interval_s
        self._publish = publish
        self._history = ClusterHistory()
        self._changes: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        #: The groups that rebalance, and until when they are read again and again, in monotonic seconds.
        self._unsettled: dict[str, float] = {}
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name=f"observer of {name}", daemon=True)

    def start(self) -> None:
        """Start the thread that observes the groups."""
        self._thread.start()

    def stop(self) -> None:
        """Tell the thread to stop, and do not wait: a call to a dead server may last until its timeout."""
        self._is_stopped = True
        self._changes.put(None)

    def refresh(self) -> None:
        """Load all groups soon, such as after an operator's change. Brokers do not notify clients of changes."""
        self._changes.put("")

    def _run(self) -> None:
        failure = ""
        while not self._is_stopped:
            try:
                with self._open() as (load, read):
                    while not self._is_stopped:
                        self._take(load)
                        if failure:
                            log.info("cluster %s is observed again", self._name)
                            failure = ""
                        self._follow(read)
            except Exception as error:
                text = str(error) or type(error).__name__
                if text != failure:
                    is_known = isinstance(error, KielGroupsError)
                    log.warning("cluster %s cannot be observed: %s", self._name, text, exc_info=not is_known)
                failure = text
                self._publish(self._history.fail(text), None)
                self._await_changes(self._interval_s)

    @contextmanager
    def _open(self) -> Iterator[tuple[Callable[[], LoadedGroups], _Read]]:
        """
        Yield a function that loads all groups, and a function that reads some groups from ZooKeeper only.

        For groups that brokers coordinate, the latter function returns no views.
        """
        hosts, timeout_s = self._address.hosts, self._address.timeout_s
        if self._address.is_of_brokers:
            yield partial(BrokerGroups(hosts, timeout_s=timeout_s).load_all, with_lag=True), lambda groups: ()
            return
        with ZooKeeperGroups(hosts, timeout_s=timeout_s).watch(self._changes.put) as watched:
            yield watched.load, watched.read

    def _take(self, load: Callable[[], LoadedGroups]) -> None:
        began_s = time.monotonic()
        loaded = load()
        self._publish(self._history.take(loaded, time.monotonic() - began_s), None)

    def _follow(self, read: _Read) -> None:
        """Read changed and rebalancing groups, and publish them, until the next load of all groups is due."""
        now_s = time.monotonic()
        until_s = now_s + max(self._interval_s, _PAUSES * self._history.took_s)
        next_s = now_s
        while not self._is_stopped and (now_s := time.monotonic()) < until_s:
            self._unsettled = {group: end_s for group, end_s in self._unsettled.items() if end_s > now_s}
            wake_s = min(until_s, max(next_s, now_s + _SETTLING_S)) if self._unsettled else until_s
            names = self._await_changes(wake_s - now_s)
            if names is None:
                return
            names |= self._unsettled.keys() if now_s >= next_s else set()
            if not names:
                continue
            began_s = time.monotonic()
            views = {view.group: view for view in read(names)}
            self._settle(views, began_s)
            self._publish(self._history.refresh(views.values(), time.time_ns() // 1_000_000), sorted(views))
            next_s = time.monotonic() + _PAUSES * (time.monotonic() - began_s)

    def _settle(self, views: Mapping[str, GroupView], now_s: float) -> None:
        for group, view in views.items():
            if view.state in _UNSETTLED:
                self._unsettled.setdefault(group, now_s + _MOST_SETTLING_S)
            else:
                self._unsettled.pop(group, None)

    def _await_changes(self, limit_s: float) -> set[str] | None:
        """
        Wait at most ``limit_s`` for a change, and return the groups that have changed.

        Return None if all groups must be loaded, or if the observer is stopped.
        """
        names: set[str | None] = set()
        with suppress(queue.Empty):
            names.add(self._changes.get(timeout=max(0.0, limit_s)))
            time.sleep(_COLLECTED_S)
            while True:
                names.add(self._changes.get_nowait())
        return None if names & {None, ""} else {name for name in names if name}
