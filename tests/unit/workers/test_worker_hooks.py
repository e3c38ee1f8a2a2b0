"""What a worker joins with, what it does with its assignment, and when it gives its work back."""

from __future__ import annotations

import asyncio

import pytest

from kiel_groups.errors import ConfigError, NoZooKeeperError, ProtocolError
from kiel_groups.wire.connect_protocol import NO_OFFSET, ConnectMetadata, StickyMetadata
from kiel_groups.wire.group_requests import GroupProtocol
from kiel_groups.workers.values import ConnectorId, TaskId, WorkerAssignment
from tests.helpers.fake_worker_group import Assigned, FakeWorkerGroup, Lost, Revoked, config_of, url_of

pytestmark = pytest.mark.unit

A, A0, A1 = ConnectorId("a"), TaskId("a", 0), TaskId("a", 1)
OLD, NEW = config_of(4, a=1), config_of(5, a=2)


def joined_group(*workers: str, allocator: str = "round_robin") -> FakeWorkerGroup:
    """Return a group of workers that share connector a with two tasks, in generation 1."""
    group = FakeWorkerGroup(*workers, allocator=allocator)
    group.config = NEW
    group.rebalance()
    return group


def offset_of(group: FakeWorkerGroup, worker: str) -> int:
    """Return the configuration offset with which a worker has joined."""
    return ConnectMetadata.parse(dict(group.offered[worker])["default"], "metadata").offset


# The join


def test_a_worker_joins_with_its_url_and_its_offset() -> None:
    """A worker offers the protocol of Kafka Connect, with its URL and the offset of the configuration."""
    group = joined_group("x")
    assert group["x"].hooks.protocol_type == "connect"
    assert group.offered["x"] == [GroupProtocol("default", ConnectMetadata(url_of("x"), 5).encode())]


def test_each_join_reads_the_configuration() -> None:
    """Each join has the offset of a fresh snapshot, even if it is above that of all other workers."""
    group = joined_group("x", "y")
    group["x"].stuck_at = NEW
    group.config = config_of(9, a=2)
    group.rebalance(leader="y")
    assert (offset_of(group, "x"), offset_of(group, "y")) == (5, 9)


@pytest.mark.parametrize("failure", [NoZooKeeperError("no server"), None], ids=["error", "silence"])
def test_a_worker_that_cannot_read_joins_with_what_it_knows(failure: Exception | None) -> None:
    """
    If the configuration cannot be read, the worker joins with the offset of its newest snapshot, or with none, within
    the time of one read.
    """
    group = FakeWorkerGroup("x")
    group["x"].views.extend([failure, failure])
    began_s = group.timeline.now_s
    group.run(group["x"].hooks.protocols())
    assert group.timeline.now_s - began_s == (3.0 if failure is None else 0.0)
    group.rebalance()
    assert offset_of(group, "x") == NO_OFFSET
    group.pass_s(1.0)
    group.rebalance()
    assert offset_of(group, "x") == 1
    group["x"].views.append(failure)
    group.config = NEW
    group.rebalance()
    assert offset_of(group, "x") == 1
    assert group["x"].metrics.counter("config_reads_failed") == 3


# The assignment


def test_every_worker_gets_an_assignment() -> None:
    """Every worker is notified of its assignment, also of an empty one, with the leader and the offset."""
    group = joined_group("x", "y", "z", "zz")
    leader = ("x", url_of("x"), 5)
    assert group.calls == [
        Assigned("x", WorkerAssignment(*leader, ("a",)), 1),
        Assigned("y", WorkerAssignment(*leader, (), (A0,)), 1),
        Assigned("z", WorkerAssignment(*leader, (), (A1,)), 1),
        Assigned("zz", WorkerAssignment(*leader), 1),
    ]


def test_work_is_revoked_before_a_rejoin() -> None:
    """Before it joins again, a worker gives its work back, and then gets other work in the next generation."""
    group = joined_group("x")
    group.add("y")
    group.rebalance()
    assert group.calls == [
        Assigned("x", WorkerAssignment("x", url_of("x"), 5, ("a",), (A0, A1)), 1),
        Revoked("x"),
        Assigned("x", WorkerAssignment("x", url_of("x"), 5, ("a",), (A1,)), 2),
        Assigned("y", WorkerAssignment("x", url_of("x"), 5, (), (A0,)), 2),
    ]


