"""The check that authors of allocators run on theirs."""

from __future__ import annotations

import pytest

from kiel_groups.allocators import ALLOCATORS, GroupSpec
from kiel_groups.errors import AllocatorError
from kiel_groups.testing import check_allocator

pytestmark = pytest.mark.unit

Allocated = dict[str, dict[str, list[int]]]


@pytest.mark.parametrize("name", ALLOCATORS)
def test_the_included_allocators_break_no_rule(name: str) -> None:
    """No group is found for which one of them breaks a rule."""
    check_allocator(ALLOCATORS[name], examples=100)


def all_to_the_first(members: list[str], partitions: list[str]) -> Allocated:
    """Give everything to one member: unfair, and not wrong."""
    owned: dict[str, list[int]] = {}
    for partition in partitions:
        topic, _, number = partition.rpartition(":")
        owned.setdefault(topic, []).append(int(number))
    return {members[0]: owned}


def forgetful(members: list[str], partitions: list[str]) -> Allocated:
    return all_to_the_first(members, partitions[:3])


class Fickle:
    """An allocator that depends on the order of members."""

    def __call__(self, members: list[str], partitions: list[str]) -> Allocated:
        raise AssertionError

    def allocate(self, group: GroupSpec) -> Allocated:
        first = [slot for slot in group.members if slot in frozenset().union(*group.eligible.values())]
        return {first[0]: {"t": [p.partition for p in group.assignable if p.topic == "t"]}} if first else {}


def test_an_unfair_allocator_breaks_no_rule() -> None:
    """Balance is the author's choice."""
    check_allocator(all_to_the_first, examples=100)


def test_the_smallest_group_that_breaks_a_rule_is_reported() -> None:
    """The error names the allocator, the rule, and a group that has no member and no partition more than necessary."""
    with pytest.raises(AllocatorError) as caught:
        check_allocator(forgetful)
    first, *lines = str(caught.value).splitlines()
    assert first == "allocator forgetful: 1 of 4 partitions were left out: t:3"
    assert lines[0] == "the smallest group found:"
    assert [line.split()[0] for line in lines[1:]] == ["member"] + ["partition"] * 4
    with pytest.raises(AllocatorError, match=r"^allocator Fickle: "):
        check_allocator(Fickle())
