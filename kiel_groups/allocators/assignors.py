"""Divide partitions among the members of a broker-coordinated group: Java's assignors, and allocators as assignors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Protocol, TypeAlias, runtime_checkable

from kiel_groups.allocators.adapter import allocator_name, kind_of, raised, run_allocator, validate
from kiel_groups.allocators.contiguous_ranges import ranges
from kiel_groups.allocators.group_spec import Allocator, GroupAllocator, GroupSpec, MemberSpec
from kiel_groups.allocators.registry import ALLOCATORS, installed_allocators, look_up, named_allocator
from kiel_groups.config import check_capacity
from kiel_groups.errors import AllocatorError, ConfigError
from kiel_groups.model import TopicPartition, numbers_by_topic

_SHAPE = "{member: [TopicPartition]}"


@dataclass(frozen=True, slots=True)
class AssignorMember:
    """A member's subscription: its topics in the member's order, and the user data of its assignor."""

    topics: tuple[str, ...]
    user_data: bytes | None = None


@runtime_checkable
class Assignor(Protocol):
    """
    Divides partitions among the members of a broker-coordinated group. It runs in the process of the leader.

    The broker chooses an assignor that all members offer, by its ``name``. Users may pass their own assignors.
    """

    @property
    def name(self) -> str: ...

    def metadata(self, topics: Collection[str], owned: Collection[TopicPartition] = ()) -> bytes | None:
        """
        Return the user data that a member sends with its subscription, or None for no user data.

        Args:
            topics: The topics that the member subscribes to.
            owned: The partitions that the member owned so far.
        """

    def assign(
        self, subscriptions: Mapping[str, AssignorMember], partitions: Mapping[str, Sequence[int]]
    ) -> Mapping[str, Sequence[TopicPartition]]:
        """
        Return the partitions of each member.

        Args:
            subscriptions: The subscription of each member, by member id.
            partitions: The numbers of the partitions of each topic that exists.
        """


@dataclass(frozen=True, slots=True)
class AssignorOutcome:
    """
    A valid assignment, and lines for the leader's log about members whose user data is unreadable.

    ``assignment`` has an entry for every member, with its partitions in the order of the assignor.
    """

    assignment: Mapping[str, Sequence[TopicPartition]]
    findings: tuple[str, ...] = ()


def run_assignor(
    assignor: Assignor, subscriptions: Mapping[str, AssignorMember], partitions: Mapping[str, Sequence[int]]
) -> AssignorOutcome:
    """
    Run an assignor, and check the result by the rules for the results of allocators.

    Args:
        assignor: The assignor that the broker chose.
        subscriptions: The subscription of each member, by member id.
        partitions: The numbers of the partitions of each topic that exists.

    Raises:
        AllocatorError: The assignor raised an error, which is the cause of this one, or returned an invalid assignment:
            a wrong type, an unknown member, topic or partition, a member that does not subscribe to the topic, a
            partition assigned twice or not at all.
    """
    try:
        result: object = assignor.assign(subscriptions, partitions)
        findings = tuple(assignor.findings(subscriptions)) if isinstance(assignor, AllocatorAssignor) else ()
    except AllocatorError:
        raise
    except (Exception, SystemExit) as error:
        raise AllocatorError(f"assignor {assignor.name}: {raised(error)}") from error
    existing = [TopicPartition(topic, number) for topic, numbers in partitions.items() for number in numbers]
    group = GroupSpec.of({name: its.topics for name, its in subscriptions.items()}, existing)
    try:
        assignment = _typed(result)
        by_topic = {member: numbers_by_topic(given) for member, given in assignment.items()}
        validate(by_topic, subscriptions, existing, group.eligible)
    except AllocatorError as error:
        raise AllocatorError(f"assignor {assignor.name}: {error}") from None
    return AssignorOutcome({member: assignment.get(member, ()) for member in subscriptions}, findings)


def _typed(result: object) -> dict[str, tuple[TopicPartition, ...]]:
    """
    Check the types in an assignor's result, and return the result with tuples of ``TopicPartition``.

    The members, topics and numbers in the result may still be wrong.

    Raises:
        AllocatorError: A type is wrong.
    """
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


# The assignors ``range`` and ``roundrobin`` of Kafka's Java consumer.
#
# Members in other languages share a group with ours, and any of them may lead it. For members without an instance id
# and without a rack, the results are those of ``RangeAssignor`` and ``RoundRobinAssignor`` in kafka-clients 0.9.0.1 and
# 3.9.1 (``tests/integration/test_java_assignors.py``), except for the order of topics within a member's assignment,
# which in Java is that of a hash table. An assignment groups partitions by topic, so no member sees that order.
#
# Java leaders of later releases sort static members first, by their instance ids, and prefer partitions with a replica
# in the member's rack. A leader of ours joins with an older request, whose answer has no instance ids.


@dataclass(frozen=True, slots=True)
class _JavaAssignor:
    """
    An assignor of Kafka's Java consumer. It does not use the present owners of partitions.

    ``divide`` gets the subscribed topics of each member, with the members sorted by id, and the partitions of each
    topic.
    """

    name: str
    divide: Callable[[Mapping[str, Sequence[str]], Mapping[str, Sequence[int]]], Iterator[tuple[str, TopicPartition]]]

    def metadata(self, topics: Collection[str], owned: Collection[TopicPartition] = ()) -> bytes | None:
        """Return None: this assignor has no user data."""

    def assign(
        self, subscriptions: Mapping[str, AssignorMember], partitions: Mapping[str, Sequence[int]]
    ) -> dict[str, list[TopicPartition]]:
        """Return the partitions of each member; see ``Assignor``."""
        subscribed = {member: subscriptions[member].topics for member in sorted(subscriptions, key=_java_order)}
        assignment: dict[str, list[TopicPartition]] = {member: [] for member in subscribed}
        for member, partition in self.divide(subscribed, partitions):
            assignment[member].append(partition)
        return assignment


def _in_ranges(
    subscribed: Mapping[str, Sequence[str]], partitions: Mapping[str, Sequence[int]]
) -> Iterator[tuple[str, TopicPartition]]:
    """
    Divide each topic into ranges for its subscribers, as ``RangeAssignor`` does. Yield pairs of a member and a
    partition.
    """
    subscribers: dict[str, list[str]] = {}
    for member, topics in subscribed.items():
        # A topic that is listed twice counts twice, as in Java.
        for topic in topics:
            subscribers.setdefault(topic, []).append(member)
    for topic in sorted(subscribers.keys() & partitions.keys()):
        for member, numbers in ranges(subscribers[topic], sorted(partitions[topic])):
            yield from ((member, TopicPartition(topic, number)) for number in numbers)


def _in_turns(
    subscribed: Mapping[str, Sequence[str]], partitions: Mapping[str, Sequence[int]]
) -> Iterator[tuple[str, TopicPartition]]:
    """
    Let members take turns over all partitions, as ``RoundRobinAssignor`` does. Yield pairs of a member and a partition.

    A member that does not subscribe to the topic of the next partition misses its turn.
    """
    sets = {member: frozenset(topics) for member, topics in subscribed.items()}
    turns = cycle(sets)
    for topic in sorted(frozenset().union(*sets.values()) & partitions.keys()):
        for number in sorted(partitions[topic]):
            yield next(member for member in turns if topic in sets[member]), TopicPartition(topic, number)


def _java_order(text: str) -> bytes:
    """
    Return a key that sorts text as Java does, by UTF-16 code units.

    Python's order differs for characters beyond U+FFFF. A member id may have such characters: it begins with the client
    id, and a client id may be any text.
    """
    return text.encode("utf-16-be", "surrogatepass")


range_assignor: Assignor = _JavaAssignor("range", _in_ranges)
roundrobin_assignor: Assignor = _JavaAssignor("roundrobin", _in_turns)


# An allocator as the assignor of a broker-coordinated group: its protocol name, and the user data of its members.
#
# An allocator such as ``sticky`` needs the present owners of partitions. Each member sends its own partitions as the
# user data of its subscription, as JSON: ``{"owned":{topic:[ids]},"version":1}``. ``"capacity"`` is added if the
# member's capacity is not 1. In such a group, the weights, lags and racks of partitions are unknown, so ``weighted``,
# for example, allocates as ``sticky`` does.


_VERSION = 1


class AllocatorAssignor:
    """
    Runs an allocator as an assignor named ``kiel-<name>``, such as ``kiel-sticky`` or ``kiel-round-robin``.

    Args:
        allocator: The allocator. The name of a function is converted to letters, digits and hyphens.
        setting: The setting to name in an error.
        capacity: The capacity of this member, for an allocator that sees the whole group.

    Raises:
        ConfigError: The function's name has neither letters nor digits of ASCII.
    """

    def __init__(self, allocator: Allocator, setting: str = "partition_allocator", capacity: float = 1.0) -> None:
        self._allocator = allocator
        self._capacity = capacity
        #: Whether the allocator sees owners and capacities.
        self.sees_members = isinstance(allocator, GroupAllocator)
        given = allocator_name(allocator)
        name = re.sub(r"[^a-z0-9]+", "-", given.lower()).strip("-")
        if not name:
            raise ConfigError(
                f"{setting}: a function named {given!r} given; members agree on its name, which needs letters or digits"
            )
        self.name = f"kiel-{name}"

    def of_member(self, capacity: float) -> AllocatorAssignor:
        """Return the assignor of a member with this capacity."""
        return AllocatorAssignor(self._allocator, capacity=capacity)

    def metadata(self, topics: Collection[str], owned: Collection[TopicPartition] = ()) -> bytes | None:
        """Return the user data with ``owned`` and the capacity, or None if the allocator does not see them."""
        return encode_member(owned, self._capacity) if self.sees_members else None

    def assign(
        self, subscriptions: Mapping[str, AssignorMember], partitions: Mapping[str, Sequence[int]]
    ) -> dict[str, list[TopicPartition]]:
        """
        Return the partitions of each member, sorted; see ``Assignor``.

        Raises:
            AllocatorError: The allocator raised an error, or returned an invalid allocation.
        """
        existing = [TopicPartition(topic, number) for topic, numbers in partitions.items() for number in numbers]
        members, _ = self._members(subscriptions)
        outcome = run_allocator(self._allocator, GroupSpec(members, GroupSpec.of({}, existing).partitions))
        return {member: sorted(outcome.allocation[member]) for member in members}

    def findings(self, subscriptions: Mapping[str, AssignorMember]) -> list[str]:
        """Return a line for each member whose user data is unreadable: what is wrong, and what follows."""
        return self._members(subscriptions)[1]

    def _members(self, subscriptions: Mapping[str, AssignorMember]) -> tuple[dict[str, MemberSpec], list[str]]:
        """
        Return the members as the allocator sees them, and a line for each member whose user data is unreadable.

        A member with unreadable user data counts as owning no partition, with capacity 1.
        """
        members: dict[str, MemberSpec] = {}
        findings = []
        for member in sorted(subscriptions):
            topics = frozenset(subscriptions[member].topics)
            members[member] = MemberSpec(topics)
            if not self.sees_members:
                continue
            try:
                members[member] = replace(parse_member(subscriptions[member].user_data), topics=topics)
            except ValueError as error:
                findings.append(
                    f"assignor {self.name} cannot read the user data of member {member}: {error}; "
                    "the member counts as owning no partition"
                )
        return members, findings


def encode_member(owned: Collection[TopicPartition], capacity: float = 1.0) -> bytes:
    """Encode the partitions that a member owns, and the member's capacity, as user data."""
    fields: dict[str, object] = {"owned": numbers_by_topic(sorted(owned)), "version": _VERSION}
    if capacity != 1:
        fields["capacity"] = capacity
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def parse_member(user_data: bytes | None) -> MemberSpec:
    """
    Return the owned partitions and the capacity in a member's user data. The result has no topics.

    Without user data, the member owns no partition and has capacity 1.

    Raises:
        ValueError: The data is not of the form that ``encode_member`` writes.
    """
    if not user_data:
        return MemberSpec(frozenset())
    try:
        fields = json.loads(user_data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON, {len(user_data)} bytes") from error
    version = fields.get("version") if isinstance(fields, dict) else None
    if version != _VERSION:
        raise ValueError(f"version {version!r:.40}, expected {_VERSION}" if version else "no version")
    topics = fields.get("owned")
    if not isinstance(topics, dict) or not all(map(_are_numbers, topics.values())):
        raise ValueError("no numbers of partitions by topic in 'owned'")
    try:
        capacity = check_capacity(fields.get("capacity", 1.0))
    except ConfigError as error:
        raise ValueError(str(error)) from None
    owned = frozenset(TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers)
    return MemberSpec(frozenset(), capacity, owned=owned)


def _are_numbers(value: object) -> bool:
    return isinstance(value, list) and all(type(each) is int for each in value)


AssignorChoice: TypeAlias = str | Assignor | Allocator

#: The included assignors by the names of settings. The name ``range`` means Java's assignor, which other members have.
ASSIGNORS: Mapping[str, Assignor] = {
    **{name: AllocatorAssignor(allocator) for name, allocator in ALLOCATORS.items()},
    "range": range_assignor,
    "roundrobin": roundrobin_assignor,
}


def assignors_of(
    given: AssignorChoice | Sequence[AssignorChoice] | None, setting: str = "partition_allocator"
) -> tuple[Assignor, ...]:
    """
    Return the assignors that a member offers to its group, in the order of preference.

    Args:
        given: A name of ``ASSIGNORS``, the name of an installed allocator, an ``Assignor``, an allocator function, or
            a sequence of these. None means ``range`` and then ``roundrobin``, as in kafka-python. Any other value
            replaces these two assignors.
        setting: The setting to name in an error.

    Raises:
        ConfigError: ``given`` is not such a value, the sequence is empty, or two assignors have the same name.
    """
    if given is None:
        return range_assignor, roundrobin_assignor
    choices = given if isinstance(given, (list, tuple)) else (given,)
    if not choices:
        raise ConfigError(f"{setting}: none given; expected one or more of {', '.join(ASSIGNORS)}, or functions")
    assignors = tuple(_assignor_of(choice, setting) for choice in choices)
    names = [assignor.name for assignor in assignors]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f"{setting}: the assignor {twice[0]!r} is given twice; the members of a group agree on a name"
        )
    return assignors


