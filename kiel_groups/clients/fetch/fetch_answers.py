"""Read the answers to fetches into the buffer, run by run, without blocking the event loop for long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Final, TypeAlias

from kiel_groups.clients.fetch.fetch_buffer import FetchBuffer
from kiel_groups.clients.fetch.partition_fetch import FetchedBatch, PartitionFetch
from kiel_groups.config import FetchConfig
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wire.fetch import FetchedPartition
from kiel_groups.wire.message_sets.decoder import MessageRun, NoRecords, PartialMessage
from kiel_groups.zookeeper.runtime import Runtime

__all__ = ["AnswerReader", "Quantum", "WatermarkCallback"]

#: Called with a partition and the high watermark that its leader has reported.
WatermarkCallback: TypeAlias = Callable[[TopicPartition, int], None]

#: How long an answer is read without a return to the event loop, in seconds.
_QUANTUM_S = 0.003


class _End(Enum):
    """What follows the last run of an answer; its type tells it from a run."""

    END = "end"


_END: Final = _End.END


class Quantum:
    """The time for which a task may work before other tasks get their turn."""

    def __init__(self) -> None:
        self._ends_s = time.monotonic() + _QUANTUM_S

    async def pause_if_over(self) -> None:
        """Return to the event loop if the time is over."""
        if time.monotonic() >= self._ends_s:
            await asyncio.sleep(0)
            self._ends_s = time.monotonic() + _QUANTUM_S


class AnswerReader:
    """
    Reads what an answer has of one partition into the buffer.

    Args:
        config: Bounds the size of messages.
        buffer: Where the batches go.
        metrics: Counts records and bytes.
        watermark: Called with each high watermark that a leader reports.
        runtime: Provides a thread for large compressed messages.
    """

    def __init__(
        self,
        config: FetchConfig,
        buffer: FetchBuffer,
        metrics: Metrics,
        watermark: WatermarkCallback | None,
        runtime: Runtime,
    ) -> None:
        self._config = config
        self._buffer = buffer
        self._metrics = metrics
        self._watermark = watermark
        self._runtime = runtime
        #: One at a time: what several compressed messages unpack to may not fit into memory.
        self._unpacking = asyncio.Lock()

    def note(self, state: PartitionFetch, fetched: FetchedPartition) -> bool:
        """
        Note what one partition's answer says, which is not an error, and return whether ``read`` has to follow.

        Most answers of many partitions are empty, so this must be cheap. An empty answer proves nothing if only its own
        high watermark is beyond the position: a broker reads its log before its high watermark.
        """
        before, state.high_watermark = state.high_watermark, fetched.high_watermark
        if self._watermark is not None:
            self._watermark(state.topic_partition, fetched.high_watermark)
        if not self._may_keep(state):
            # The records are fetched again after the pause.
            return False
        if fetched.message_set:
            state.empty_answers = 0
            return True
        state.empty_answers += 1
        if before is not None and state.position < before and state.position < fetched.high_watermark:
            return True
        state.failures = state.unreadable = 0
        return False

    async def read(
        self, state: PartitionFetch, share: int, fetched: FetchedPartition, quantum: Quantum, *, is_first: bool = True
    ) -> None:
        """
        Buffer the records of one partition's answer, of which ``note`` has returned True.

        Each run of records is buffered as soon as it is checked. The partition may be dropped, or paused, between two
        runs, and while a large compressed message is unpacked on a thread. Runs for which the buffer has no room are
        fetched again.

        Args:
            state: The partition.
            share: The bytes that the request asked for.
            fetched: The partition's part of the answer, which is not an error.
            quantum: The time of the task that reads the answer.
            is_first: Whether the partition is the first one of the request.

        Raises:
            MessageTooLargeError: As for ``Fetcher.poll``.
            ProtocolError, or any other error: The records cannot be read.
        """
        most = self._config.max_message_bytes
        if not fetched.message_set:
            state.grow_unanswered(share, most, is_first=is_first)
            self._metrics.count("fetch_share_grown")
            return
        try:
            await self._keep_runs(state, fetched, quantum)
        except PartialMessage as error:
            state.grow(share, error.needed_bytes or 0, most)
            self._metrics.count("fetch_share_grown")
            return
        except NoRecords as error:
            if state.pass_empty(error.next_offset, share, most):
                self._buffer.note_passed(state)
            else:
                state.empty_answers += 1
        state.failures = state.unreadable = 0

    def _may_keep(self, state: PartitionFetch) -> bool:
        return not (state.dropped or (state.paused and self._buffer.is_paused_full))

    def _may_unpack(self, state: PartitionFetch) -> bool:
        return self._may_keep(state) and (not self._buffer.is_full or self._buffer.room().is_awaited(state))

    async def _keep_runs(self, state: PartitionFetch, fetched: FetchedPartition, quantum: Quantum) -> None:
        start, wire_bytes, size_bytes = state.position, len(fetched.message_set), 0
        state.answers += 1
        runs = state.runs(fetched.message_set, self._config.max_decompressed_bytes)
        step: Callable[[], MessageRun | _End | None] = partial(next, runs, _END)
        run, keeps_all = step(), False
        while run is not _END:
            if run is None:
                # All that a large message unpacks to is kept, or nothing: it would be unpacked again for each run.
                async with self._unpacking:
                    if not self._may_unpack(state):
                        break
                    run, keeps_all = await self._runtime.in_thread(step, "unpack"), True
                continue
            if not self._may_keep(state):
                # It was dropped or paused while the run was unpacked.
                break
            if not size_bytes:
                state.mark_log(fetched.message_set)
            # How far the set is compressed is known at its end; the last one is a good guess.
            sent_bytes = int(run.size_bytes / state.expansion)
            batch = FetchedBatch(
                state.topic_partition, run, fetched.high_watermark, state.epoch, sent_bytes, state.answers
            )
            size_bytes += run.size_bytes
            state.move_to(run.last_offset + 1)
            self._metrics.count("records_fetched", run.count)
            self._buffer.put(state, batch)
            await quantum.pause_if_over()
            if not self._may_keep(state) or (self._buffer.is_full and not keeps_all):
                break
            run = step()
        else:
            state.sizes.note(wire_bytes, state.position - start)
        if size_bytes:
            state.expansion = max(1.0, size_bytes / wire_bytes)
        self._metrics.count("bytes_fetched", wire_bytes)