def test_the_configuration_is_read_after_the_work_is_given_back() -> None:
    """A worker reads the configuration of its next join after it has given its work back, so nothing is missed."""
    group = joined_group("x")

    async def change() -> None:
        group.config = config_of(6, a=2)

    group["x"].on_call = change
    group.rebalance()
    assert offset_of(group, "x") == 6


def test_nothing_is_revoked_that_was_never_started() -> None:
    """A worker that joins again before it has begun with its assignment gives nothing back."""
    group = joined_group("x")
    gate = group["x"].gate
    assert gate is not None
    group.run(group["x"].hooks.prepare(gate))
    group.run(group["x"].hooks.prepare(gate))
    group["x"].hooks.lost(gate)
    assert [type(call) for call in group.calls] == [Assigned, Revoked]


def test_an_unreadable_assignment_leaves_the_worker_without_work() -> None:
    """An assignment that is none raises an error that names the member and what was expected, and stops all work."""
    group = joined_group("x")
    gate = group["x"].gate
    assert gate is not None
    with pytest.raises(ProtocolError, match=r"the assignment of x \(expected: version, error, leader, URL"):
        group.run(group["x"].hooks.complete(gate, None, b""))  # type: ignore[arg-type]
    assert type(group.calls[-1]) is Lost


# A worker that is behind


def test_a_worker_that_is_behind_starts_nothing() -> None:
    """A worker whose configuration is behind the assignment's offset reads it until it has that, and then starts."""
    group = FakeWorkerGroup("x", "y")
    group["y"].stuck_at = OLD
    group.config = NEW
    group.rebalance(leader="x")
    group.pass_s(2.0)
    assert [call.worker for call in group.calls] == ["x"]
    group["y"].stuck_at = None
    group.pass_s(2.0)
    assert group["y"].assigned == [WorkerAssignment("x", url_of("x"), 5, (), (A0,))]
    assert group["y"].rejoins_s == []


def test_a_worker_may_be_ahead_of_its_assignment() -> None:
    """A worker that has read a newer configuration than the leader's starts its work."""
    group = FakeWorkerGroup("x", "y")
    group["y"].views.append(OLD)
    group["y"].stuck_at = config_of(6, a=2)
    group.config = NEW
    group.rebalance(leader="x")
    group.pass_s(0.1)
    assert len(group["y"].assigned) == 1


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_rebalance_ends_the_wait_of_a_worker_that_is_behind(is_lost: bool) -> None:
    """A worker that never started its work is not notified of its end, and starts nothing of it later."""
    group = FakeWorkerGroup("x", "y")
    worker = group["y"]
    worker.stuck_at = OLD
    group.config = NEW
    group.rebalance(leader="x")
    if is_lost:
        group.lose("y")
    else:
        group.leave("y")
    worker.stuck_at = None
    group.pass_s(10.0)
    assert [call for call in group.calls if call.worker == "y"] == []


# A mismatch of configurations


def mismatch(*followers: str) -> FakeWorkerGroup:
    """Return a group whose leader is behind: it has read offset 4, and worker y offset 5."""
    group = FakeWorkerGroup("x", "y", *followers)
    group.config = NEW
    group["x"].stuck_at = OLD
    group.rebalance(leader="x")
    return group


def test_a_mismatch_notifies_every_worker() -> None:
    """If the leader is behind, every worker is notified of a failed assignment with the largest offset."""
    group = mismatch("z")
    failed = WorkerAssignment("x", url_of("x"), 5, is_failed=True)
    assert group.calls == [Assigned(worker, failed, 1) for worker in "xyz"]
    assert [group[worker].metrics.counter("config_mismatches") for worker in "xyz"] == [1, 1, 1]


def test_nothing_is_revoked_after_a_failed_assignment() -> None:
    """A failed assignment has no work: neither a rejoin nor a loss notifies the worker of an end."""
    group = mismatch()
    group.rebalance(leader="x")
    group.lose("x")
    group.leave("y")
    assert {type(call) for call in group.calls} == {Assigned}


