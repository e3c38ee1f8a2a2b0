"""The times of a member's joins and of the way to its partitions."""

from __future__ import annotations

import pytest

from kiel_groups.members.zookeeper.owned_partitions import RebalanceTimes
from kiel_groups.metrics import Latency, Metrics
from tests.helpers.manual_runtime import ManualRuntime

pytestmark = pytest.mark.unit


class Member:
    """The times of a member session that began one second ago."""

    def __init__(self) -> None:
        self.metrics, self.runtime = Metrics(), ManualRuntime()
        self.times = RebalanceTimes(self.metrics, self.runtime, self.runtime.now_s)
        self.runtime.pass_s(1)

    @property
    def joins(self) -> Latency:
        return self.metrics.latency("join")

    @property
    def syncs(self) -> Latency:
        return self.metrics.latency("sync")


def test_the_first_join_counts_from_the_start_of_the_session() -> None:
    """However long the leader takes; the sync then lasts until the partitions are owned."""
    member = Member()
    member.runtime.pass_s(99)
    member.times.arrived(7)
    assert member.joins == Latency(1, 100, 100)
    member.runtime.pass_s(2)
    member.times.taken_over()
    member.times.taken_over()
    assert member.syncs == Latency(1, 2, 2)
    assert member.metrics.counter("joins") == 1


def test_a_noticed_plan_counts_from_the_watch() -> None:
    """A watch that fires without another plan is forgotten."""
    member = Member()
    member.times.arrived(7)
    member.times.change_noticed()
    member.runtime.pass_s(9)
    member.times.arrived(7)
    assert member.joins.count == 1
    member.times.change_noticed()
    member.runtime.pass_s(0.5)
    member.times.change_noticed()
    member.runtime.pass_s(0.5)
    member.times.arrived(8)
    assert member.joins == Latency(2, 2, 1)
    member.runtime.pass_s(5)
    member.times.arrived(9)
    assert member.joins == Latency(3, 2, 1), "an audit has found the plan"


@pytest.mark.parametrize(("delay_s", "join_s"), [(3, 3.5), (40, 0.5)])
def test_a_new_subscription_counts_until_its_plan(delay_s: float, join_s: float) -> None:
    """A subscription need not change the assignment: a plan that is half a minute late has another cause."""
    member = Member()
    member.times.arrived(7)
    member.times.subscription_changed()
    member.runtime.pass_s(delay_s)
    member.times.change_noticed()
    member.runtime.pass_s(0.5)
    member.times.arrived(8)
    assert member.joins == Latency(2, 1 + join_s, max(1, join_s))


def test_a_plan_that_replaces_another_starts_the_sync_again() -> None:
    """Only the newest assignment can be taken over."""
    member = Member()
    member.times.arrived(7)
    member.runtime.pass_s(10)
    member.times.arrived(8)
    member.runtime.pass_s(2)
    member.times.taken_over()
    assert member.syncs == Latency(1, 2, 2)


def test_a_leave_is_no_join() -> None:
    """The plan without the member's partitions is not observed."""
    member = Member()
    member.times.arrived(7)
    member.times.end()
    member.times.arrived(8)
    member.times.taken_over()
    assert (member.joins.count, member.syncs.count) == (1, 0)
