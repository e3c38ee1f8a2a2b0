"""The figures of the rebalance benchmark for groups that brokers coordinate: owners from the reports of members."""

from __future__ import annotations

import pytest

from benchmarks.members.event_lines import MemberEvent
from benchmarks.reported_ownership import Member, MemberReport, ReportedOwnership

pytestmark = pytest.mark.unit

ONE, TWO = Member(0, 0), Member(1, 0)


def seen(*lines: tuple[Member, str], leaving_ends: bool = True) -> ReportedOwnership:
    """Return the ownership after these lines of members."""
    found = ReportedOwnership(leaving_ends=leaving_ends)
    found.take(MemberReport(member, MemberEvent.parse(line)) for member, line in lines)
    return found


JOIN = (
    (ONE, "0 0 joining"),
    (ONE, "5 0 assigned t:0 t:1"),
    (ONE, "9 0 record t:0 0"),
    (ONE, "10 0 record t:1 0"),
    (ONE, "11 0 record t:1 1"),
    (TWO, "100 0 joining"),
    (ONE, "130 0 revoked t:0 t:1"),
    (ONE, "140 0 assigned t:0"),
    (ONE, "150 0 record t:0 0"),
    (TWO, "160 0 record t:1 0"),
)


def test_a_rebalance_is_measured_from_the_reports_of_members() -> None:
    """
    A join lasts from the new member's call to the first record of the last partition. A partition has no owner from its
    revocation until a member delivers a record of it again.
    """
    alone = seen(*JOIN[:6])
    assert alone.is_shared(partitions=2, members=1)
    before = alone.owners
    found = seen(*JOIN)
    assert found.is_shared(partitions=2, members=2)
    assert (found.joining_ns[TWO], found.stopped_ns(100)) == (100, 130)
    assert (found.last_assigned_ns, found.last_owned_ns) == (140, 160)
    assert found.unowned_ns(100, 160) == 20 + 30
    assert found.longest_gap_ns(100, 160) == 30
    assert found.moved(before) == 1
    assert found.overlaps() == []


def test_the_lines_of_several_members_may_come_in_any_order() -> None:
    """A line that is read late changes nothing, if the lines of each member are in order."""
    late = seen(*[line for line in JOIN if line[0] is TWO], *[line for line in JOIN if line[0] is ONE])
    assert late.owners == seen(*JOIN).owners
    assert late.unowned_ns(100, 160) == seen(*JOIN).unowned_ns(100, 160)


def test_a_member_that_leaves_or_is_killed_owns_nothing() -> None:
    """The ownership of a member ends with its call to close, or with its process."""
    left = seen(*JOIN, (TWO, "200 0 leaving"))
    assert left.members == {ONE}
    assert left.leaving_ns == {TWO: 200}
    killed = seen(*JOIN)
    killed.end(TWO.process, 200)
    assert killed.owners == left.owners == {"t:0": ONE}
    assert killed.unowned_ns(300, 400) == left.unowned_ns(300, 400) == 100
    assert not killed.is_shared(partitions=2, members=1)


def test_two_owners_at_once_are_found() -> None:
    """A partition that a member delivers while another one owns it is named."""
    assert seen(*JOIN, (ONE, "170 0 record t:1 0")).overlaps() == ["t:1"]


def test_a_task_runs_until_its_end_although_its_worker_leaves() -> None:
    """A task of a worker that leaves runs until it reports its end; a task that starts elsewhere before is found."""
    leaving = (*JOIN, (TWO, "200 0 leaving"), (TWO, "230 0 revoked t:1"))
    in_order = seen(*leaving, (ONE, "250 0 record t:1 0"), leaving_ends=False)
    assert (in_order.unowned_ns(200, 250), in_order.longest_gap_ns(200, 250)) == (20, 20)
    assert in_order.overlaps() == []
    early = seen(*leaving, (ONE, "220 0 record t:1 0"), leaving_ends=False)
    assert early.overlaps() == ["t:1"]