def test_the_leaders_rejoin_ends_a_mismatch() -> None:
    """The leader waits, reads the configuration again, and joins; the others wait for that, and then start."""
    group = mismatch("z")
    group["x"].stuck_at = None
    group.pass_s(0.19)
    assert group["x"].reads == [False, True, True]
    assert (len(group["x"].rejoins_s), group["y"].rejoins_s, group["z"].rejoins_s) == (1, [], [])
    assert group["x"].rejoins_s[0] - 1000.0 >= 0.05
    group.rebalance(leader="x")
    group.pass_s(60.0)
    assert [group[worker].assigned[1].is_failed for worker in "xyz"] == [False] * 3
    assert (len(group["x"].rejoins_s), group["y"].rejoins_s, group["z"].rejoins_s) == (1, [], [])


def test_other_workers_join_again_if_the_leader_does_not() -> None:
    """While the leader stays behind, it does not join again; the others do, after a longer wait."""
    group = mismatch()
    group.pass_s(5.0)
    assert group["x"].rejoins_s == []
    assert 0.2 <= group["y"].rejoins_s[0] - 1000.0 <= 0.6
    assert len(group["y"].rejoins_s) == 1


def test_a_worker_waits_longer_after_each_mismatch_in_a_row() -> None:
    """The wait doubles up to a limit with each mismatch; an assignment that succeeds makes it short again."""
    group = mismatch()
    waits = [(0.05, 0.15), (0.1, 0.3), (0.2, 0.6), (0.4, 1.2), (0.8, 2.4), (1.0, 3.0), (1.0, 3.0)]
    for shortest_s, longest_s in waits:
        began_s = group.timeline.now_s
        group["x"].views.append(NEW)
        group.pass_s(3.0)
        assert shortest_s <= group["x"].rejoins_s[-1] - began_s <= longest_s
        group["x"].views.append(OLD)
        group.rebalance(leader="x")
    assert all(each.is_failed for each in group["x"].assigned)
    group["x"].stuck_at = None
    group.rebalance(leader="x")
    assert not group["x"].assigned[-1].is_failed
    group["x"].views.extend([OLD, OLD])
    group.rebalance(leader="x")
    began_s = group.timeline.now_s
    group.pass_s(3.0)
    assert 0.05 <= group["x"].rejoins_s[-1] - began_s <= 0.15


def test_a_worker_that_leads_without_any_configuration_assigns_nothing() -> None:
    """A leader that has not read any configuration reports a mismatch, and joins again once it has."""
    group = FakeWorkerGroup("x")
    group["x"].views.extend([NoZooKeeperError("no server")] * 4)
    group.rebalance()
    assert group["x"].assigned == [WorkerAssignment("x", url_of("x"), NO_OFFSET, is_failed=True)]
    group.pass_s(10.0)
    assert len(group["x"].rejoins_s) == 1


# The end of a membership


def test_a_lost_membership_stops_the_work_at_once() -> None:
    """A worker whose membership is lost is notified once, and joins again with nothing to give back."""
    group = joined_group("x")
    group.lose("x")
    assert group["x"].hooks.assignment is None
    group.rebalance()
    assert [type(call) for call in group.calls] == [Assigned, Lost, Assigned]


def test_a_membership_that_is_lost_while_work_is_given_back_is_reported() -> None:
    """If the membership ends while the worker gives its work back, it is notified of the loss, too."""
    group = joined_group("x")
    worker = group["x"]
    worker.on_call = asyncio.Event().wait
    gate = worker.gate
    assert gate is not None
    preparing = group.process.start(worker.hooks.prepare(gate))
    group.pass_s(1.0)
    group.process.call(preparing.cancel)
    group.pass_s(1.0)
    worker.hooks.lost(gate)
    assert [type(call) for call in group.calls] == [Assigned, Revoked, Lost]


def test_a_membership_that_is_lost_while_work_starts_is_reported() -> None:
    """Work that has begun to start is stopped, although the worker was not done with its notification."""
    group = FakeWorkerGroup("x")
    group["x"].on_call = asyncio.Event().wait
    group.rebalance()
    group.lose("x")
    assert [type(call) for call in group.calls] == [Assigned, Lost]


# Owners


