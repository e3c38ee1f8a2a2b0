"""The assignors and the allocator ``range``, compared with the Java classes that they equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from kiel_groups.allocators import GroupSpec, range_allocator, run_allocator
from kiel_groups.allocators.assignors import (
    AssignorMember,
    range_assignor,
    roundrobin_assignor,
    run_assignor,
)
from kiel_groups.embedded.releases import KAFKAS, kafka_release
from kiel_groups.model import TopicPartition
from tests.helpers.java_tools import run_java

pytestmark = pytest.mark.integration

PROGRAMS = Path(__file__).parent / "java"

#: The first release with the consumer protocol, and the last of the embedded releases that have it.
RELEASES = [release for release in ("0.9.0.1", "3.9.1") if release in KAFKAS]

TOPICS = ["t", "t-1", "t.1", "T", "u", "u_2"]
#: Member ids in which the order of UTF-16 code units differs from that of code points.
UNUSUAL_LETTERS = "ab-0\uff5e\U0001f600"


class Group(NamedTuple):
    """The topics of each member, and the number of partitions of each topic."""

    members: Mapping[str, Sequence[str]]
    partitions: Mapping[str, int]

    @property
    def has_unknown_topics(self) -> bool:
        return any(not self.partitions.get(topic) for topics in self.members.values() for topic in topics)

    @property
    def subscriptions(self) -> dict[str, AssignorMember]:
        return {member: AssignorMember(tuple(topics)) for member, topics in self.members.items()}

    @property
    def numbers(self) -> dict[str, range]:
        return {topic: range(count) for topic, count in self.partitions.items()}

    @property
    def text(self) -> str:
        topics = [f"topic\t{topic}\t{count}\n" for topic, count in self.partitions.items()]
        members = [f"member\t{member}\t{','.join(topics)}\n" for member, topics in self.members.items()]
        return "".join([*topics, *members, "end\n"])


def generated_groups(count: int, letters: str) -> list[Group]:
    """Return groups of up to nine members whose names consist of ``letters``."""
    chance, groups = Random(count), []
    while len(groups) < count:
        names = {"".join(chance.choices(letters, k=chance.randint(1, 4))) for _ in range(chance.randint(1, 9))}
        known = chance.sample(TOPICS, chance.randint(1, len(TOPICS)))
        partitions = {topic: chance.randint(1, 14) for topic in known}
        wanted = TOPICS if chance.random() < 0.3 else known
        alike = chance.random() < 0.3
        members = {
            name: wanted if alike else chance.sample(wanted, chance.randint(0, len(wanted))) for name in sorted(names)
        }
        groups.append(Group(members, partitions))
    return groups


def answers(output: str) -> list[dict[tuple[str, str], list[TopicPartition] | str]]:
    """Return the partitions by assignor and member of each group, or the error by "raised" and assignor."""
    parsed = []
    for block in output.split("end\n")[:-1]:
        found: dict[tuple[str, str], list[TopicPartition] | str] = {}
        for assignor, member, text in (line.split("\t") for line in block.splitlines()):
            owned = [TopicPartition.parse(each) for each in text.split(",")] if text and assignor != "raised" else []
            found[assignor, member] = text if assignor == "raised" else owned
        parsed.append(found)
    return parsed


def by_topic(owned: Sequence[TopicPartition]) -> dict[str, list[int]]:
    """Return the partition ids of each topic, in the given order."""
    topics: dict[str, list[int]] = {}
    for topic, number in owned:
        topics.setdefault(topic, []).append(number)
    return topics


@pytest.mark.parametrize("release", RELEASES)
def test_the_assignors_equal_those_of_java(release: str) -> None:
    """
    Both assignors give each member of 400 generated groups the partitions that Java gives it, in Java's order within
    each topic. In 0.9.0.1, ``RoundRobinAssignor`` fails if a topic does not exist; ours leaves the topic out, as later
    releases do.
    """
    groups = generated_groups(400, UNUSUAL_LETTERS)
    output = run_java(
        kafka_release(release).classes, PROGRAMS / "ConsumerAssignments.java", "".join(group.text for group in groups)
    )
    failures = 0
    for group, java in zip(groups, answers(output), strict=True):
        for assignor in (range_assignor, roundrobin_assignor):
            ours = run_assignor(assignor, group.subscriptions, group.numbers).assignment
            if assignor is roundrobin_assignor and group.has_unknown_topics and release == "0.9.0.1":
                assert java["raised", "roundrobin"] == "NullPointerException"
                failures += 1
                continue
            for member, owned in ours.items():
                theirs = java[assignor.name, member]
                assert isinstance(theirs, list), theirs
                if assignor is roundrobin_assignor:
                    assert list(owned) == theirs, (group, member)
                else:
                    assert by_topic(owned) == by_topic(theirs), (group, member)
    assert failures < len(groups) / 2


@pytest.mark.parametrize("release", RELEASES)
def test_a_topic_that_is_listed_twice_counts_twice_in_the_first_release(release: str) -> None:
    """
    A subscription that lists a topic twice, which no client of Kafka's sends, gets two shares from ``RangeAssignor`` of
    0.9.0.1 and from ours, and one share from later releases.
    """
    group = Group({"a": ["t"], "b": ["t", "t"]}, {"t": 3})
    (java,) = answers(run_java(kafka_release(release).classes, PROGRAMS / "ConsumerAssignments.java", group.text))
    theirs = [java["range", member] for member in "ab"]
    ours = run_assignor(range_assignor, group.subscriptions, group.numbers).assignment
    first, second, third = (TopicPartition("t", number) for number in range(3))
    assert list(ours["a"]) == [first]
    assert list(ours["b"]) == [second, third]
    assert theirs == ([[first], [second, third]] if release == "0.9.0.1" else [[first, second], [third]])


def test_the_range_allocator_equals_that_of_the_high_level_consumer() -> None:
    """
    The allocator ``range`` gives each member the partitions that ``kafka.consumer.RangeAssignor`` of 0.8.2.2 gives a
    consumer of this id with one thread. That class reads the group from znodes in memory.
    """
    groups = generated_groups(100, "ab-.0_")
    groups = [group for group in groups if not {".", ".."} & group.members.keys()]
    output = run_java(
        kafka_release("0.8.2.2").classes, PROGRAMS / "ZooKeeperRanges.java", "".join(group.text for group in groups)
    )
    for group, java in zip(groups, answers(output), strict=True):
        existing = [TopicPartition(topic, number) for topic, numbers in group.numbers.items() for number in numbers]
        ours = run_allocator(range_allocator, GroupSpec.of(group.members, existing)).allocation
        assert ours == {member: frozenset(java["range", member]) for member in group.members}, group
