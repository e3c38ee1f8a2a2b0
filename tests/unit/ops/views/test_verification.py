"""The verification of a group: silent on a healthy one, patient with a rebalance, certain about each problem."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kiel_groups.group.znodes.contents import Znode
from kiel_groups.ops.views.group_view import CoordinatorView, GroupView
from kiel_groups.ops.views.progress import Verification
from kiel_groups.ops.views.znodes import view_group
from tests.helpers.group_snapshots import HEALTHY, LATER_MS, LOG_ENDS, PARTITIONS, PLANNED_MS, PROBLEMS, member

pytestmark = pytest.mark.unit

WINDOW_MS = 10_000


def view(offset: int = 12, **znodes: Znode) -> GroupView:
    """Return a healthy group, with this offset in one partition, and without lag in the others."""
    offsets = {f"/consumers/g/offsets/t/{number}": Znode(b"12", modified_ms=PLANNED_MS) for number in range(3)}
    offsets["/consumers/g/offsets/t/1"] = Znode(str(offset).encode(), modified_ms=PLANNED_MS)
    return view_group("g", {**HEALTHY, **offsets, **znodes}, LOG_ENDS)


def kinds(verification: Verification) -> list[str]:
    return [finding.kind for finding in verification.findings]


def test_a_healthy_group_without_lag_is_well_at_once() -> None:
    """The first view is final."""
    verification = Verification(WINDOW_MS)
    assert verification.take(view(), LATER_MS)
    assert verification.findings == ()


def test_an_offset_that_moves_is_well_and_one_that_does_not_is_stuck() -> None:
    """While there is lag, a commit ends the wait; without one, the partition is stuck at the end of the window."""
    moving, stuck = Verification(WINDOW_MS), Verification(WINDOW_MS)
    assert not moving.take(view(5), LATER_MS)
    assert moving.take(view(6), LATER_MS + 1000)
    assert moving.findings == ()
    assert not stuck.take(view(5), LATER_MS)
    assert not stuck.take(view(5), LATER_MS + WINDOW_MS - 1)
    assert stuck.take(view(5), LATER_MS + WINDOW_MS)
    (finding,) = stuck.findings
    assert (finding.kind, finding.partitions) == ("stuck", (PARTITIONS[1],))
    assert "lag 7, and no commit for 20 s: t:1, owned by aaaa" in finding.text
    unchecked = Verification(0)
    assert unchecked.take(view(5), LATER_MS)
    assert unchecked.findings == ()


@pytest.mark.parametrize("kind", sorted(PROBLEMS.keys() - {"unplanned"}))
def test_each_problem_is_confirmed_by_a_second_view(kind: str) -> None:
    """One view may be of a moment in which the group changed; two show the problem."""
    problem, verification = view_group("g", PROBLEMS[kind][0], LOG_ENDS), Verification(0)
    assert not verification.take(problem, LATER_MS)
    assert verification.take(problem, LATER_MS + 1000)
    assert kind in kinds(verification)
    passing = Verification(0)
    assert not passing.take(problem, LATER_MS)
    passing.take(view(), LATER_MS + 1000)
    assert passing.take(view(), LATER_MS + 2000)
    assert passing.findings == ()


def test_a_rebalance_is_waited_for() -> None:
    """A new member without a plan, and claims of a new plan, are no problem; without an end they are one."""
    joined = view(
        **{"/kiel-groups/g/members/g_host-1700000000003-cccc": member("g_host-1700000000003-cccc", PLANNED_MS, "t")}
    )
    claiming = view_group("g", PROBLEMS["unowned"][0], LOG_ENDS)
    verification = Verification(WINDOW_MS)
    assert not verification.take(joined, LATER_MS)
    assert not verification.is_settled
    assert kinds(verification) == ["unsettled"]
    assert not verification.take(claiming, PLANNED_MS + 1)
    assert (verification.is_settled, kinds(verification)) == (False, ["unowned"])
    assert verification.take(view(), LATER_MS)
    assert verification.findings == ()


def test_a_group_of_brokers_is_verified_by_its_answers() -> None:
    """A rebalance is waited for. An assigned partition that has records and no offset is a problem after the window."""
    coordinated = replace(view(), coordinator=CoordinatorView("b:1", "Stable", "range"))
    rebalancing = replace(coordinated, coordinator=CoordinatorView("b:1", "PreparingRebalance", ""))
    uncommitted = replace(
        coordinated, partitions=tuple(replace(each, committed=None) for each in coordinated.partitions)
    )
    verification = Verification(WINDOW_MS)
    assert not verification.take(rebalancing, 0)
    assert not verification.is_settled
    assert not verification.take(uncommitted, 1000)
    assert verification.take(uncommitted, 1000 + WINDOW_MS)
    assert kinds(verification) == ["missing-offset"]
    again = Verification(WINDOW_MS)
    assert again.take(coordinated, 0)
    assert again.findings == ()


def test_an_unknown_lag_is_reported() -> None:
    """Where brokers do not answer, nothing shows whether offsets move."""
    verification = Verification(WINDOW_MS)
    verification.take(view(), LATER_MS, "no broker answered")
    assert kinds(verification) == ["unknown-lag"]
    assert verification.findings[0].remedy.startswith("start the brokers")
    verification.take(replace(view(), closed=("/consumers/g/offsets",)), LATER_MS, "an ACL denies reading")
    assert verification.findings[-1].remedy.startswith("give credentials")


def test_a_group_whose_members_have_left_is_not_well() -> None:
    """No live member owns its partitions, also while there is no lag. With lag, one finding says both."""
    members = {path: None for path in HEALTHY if "/members/" in path or "/owners/" in path or "/election/" in path}
    left = {path: znode for path, znode in HEALTHY.items() if path not in members}
    offsets = {f"/consumers/g/offsets/t/{number}": Znode(b"12", modified_ms=PLANNED_MS) for number in range(3)}
    for ends, expected in ((LOG_ENDS, ["no-members"]), (dict.fromkeys(LOG_ENDS, 20), ["unconsumed"])):
        verification = Verification(WINDOW_MS)
        verification.take(view_group("g", left | offsets, ends), LATER_MS)
        assert verification.take(view_group("g", left | offsets, ends), LATER_MS + 1000)
        assert kinds(verification) == expected


@pytest.mark.parametrize("is_of_brokers", [False, True])
def test_a_group_that_no_member_has_joined_is_well_if_a_program_commits(*, is_of_brokers: bool) -> None:
    """A Spark job commits between two views. If no program commits while there is lag, the group is reported."""

    def memberless(offset: int) -> GroupView:
        znodes = {f"/consumers/g/offsets/t/{each}": Znode(b"12") for each in (0, 2)}
        znodes |= {path: HEALTHY[path] for path in ("/brokers/topics/t", "/consumers/g/offsets/t")}
        found = view_group("g", znodes | {"/consumers/g/offsets/t/1": Znode(b"%d" % offset)}, LOG_ENDS)
        coordinator = CoordinatorView("", "Empty", "") if is_of_brokers else None
        return replace(found, coordinator=coordinator, protocol_type="" if is_of_brokers else found.protocol_type)

    assert memberless(5).state == "memberless"
    left, read = Verification(WINDOW_MS), Verification(WINDOW_MS)
    for verification in (left, read):
        assert not verification.take(memberless(5), LATER_MS)
        assert not verification.take(memberless(5), LATER_MS + 1000)
    assert left.take(memberless(5), LATER_MS + 1000 + WINDOW_MS)
    assert kinds(left) == ["unconsumed"]
    assert "no program commits; its lag is 7, in 1 partition" in left.findings[0].text
    assert not read.take(memberless(6), LATER_MS + 2000)
    assert read.take(memberless(6), LATER_MS + 3000)
    assert read.findings == ()
    idle = Verification(WINDOW_MS)
    assert idle.take(memberless(12), LATER_MS)
    assert idle.findings == ()
