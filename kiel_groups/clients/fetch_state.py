"""What the fetcher keeps for each partition, and what it hands out."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from kiel_groups.model import Record, TopicPartition

__all__ = ["FetchedBatch", "PartitionFetch", "Phase"]

#: A partition is fetched again while it has fewer batches than this: one to work on, one to follow.
_MOST_BATCHES = 2


class FetchedBatch(NamedTuple):
    """
    Records of one partition, in order, at least one.

    ``high_watermark`` is the offset after the last message that consumers could see at the time. ``epoch`` tells one
    assignment of the partition from the next. ``size_bytes`` is what came over the wire.
    """

    topic_partition: TopicPartition
    records: list[Record]
    high_watermark: int
    epoch: int
    size_bytes: int


class Phase(Enum):
    """Where a partition stands between two fetches."""

    #: Enough is buffered, or nobody has asked yet. Leaves when a batch was handed out.
    PARKED = "parked"
    #: Queued at its leader. Leaves with the next request that goes there.
    READY = "ready"
    #: Part of a request in flight. Leaves with its answer.
    FETCHING = "fetching"
    #: Its leader, or its position after a reset, is being looked up. Leaves with the outcome.
    WAITING = "waiting"
    #: Its error stands at the end of its buffer. Leaves by seek or unassign only.
    HALTED = "halted"


@dataclass(slots=True, eq=False)
class PartitionFetch:
    """
    One assignment of one partition.

    A seek or a new assignment makes a new one and marks the old one ``dropped``; whatever is still on its way for the
    old one is ignored when it comes.
    """

    topic_partition: TopicPartition
    epoch: int
    #: The next offset to fetch.
    position: int
    phase: Phase = Phase.PARKED
    high_watermark: int | None = None
    #: Batches to hand out, in order; after the last one perhaps the error that ended the fetching.
    buffered: deque[FetchedBatch | Exception] = field(default_factory=deque)
    #: Whether the last answer was empty: nothing to hurry for.
    idle: bool = False
    #: What the next message is known to need, 0 where an ordinary share will do.
    needed_bytes: int = 0
    #: Failures in a row.
    failures: int = 0
    dropped: bool = False

    @property
    def next_offset(self) -> int:
        """The next offset to hand out."""
        head = self.buffered[0] if self.buffered else None
        return head.records[0].offset if isinstance(head, FetchedBatch) else self.position

    @property
    def lag(self) -> int | None:
        """How many messages are there that were not handed out yet; None until a broker has answered."""
        return None if self.high_watermark is None else max(0, self.high_watermark - self.next_offset)

    @property
    def full(self) -> bool:
        """Whether enough is buffered."""
        return len(self.buffered) >= _MOST_BATCHES

    def drop(self) -> int:
        """End this assignment; the number of bytes that its buffer held."""
        self.dropped = True
        held = sum(batch.size_bytes for batch in self.buffered if isinstance(batch, FetchedBatch))
        self.buffered.clear()
        return held
