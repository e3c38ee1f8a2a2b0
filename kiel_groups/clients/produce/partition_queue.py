"""What waits to be sent to one partition: batches in order, one of them on its way at most."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from kiel_groups.model import TopicPartition

__all__ = ["Batch", "PartitionQueue", "RecordMetadata", "message_bytes"]

#: Offset, size, CRC, magic, attributes, and the lengths of key and value.
_MESSAGE_OVERHEAD_BYTES = 26


class RecordMetadata(NamedTuple):
    """Where a record was stored; the offset is -1 where no broker says (acks 0)."""

    topic: str
    partition: int
    offset: int


def message_bytes(key: bytes | None, value: bytes | None) -> int:
    """What a message takes on the wire, uncompressed."""
    return _MESSAGE_OVERHEAD_BYTES + (len(key) if key else 0) + (len(value) if value else 0)


@dataclass(slots=True, eq=False)
class Batch:
    """Records that go out, succeed and fail together; ``created_s`` is when the first one came."""

    created_s: float
    messages: list[tuple[bytes | None, bytes | None]] = field(default_factory=list)
    futures: list[asyncio.Future[RecordMetadata]] = field(default_factory=list)
    size_bytes: int = 0
    #: Tries that failed, and why the last one did.
    failures: int = 0
    failure: Exception | None = None
    #: No more records are added, since it was sent once.
    sealed: bool = False
    #: Tries that were sent and to which no broker has said that it stored nothing.
    open_tries: int = 0

    def halves(self) -> tuple[Batch, Batch]:
        """Two batches, in order, with all of its records; there must be two at least."""
        middle = len(self.messages) // 2
        cuts = (slice(None, middle), slice(middle, None))
        first, second = (Batch(self.created_s, self.messages[cut], self.futures[cut], sealed=True) for cut in cuts)
        for half in (first, second):
            half.open_tries = self.open_tries
            half.size_bytes = sum(message_bytes(key, value) for key, value in half.messages)
        return first, second


@dataclass(slots=True, eq=False)
class PartitionQueue:
    """
    The batches of one partition, oldest first.

    ``busy`` while the first one is on its way, or waits for another try: nothing overtakes it, so records keep their
    order. ``timer`` runs while a first batch lingers. ``added`` and ``settled`` count records ever; those beyond
    ``settled`` have no outcome yet, and those up to ``due`` wait for no others.
    """

    topic_partition: TopicPartition
    batches: deque[Batch] = field(default_factory=deque)
    busy: bool = False
    timer: asyncio.TimerHandle | None = None
    added: int = 0
    settled: int = 0
    due: int = 0
    #: Since when no broker has stored a batch although one was on its way, on the loop's clock; see ``StallWatch``.
    waits_since_s: float | None = None

    def open_batch(self, size_bytes: int, most_bytes: int) -> Batch | None:
        """The batch that one more message of this size may join; None where a new one is needed."""
        last = self.batches[-1] if self.batches else None
        if last is None or last.sealed or last.size_bytes + size_bytes > most_bytes:
            return None
        return last

    def is_ready(self, now_s: float, linger_s: float, batch_size: float) -> bool:
        """Whether the first batch should go out now."""
        if self.busy or not self.batches:
            return False
        first = self.batches[0]
        complete = first.sealed or len(self.batches) > 1 or len(first.messages) >= batch_size
        return complete or self.due > self.settled or now_s - first.created_s >= linger_s

    def pop_settled(self) -> Batch:
        """Take the first batch off, since its outcome is known."""
        batch = self.batches.popleft()
        self.settled += len(batch.messages)
        self.busy = False
        return batch

    def split_first(self) -> None:
        """Put the two halves of the first batch in its place."""
        first, second = self.batches.popleft().halves()
        self.batches.extendleft((second, first))
        self.busy = False
