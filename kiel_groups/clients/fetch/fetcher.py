"""
Fetch the assigned partitions from their leaders into a buffer, and raise errors that retries cannot fix.

Partitions are assigned and unassigned one by one while other partitions continue. Order within a partition is kept.
Partitions are delivered in turn, batch by batch. A failure that can pass by itself (a leader moves, a broker restarts)
is logged, and the fetch is retried with backoff as long as the partition is assigned. ``poll`` raises any other
failure. After ``poll`` has raised the failure, the partition is fetched again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Final, TypeAlias

from kiel_groups.clients.calls.eager_methods import spawn
from kiel_groups.clients.fetch.fetch_buffer import FailedFetches, FetchBuffer
from kiel_groups.clients.fetch.fetch_requests import ANY, BrokerLanes, BulkTurns, PlannedFetch, Selection
from kiel_groups.clients.fetch.partition_fetch import FetchedBatch, PartitionFetch, Phase
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.connection import MAX_RESPONSE_BYTES, Connection
from kiel_groups.clients.net.log_marks import LogMark, ReadLog
from kiel_groups.config import FetchConfig
from kiel_groups.errors import (
    BrokerConnectionError,
    BrokerError,
    ClosedError,
    ConfigError,
    KielGroupsError,
    OffsetOutOfRangeError,
    ProtocolError,
)
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wire.error_codes import (
    NO_ERROR,
    OFFSET_OUT_OF_RANGE,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSUPPORTED_COMPRESSION_TYPE,
    UNSUPPORTED_VERSION,
)
from kiel_groups.wire.fetch import FetchedPartition, FetchPosition, FetchRequest
from kiel_groups.wire.message_sets.decoder import MessageRun
from kiel_groups.wire.message_sets.message_layout import NoRecords, PartialMessage
from kiel_groups.zookeeper.runtime import Runtime

log = logging.getLogger(__name__)

#: Answers for batches that this version of the request cannot carry. ``poll`` raises them: only a change of the topic,
#: or a seek past these batches, helps.
_UNSENDABLE = frozenset({UNSUPPORTED_COMPRESSION_TYPE, UNSUPPORTED_VERSION})

#: Called with a partition and the position that its log does not have. Returns the position to resume at, or None to
#: fetch the same position again. The partition's buffered batches are delivered meanwhile.
ResetCallback: TypeAlias = Callable[[TopicPartition, int], Awaitable[int | None]]
#: Called with a partition and the high watermark that its leader has reported.
WatermarkCallback: TypeAlias = Callable[[TopicPartition, int], None]

#: How long an answer is read without a return to the event loop, in seconds.
_QUANTUM_S = 0.003


class _End(Enum):
    """Marks the end of an answer's runs. A *run* is a part of an answer: messages that were checked together."""

    END = "end"


_END: Final = _End.END


class Quantum:
    """The time for which a task may work before it yields to the event loop."""

    def __init__(self) -> None:
        self._ends_s = time.monotonic() + _QUANTUM_S

    async def pause_if_over(self) -> None:
        """If the time is over, yield to the event loop, and start a new time."""
        if time.monotonic() >= self._ends_s:
            await asyncio.sleep(0)
            self._ends_s = time.monotonic() + _QUANTUM_S


