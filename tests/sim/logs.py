"""The logs of a simulated group's partitions: the ranges of offsets that they have now, and had before."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from kiel_groups.model import TopicPartition

__all__ = ["Log", "Logs", "Range"]

#: The end of logs that were never cut, which the policy "latest" chooses.
END = 1_000


@dataclass(frozen=True, slots=True)
class Range:
    """The range of a log that a member learned before it reset the position ``lost``."""

    lost: int
    start: int
    end: int

    @property
    def has_position(self) -> bool:
        return self.start <= self.lost <= self.end

    def position(self, policy: str) -> int:
        return self.start if policy == "earliest" else self.end

    def may_follow(self, policy: str, processed: int, offset: int) -> bool:
        """
        Return whether a reset may store ``offset`` if all records before ``processed`` are processed.

        A reset may choose the policy's offset, or go back to an earlier offset that the log has. If the log has records
        before the lost position that were not processed, the reset must not skip them.
        """
        owed = max(processed, self.start)
        if owed < min(self.lost, self.end) and offset > owed:
            return False
        return offset == self.position(policy) or self.start <= offset <= min(self.lost, self.position(policy))


@dataclass(slots=True)
class Log:
    """
    A log with every offset from ``start`` on. Once cut, it has no offset at and after ``cut`` until it has grown again.

    ``starts`` and ``ends`` are all starts and ends that a member may have read from brokers.
    """

    grown: int
    start: int = 0
    cut: int | None = None
    starts: set[int] = field(default_factory=lambda: {0})
    ends: set[int] = field(default_factory=set)

    @property
    def end(self) -> int:
        return max(self.start, self.grown) if self.cut is None else self.cut

    def has(self, offset: int) -> bool:
        """Return whether a fetch at ``offset`` is in range."""
        return self.start <= offset and (self.cut is None or offset <= self.cut)

    def _note(self) -> None:
        self.starts.add(self.start)
        self.ends.add(self.end)


class Logs:
    """The logs of all partitions. A log that was never changed has every offset from 0 on."""

    def __init__(self) -> None:
        #: The end of a log that was never cut.
        self.end = END
        self._logs: defaultdict[TopicPartition, Log] = defaultdict(lambda: Log(self.end))

    def __getitem__(self, partition: TopicPartition) -> Log:
        return self._logs[partition]

    def retain(self, partition: TopicPartition, start: int) -> None:
        """Delete the records before an offset, as retention does."""
        log = self._logs[partition]
        log.start = max(log.start, start if log.cut is None else min(start, log.cut))
        log._note()

    def cut(self, partition: TopicPartition, end: int) -> None:
        """Delete the records at and after an offset, as the election of a lagging replica does."""
        log = self._logs[partition]
        log.cut = max(log.start, end if log.cut is None else min(log.cut, end))
        log._note()

    def grow(self, partition: TopicPartition) -> None:
        """Undo ``cut``: the log has every offset from its start on again."""
        self._logs[partition].cut = None
        self._logs[partition]._note()

    def recreate(self, topic: str) -> None:
        """Replace the logs of a topic by new ones."""
        for partition in [partition for partition in self._logs if partition.topic == topic]:
            del self._logs[partition]
