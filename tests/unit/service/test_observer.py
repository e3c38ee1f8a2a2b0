"""The observer of a cluster: which reads it makes, when, and what it publishes. The reads are scripted."""

from __future__ import annotations

import queue
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from kiel_groups.errors import CoordinationError
from kiel_groups.ops.actions.cluster_address import ZOOKEEPER, ClusterAddress
from kiel_groups.ops.loaded_groups import LoadedGroups
from kiel_groups.ops.views.group_view import GroupView
from kiel_groups.ops.views.znodes import view_group
from kiel_groups.service import served_cluster
from kiel_groups.service.cluster_state import ClusterState
from kiel_groups.service.served_cluster import Observer
from tests.helpers.group_snapshots import HEALTHY

pytestmark = pytest.mark.unit

PATIENCE_S = 10.0
SMALL = view_group("g", HEALTHY)
MOVING = view_group("g", {path: each for path, each in HEALTHY.items() if path != "/consumers/g/owners/t/2"})
LARGE = replace(SMALL, plan_znodes=HEALTHY)


class Reads:
    """
    The reads of a cluster with one group. The test answers each one: ``started`` has its name, and ``answers`` takes
    its view or its error. ``published`` has the groups of each new state, and whether the view of the group is partial.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: queue.Queue[str] = queue.Queue()
        self.answers: queue.Queue[GroupView | BaseException] = queue.Queue()
        self.published: queue.Queue[tuple[Collection[str] | None, bool]] = queue.Queue()
        self.changed: Callable[[str], object] = lambda _: None
        self.newest = ClusterState()
        #: What reads of small groups find instead of the known views, if anything.
        self.settled: list[GroupView] = []
        monkeypatch.setattr(served_cluster, "ZooKeeperGroups", lambda *_, **__: self)
        monkeypatch.setattr(served_cluster, "_PAUSES", 0)
        address = ClusterAddress(ZOOKEEPER, "z:2181", 1.0)
        self.observer = Observer("main", address, 3600, self._publish)

    def _publish(self, state: ClusterState, groups: Collection[str] | None) -> None:
        self.newest = state
        self.published.put((groups, any(each.view.is_partial for each in state.groups.values())))

    @contextmanager
    def watch(self, changed: Callable[[str], object]) -> Iterator[Reads]:
        self.changed = changed
        yield self

    def load(self) -> LoadedGroups:
        return LoadedGroups((self._answered("load"),), 1)

    def read(self, groups: Collection[str]) -> list[GroupView]:
        return [self._answered(f"read {' '.join(groups)}")]

    def read_changes(self, views: Collection[GroupView]) -> list[GroupView]:
        # As in ``WatchedGroups``: a large group is read in part.
        self.started.put("changes")
        return self.settled or [replace(view, is_partial=bool(view.plan_znodes)) for view in views]

    def _answered(self, name: str) -> GroupView:
        self.started.put(name)
        answer = self.answers.get(timeout=PATIENCE_S)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def expect_read(self, name: str) -> None:
        assert self.started.get(timeout=PATIENCE_S) == name

    def expect_state(self, groups: Collection[str] | None, *, is_partial: bool) -> None:
        found, partial = self.published.get(timeout=PATIENCE_S)
        assert (None if found is None else sorted(found), partial) == (groups, is_partial)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reads]:
    scripted = Reads(monkeypatch)
    scripted.observer.start()
    yield scripted
    scripted.observer.stop()


def test_a_change_waits_for_no_load(reads: Reads) -> None:
    """A change during a load is published at once, and is not lost when the older result of the load comes."""
    reads.expect_read("load")
    reads.answers.put(SMALL)
    reads.expect_state(None, is_partial=False)
    reads.observer.refresh()
    reads.expect_read("load")
    reads.changed("g")
    reads.expect_read("changes")
    reads.expect_state(["g"], is_partial=False)
    reads.answers.put(SMALL)
    reads.expect_read("changes")
    reads.expect_state(None, is_partial=False)
    assert reads.started.empty()


def test_a_large_group_is_read_in_part_and_then_whole(reads: Reads) -> None:
    """The whole group is read once after a change, or again if it has changed meanwhile."""
    reads.expect_read("load")
    reads.answers.put(LARGE)
    reads.expect_state(None, is_partial=False)
    reads.changed("g")
    reads.expect_read("changes")
    reads.expect_state(["g"], is_partial=True)
    reads.expect_read("read g")
    reads.changed("g")
    reads.expect_read("changes")
    reads.expect_state(["g"], is_partial=True)
    reads.answers.put(LARGE)
    reads.expect_read("changes")
    reads.expect_state(["g"], is_partial=True)
    reads.expect_read("read g")
    reads.answers.put(LARGE)
    reads.expect_state(["g"], is_partial=False)
    assert reads.started.empty()


def test_a_load_brings_back_no_older_owners(reads: Reads) -> None:
    """The newest view of a group that has settled during a load stays when the older result of the load comes."""
    reads.expect_read("load")
    reads.answers.put(MOVING)
    reads.changed("g")
    reads.expect_read("changes")
    reads.observer.refresh()
    while reads.started.get(timeout=PATIENCE_S) != "load":
        pass
    reads.settled = [SMALL]
    while reads.newest.groups["g"].view.state == "moving":
        reads.published.get(timeout=PATIENCE_S)
    reads.answers.put(MOVING)
    while reads.published.get(timeout=PATIENCE_S)[0] is not None:
        pass
    assert (reads.newest.loads, reads.newest.groups["g"].view.state) == (2, SMALL.state)


def test_a_group_that_was_read_in_part_is_read_whole_at_last(reads: Reads, monkeypatch: pytest.MonkeyPatch) -> None:
    """That read may have to wait for longer than groups are read again while they rebalance."""
    monkeypatch.setattr(served_cluster, "_MOST_SETTLING_S", 0.0)
    reads.expect_read("load")
    reads.answers.put(LARGE)
    reads.expect_state(None, is_partial=False)
    reads.changed("g")
    reads.expect_read("changes")
    reads.expect_state(["g"], is_partial=True)
    reads.expect_read("read g")
    reads.answers.put(LARGE)
    reads.expect_state(["g"], is_partial=False)


def test_any_error_of_a_read_ends_the_session(reads: Reads) -> None:
    """A read that ends without a result would be waited for for ever."""
    reads.expect_read("load")
    reads.answers.put(SystemExit("a library ends its thread"))
    assert reads.published.get(timeout=PATIENCE_S) == (None, False)
    assert reads.newest.error == "SystemExit: a library ends its thread"


def test_a_refresh_during_a_load_loads_again(reads: Reads) -> None:
    """The load may have read before the operator's change. A load that fails ends the session, and is tried again."""
    reads.expect_read("load")
    reads.observer.refresh()
    reads.answers.put(SMALL)
    reads.expect_state(None, is_partial=False)
    reads.expect_read("load")
    reads.answers.put(CoordinationError("the connection broke"))
    reads.expect_state(None, is_partial=False)
    reads.observer.refresh()
    reads.expect_read("load")
    reads.answers.put(SMALL)
    reads.expect_state(None, is_partial=False)
