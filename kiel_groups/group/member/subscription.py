"""The subscription of a consumer: its topics, and the offsets of the partitions that are assigned to it."""

from __future__ import annotations

from collections.abc import Iterable

from kiel_groups.config import GroupConfig, topic_names
from kiel_groups.group.member.offset_tracker import CommitRules, OffsetTracker

__all__ = ["SubscriptionState"]


class SubscriptionState:
    """The subscribed topics and the ``offsets`` of one consumer, used on its event loop only."""

    def __init__(self, config: GroupConfig | None = None) -> None:
        self.topics: frozenset[str] = frozenset()
        self.offsets = OffsetTracker(CommitRules() if config is None else CommitRules.of(config))

    def subscribe(self, topics: str | Iterable[str]) -> bool:
        """
        Replace the subscription.

        Returns:
            Whether the subscription changed.

        Raises:
            ConfigError: A name is not legal for a topic of Kafka 0.8.
        """
        wanted = frozenset(topic_names(topics))
        changed = wanted != self.topics
        self.topics = wanted
        return changed