class AnswerReader:
    """
    Reads the partitions of a fetch answer into the buffer.

    Args:
        config: Bounds the size of messages.
        buffer: Receives the batches.
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
        Record the high watermark of a partition's answer, and report it. Return whether ``read`` must follow.

        The answer must not be an error. An empty answer needs ``read`` only if the former high watermark was beyond the
        position, too: a broker reads its log before its high watermark. Most answers are empty, so the method must be
        cheap.
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
        Buffer the records of one partition's answer, after ``note`` has returned True for the answer.

        Each run of records is buffered as soon as it is checked. The partition may be dropped, or paused, between two
        runs, and while a large compressed message is decompressed on a thread. Then the rest is not buffered. Runs for
        which the buffer has no room are fetched again. An empty answer makes the next request larger.

        Args:
            state: The partition.
            share: The bytes that the request asked for.
            fetched: The partition's part of the answer, which is not an error.
            quantum: The time of the task that reads the answer.
            is_first: Whether the partition is the first partition of the request.

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
                # The partition was dropped or paused while the run was unpacked.
                break
            if not size_bytes:
                state.mark_log(fetched.message_set)
            # How far the set is compressed is known at its end. Until then, the compression of the last set is an
            # estimate.
            sent_bytes = int(run.size_bytes / state.expansion)
            batch = FetchedBatch(state.topic_partition, run, state.epoch, sent_bytes, state.answers)
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


class Fetcher:
    """
    Fetches assigned partitions in the background. A fetcher belongs to one event loop, which calls every method.

    Args:
        cluster: Provides the leaders, and the connections to them. The fetcher does not close the connections.
        config: How long a broker may wait, and how much it may send.
        metrics: Counts records, bytes and retries.
        reset: Called to choose a new position when a log does not have the old position. ``poll`` raises the errors of
            this function, except retriable errors and refusals of brokers.
        runtime: Provides threads for work that would block the event loop.
        watermark: Called with each high watermark that a leader reports.
    """

    def __init__(
        self,
        cluster: ClusterMetadata,
        config: FetchConfig,
        metrics: Metrics,
        *,
        reset: ResetCallback,
        runtime: Runtime,
        watermark: WatermarkCallback | None = None,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._metrics = metrics
        self._reset = reset
        self._partitions: dict[TopicPartition, PartitionFetch] = {}
        #: The marks of the last assignments of other partitions.
        self._marks: dict[TopicPartition, LogMark | None] = {}
        self._lanes: dict[int, BrokerLanes] = {}
        self._turns = BulkTurns()
        self._buffer = FetchBuffer(config)
        #: Where callers wait until ``poll`` is likely to return a batch.
        self.ready = self._buffer.ready
        #: Partitions whose position has passed offsets without messages. The caller removes those it has noted.
        self.passed = self._buffer.passed
        self._failed = FailedFetches(cluster, self._buffer, metrics, self._offer, self._start)
        self._answers = AnswerReader(config, self._buffer, metrics, watermark, runtime)
        self._epochs = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------ assignment

    def assign(
        self,
        positions: Mapping[TopicPartition, int],
        lost: Collection[TopicPartition] = (),
        paused: Collection[TopicPartition] = (),
    ) -> None:
        """
        Add partitions, and start to fetch them at once from these offsets.

        The buffered batches of a partition that is assigned already are dropped, and the partition resumes at its new
        position. The positions of partitions in ``lost`` are known to be out of range, and are reset before the first
        fetch. Partitions in ``paused`` are fetched after ``resume``.
        """
        self.unassign(positions)
        states = [
            PartitionFetch(tp, next(self._epochs), position, paused=tp in paused) for tp, position in positions.items()
        ]
        self._partitions |= {state.topic_partition: state for state in states}
        for state in states:
            if state.topic_partition in lost:
                self._start_reset(state)
        self._offer([state for state in states if state.topic_partition not in lost])

    def unassign(self, partitions: Iterable[TopicPartition]) -> None:
        """
        Drop partitions and their buffered batches, and ignore the answers to their requests in flight.

        If all partitions of a poll in flight are dropped, close its connection.
        """
        for tp in partitions:
            state = self._partitions.pop(tp, None)
            if state is not None:
                self._marks[tp] = state.mark
                self._leave_queue(state)
                self._buffer.drop(state)
        for broker in self._lanes.values():
            for lane in broker.abandoned_polls():
                # The connections of a broker that is gone are closed already.
                with suppress(KielGroupsError):
                    self._cluster.connection(broker.node_id, lane).close()

    def truncate(self, topic_partition: TopicPartition, end: int) -> int:
        """Drop a partition's buffered records at and after the offset ``end``, and return their number."""
        state = self._partitions.get(topic_partition)
        return self._buffer.truncate(state, end) if state else 0

    def pause(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """
        Stop fetching and delivering these partitions until ``resume``. The buffered batches of the partitions remain.

        Returns:
            The partitions whose buffered batches exceed the room for paused partitions. The caller should assign these
            partitions again, which drops their batches.
        """
        over: list[TopicPartition] = []
        for state in self._states(partitions):
            has_room = not self._buffer.is_paused_full
            self._buffer.pause(state)
            if state.phase is Phase.READY:
                self._leave_queue(state)
                state.enter(Phase.PARKED)
            if state.buffered and not has_room:
                over.append(state.topic_partition)
        return over

    def put_back(self, batch: FetchedBatch, taken: int) -> None:
        """
        Put back the last batch of a partition, as its next batch. The first ``taken`` records of the batch count as
        delivered.

        Do nothing if the partition was unassigned or assigned again since the batch was polled.
        """
        state = self._partitions.get(batch.topic_partition)
        if state is not None and state.epoch == batch.epoch:
            self._buffer.put_back(state, batch, taken)

    def skip(self, topic_partition: TopicPartition, offset: int) -> None:
        """Drop the record at ``offset``, if it is the next record to deliver of a paused partition."""
        state = self._partitions.get(topic_partition)
        if state is not None:
            self._buffer.skip(state, offset)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """End the pause of these partitions."""
        states = self._states(partitions)
        for state in states:
            self._buffer.resume(state)
        self._offer([state for state in states if state.phase is Phase.PARKED])

    def _leave_queue(self, state: PartitionFetch) -> None:
        if state.phase is Phase.READY:
            for broker in self._lanes.values():
                broker.remove(state)

    def _states(self, partitions: Iterable[TopicPartition]) -> list[PartitionFetch]:
        return [self._partitions[partition] for partition in partitions if partition in self._partitions]

    # ------------------------------------------------------------------ what is fetched

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions being fetched."""
        return frozenset(self._partitions)

    def position(self, topic_partition: TopicPartition) -> int | None:
        """Return the next offset to deliver, or None if the partition is not assigned."""
        state = self._partitions.get(topic_partition)
        return state.next_offset if state else None

    def epoch(self, topic_partition: TopicPartition) -> int | None:
        """Return the number of a partition's current assignment, or None if the partition is not assigned."""
        state = self._partitions.get(topic_partition)
        return state.epoch if state else None

    def is_buffering(self, topic_partition: TopicPartition) -> bool:
        """Return whether a batch or an error of a partition is buffered."""
        state = self._partitions.get(topic_partition)
        return state is not None and bool(state.buffered)

    def forget_logs(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget the log marks of former assignments of these partitions; see ``LogMark``."""
        for partition in partitions:
            self._marks.pop(partition, None)

    def read_logs(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, ReadLog]:
        """Return these positions with the log marks of the partitions' last assignments."""
        states = {partition: self._partitions.get(partition) for partition in positions}
        return {
            partition: ReadLog(positions[partition], self._marks.get(partition), in_doubt=False)
            if state is None
            else ReadLog(positions[partition], state.mark, state.phase is Phase.RESETTING)
            for partition, state in states.items()
        }

    # ------------------------------------------------------------------ delivery

    def poll(
        self, selection: Selection = ANY, most_records: int | None = None, *, errors: bool = True
    ) -> FetchedBatch | None:
        """
        Remove and return the next batch of a selected partition, or None if no batch is buffered. Do not wait.

        A batch with more than ``most_records`` is divided: later polls return its other records.

        An error of a partition is raised after the batches that precede the error. After a pause that grows with each
        error, the partition is fetched again from the same offset. If the cause remains, the error is raised again,
        until the partition is unassigned, or assigned at a position past the offset. If ``errors`` is False, an error
        is left for a later poll, because the caller must first deliver the records that it has.

        Raises:
            MessageTooLargeError: A partition's next message is larger than ``max_message_bytes``, or unpacks to more
                than ``max_decompressed_bytes``.
            DamagedRecordError: A partition's next message is damaged.
            ProtocolError: A partition's messages cannot be read.
            BrokerError: The broker cannot send a partition's messages by this version of the request. The messages are
                packed with zstd (code 76), or the topic does not allow an older format (code 35).
            Exception: ``reset`` raised an error that is not retried.
        """
        buffered = self._buffer.pop(selection, most_records, errors=errors)
        if buffered is None:
            self._send_held_back()
            return None
        state, head = buffered
        if isinstance(head, Exception):
            # Fetch again after a pause: a loop around ``poll`` that continues after errors must not spin.
            self._failed.fetch_again(state)
            raise head.with_traceback(None)
        if state.phase is Phase.PARKED:
            self._offer([state])
        self._send_held_back()
        return head

    def close(self) -> None:
        """
        Drop every partition, stop all work, and wake the callers that wait for a batch. The callers find no batch.
        """
        self.unassign(list(self._partitions))
        for task in self._tasks:
            task.cancel()
        self._buffer.ready.wake_all()

    # ------------------------------------------------------------------ sending

    def _offer(self, states: Iterable[PartitionFetch]) -> None:
        """Queue partitions for their leaders if the buffer has room, and send requests on free lanes."""
        leaderless: list[PartitionFetch] = []
        touched: dict[int, BrokerLanes] = {}
        for state in states:
            if state.dropped:
                continue
            if not self._buffer.has_room(state):
                state.enter(Phase.PARKED)
                continue
            leader = self._cluster.leader_of(state.topic_partition)
            if leader is None:
                leaderless.append(state)
                continue
            lanes = touched[leader] = self._lanes.get(leader) or BrokerLanes(leader, self._config)
            self._lanes[leader] = lanes
            lanes.add(state)
            state.enter(Phase.READY)
        if leaderless:
            self._failed.retry(leaderless, "no leader is known")
        self._send_all(touched.values())

    def _send_all(self, lanes: Iterable[BrokerLanes]) -> None:
        for broker in lanes:
            self._reroute(broker)
            self._send_bulk(broker)
            while planned := broker.plan_poll(self._buffer.room()):
                self._start(self._fetch(broker, planned), f"fetch from broker {broker.node_id}")

    def _send_bulk(self, broker: BrokerLanes) -> None:
        while planned := self._turns.plan(broker, self._buffer.room()):
            self._buffer.reserve(planned.reserved_bytes)
            self._start(self._fetch(broker, planned), f"fetch from broker {broker.node_id}")

    def _send_held_back(self) -> None:
        """Send the bulk requests that were held back because the buffer had no room."""
        for broker in self._turns.waiting:
            self._send_bulk(broker)

    def _reroute(self, broker: BrokerLanes) -> None:
        """Move partitions that wait in this broker's queue, but have another leader, to their leaders' queues."""
        version = self._cluster.leaders_version
        if broker.leaders_version == version or not broker.has_free_lane:
            return
        broker.leaders_version = version
        others = (None, broker.node_id)
        moved = [state for state in broker.ready if self._cluster.leader_of(state.topic_partition) not in others]
        for state in moved:
            broker.remove(state)
        self._offer(moved)

    async def _fetch(self, broker: BrokerLanes, planned: PlannedFetch) -> None:
        shares, sent_s = planned.shares, time.monotonic()
        again: list[PartitionFetch] = []
        try:
            answer, connection = await self._request(broker, planned)
        except ClosedError:
            return
        except ConfigError as error:
            for state in shares:
                self._failed.halt(state, error)
        except ProtocolError as error:
            for state in shares:
                self._failed.unreadable(state, error)
        except KielGroupsError as error:
            failed = list(shares)
            if isinstance(error, BrokerConnectionError):
                # If the broker is down, thousands of partitions may wait for it. They would fail one request after the
                # other, each request with a pause, a refresh of the metadata and a line in the log.
                failed += broker.take_ready()
            self._failed.retry(failed, str(error))
        except Exception as error:
            # A bug, or garbage from the broker. Either way, fetching must continue.
            self._failed.retry(shares, f"unexpected: {error!r}", logging.ERROR)
        else:
            if planned.is_bulk:
                size = sum(len(fetched.message_set) for fetched in answer.values())
                broker.bite.note(sum(shares.values()), size, time.monotonic() - sent_s)
                # The broker works on the next request while this answer is read.
                self._reroute(broker)
                self._send_bulk(broker)
            again = await self._take_all(shares, answer, connection)
            if not planned.is_bulk and any(state.buffered for state in again):
                # Let the caller that waits for these records take them before the next poll is planned and sent, which
                # takes about as long as all steps from the socket to here.
                await asyncio.sleep(0)
        self._buffer.reserve(-planned.reserved_bytes)
        rest_s = planned.rest_s(again, time.monotonic() - sent_s)
        if rest_s > 0:
            asyncio.get_running_loop().call_later(rest_s, self._offer, again)
        else:
            self._offer(again)
        self._send_all([broker])
        self._send_held_back()

    async def _request(
        self, broker: BrokerLanes, planned: PlannedFetch
    ) -> tuple[Mapping[TopicPartition, FetchedPartition], Connection]:
        """Send a request. Return the broker's answer, and the connection on which the answer came."""
        positions = {s.topic_partition: FetchPosition(s.position, share) for s, share in planned.shares.items()}
        try:
            connection = self._cluster.connection(broker.node_id, planned.lane)
            response = await connection.request(
                FetchRequest(planned.wait_ms, self._config.min_bytes, positions),
                planned.wait_ms + self._cluster.config.request_timeout_ms,
                max_response_bytes=MAX_RESPONSE_BYTES + sum(planned.shares.values()),
            )
        except ProtocolError:
            # The network may have damaged the bytes.
            connection.close()
            raise
        finally:
            # Free the lane before the answer is handled, since handling it may send the next request.
            del broker.in_flight[planned.lane]
        assert response is not None
        return response, connection

    # ------------------------------------------------------------------ answers

    async def _take_all(
        self,
        shares: Mapping[PartitionFetch, int],
        answer: Mapping[TopicPartition, FetchedPartition],
        connection: Connection,
    ) -> list[PartitionFetch]:
        """
        Read an answer, and return the partitions to fetch next.

        Other partitions are retried or reset, or their errors are left for ``poll``.
        """
        again: list[PartitionFetch] = []
        moved: dict[str, list[PartitionFetch]] = {}
        quantum, first = Quantum(), next(iter(shares))
        for state, share in shares.items():
            # An answer may have thousands of partitions.
            await quantum.pause_if_over()
            if state.dropped:
                continue
            fetched = answer.get(state.topic_partition)
            if fetched is None:
                moved.setdefault("left out of the answer", []).append(state)
            elif fetched.error == NO_ERROR:
                try:
                    if self._answers.note(state, fetched):
                        if self._cluster.seen.was_missing(state.topic_partition.topic):
                            state.doubt_log()
                        await self._answers.read(state, share, fetched, quantum, is_first=state is first)
                except Exception as error:  # garbage may fail anywhere, in any way
                    # The network may have damaged the bytes.
                    connection.close()
                    self._failed.unreadable(state, error)
                else:
                    again.append(state)
            elif fetched.error == OFFSET_OUT_OF_RANGE:
                self._start_reset(state)
            elif fetched.error in _UNSENDABLE:
                text = f"{state.topic_partition} at offset {state.position} cannot be fetched"
                self._failed.halt(state, fetched.error.exception(text))
            else:
                if fetched.error == UNKNOWN_TOPIC_OR_PARTITION:
                    self._cluster.listing.doubt()
                    state.doubt_log()
                    self._cluster.seen.doubt(state.topic_partition.topic)
                # Retry errors that look final, too: a permission may be restored, or a broker repaired.
                moved.setdefault(str(fetched.error), []).append(state)
                if not fetched.error.retriable:
                    self._failed.report(state, f"{fetched.error}: {fetched.error.hint}; trying again")
        for why, states in moved.items():
            self._failed.retry(states, why)
        return again

    # ------------------------------------------------------------------ resets

    def _start_reset(self, state: PartitionFetch) -> None:
        state.enter(Phase.RESETTING)
        state.doubt_log()
        self._start(self._find_position(state), f"reset of {state.topic_partition}")

    async def _find_position(self, state: PartitionFetch) -> None:
        tp, missing = state.topic_partition, state.position
        if state.dropped:
            return
        try:
            position = await self._reset(tp, missing)
        except KielGroupsError as error:
            # A broker's refusal may pass, whatever its code; OffsetOutOfRangeError means that the policy is ``none``.
            if error.retriable or (isinstance(error, BrokerError) and not isinstance(error, OffsetOutOfRangeError)):
                self._failed.retry([state], str(error))
            else:
                self._failed.halt(state, error)
            return
        except Exception as error:  # the callback may raise anything: ``poll`` raises it to the application
            self._failed.halt(state, error)
            return
        if position is None:
            # The leader was confirmed just now: the next fetch goes to it.
            self._failed.retry([state], f"the position {missing} is not settled", doubt=False)
        elif not state.dropped:
            log.warning("%s: offset %d is out of range, resuming at %d", tp, missing, position)
            state.position = position
            self._offer([state])

    def _start(self, work: Coroutine[None, None, None], name: str) -> None:
        task = spawn(work, name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
