"""When a worker leaves its group because it cannot read the configuration, and when it joins again."""

from __future__ import annotations

import logging

import pytest

from kiel_groups.errors import NoZooKeeperError
from kiel_groups.workers.values import TaskId, WorkerAssignment
from tests.helpers.fake_worker_group import FakeWorkerGroup, Lost, config_of, url_of

pytestmark = pytest.mark.unit

A0 = TaskId("a", 0)
OLD, NEW = config_of(4, a=1), config_of(5, a=2)


def joined_group() -> FakeWorkerGroup:
    """Return a group of two workers that share connector a with two tasks, in generation 1."""
    group = FakeWorkerGroup("x", "y")
    group.config = NEW
    group.rebalance()
    return group


# A worker that is behind


def test_a_worker_that_stays_behind_leaves(caplog: pytest.LogCaptureFixture) -> None:
    """
    A worker that does not catch up for three seconds logs an error, leaves the group after six seconds, and reads on,
    slower with each read. It joins again when it has caught up.
    """
    group = FakeWorkerGroup("x", "y")
    group["y"].stuck_at = OLD
    group.config = NEW
    with caplog.at_level(logging.ERROR):
        group.rebalance(leader="x")
        group.pass_s(60.0)
    assert [record.getMessage() for record in caplog.records] == [
        "group g: this worker starts none of its assigned work: its configuration is still behind offset 5, by which"
        " the work was assigned",
        "group g: this worker leaves the group: it could not read the configuration for 6 s; it joins again when it"
        " can",
    ]
    worker = group["y"]
    assert 6.0 <= worker.leaves_s[0] - 1000.0 <= 7.5
    assert (len(worker.leaves_s), worker.rejoins_s, worker.assigned) == (1, [], [])
    # Work of former assignments would keep the other workers waiting.
    assert Lost("y") in group.calls
    assert worker.metrics.counter("workers_unsynced") == 1
    assert 40 <= len(group["y"].reads) <= 130
    # Only the read of the join may be answered by a server that lags behind.
    assert group["y"].reads.index(True) == 1
    assert all(group["y"].reads[1:])
    worker.stuck_at = None
    group.pass_s(2.0)
    assert len(worker.rejoins_s) == 1
    group.rebalance(leader="x")
    assert worker.assigned == [WorkerAssignment("x", url_of("x"), 5, (), (A0,))]


def test_a_leader_that_stays_behind_leaves() -> None:
    """After six seconds it leaves, so that another worker leads; it joins again when it has the configuration."""
    group = FakeWorkerGroup("x", "y")
    group.config = NEW
    group["x"].stuck_at = OLD
    group.rebalance(leader="x")
    assert group["y"].assigned[0].is_failed
    group.pass_s(10.0)
    assert 6.0 <= group["x"].leaves_s[0] - 1000.0 <= 9.0
    assert (group["x"].rejoins_s, group["y"].leaves_s) == ([], [])
    group["x"].stuck_at = None
    group.pass_s(2.0)
    assert len(group["x"].rejoins_s) == 1


# A worker without ZooKeeper


def test_a_worker_without_zookeeper_leaves() -> None:
    """A worker whose session is over leaves if it cannot read the configuration for six seconds, until it can."""
    group = joined_group()
    worker = group["y"]
    worker.views.extend([NoZooKeeperError("no server")] * 20)
    group.process.call(worker.hooks.check_reads)
    group.pass_s(5.9)
    assert worker.leaves_s == []
    group.pass_s(2.0)
    group.process.call(worker.hooks.check_reads)
    assert (len(worker.leaves_s), worker.rejoins_s, group.calls[-1]) == (1, [], Lost("y"))
    group.pass_s(20.0)
    assert (len(worker.leaves_s), len(worker.rejoins_s)) == (1, 1)


def test_a_worker_that_has_zookeeper_again_stays() -> None:
    """A worker that can read the configuration within six seconds stays in the group."""
    group = joined_group()
    group["x"].views.extend([NoZooKeeperError("no server")] * 3)
    group.process.call(group["x"].hooks.check_reads)
    group.pass_s(30.0)
    assert (group["x"].leaves_s, group["x"].rejoins_s, len(group["x"].reads)) == ([], [], 5)


def test_a_worker_without_an_assignment_does_not_leave() -> None:
    """A worker that has no ZooKeeper and no assignment keeps nobody waiting, and reads on until it is closed."""
    group = FakeWorkerGroup("x")
    group["x"].views.extend([NoZooKeeperError("no server")] * 100)
    group.process.call(group["x"].hooks.check_reads)
    group.pass_s(20.0)
    assert (group["x"].leaves_s, group["x"].rejoins_s) == ([], [])
    group.run(group["x"].hooks.close())
    reads = len(group["x"].reads)
    group.pass_s(20.0)
    assert len(group["x"].reads) == reads
