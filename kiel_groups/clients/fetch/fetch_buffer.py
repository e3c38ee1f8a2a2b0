"""Buffer fetched batches until they are delivered, within a bound in bytes, and select the partitions in turn."""

from __future__ import annotations

from typing import NamedTuple

from kiel_groups.clients.fetch.fetch_requests import LEAST_SHARE_BYTES
from kiel_groups.clients.fetch.partition_fetch import FetchedBatch, PartitionFetch
from kiel_groups.clients.fetch.ready_queue import ReadyQueue

__all__ = ["Buffered", "FetchBuffer"]

#: The bound of the buffer, in answers of full size. At the bound, only partitions without a buffered batch are fetched.
_MOST_ANSWERS = 16


class Buffered(NamedTuple):
    """The next item of the buffer: a batch, or the error that follows the batches of its partition."""

    state: PartitionFetch
    item: FetchedBatch | Exception


class FetchBuffer:
    """
    The buffered batches of all partitions, and the errors that follow batches.

    Each partition keeps its own batches, in order; this object counts their bytes and selects the next partition.

    Args:
        max_answer_bytes: The size of one answer that a request may ask for.
    """

    def __init__(self, max_answer_bytes: int) -> None:
        self._max_answer_bytes = max_answer_bytes
        self._bytes = 0
        self.ready = ReadyQueue()

    def has_room(self, state: PartitionFetch) -> bool:
        """Whether a partition may be fetched: it has no buffered batch, or the bounds leave room for one more."""
        return not state.full and (not state.buffered or self._bytes < self._max_bytes)

    @property
    def _max_bytes(self) -> int:
        return self._max_answer_bytes * _MOST_ANSWERS

    @property
    def budget_bytes(self) -> int:
        """The most bytes that the next answer may hold: fewer as the buffer fills up, but never 0."""
        most = self._max_answer_bytes
        return max(min(LEAST_SHARE_BYTES, most), min(most, self._max_bytes - self._bytes))

    def put(self, state: PartitionFetch, item: FetchedBatch | Exception) -> None:
        """Append a batch, or the error that follows the batches before it."""
        if isinstance(item, FetchedBatch):
            self._bytes += item.size_bytes
        state.buffered.append(item)
        if len(state.buffered) == 1:
            self.ready.add(state)

    def pop(self, topic: str | None) -> Buffered | None:
        """Remove and return the next batch or error (of ``topic``, or of any topic), or None if there is none."""
        state = self.ready.pop(topic)
        if state is None:
            return None
        item = state.buffered.popleft()
        if isinstance(item, FetchedBatch):
            self._bytes -= item.size_bytes
        if state.buffered:
            self.ready.add(state)
        return Buffered(state, item)

    def truncate(self, state: PartitionFetch, end: int) -> int:
        """Drop a partition's buffered records at and after the offset ``end``, and return their number."""
        if not state.buffered:
            return 0
        truncated = state.truncate(end)
        self._bytes -= truncated.size_bytes
        if not state.buffered:
            self.ready.remove(state)
        return truncated.records

    def drop(self, state: PartitionFetch) -> None:
        """End an assignment of a partition, and drop its buffered batches."""
        self._bytes -= state.drop()
