"""Decide which topics and partitions a mirror copies, and say why the others wait."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from kiel_groups.errors import ConfigError
from kiel_groups.mirror.values import (
    BACK,
    CLAIMS_TOPIC,
    FORWARD,
    INTERRUPTED,
    Claim,
    MirroredTopic,
    is_mirrored,
    set_of,
)
from kiel_groups.model import TopicPartition
from kiel_groups.sync import SingleConsumer
from kiel_groups.wording import counted, some

#: How many problems a status shows. The log has all of them.
_MOST_SHOWN = 3


class FoundTopics(NamedTuple):
    """
    The topics of the source that the settings of a mirror name.

    Args:
        partitions: The number of partitions of each topic that can be copied.
        problems: Why other topics are not copied, by their names or patterns.
    """

    partitions: Mapping[str, int]
    problems: Mapping[str, str]


def source_topics(
    brokers: str, patterns: Iterable[str], source_claims: Callable[[], Mapping[str, Claim]] | None
) -> FoundTopics:
    """
    Find the topics of the source that a mirror copies.

    Args:
        brokers: Brokers of the source.
        patterns: Names of topics, which may have the wildcards ``*`` and ``?``.
        source_claims: Returns the claims of mirrors whose target is the source, if it has any; None if topics of the
            source may be mirrors themselves.

    Raises:
        NoBrokersError: No broker answers.
    """
    found: dict[str, int] = {}
    problems: dict[str, str] = {}
    with SingleConsumer(brokers) as consumer:
        names = consumer.topics()
        for pattern in patterns:
            matching = [name for name in names if is_mirrored(name, [pattern])]
            if not matching:
                problems[pattern] = f"topics: the source has no topic {pattern!r}"
            found |= {name: len(consumer.partitions_for_topic(name) or ()) for name in matching}
    claims = source_claims() if source_claims is not None and CLAIMS_TOPIC in names else {}
    for topic in sorted(claims.keys() & found.keys()):
        claim = claims[topic]
        problems[topic] = (
            f"topics: {topic} of the source is itself the mirror of {claim.topic} of {claim.source} by the connector"
            f" {claim.mirror!r}, and a topic has one direction: 'kiel-groups mirror reverse' turns it round; for a"
            " chain of clusters that does not lead back, set source.mirrors to true"
        )
    # A topic that is being created has no partitions yet. The next call finds them.
    return FoundTopics({name: found[name] for name in sorted(found) if found[name] and name not in problems}, problems)


def start_problems(brokers: str, starts: str, topics: Mapping[str, int]) -> dict[str, str]:
    """
    Check that the source has the offsets at which partitions begin.

    Args:
        brokers: Brokers of the source.
        starts: The setting ``start.offsets``.
        topics: The number of partitions of each topic to mirror.

    Returns:
        A problem for each topic of which a partition is not mirrored, or has a log that ends before its offset.

    Raises:
        KielGroupsError: The source does not answer.
    """
    given = json.loads(starts or "{}")
    wanted = {TopicPartition(topic, int(number)): at for topic, each in given.items() for number, at in each.items()}
    unknown = sorted(each for each in wanted if each.partition >= topics.get(each.topic, 0))
    problems = {
        each.topic: f"start.offsets: {each} given; the mirror has no such partition" for each in reversed(unknown)
    }
    if known := sorted(wanted.keys() - set(unknown)):
        with SingleConsumer(brokers) as consumer:
            ends = consumer.end_offsets(known)
        for partition in known:
            if (at := wanted[partition]) > ends[partition]:
                problems.setdefault(
                    partition.topic,
                    f"start.offsets: {at} given for {partition}; expected at most {ends[partition]}, where its log on"
                    " the source ends: a greater offset would skip records",
                )
    return problems


class TopicsPlan(NamedTuple):
    """
    What the tasks of a mirror copy.

    Args:
        topics: The topics that are copied in some direction, with the number of their first partitions that are.
        back: The claims of topics that are copied back, by topic of the source.
        stopped: Why topics are copied in no direction while a command turns them.
        problems: Why partitions of topics wait, by topics of the source.
    """

    topics: Sequence[MirroredTopic]
    back: Mapping[str, Claim]
    stopped: Sequence[str]
    problems: Mapping[str, str]


def growing(
    topics: Iterable[MirroredTopic], claims: Mapping[str, Claim], present: Mapping[str, int]
) -> list[MirroredTopic]:
    """
    Return the topics whose copies on the target get more partitions, because the source has more now.

    A topic whose keys are hashed anew gets none, because its keys would move. A topic that is copied back has producers
    on the target, whose keys would move.

    Args:
        topics: The topics that the mirror has claimed.
        claims: The claims by target topic.
        present: The number of partitions of each target topic.
    """
    return [
        topic
        for topic in topics
        if claims[topic.target].direction == FORWARD
        and not topic.hashed_partitions
        and 0 < present.get(topic.target, 0) < topic.partitions
    ]


def plan_topics(topics: Iterable[MirroredTopic], claims: Mapping[str, Claim], present: Mapping[str, int]) -> TopicsPlan:
    """
    Plan what tasks copy: of each topic, the partitions that both clusters have.

    Args:
        topics: The topics that the mirror has claimed.
        claims: The claims by target topic.
        present: The number of partitions of each target topic.
    """
    moving, back, stopped, problems = list[MirroredTopic](), dict[str, Claim](), list[str](), dict[str, str]()
    for topic in topics:
        claim, count = claims[topic.target], present[topic.target]
        if claim.direction in INTERRUPTED:
            stopped.append(f"topic {topic.source} {INTERRUPTED[claim.direction]}")
            continue
        if claim.direction == BACK:
            back[topic.source] = claim
            if count > topic.partitions:
                problems[topic.source] = (
                    f"the target topic {topic.target} has {counted(count, 'partition')}, and the source topic"
                    f" {topic.source}, which it is copied back to, has {topic.partitions}; the records of the others"
                    " wait: add partitions on the source"
                )
        elif count < topic.partitions:
            moves = ", after which keys have other partitions there" if topic.hashed_partitions else ""
            problems[topic.source] = (
                f"the target topic {topic.target} has {counted(count, 'partition')}, and {topic.source} on the source"
                f" has {topic.partitions}; the records of the others wait: add partitions on the target{moves}"
            )
        moving.append(topic._replace(partitions=min(topic.partitions, count)))
    return TopicsPlan(moving, back, stopped, problems)


def partitions_of_tasks(topics: Iterable[MirroredTopic], sets: int, most: int) -> list[list[TopicPartition]]:
    """Return the partitions of each task. All partitions of a set belong to one task; no task is without partitions."""
    tasks: list[list[TopicPartition]] = [[] for _ in range(most)]
    for topic in topics:
        for number in range(topic.partitions):
            partition = TopicPartition(topic.source, number)
            tasks[set_of(partition, sets) % most].append(partition)
    return [partitions for partitions in tasks if partitions]


def refuse(problems: Mapping[str, str]) -> None:
    """Raise ConfigError with the first problem, if there is any."""
    for problem in problems.values():
        raise ConfigError(problem)


def summary(problems: Mapping[str, str]) -> str:
    """Return the first problems as one line, and the names of the other topics; "" without problems."""
    shown = "; ".join(list(problems.values())[:_MOST_SHOWN])
    others = list(problems)[_MOST_SHOWN:]
    return f"{shown}; also {some(others)}" if others else shown