def test_only_the_leader_knows_owners() -> None:
    """The leader knows the URL of each owner, by its present assignment; the other workers know none."""
    group = joined_group("x", "y")
    assert {work: group["x"].hooks.owner_url(work) for work in (A, A0, A1, TaskId("a", 2), ConnectorId("b"))} == {
        A: url_of("x"),
        A0: url_of("y"),
        A1: url_of("x"),
        TaskId("a", 2): None,
        ConnectorId("b"): None,
    }
    assert group["y"].hooks.owner_url(A) is None
    group["x"].leads = False
    assert group["x"].hooks.owner_url(A) is None
    group.rebalance(leader="y")
    assert group["x"].hooks.owner_url(A) is None
    assert group["y"].hooks.owner_url(A) == url_of("x")


def test_no_worker_knows_owners_while_a_rejoin_is_due() -> None:
    """While the leader has to join again, or has lost its membership, it names no owner."""
    group = joined_group("x")
    group["x"].need_rejoin = True
    assert group["x"].hooks.owner_url(A) is None
    assert group["x"].hooks.is_rebalancing
    group["x"].need_rejoin = False
    assert not group["x"].hooks.is_rebalancing
    assert group["x"].hooks.owner_url(A) == url_of("x")
    group.lose("x")
    group["x"].need_rejoin = False
    assert group["x"].hooks.owner_url(A) is None
    assert group["x"].hooks.is_rebalancing


def test_owners_are_forgotten_before_work_is_given_back() -> None:
    """While workers give their work back, the leader names no owner, since the work is about to move."""
    group = joined_group("x")
    known: list[str | None] = []

    async def ask() -> None:
        known.append(group["x"].hooks.owner_url(A))

    group["x"].on_call = ask
    group.rebalance()
    # The first call is that of ``on_revoked``, the second one that of ``on_assigned``.
    assert known == [None, url_of("x")]


def test_nobody_knows_owners_after_a_failed_assignment() -> None:
    """After a mismatch, the leader names no owner, not even those of the generation before."""
    group = joined_group("x", "y")
    group.config = config_of(6, a=2)
    group["x"].stuck_at = NEW
    group.rebalance(leader="x")
    assert group["x"].assigned[-1].is_failed
    assert group["x"].hooks.owner_url(A) is None
    assert group["x"].hooks.is_rebalancing


# Metrics


def test_gauges_follow_the_assignment() -> None:
    """The gauges are 0 before the first assignment, after a failed one and after a loss."""
    group = FakeWorkerGroup("x", "y")
    worker = group["x"]

    def gauges() -> tuple[float, float]:
        named = worker.hooks.kafka_metrics()["connect-coordinator-metrics"]
        found = worker.gauge("assigned_connectors"), worker.gauge("assigned_tasks")
        assert (named["assigned-connectors"], named["assigned-tasks"]) == found
        return found

    assert gauges() == (0, 0)
    group.config = config_of(5, a=3, b=2)
    group.rebalance(leader="y")
    assert gauges() == (1, 3)
    group["y"].stuck_at = OLD
    group.rebalance(leader="y")
    assert group["x"].assigned[-1].is_failed
    assert gauges() == (0, 0)
    group["y"].stuck_at = None
    group.rebalance(leader="y")
    assert gauges() == (1, 3)
    group.lose("x")
    assert gauges() == (0, 0)


# The choice of an allocator


def test_a_sticky_worker_names_its_last_work() -> None:
    """A worker that prefers to keep its work offers that protocol first, with its last work and its generation."""
    group = joined_group("x", allocator="sticky")
    first = StickyMetadata(url_of("x"), 5, -1, {})
    default = GroupProtocol("default", ConnectMetadata(url_of("x"), 5).encode())
    assert group.offered["x"] == [GroupProtocol("kiel-sticky", first.encode()), default]
    group.lose("x")
    group.rebalance()
    second = StickyMetadata(url_of("x"), 5, 1, {"a": (-1, 0, 1)})
    assert group.offered["x"] == [GroupProtocol("kiel-sticky", second.encode()), default]


def test_an_unknown_allocator_is_refused() -> None:
    """A worker with an allocator that does not exist fails when it is created."""
    group = FakeWorkerGroup("x")
    with pytest.raises(ConfigError, match="expected one of round_robin, sticky"):
        group.add("y", "weighted")
