"""The interface of assignors, and the function that runs one and checks its result."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from kiel_groups.allocators.adapter import eligible_members, raised
from kiel_groups.allocators.validation import kind_of, validate
from kiel_groups.errors import AllocatorError
from kiel_groups.model import TopicPartition

__all__ = ["Assignor", "AssignorMember", "AssignorOutcome", "ReportingAssignor", "run_assignor"]

_SHAPE = "{member: [TopicPartition]}"


@dataclass(frozen=True, slots=True)
class AssignorMember:
    """What a member's subscription says: its topics in the member's order, and the user data of its assignor."""

    topics: tuple[str, ...]
    user_data: bytes | None = None


@runtime_checkable
class Assignor(Protocol):
    """
    Divides partitions among the members of a broker-coordinated group, in the process of the member that leads it.

    The broker chooses an assignor that all members offer, by its ``name``.
    """

    @property
    def name(self) -> str: ...

    def metadata(self, topics: Collection[str], owned: Collection[TopicPartition] = ()) -> bytes | None:
        """Return the user data of this member's subscription to ``topics``; it owned ``owned`` before the rebalance."""

    def assign(
        self, subscriptions: Mapping[str, AssignorMember], partitions: Mapping[str, Sequence[int]]
    ) -> Mapping[str, Sequence[TopicPartition]]:
        """
        Return the partitions of each member.

        Args:
            subscriptions: The subscription of each member, by member id.
            partitions: The numbers of the partitions of each topic that exists.
        """


@runtime_checkable
class ReportingAssignor(Protocol):
    """An assignor with this method reports what it cannot use of other members' subscriptions."""

    def findings(self, subscriptions: Mapping[str, AssignorMember]) -> Sequence[str]:
        """Return a line for each member with an unusable subscription: what is wrong, and what follows."""


@dataclass(frozen=True, slots=True)
class AssignorOutcome:
    """
    A valid assignment, and lines for the log of the member that leads.

    ``assignment`` has an entry for every member, with its partitions in the order of the assignor.
    """

    assignment: Mapping[str, Sequence[TopicPartition]]
    findings: tuple[str, ...] = ()


def run_assignor(
    assignor: Assignor, subscriptions: Mapping[str, AssignorMember], partitions: Mapping[str, Sequence[int]]
) -> AssignorOutcome:
    """
    Run an assignor, and check its result as the results of allocators are checked.

    Args:
        assignor: The assignor that the broker chose.
        subscriptions: The subscription of each member, by member id.
        partitions: The numbers of the partitions of each topic that exists.

    Raises:
        AllocatorError: The assignor raised (its error is the cause), or returned an invalid assignment: a wrong type,
            an unknown member, topic or partition, a member that is not subscribed, a partition assigned twice or not at
            all.
    """
    try:
        result: object = assignor.assign(subscriptions, partitions)
        findings = tuple(assignor.findings(subscriptions)) if isinstance(assignor, ReportingAssignor) else ()
    except AllocatorError:
        raise
    except Exception as error:
        raise AllocatorError(f"assignor {assignor.name}: {raised(error)}") from error
    existing = [TopicPartition(topic, number) for topic, numbers in partitions.items() for number in numbers]
    eligible = eligible_members({name: its.topics for name, its in subscriptions.items()}, set(partitions))
    try:
        assignment = _typed(result)
        validate(_by_topic(assignment), subscriptions, existing, eligible)
    except AllocatorError as error:
        raise AllocatorError(f"assignor {assignor.name}: {error}") from None
    return AssignorOutcome({member: assignment.get(member, ()) for member in subscriptions}, findings)


def _typed(result: object) -> dict[str, tuple[TopicPartition, ...]]:
    """Check the types of an assignor's result. Its members, topics and numbers may still be wrong."""
    if not isinstance(result, Mapping):
        raise AllocatorError(f"it returned {kind_of(result)}; expected {_SHAPE}")
    typed: dict[str, tuple[TopicPartition, ...]] = {}
    for member, given in result.items():
        if not isinstance(given, (list, tuple, set, frozenset)):
            raise AllocatorError(f"{member!r} was given {kind_of(given)}; expected {_SHAPE}")
        for each in given:
            if not (isinstance(each, tuple) and len(each) == 2 and isinstance(each[0], str)):
                raise AllocatorError(f"{member!r} was given {each!r}; expected a TopicPartition")
        typed[member] = tuple(TopicPartition(*each) for each in given)
    return typed


def _by_topic(assignment: Mapping[str, Sequence[TopicPartition]]) -> dict[str, dict[str, list[int]]]:
    by_topic: dict[str, dict[str, list[int]]] = {}
    for member, given in assignment.items():
        topics = by_topic.setdefault(member, {})
        for topic, number in given:
            topics.setdefault(topic, []).append(number)
    return by_topic
