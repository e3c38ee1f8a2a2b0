"""The settings that decide which offsets a member stores, and when."""

from __future__ import annotations

from dataclasses import dataclass

from kiel_groups.config import BROKER_V0, BROKER_V1, GroupConfig

__all__ = ["CommitRules"]


@dataclass(frozen=True, slots=True)
class CommitRules:
    """
    The settings that decide which offsets a member stores, and when.

    With ``autocommit`` the finished offsets are stored without the application's request. ``through_brokers``: brokers
    write the offset znodes on request. They check no version and leave no trace of the writer, and a release writes
    only what a reset chose in its own transaction. ``in_kafka``: the coordinator of the group stores the offsets, which
    have no versions, and a release stores what it leaves before its transaction.
    """

    autocommit: bool = True
    through_brokers: bool = False
    in_kafka: bool = False

    @property
    def asks_brokers(self) -> bool:
        """Whether a commit needs the answer of a broker, which may not come."""
        return self.through_brokers or self.in_kafka

    @classmethod
    def of(cls, config: GroupConfig) -> CommitRules:
        """Return the rules that a group's settings imply."""
        return cls(config.autocommit, config.store == BROKER_V0, config.store == BROKER_V1)
