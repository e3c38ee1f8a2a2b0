"""Buffer fetched batches within a bound, withhold the batches of paused partitions, and retry failed fetches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable

from kiel_groups.clients.fetch.fetch_requests import (
    ANY,
    LEAST_SHARE_BYTES,
    ReadyQueue,
    Room,
    Selection,
    StarvingCallers,
)
from kiel_groups.clients.fetch.partition_fetch import FetchedBatch, PartitionFetch, Phase
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.metadata_sources import UNREACHABLE_AFTER
from kiel_groups.config import FetchConfig
from kiel_groups.errors import ClosedError, KielGroupsError, NoBrokersError, OffsetOutOfRangeError, ProtocolError
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wording import counted, some

log = logging.getLogger(__name__)


#: One poll may fill the buffer's size divided by this number.
_POLL_PART = 16


class FetchBuffer:
    """
    The buffered batches of all partitions, and the errors that follow batches.

    Each partition's ``PartitionFetch`` keeps its batches, in order. This object counts their bytes, without
    compression, and selects the next partition. At the bound, only partitions without a buffered batch are fetched.

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
        """
        Return whether a partition may be fetched.

        The partition must not be paused, nor have batches of two answers. If the partition has a batch, the buffer must
        have room left.
        """
        return not (state.paused or state.full) and (not state.buffered or self._left_bytes > 0)

    @property
    def _left_bytes(self) -> int:
        return self._max_bytes - self._bytes - self._reserved_bytes

    @property
    def is_full(self) -> bool:
        """
        Whether the buffered batches reach the bound. The batches exceed the bound if an answer expands more than
        expected.
        """
        return self._bytes >= self._max_bytes

    @property
    def is_paused_full(self) -> bool:
        """Whether the batches of paused partitions fill half of the bound. The other half is for other partitions."""
        return self._paused_bytes >= self._max_bytes // 2

    def room(self) -> Room:
        """
        Return the room for the next answers. The room shrinks as the buffer fills, but a poll always gets some bytes.
        """
        most, left = self._max_poll_bytes, self._left_bytes
        return Room(max(min(LEAST_SHARE_BYTES, most), min(most, left)), left, self._starving)

    def reserve(self, size_bytes: int) -> None:
        """Reserve room for the bytes that a request is expected to bring. A negative number returns the room."""
        self._reserved_bytes += size_bytes

    def put(self, state: PartitionFetch, item: FetchedBatch | Exception) -> None:
        """Append a batch or an error to a partition's buffer. An error is raised after the batches before it."""
        if isinstance(item, FetchedBatch):
            self._count(state, item.buffer_bytes)
        state.buffered.append(item)
        if len(state.buffered) == 1 and not state.paused:
            self.ready.add(state)
            self._starving.feed(state.topic_partition)

    def _count(self, state: PartitionFetch, size_bytes: int) -> None:
        self._bytes += size_bytes
        if state.paused:
            self._paused_bytes += size_bytes

    def pop(
        self, selection: Selection = ANY, most_records: int | None = None, *, errors: bool = True
    ) -> tuple[PartitionFetch, FetchedBatch | Exception] | None:
        """
        Remove and return the next batch or error of a selected partition, with the partition's state.

        Return None if there is no such item, and remember the selection as starving. If ``errors`` is False, an error
        remains the next item, and None is returned. See also ``PartitionFetch.take``.
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
        return state, item

    def truncate(self, state: PartitionFetch, end: int) -> int:
        """Drop a partition's buffered records at and after the offset ``end``, and return their number."""
        if not state.buffered:
            return 0
        records, size_bytes = state.truncate(end)
        self._count(state, -size_bytes)
        if not state.buffered:
            self.ready.remove(state)
        return records

    def drop(self, state: PartitionFetch) -> None:
        """End an assignment of a partition, and drop its buffered batches."""
        self._count(state, -state.drop())
        self.passed.discard(state.topic_partition)

    def note_passed(self, state: PartitionFetch) -> None:
        """Add a partition whose position has passed offsets without messages to ``passed``, and wake all callers."""
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
                self._starving.feed(state.topic_partition)

    def put_back(self, state: PartitionFetch, batch: FetchedBatch, taken: int) -> None:
        """
        Put back the last batch of a partition, as its next batch. The first ``taken`` records of the batch count as
        delivered.
        """
        if state.put_back(batch, taken):
            self._count(state, batch.buffer_bytes)
        if not state.paused:
            self.ready.remove(state)
            self.ready.add_first(state)
            self._starving.feed(state.topic_partition)

    def skip(self, state: PartitionFetch, offset: int) -> None:
        """Drop the record at ``offset``, if it is the next record of a paused partition."""
        if state.buffered and state.next_offset == offset and isinstance(state.buffered[0], FetchedBatch):
            before, size_bytes = len(state.buffered), state.buffered[0].buffer_bytes
            state.take(1)
            if len(state.buffered) < before:
                self._count(state, -size_bytes)


