"""
Test an allocator of your own: ``check_allocator`` tries many groups, and reports the smallest group that breaks a rule.

The function needs Hypothesis (``pip install hypothesis``) to generate the groups and to make a failing group smaller.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from kiel_groups.allocators import Allocator, GroupSpec, MemberSpec, PartitionSpec, allocator_name, run_allocator
from kiel_groups.errors import AllocatorError, ConfigError
from kiel_groups.model import TopicPartition

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy


K = TypeVar("K")
V = TypeVar("V")


def check_allocator(allocator: Allocator, examples: int = 500) -> None:
    """
    Try an allocator on generated groups, of up to 5 members and 3 topics of up to 6 partitions.

    An allocator must follow these rules:

    - Each partition of a topic with subscribers has exactly one owner, which is a subscriber.
    - The order of members and partitions does not matter.
    - A second call with the same group returns the same allocation.
    - The allocator does not change the group.

    An allocator with ``allocate`` also gets capacities, racks, weights, lags, and present owners.

    Args:
        allocator: A function of members and partitions, or an object that has ``allocate`` as well.
        examples: How many groups to try.

    Raises:
        AllocatorError: The allocator breaks a rule. The text has the rule, and the smallest group found that breaks it.
        ConfigError: Hypothesis is not installed.
    """
    try:
        from hypothesis import Phase, find, settings
        from hypothesis.errors import NoSuchExample
    except ModuleNotFoundError:
        raise ConfigError("check_allocator needs Hypothesis; install it: pip install hypothesis") from None
    rule = _rule_of(allocator)
    try:
        group = find(
            _groups(),
            lambda group: rule(group) is not None,
            # Named, so that a profile without them does not change the report.
            settings=settings(
                max_examples=examples,
                deadline=None,
                database=None,
                derandomize=True,
                phases=(Phase.generate, Phase.shrink),
            ),
        )
    except NoSuchExample:
        return
    raise AllocatorError(f"{rule(group)}\n{_described(group)}")


def _rule_of(allocator: Allocator) -> Callable[[GroupSpec], str | None]:
    """Return a function that checks the allocator on a group, and returns the text of a broken rule or None."""
    name = allocator_name(allocator)

    def broken(group: GroupSpec) -> str | None:
        before = copy.deepcopy(group)
        try:
            first = run_allocator(allocator, group)
            if group != before:
                return f"allocator {name}: it changed the group that it got"
            if run_allocator(allocator, group) != first:
                return f"allocator {name}: a second call with the same group returned another allocation"
            turned = GroupSpec(_reversed(group.members), _reversed(group.partitions))
            if run_allocator(allocator, turned) != first:
                return f"allocator {name}: members and partitions in another order gave another allocation"
        except AllocatorError as error:
            return str(error)
        return None

    return broken


def _reversed(entries: Mapping[K, V]) -> dict[K, V]:
    return dict(reversed(list(entries.items())))


def _groups() -> SearchStrategy[GroupSpec]:
    from hypothesis import strategies as st

    names = ["a", "b", "c", "d", "e"]
    topics = st.sampled_from(["t", "t-1", "u"])
    # Hypothesis checks each strategy anew, so none of them is made within a group.
    sizes = st.dictionaries(topics, st.integers(0, 6), max_size=3)
    members = st.lists(st.sampled_from(names), unique=True, max_size=5)
    owners = st.sampled_from([None, *names])
    subscriptions = st.sets(topics)
    capacities = st.sampled_from([1, 1, 2, 0.5, 0])
    racks = st.sampled_from([None, "east", "west"])
    weights = st.none() | st.integers(0, 100)
    lags = st.none() | st.integers(0, 10**6)

    @st.composite
    def groups(draw: DrawFn) -> GroupSpec:
        counts = draw(sizes)
        partitions = [TopicPartition(topic, number) for topic in sorted(counts) for number in range(counts[topic])]
        present = {partition: draw(owners) for partition in partitions}
        return GroupSpec(
            {
                member: MemberSpec(
                    frozenset(draw(subscriptions)),
                    draw(capacities),
                    draw(racks),
                    frozenset(partition for partition, owner in present.items() if owner == member),
                )
                for member in draw(members)
            },
            {partition: PartitionSpec(draw(weights), draw(lags), draw(racks)) for partition in partitions},
        )

    return groups()


def _described(group: GroupSpec) -> str:
    """Return a text with a line for each member and each partition of a group, with the known properties."""
    lines = ["the smallest group found:"]
    for slot, member in group.members.items():
        owned = f", owns {', '.join(map(str, sorted(member.owned)))}" if member.owned else ""
        capacity = f", capacity {member.capacity:g}" if member.capacity != 1 else ""
        rack = f", rack {member.rack}" if member.rack else ""
        topics = ", ".join(sorted(member.topics)) or "nothing"
        lines.append(f"  member {slot} subscribes to {topics}{capacity}{rack}{owned}")
    for partition, spec in group.partitions.items():
        known = [(name, value) for name in ("weight", "lag", "rack") if (value := getattr(spec, name)) is not None]
        lines.append(f"  partition {partition}" + "".join(f", {name} {value}" for name, value in known))
    return "\n".join(lines)