def with_capacity(assignors: Sequence[Assignor], capacity: float) -> tuple[Assignor, ...]:
    """
    Return the assignors of a member with this capacity.

    Raises:
        ConfigError: The capacity is not 1, and no assignor uses capacities.
    """
    if capacity == 1:
        return tuple(assignors)
    if not any(isinstance(each, AllocatorAssignor) and each.sees_members for each in assignors):
        raise ConfigError(
            f"capacity: {capacity!r} given; with coordination='brokers', only allocators such as 'sticky' use it, and"
            f" this member offers {', '.join(each.name for each in assignors)}"
        )
    return tuple(each.of_member(capacity) if isinstance(each, AllocatorAssignor) else each for each in assignors)


def _assignor_of(given: object, setting: str) -> Assignor:
    if isinstance(given, str) and given not in ASSIGNORS and given in installed_allocators():
        return AllocatorAssignor(named_allocator(given, setting), setting)
    if isinstance(given, str):
        return look_up(given, ASSIGNORS, "assignor", setting)
    if not isinstance(given, type):
        if isinstance(given, Assignor):
            return _named(given, setting)
        if callable(given):
            return AllocatorAssignor(given, setting)
    expected = f"a function, an object with name, metadata and assign, or one of {', '.join(ASSIGNORS)}"
    raise ConfigError(f"{setting}: {given!r} given; expected {expected}")


def _named(assignor: Assignor, setting: str) -> Assignor:
    name: object = assignor.name
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{setting}: an assignor with the name {name!r} given; expected a text")
    return assignor