#: Failures in a row before a warning: an election is over by then.
_FAILURES_TO_WARN = 5
#: Unreadable answers in a row after which the error is raised, because the log and not the network is damaged.
TRIES_UNREADABLE = 5


class FailedFetches:
    """
    Handles partitions that a fetcher could not fetch: fetches them again, or lets ``poll`` raise their errors.

    Args:
        cluster: Refreshes its metadata before partitions are fetched again.
        buffer: Receives the errors that ``poll`` raises.
        metrics: Counts retries, unreadable answers, and failures that retries do not fix.
        offer: Called with partitions to fetch again. The function ignores partitions that were unassigned meanwhile.
        start: Runs a coroutine in the background, under a name, until the fetcher is closed.
    """

    def __init__(
        self,
        cluster: ClusterMetadata,
        buffer: FetchBuffer,
        metrics: Metrics,
        offer: Callable[[Iterable[PartitionFetch]], None],
        start: Callable[[Coroutine[None, None, None], str], None],
    ) -> None:
        self._cluster = cluster
        self._backoff = cluster.new_backoff()
        self._buffer = buffer
        self._metrics = metrics
        self._offer = offer
        self._start = start

    def retry(
        self, states: Collection[PartitionFetch], why: str, level: int = logging.INFO, *, doubt: bool = True
    ) -> None:
        """
        Refresh the leaders and fetch these partitions again, after a delay that grows with the failures in a row.

        With ``doubt``, no longer prefer the leaders that ZooKeeper named. From the fifth failure on, log a warning.
        """
        waiting = [state for state in states if not state.dropped]
        if not waiting:
            return
        for state in waiting:
            state.enter(Phase.RETRYING)
            state.failures += 1
        failures = max(state.failures for state in waiting)
        if failures >= _FAILURES_TO_WARN:
            level = max(level, logging.WARNING)
        log.log(level, "cannot fetch %s (try %d): %s", some(state.topic_partition for state in waiting), failures, why)
        self._metrics.count("fetch_retries", len(waiting))
        if doubt:
            self._cluster.drop_overrides(state.topic_partition for state in waiting)
        self._start(self._recover(waiting, failures), "retry of fetches")

    def fetch_again(self, state: PartitionFetch) -> None:
        """Fetch a partition again after its error was raised, after a pause that grows with the failures in a row."""
        state.enter(Phase.RETRYING)
        state.failures += 1
        self._start(self._recover([state], state.failures + 1), f"another fetch of {state.topic_partition}")

    def unreadable(self, state: PartitionFetch, error: Exception) -> None:
        """Fetch unreadable records again. After ``TRIES_UNREADABLE`` tries in a row, let ``poll`` raise the error."""
        if not isinstance(error, KielGroupsError):
            place = f"{state.topic_partition} at offset {state.position}"
            error = ProtocolError(f"{place}: what the broker sent cannot be read: {error!r}")
        self._metrics.count("fetches_unreadable")
        state.unreadable += 1
        # The message's size may be damaged, too, so request an ordinary share again.
        state.needed_bytes = 0
        if state.unreadable < TRIES_UNREADABLE:
            self.retry([state], str(error), logging.WARNING)
        else:
            self.halt(state, error)

    def halt(self, state: PartitionFetch, error: Exception) -> None:
        """Let ``poll`` raise an error, and do not fetch the partition before ``poll`` has raised the error."""
        if state.dropped:
            return
        # An application asks for this error by the policy "none", and says what it means: the text is for programmers.
        level = logging.INFO if isinstance(error, OffsetOutOfRangeError) else logging.ERROR
        self.report(state, f"{error}; raising this to the application, then fetching again", level)
        state.enter(Phase.HALTED)
        self._buffer.put(state, error)

    def report(self, state: PartitionFetch, what: str, level: int = logging.ERROR) -> None:
        """Log a failure, by default as an error, and count it in ``fetch_failures``."""
        log.log(level, "fetching %s at offset %d: %s", state.topic_partition, state.position, what)
        self._metrics.count("fetch_failures")

    async def _recover(self, states: list[PartitionFetch], failures: int) -> None:
        # The first refresh is sent at once: when a fetch fails, most leaders have moved already.
        await asyncio.sleep(self._backoff.delay_s(failures - 1))
        for _ in range(UNREACHABLE_AFTER):
            topics = {state.topic_partition.topic for state in states if not state.dropped}
            if not topics:
                return
            try:
                await self._cluster.refresh(topics, "fetch")
            except ClosedError:
                return
            except NoBrokersError:
                # Refresh again instead of fetching: a fetch from a silent broker takes the whole request timeout. But
                # limit this: a broker that is slow to send metadata may be quick to answer fetches.
                failures += 1
                await asyncio.sleep(self._backoff.delay_s(failures))
                continue
            except KielGroupsError as error:
                # INFO is enough: the next fetch fails, too, and is logged at the proper level.
                log.info("no metadata for %s: %s", counted(topics, "topic"), error)
            break
        self._offer(states)
