"""What owners learned of logs that do not have their positions, and which resets may follow from that."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kiel_groups.model import TopicPartition
from kiel_groups.testing.fake_ensemble import Entry
from tests.sim.history.owners import Owners
from tests.sim.logs import Range

if TYPE_CHECKING:
    from tests.sim.consumer import Consumer

__all__ = ["LogRanges"]


class _Report(NamedTuple):
    """
    A range that brokers reported to an owner under the claim with the czxid ``token``.

    ``stored_at`` is the zxid at which the owner stored the reset that follows, None before.
    """

    token: int
    range: Range
    stored_at: int | None = None


class LogRanges:
    """The newest range that each owner learned of each partition."""

    def __init__(self, policy: str, owners: Owners) -> None:
        self._policy = policy
        self._owners = owners
        self._reports: dict[tuple[TopicPartition, Consumer], _Report] = {}

    def report(self, consumer: Consumer, partition: TopicPartition, token: int, found: Range) -> None:
        self._reports[partition, consumer] = _Report(token, found)

    def record_reset(self, consumer: Consumer, partition: TopicPartition, zxid: int) -> None:
        """Record that the reset is stored: no other one may follow from the same report."""
        self._reports[partition, consumer] = self._reports[partition, consumer]._replace(stored_at=zxid)

    def may_reset(
        self, consumer: Consumer, partition: TopicPartition, entry: Entry, processed: int, offset: int
    ) -> bool:
        """Whether the reset policy chooses an offset for what the owner learned under this claim, and only once."""
        report, claim = self._reports.get((partition, consumer)), self._owners.claim(entry, partition)
        if report is None or report.range.has_position or report.stored_at not in (None, entry.zxid):
            return False
        if claim is not None and claim.czxid != report.token:
            return False
        return report.range.may_follow(self._policy, processed, offset)
