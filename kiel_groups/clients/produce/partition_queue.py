"""Queue the batches for one partition, in order. At most one batch is in flight."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from kiel_groups.model import TopicPartition

__all__ = ["Batch", "PartitionQueue", "RecordMetadata", "message_bytes"]

#: Offset, size, CRC, magic, attributes, and the lengths of key and value.
_MESSAGE_OVERHEAD_BYTES = 26


class RecordMetadata(NamedTuple):
    """
    Where a record was stored.

    The offset is -1 with acks 0. Partition and offset are -1 for a record that waits for other records.
    """

    topic: str
    partition: int
    offset: int


def message_bytes(key: bytes | None, value: bytes | None) -> int:
    """Return the size of a message on the wire, uncompressed."""
    return _MESSAGE_OVERHEAD_BYTES + (len(key) if key else 0) + (len(value) if value else 0)


@dataclass(slots=True, eq=False)
class Batch:
    """Records that are sent, succeed and fail together. ``created_s`` is when the first record was added."""

    created_s: float
    messages: list[tuple[bytes | None, bytes | None]] = field(default_factory=list)
    futures: list[asyncio.Future[RecordMetadata]] = field(default_factory=list)
    size_bytes: int = 0
    #: Failed tries, and the reason of the last one.
    failures: int = 0
    failure: Exception | None = None
    #: Set once the batch was sent: no more records are added.
    sealed: bool = False
    #: Tries that may have stored the batch: they were sent, and no broker has answered that it stored nothing.
    unresolved_tries: int = 0
    #: Tries that a broker refused because it takes a message for invalid.
    invalid_tries: int = 0

    def part(self, numbers: Iterable[int]) -> Batch:
        """Return a batch of some of this batch's records, by their numbers."""
        chosen = [(self.messages[number], self.futures[number]) for number in numbers]
        part = Batch(self.created_s, [message for message, _ in chosen], [future for _, future in chosen], sealed=True)
        part.unresolved_tries = self.unresolved_tries
        part.size_bytes = sum(message_bytes(key, value) for key, value in part.messages)
        return part


@dataclass(slots=True, eq=False)
class PartitionQueue:
    """
    The batches of one partition, oldest first.

    ``busy`` is set while the first batch is in flight, or waits for a retry: no other batch overtakes it, so records
    keep their order. ``timer`` runs while a first batch lingers. ``added`` counts all records so far, and ``settled``
    the records with an outcome. The first ``due`` of all records no longer wait for further records.
    """

    topic_partition: TopicPartition
    batches: deque[Batch] = field(default_factory=deque)
    busy: bool = False
    timer: asyncio.TimerHandle | None = None
    added: int = 0
    settled: int = 0
    due: int = 0
    #: A broker has refused records because they have no key, as in a compacted topic, and stored none of them since.
    needs_keys: bool = False
    #: When the first batch was sent since a broker last stored one, on the loop's clock; see ``StallWatch``.
    waits_since_s: float | None = None

    def open_batch(self, size_bytes: int, most_bytes: int) -> Batch | None:
        """Return the batch that has room for one more message of this size, or None if a new batch is needed."""
        last = self.batches[-1] if self.batches else None
        if last is None or last.sealed or last.size_bytes + size_bytes > most_bytes:
            return None
        return last

    def is_ready(self, now_s: float, linger_s: float, batch_size: float) -> bool:
        """Whether the first batch should be sent now."""
        if self.busy or not self.batches:
            return False
        first = self.batches[0]
        complete = first.sealed or len(self.batches) > 1 or len(first.messages) >= batch_size
        return complete or self.due > self.settled or now_s - first.created_s >= linger_s

    def pop_settled(self) -> Batch:
        """Remove and return the first batch, whose outcome is known."""
        batch = self.batches.popleft()
        self.settled += len(batch.messages)
        self.busy = False
        return batch

    def split_first(self, first: Iterable[int], second: Iterable[int]) -> None:
        """Replace the first batch by two batches of its records, by their numbers."""
        batch = self.batches.popleft()
        self.batches.extendleft((batch.part(second), batch.part(first)))
        self.busy = False
