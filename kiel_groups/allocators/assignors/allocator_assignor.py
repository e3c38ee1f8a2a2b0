"""
An allocator as the assignor of a broker-coordinated group: its protocol name, and the user data of its members.

An allocator that sees the present owners, such as ``sticky``, learns of them from the members: each one's subscription
has its partitions as user data, which is JSON: ``{"owned":{topic:[ids]},"version":1}``. No weights of partitions are
known in such a group, so ``weighted`` allocates as ``sticky`` does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence

from kiel_groups.allocators.adapter import Allocator, GroupAllocator, WeighingAllocator, allocator_name, run_allocator
from kiel_groups.allocators.assignors.consumer_assignors import AssignorMember
from kiel_groups.errors import ConfigError
from kiel_groups.model import TopicPartition

__all__ = ["AllocatorAssignor", "encode_owned", "parse_owned"]

_VERSION = 1


class AllocatorAssignor:
    """
    Runs an allocator as an assignor named ``kiel-<name>``, such as ``kiel-sticky`` or ``kiel-round-robin``.

    Args:
        allocator: The allocator. The name of a function is converted to letters, digits and hyphens.
        setting: The setting to name in an error.

    Raises:
        ConfigError: The function's name has neither letters nor digits of ASCII.
    """

    def __init__(self, allocator: Allocator, setting: str = "partition_allocator") -> None:
        self._allocator = allocator
        self._sees_owners = isinstance(allocator, (GroupAllocator, WeighingAllocator))
        given = allocator_name(allocator)
        name = re.sub(r"[^a-z0-9]+", "-", given.lower()).strip("-")
        if not name:
            raise ConfigError(
                f"{setting}: a function named {given!r} given; members agree on its name, which needs letters or digits"
            )
        self.name = f"kiel-{name}"

    def metadata(self, topics: Collection[str], owned: Collection[TopicPartition] = ()) -> bytes | None:
        """Return the user data with ``owned``, or None if the allocator does not see the present owners."""
        return encode_owned(owned) if self._sees_owners else None

    def assign(
        self, subscriptions: Mapping[str, AssignorMember], partitions: Mapping[str, Sequence[int]]
    ) -> dict[str, list[TopicPartition]]:
        """
        Return the partitions of each member, sorted; see ``Assignor``.

        Raises:
            AllocatorError: The allocator raised, or returned an invalid allocation.
        """
        subscribed = {member: subscriptions[member].topics for member in sorted(subscriptions)}
        existing = [TopicPartition(topic, number) for topic, numbers in partitions.items() for number in numbers]
        owned, _ = self._owned(subscriptions)
        outcome = run_allocator(self._allocator, subscribed, existing, owned)
        return {member: sorted(outcome.allocation[member]) for member in subscribed}

    def findings(self, subscriptions: Mapping[str, AssignorMember]) -> list[str]:
        """Return a line for each member with unreadable user data; see ``ReportingAssignor``."""
        return self._owned(subscriptions)[1]

    def _owned(
        self, subscriptions: Mapping[str, AssignorMember]
    ) -> tuple[dict[str, frozenset[TopicPartition]], list[str]]:
        """Return the partitions that members own by their user data, and a line for each unreadable one."""
        owned: dict[str, frozenset[TopicPartition]] = {}
        findings = []
        for member in sorted(subscriptions) if self._sees_owners else ():
            try:
                owned[member] = parse_owned(subscriptions[member].user_data)
            except ValueError as error:
                findings.append(
                    f"assignor {self.name} cannot read the user data of member {member}: {error}; "
                    "the member counts as owning no partition"
                )
        return owned, findings


def encode_owned(owned: Collection[TopicPartition]) -> bytes:
    """Encode the partitions that a member owns as user data."""
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(owned):
        topics.setdefault(topic, []).append(number)
    return json.dumps({"owned": topics, "version": _VERSION}, separators=(",", ":")).encode()


def parse_owned(user_data: bytes | None) -> frozenset[TopicPartition]:
    """
    Parse the user data of a member. Without any, the member owns nothing.

    Raises:
        ValueError: The data is not of the form that ``encode_owned`` writes.
    """
    if not user_data:
        return frozenset()
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
    return frozenset(TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers)


def _are_numbers(value: object) -> bool:
    return isinstance(value, list) and all(type(each) is int for each in value)
