"""The log ranges that brokers reported to owners whose positions are out of range, and the resets they allow."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kiel_groups.model import TopicPartition
from tests.fakes.fake_ensemble import Entry
from tests.sim.history.owners import Owners
from tests.sim.logs import Range

if TYPE_CHECKING:
    from tests.sim.consumer import Consumer

__all__ = ["LogRanges"]


class _Report(NamedTuple):
    """
    A range that brokers reported to an owner under the claim with the czxid ``token``.

    ``stored_at`` is the zxid at which the owner stored a reset based on the report, or None before that.
    """

    token: int
    range: Range
    stored_at: int | None = None


class LogRanges:
    """The newest range of each partition that was reported to each owner."""

    def __init__(self, policy: str, owners: Owners) -> None:
        self._policy = policy
        self._owners = owners
        self._reports: dict[tuple[TopicPartition, Consumer], _Report] = {}

    def report(self, consumer: Consumer, partition: TopicPartition, token: int, found: Range) -> None:
        self._reports[partition, consumer] = _Report(token, found)

    def record_reset(self, consumer: Consumer, partition: TopicPartition, zxid: int) -> None:
        """Record that a reset is stored. No further reset may be based on the same report."""
        self._reports[partition, consumer] = self._reports[partition, consumer]._replace(stored_at=zxid)

    def may_reset(
        self, consumer: Consumer, partition: TopicPartition, entry: Entry, processed: int, offset: int
    ) -> bool:
        """
        Return whether the reset policy may choose ``offset`` from a range that was reported under this claim and is not
        used yet.
        """
        report, claim = self._reports.get((partition, consumer)), self._owners.claim(entry, partition)
        if report is None or report.range.has_position or report.stored_at not in (None, entry.zxid):
            return False
        if claim is not None and claim.czxid != report.token:
            return False
        return report.range.may_follow(self._policy, processed, offset)
