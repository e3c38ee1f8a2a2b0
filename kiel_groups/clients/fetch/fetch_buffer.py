"""What was fetched and is not delivered yet: bounded in bytes, and taken partition by partition in turn."""

from __future__ import annotations

from kiel_groups.clients.fetch.fetch_requests import LEAST_SHARE_BYTES
from kiel_groups.clients.fetch.partition_fetch import FetchedBatch, PartitionFetch
from kiel_groups.clients.fetch.ready_queue import ReadyQueue

__all__ = ["FetchBuffer"]

#: The bound, in answers: beyond this, requests ask for the least there is.
_MOST_ANSWERS = 16


class FetchBuffer:
    """
    The buffered batches of all partitions, and the errors that end some of them.

    Each partition keeps its own batches, in order; this object counts their bytes and knows the partition that is next.

    Args:
        max_answer_bytes: What one answer of a broker may hold.
    """

    def __init__(self, max_answer_bytes: int) -> None:
        self._max_answer_bytes = max_answer_bytes
        self._bytes = 0
        self.turns = ReadyQueue()

    def has_room(self, state: PartitionFetch) -> bool:
        """Whether a partition may be fetched: one batch is buffered of each, more only within the bound."""
        return not state.full and (not state.buffered or self._bytes < self._max_bytes)

    @property
    def _max_bytes(self) -> int:
        return self._max_answer_bytes * _MOST_ANSWERS

    @property
    def budget_bytes(self) -> int:
        """What the next answer may hold: all that is allowed, or little while much is buffered, but never nothing."""
        most = self._max_answer_bytes
        return max(min(LEAST_SHARE_BYTES, most), min(most, self._max_bytes - self._bytes))

    def put(self, state: PartitionFetch, item: FetchedBatch | Exception) -> None:
        """Append a batch, or the error that comes after what was read before it."""
        if isinstance(item, FetchedBatch):
            self._bytes += item.size_bytes
        state.buffered.append(item)
        if len(state.buffered) == 1:
            self.turns.add(state)

    def pop(self, topic: str | None) -> tuple[PartitionFetch, FetchedBatch | Exception] | None:
        """Take the next item, of one topic or of any; None where none is buffered."""
        state = self.turns.pop(topic)
        if state is None:
            return None
        item = state.buffered.popleft()
        if isinstance(item, FetchedBatch):
            self._bytes -= item.size_bytes
        if state.buffered:
            self.turns.add(state)
        return state, item

    def cut(self, state: PartitionFetch, end: int) -> int:
        """Drop what is buffered of a partition from the offset ``end`` on; returns how many records that were."""
        if not state.buffered:
            return 0
        records, size_bytes = state.cut(end)
        self._bytes -= size_bytes
        if not state.buffered:
            self.turns.remove(state)
        return records

    def drop(self, state: PartitionFetch) -> None:
        """End an assignment of a partition, and drop what is buffered of it."""
        self._bytes -= state.drop()
