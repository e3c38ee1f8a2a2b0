"""Laws of the allocators of work, for any members, work and former owners."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiel_groups.workers.allocation import WORK_ALLOCATORS, WorkAllocation, WorkAllocator, retain_work, work_in_order
from kiel_groups.workers.values import ConnectorId, TaskId, Work
from tests.helpers.examples import examples

pytestmark = pytest.mark.property

names = st.text("ab-.0\uff5e\U0001f600", min_size=1, max_size=4)
members = st.sets(names, min_size=1, max_size=7)
works: st.SearchStrategy[list[Work]] = st.dictionaries(names, st.integers(0, 12), max_size=6).map(
    lambda counts: [
        *(ConnectorId(name) for name in counts),
        *(TaskId(name, number) for name, count in counts.items() for number in range(count)),
    ]
)
allocators = st.sampled_from(list(WORK_ALLOCATORS.values()))


@st.composite
def cases(draw: st.DrawFn) -> tuple[set[str], list[Work], dict[Work, str]]:
    """Draw members, work, and former owners, which may be gone; some work is new, and some was deleted."""
    group, its = draw(members), draw(works)
    former = st.sampled_from(sorted({*group, *draw(st.sets(names, max_size=3))}))
    owned: list[Work] = draw(st.lists(st.sampled_from(its), unique=True)) if its else []
    previous: dict[Work, str] = {work: draw(former) for work in owned}
    return group, its, {**previous, ConnectorId("deleted"): draw(former)}


def moves(after: WorkAllocation, previous: Mapping[Work, str]) -> int:
    """Return how much work is with another member than before, or with a member for the first time."""
    return sum(previous.get(work) != member for member, its in after.items() for work in its)


@given(allocators, cases())
def test_each_piece_of_work_has_one_worker_and_loads_are_even(
    allocator: WorkAllocator, case: tuple[set[str], list[Work], dict[Work, str]]
) -> None:
    """Each member has an entry, each piece of work is assigned once, and loads of each kind differ by at most one."""
    group, its, previous = case
    after = allocator.allocate(group, its, previous)
    assert after.keys() == group
    assert work_in_order([work for part in after.values() for work in part]) == work_in_order(its)
    assert sum(len(part) for part in after.values()) == len(its)
    for kind in (ConnectorId, TaskId):
        loads = [sum(isinstance(work, kind) for work in part) for part in after.values()]
        assert max(loads) - min(loads) <= 1
    assert all(list(part) == work_in_order(part) for part in after.values())


@given(allocators, cases(), st.randoms(use_true_random=False))
def test_the_order_of_the_arguments_does_not_matter(
    allocator: WorkAllocator, case: tuple[set[str], list[Work], dict[Work, str]], shuffle: random.Random
) -> None:
    """The same members, work and former owners in any order give the same allocation."""
    group, its, previous = case
    mixed = [shuffle.sample(part, len(part)) for part in (sorted(group), its, list(previous.items()))]
    after = allocator.allocate(group, its, previous)
    assert allocator.allocate(mixed[0], mixed[1], dict(mixed[2])) == after  # type: ignore[arg-type]
    assert allocator.allocate(group, its, previous) == after


def fewest_moves(group: set[str], its: list[Work], previous: Mapping[Work, str]) -> int:
    """Return the fewest moves of any allocation whose loads of this kind of work differ by at most one."""
    counts = [sum(previous.get(work) == member for work in its) for member in sorted(group)]
    least, remainder = divmod(len(its), len(group))
    # A member that has more than the least can keep one piece more if it is chosen; no other choice matters.
    gains = min(remainder, sum(count > least for count in counts))
    return len(its) - sum(min(count, least) for count in counts) - gains


@settings(max_examples=examples(300))
@given(cases())
def test_no_even_allocation_moves_less_than_the_sticky_one(case: tuple[set[str], list[Work], dict[Work, str]]) -> None:
    """The sticky allocator moves as little as any allocation whose loads of each kind differ by at most one."""
    group, its, previous = case
    kinds = ([work for work in its if isinstance(work, kind)] for kind in (ConnectorId, TaskId))
    fewest = sum(fewest_moves(group, kind, previous) for kind in kinds)
    assert moves(retain_work(group, its, previous), previous) == fewest


def owners(allocation: WorkAllocation) -> dict[Work, str]:
    return {work: member for member, its in allocation.items() for work in its}


@given(members, works, st.data())
def test_a_restart_moves_only_what_the_worker_had(group: set[str], its: list[Work], data: st.DataObject) -> None:
    """
    When a worker restarts under a new id in one rebalance, only its work moves. When it leaves and joins in two, at
    most its share moves each time. Without a change, nothing moves.
    """
    before = owners(retain_work(group, its, {}))
    assert moves(retain_work(group, its, before), before) == 0
    gone = data.draw(st.sampled_from(sorted(group)))
    its_share = sum(owner == gone for owner in before.values())
    others = group - {gone}
    assert moves(retain_work({*others, "new"}, its, before), before) == its_share
    if others:
        between = owners(retain_work(others, its, before))
        assert moves(retain_work(others, its, before), before) == its_share
        after = retain_work({*others, "new"}, its, between)
        assert moves(after, between) == len(after["new"])
