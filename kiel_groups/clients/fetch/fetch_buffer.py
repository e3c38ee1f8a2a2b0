"""Buffer fetched batches until they are delivered, within a bound in bytes, and select the partitions in turn."""

from __future__ import annotations

from typing import NamedTuple

from kiel_groups.clients.fetch.fetch_requests import LEAST_SHARE_BYTES, Room
from kiel_groups.clients.fetch.partition_fetch import FetchedBatch, PartitionFetch
from kiel_groups.clients.fetch.ready_queue import ANY, ReadyQueue, Selection
from kiel_groups.clients.fetch.starving_callers import StarvingCallers
from kiel_groups.config import FetchConfig
from kiel_groups.model import TopicPartition

__all__ = ["Buffered", "FetchBuffer"]

#: The part of the buffer that one poll may fill.
_POLL_PART = 16


class Buffered(NamedTuple):
    """The next item of the buffer: a batch, or the error that follows the batches of its partition."""

    state: PartitionFetch
    item: FetchedBatch | Exception


class FetchBuffer:
    """
    The buffered batches of all partitions, and the errors that follow batches.

    Each partition keeps its own batches, in order; this object counts their bytes and selects the next partition. Bytes
    are counted without compression. At the bound, only partitions without a buffered batch are fetched.

    Args:
        config: Sets the bound, and the size of an answer to a poll.
    """

    def __init__(self, config: FetchConfig) -> None:
        self._max_bytes = config.fetch_buffer_bytes
        self._max_poll_bytes = min(config.max_bytes, max(1, config.fetch_buffer_bytes // _POLL_PART))
        self._bytes = 0
        #: The bytes of the paused partitions, which ``_bytes`` includes.
        self._paused_bytes = 0
        #: The bytes that the bulk requests in flight are expected to bring.
        self._reserved_bytes = 0
        self._starving = StarvingCallers()
        self.ready = ReadyQueue()
        #: Partitions whose position has passed offsets without messages, until the caller takes note of that.
        self.passed: set[TopicPartition] = set()

    def has_room(self, state: PartitionFetch) -> bool:
        """Whether a partition may be fetched: it has no buffered batch, or the bounds leave room for one more."""
        return not (state.paused or state.full) and (not state.buffered or self._left_bytes > 0)

    @property
    def _left_bytes(self) -> int:
        return self._max_bytes - self._bytes - self._reserved_bytes

    @property
    def is_full(self) -> bool:
        """Whether the buffered batches reach the bound, as after an answer that was compressed more than expected."""
        return self._bytes >= self._max_bytes

    @property
    def is_paused_full(self) -> bool:
        """Whether paused partitions keep as much as they may: half, so that the other half remains for the others."""
        return self._paused_bytes >= self._max_bytes // 2

    def room(self) -> Room:
        """Return what the next answers may bring: less as the buffer fills up, but a poll may always bring some."""
        most, left = self._max_poll_bytes, self._left_bytes
        return Room(max(min(LEAST_SHARE_BYTES, most), min(most, left)), left, self._starving)

    def reserve(self, size_bytes: int) -> None:
        """Count the bytes that a request is expected to bring. A negative number ends that."""
        self._reserved_bytes += size_bytes

    def put(self, state: PartitionFetch, item: FetchedBatch | Exception) -> None:
        """Append a batch, or the error that follows the batches before it."""
        if isinstance(item, FetchedBatch):
            self._count(state, item.buffer_bytes)
        state.buffered.append(item)
        if len(state.buffered) == 1 and not state.paused:
            self.ready.add(state)
            self._feed(state)

    def _feed(self, state: PartitionFetch) -> None:
        """Note that a partition has a batch. One is enough for each caller: it may come late, or never again."""
        self._starving.feed(state.topic_partition)

    def _count(self, state: PartitionFetch, size_bytes: int) -> None:
        self._bytes += size_bytes
        if state.paused:
            self._paused_bytes += size_bytes

    def pop(
        self, selection: Selection = ANY, most_records: int | None = None, *, errors: bool = True
    ) -> Buffered | None:
        """
        Remove and return the next batch or error of a selected partition, or None; see ``PartitionFetch.take``.

        Without ``errors``, an error remains the next item, and None is returned.
        """
        state = self.ready.pop(selection)
        if state is None:
            self._starving.add(selection)
            if self._starving.is_over:
                self._starving.limit(self.ready.waiting)
            return None
        if not errors and isinstance(state.buffered[0], Exception):
            self.ready.add_first(state)
            return None
        before = len(state.buffered)
        item = state.take(most_records)
        if isinstance(item, FetchedBatch) and len(state.buffered) < before:
            self._count(state, -item.buffer_bytes)
        if state.buffered:
            self.ready.add(state)
        return Buffered(state, item)

    def truncate(self, state: PartitionFetch, end: int) -> int:
        """Drop a partition's buffered records at and after the offset ``end``, and return their number."""
        if not state.buffered:
            return 0
        truncated = state.truncate(end)
        self._count(state, -truncated.size_bytes)
        if not state.buffered:
            self.ready.remove(state)
        return truncated.records

    def drop(self, state: PartitionFetch) -> None:
        """End an assignment of a partition, and drop its buffered batches."""
        self._count(state, -state.drop())
        self.passed.discard(state.topic_partition)

    def note_passed(self, state: PartitionFetch) -> None:
        """Wake the callers, because a partition's position has passed offsets without messages."""
        self.passed.add(state.topic_partition)
        self.ready.wake_all()

    def pause(self, state: PartitionFetch) -> None:
        """Deliver no batches of a partition until ``resume``. The partition keeps its batches."""
        if not state.paused:
            self.ready.remove(state)
            state.paused = True
            self._paused_bytes += state.buffered_bytes

    def resume(self, state: PartitionFetch) -> None:
        """Deliver the batches of a paused partition again."""
        if state.paused:
            self._paused_bytes -= state.buffered_bytes
            state.paused = False
            if state.buffered:
                self.ready.add(state)
                self._feed(state)

    def put_back(self, state: PartitionFetch, batch: FetchedBatch, taken: int) -> None:
        """Put back the last batch of a partition, as the next one; its first ``taken`` records are delivered."""
        if state.put_back(batch, taken):
            self._count(state, batch.buffer_bytes)
        if not state.paused:
            self.ready.remove(state)
            self.ready.add_first(state)
            self._feed(state)

    def skip(self, state: PartitionFetch, offset: int) -> None:
        """Drop the record at ``offset``, if it is the next one of a paused partition."""
        if state.buffered and state.next_offset == offset and isinstance(state.buffered[0], FetchedBatch):
            before, size_bytes = len(state.buffered), state.buffered[0].buffer_bytes
            state.take(1)
            if len(state.buffered) < before:
                self._count(state, -size_bytes)
