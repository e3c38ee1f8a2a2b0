"""Mutants of the subscription state."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_SUBSCRIPTION = "group/member/subscription.py"
_SUBSCRIPTION_TESTS = "tests/unit/group/member/test_subscription.py"
_PARTITION_TESTS = "tests/unit/group/member/test_subscribed_partitions.py"
_LAWS = "tests/property/test_subscription_laws.py"

MUTANTS = (
    # The three ways
    Mutant(
        "a subscription to topics replaces one to a pattern without unsubscribe()",
        _SUBSCRIPTION,
        '        self.check_kind(kind, "subscribe()")\n',
        "",
        _SUBSCRIPTION_TESTS,
    ),
    Mutant(
        "a manual assignment replaces a subscription",
        _SUBSCRIPTION,
        '        self.check_kind(SubscriptionKind.MANUAL, "assign()")\n',
        "",
        _LAWS,
    ),
    Mutant(
        "an empty list of topics ends the subscription",
        _SUBSCRIPTION,
        "        if not names and compiled is None:\n",
        "        if False:\n",
        _SUBSCRIPTION_TESTS,
    ),
    Mutant(
        "the group assigns partitions to a consumer with a manual assignment",
        _SUBSCRIPTION,
        "return self._kind in (SubscriptionKind.TOPICS, SubscriptionKind.PATTERN)",
        "return self._kind is not None",
        _SUBSCRIPTION_TESTS,
    ),
    # Topics and patterns
    Mutant(
        "a member registers again although its topics are the same",
        _SUBSCRIPTION,
        "changed = (compiled, names) != (self.subscribed_pattern, self.topics)",
        "changed = True",
        _SUBSCRIPTION_TESTS,
    ),
    Mutant(
        "partitions of a dropped topic stay assigned until the member has released them",
        _SUBSCRIPTION,
        "self._set_assigned([partition for partition in self._assigned if partition.topic in topics])",
        "pass",
        _LAWS,
    ),
    Mutant(
        "the listener of the previous subscription is notified of the next one",
        _SUBSCRIPTION,
        "self.subscribed_pattern, self.listener = compiled, listener",
        "self.subscribed_pattern, self.listener = compiled, self.listener or listener",
        _SUBSCRIPTION_TESTS,
    ),
    Mutant(
        "the same pattern again drops matches that were set for it",
        _SUBSCRIPTION,
        "if is_same or compiled.match(topic)",
        "if not is_same and compiled.match(topic)",
        _SUBSCRIPTION_TESTS,
    ),
    Mutant(
        "another pattern keeps the topics of the previous one",
        _SUBSCRIPTION,
        "if is_same or compiled.match(topic)",
        "if True",
        _SUBSCRIPTION_TESTS,
    ),
    Mutant(
        "the topics of other members outlast the subscription",
        _SUBSCRIPTION,
        "        self.topics = self._group_topics = frozenset()\n",
        "        self.topics = frozenset()\n",
        _SUBSCRIPTION_TESTS,
    ),
    # Assignments
    Mutant(
        "a rebalance resets the pauses of partitions that stay",
        _SUBSCRIPTION,
        "before.get(partition) or _AssignedPartition()",
        "_AssignedPartition()",
        _PARTITION_TESTS,
    ),
    Mutant(
        "a partition that comes back has the pause of its earlier assignment",
        _SUBSCRIPTION,
        "self._assigned = {partition: before",
        "self._assigned = before | {partition: before",
        _PARTITION_TESTS,
    ),
    Mutant(
        "a partition of an unsubscribed topic is assigned",
        _SUBSCRIPTION,
        "if others := sorted(partition for partition in wanted if partition.topic not in self.topics):",
        "if others := [partition for partition in wanted if not self.topics]:",
        _LAWS,
    ),
    Mutant(
        "a manual assignment takes the position of a claim that the member has not released",
        _SUBSCRIPTION,
        "if claimed := (wanted - self._assigned.keys()) & self.offsets.open_partitions():",
        "if claimed := frozenset[TopicPartition]():",
        _PARTITION_TESTS,
    ),
    Mutant(
        "a partition that left a manual assignment resumes at its former position",
        _SUBSCRIPTION,
        "        self.offsets.end(self._assigned.keys() - wanted)\n",
        "",
        _LAWS,
    ),
    Mutant(
        "the end of a manual assignment leaves its partitions open",
        _SUBSCRIPTION,
        "            self.offsets.end(self._assigned)\n",
        "            pass\n",
        _PARTITION_TESTS,
    ),
    # Positions, pauses and resets
    Mutant(
        "a partition is fetched although it is paused",
        _SUBSCRIPTION,
        "self.is_assigned(partition) and not self.is_paused(partition) and self._has_position(partition)",
        "self.is_assigned(partition) and self._has_position(partition)",
        _PARTITION_TESTS,
    ),
    Mutant(
        "a partition is fetched from its old position although a reset is requested",
        _SUBSCRIPTION,
        "self._assigned[partition].requested_reset is None and self.offsets.is_open(partition)",
        "self.offsets.is_open(partition)",
        _PARTITION_TESTS,
    ),
    Mutant(
        "a requested reset follows the seek that came after it",
        _SUBSCRIPTION,
        "        state.requested_reset = None\n",
        "",
        _PARTITION_TESTS,
    ),
    Mutant(
        "a seek before the claim is open opens the partition without the offset znode's version",
        _SUBSCRIPTION,
        "        elif self._kind is SubscriptionKind.MANUAL:\n",
        "        elif True:\n",
        _PARTITION_TESTS,
    ),
)
