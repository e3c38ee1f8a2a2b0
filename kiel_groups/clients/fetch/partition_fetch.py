"""What the fetcher keeps for each partition, and what it hands out."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from kiel_groups.clients.net.backoff import Backoff
from kiel_groups.errors import MessageTooLargeError, ProtocolError
from kiel_groups.model import Record, TopicPartition
from kiel_groups.wire.message_sets.decoder import decode_message_set

__all__ = ["FetchedBatch", "PartitionFetch", "Phase"]

#: A partition is fetched again while it has fewer batches than this: one to work on, one to follow.
_MOST_BATCHES = 2
#: Between fetches that bring nothing, where the broker does not do the waiting (``max_wait_ms`` or ``min_bytes`` of 0).
_IDLE = Backoff(base_ms=1, max_ms=100)


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
    #: Part of a request in flight, or resting after an empty answer. Leaves with the answer, or rested.
    FETCHING = "fetching"
    #: Its leader is being looked up, or its position is being reset: what is buffered is handed out meanwhile. Leaves
    #: with the outcome.
    WAITING = "waiting"
    #: Its error stands at the end of its buffer. Leaves when that was raised.
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
    #: Empty answers in a row.
    empty_answers: int = 0
    #: What the next message is known to need, 0 where an ordinary share will do.
    needed_bytes: int = 0
    #: Failures in a row.
    failures: int = 0
    #: Answers in a row that could not be read.
    unreadable: int = 0
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
    def idle(self) -> bool:
        """Whether the last answer was empty: nothing to hurry for."""
        return self.empty_answers > 0

    @property
    def idle_pause_s(self) -> float:
        """How long after the last fetch the next one goes out at the earliest, in seconds."""
        return _IDLE.delay_s(self.empty_answers, lambda: 0.0)

    @property
    def full(self) -> bool:
        """Whether enough is buffered."""
        return len(self.buffered) >= _MOST_BATCHES

    def decode(self, message_set: bytes | memoryview, most_bytes: int) -> list[Record]:
        """
        The records from the position on, at least one; what is compressed may unpack to ``most_bytes``.

        Raises:
            PartialMessage: There is only the beginning of one.
            ProtocolError: They cannot be read.
        """
        tp, position = self.topic_partition, self.position
        records = decode_message_set(message_set, tp, position, max_decompressed_bytes=most_bytes)
        if not records:
            raise ProtocolError(f"{tp} at offset {position}: the broker sends older messages only")
        return records

    def grow(self, share: int, needed_bytes: int, most: int) -> None:
        """
        Note that ``share`` bytes brought only the beginning of a message, which takes ``needed_bytes`` (0: unknown).

        Raises:
            MessageTooLargeError: It is larger than ``most``.
        """
        if needed_bytes > most or share >= most:
            size = f"takes {needed_bytes} bytes" if needed_bytes else "takes more"
            text = f"{self.topic_partition} at offset {self.position}: the message {size}, max_message_bytes is {most}"
            raise MessageTooLargeError(f"{text}; raise it, or seek past the message")
        self.needed_bytes = min(max(needed_bytes, 2 * share), most)

    def cut(self, end: int) -> tuple[int, int]:
        """
        Drop what is buffered from the offset ``end`` on.

        Returns:
            How many records that were, and the size of the batches that are gone with them, in bytes.
        """
        kept: list[FetchedBatch | Exception] = []
        records = size_bytes = 0
        for item in self.buffered:
            if isinstance(item, FetchedBatch):
                left = [record for record in item.records if record.offset < end]
                records += len(item.records) - len(left)
                if not left:
                    size_bytes += item.size_bytes
                    continue
                item = item._replace(records=left)
            kept.append(item)
        self.buffered = deque(kept)
        return records, size_bytes

    def drop(self) -> int:
        """End this assignment; the number of bytes that its buffer held."""
        self.dropped = True
        held = sum(batch.size_bytes for batch in self.buffered if isinstance(batch, FetchedBatch))
        self.buffered.clear()
        return held
