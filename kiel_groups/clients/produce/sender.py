"""
Queue the producer's records by partition, send batches to leaders, retry failures, and set each record's outcome.

A produce request has one batch of each partition that is ready. A partition never has two batches in flight. A batch
that fails stays the first batch of its partition until it succeeds or is given up, so records keep their order.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import repeat

from kiel_groups.clients.calls.eager_methods import spawn
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.produce.batches import Appender, Batch, messages_bytes, track
from kiel_groups.clients.produce.outcomes import Outcome
from kiel_groups.config import ProducerConfig
from kiel_groups.errors import BrokerError, ClosedError, KielGroupsError, OutcomeUnknownError, RetriableBrokerError
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wire.error_codes import (
    INVALID_MESSAGE,
    INVALID_RECORD,
    MESSAGE_SET_SIZE_TOO_LARGE,
    MESSAGE_SIZE_TOO_LARGE,
    NO_ERROR,
    NOT_LEADER_FOR_PARTITION,
    UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode,
)
from kiel_groups.wire.message_sets.encoder import encode_message_set
from kiel_groups.wire.produce import ProducedPartition, ProduceRequest
from kiel_groups.wording import counted, some

log = logging.getLogger(__name__)
#: A logger apart from ``log``: the command ``produce`` prints the warnings about stalls, but reports failures by input
#: line instead of printing the errors of ``log``.
stall_log = logging.getLogger(f"{__name__}.stalls")

_TOO_LARGE = frozenset({MESSAGE_SIZE_TOO_LARGE.number, MESSAGE_SET_SIZE_TOO_LARGE.number})
#: Errors with which a broker refuses a whole batch, also if records in it have no key and the topic is compacted.
_INVALID = frozenset({INVALID_MESSAGE.number, INVALID_RECORD.number})
#: How many times a batch of records without keys is sent before INVALID_MESSAGE counts as the refusal of such records.
#: Before Kafka 2.4, brokers return the same error for a message that was damaged on its way, which succeeds in a later
#: try.
_KEYLESS_TRIES = 3
#: Errors with which a broker refuses a batch before it appends anything, unless the request waits for replicas. In that
#: case the broker appends first, and sends one of these errors if it loses the partition while it waits.
_NOT_LEADER = frozenset({UNKNOWN_TOPIC_OR_PARTITION.number, NOT_LEADER_FOR_PARTITION.number})

#: How many requests are in flight to a broker at most. While the broker works on one, the next one arrives.
_MOST_IN_FLIGHT = 2
#: How many bytes must be ready for a second request. A smaller one costs more than the broker's wait for it: its
#: partitions get fuller batches in the request after the one in flight.
_LEAST_SECOND_BYTES = 256 << 10
#: Batches of a request that have more bytes together are compressed on another thread.
_MOST_COMPRESSED_HERE_BYTES = 32 << 10
_ANY_NUMBER = 1 << 62

#: How long a partition's records may wait, including retries, before the warning, in seconds.
STALLED_AFTER_S = 10.0


@dataclass(slots=True, eq=False)
class PartitionQueue:
    """
    The batches of one partition, oldest first.

    ``busy`` is set while the first batch is in flight, or waits for a retry: no other batch overtakes it, so records
    keep their order. ``timer`` runs while a first batch lingers. ``settled`` is the number of records with an outcome.
    The first ``due`` records, counted from the first record of all, no longer wait for further records.
    """

    topic_partition: TopicPartition
    batches: deque[Batch] = field(default_factory=deque)
    #: The last batch, to which records are added until it is sealed. None if the last batch has an outcome.
    newest: Batch | None = None
    busy: bool = False
    timer: asyncio.TimerHandle | None = None
    settled: int = 0
    due: int = 0
    #: A broker has refused records because they have no key, as in a compacted topic, and stored none of them since.
    needs_keys: bool = False
    #: When the first batch was sent since a broker last stored one, on the loop's clock; see ``StallWatch``.
    waits_since_s: float | None = None

    @property
    def unsettled(self) -> int:
        """The number of records without an outcome."""
        return sum(map(len, self.batches))

    def is_ready(self, now_s: float, linger_s: float, batch_size: float) -> bool:
        """Return whether the first batch should be sent now."""
        if self.busy or not self.batches:
            return False
        first = self.batches[0]
        complete = first.sealed or len(self.batches) > 1 or len(first) >= batch_size
        return complete or self.due > self.settled or now_s - first.created_s >= linger_s

    def pop_settled(self) -> Batch:
        """Remove and return the first batch, whose outcome is known."""
        batch = self.batches.popleft()
        batch.sealed = True
        if not self.batches:
            self.newest = None
        self.settled += len(batch)
        self.busy = False
        return batch

    def split_first(self, first: Sequence[int], second: Sequence[int]) -> None:
        """Replace the first batch by two batches of its records, by their numbers."""
        batch = self.batches.popleft()
        self.batches.extendleft((batch.part(second), batch.part(first)))
        self.newest = self.batches[-1]
        self.busy = False


@dataclass(slots=True, eq=False)
class BrokerQueue:
    """
    The partitions whose first batches are ready to be sent to one broker, in the order in which they became ready.

    ``ready`` has the bytes of each batch when it became ready: records that join it later are not counted.
    ``is_planned`` is set if a request may be sent in the next iteration of the loop.
    """

    node_id: int
    ready: dict[PartitionQueue, int] = field(default_factory=dict)
    ready_bytes: int = 0
    is_planned: bool = False
    in_flight: int = 0

    @property
    def is_due(self) -> bool:
        """Whether a request should be sent: partitions are ready, and none is in flight, or a second one pays."""
        if self.in_flight:
            return self.in_flight < _MOST_IN_FLIGHT and self.ready_bytes >= _LEAST_SECOND_BYTES
        return bool(self.ready)

    def add(self, queue: PartitionQueue) -> None:
        """Add a partition whose first batch is ready."""
        size_bytes = queue.batches[0].size_bytes
        self.ready[queue] = size_bytes
        self.ready_bytes += size_bytes

    def take(self, most_bytes: int) -> list[PartitionQueue]:
        """Remove and return the first partitions whose batches have at most so many bytes, or one partition."""
        taken: list[PartitionQueue] = []
        for queue in self.ready:
            most_bytes -= queue.batches[0].size_bytes
            if taken and most_bytes < 0:
                break
            taken.append(queue)
        self.ready_bytes -= sum(map(self.ready.pop, taken))
        return taken


class StallWatch:
    """
    Detects and logs stalled partitions of a producer while batches are in flight, on one event loop.

    A partition is stalled when its records have waited for ``STALLED_AFTER_S`` seconds, and no broker has stored a
    record of the partition meanwhile. The partition stays stalled until a broker stores a record of the partition, even
    if records are given up. A stall is logged as a warning, because retries are logged only at INFO, and a request to a
    frozen broker fails only after half a minute.

    Args:
        queues: A live view of all partitions of the producer.
        metrics: Has the gauge of stalled partitions (``produce_stalled``).
    """

    def __init__(self, queues: Collection[PartitionQueue], metrics: Metrics) -> None:
        self._queues = queues
        self._metrics = metrics
        self._timer: asyncio.TimerHandle | None = None
        #: The stalled partitions, and since when the first stalled partition has waited, on the loop's clock.
        self._stalled: set[PartitionQueue] = set()
        self._since_s = 0.0

    def sent(self, queue: PartitionQueue, now_s: float) -> None:
        """Record that the partition's first batch is about to be sent, for the first time or again."""
        if queue.waits_since_s is None:
            queue.waits_since_s = now_s
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(queue.waits_since_s + STALLED_AFTER_S, self._check)

    def stored(self, queue: PartitionQueue) -> None:
        """Record that a broker has stored the partition's first batch."""
        queue.waits_since_s = None
        if self._stalled:
            self._stalled.discard(queue)
            self._report_end()

    def given_up(self, queue: PartitionQueue) -> None:
        """Record that the partition's first batch has failed for good."""
        if queue not in self._stalled:
            # The cause may be the batch itself, such as a record that is too large; the next batches may be stored.
            queue.waits_since_s = None

    def close(self) -> None:
        """Stop reporting, and reset the gauge."""
        if self._timer is not None:
            self._timer.cancel()
        self._stalled.clear()
        self._metrics.gauge("produce_stalled", 0)

    def _check(self) -> None:
        loop = asyncio.get_running_loop()
        waiting = {queue: queue.waits_since_s for queue in self._queues if queue.busy and queue not in self._stalled}
        since_s = {queue: at_s for queue, at_s in waiting.items() if at_s is not None}
        late = [queue for queue, at_s in since_s.items() if at_s + STALLED_AFTER_S <= loop.time()]
        if late:
            self._report(sorted(late, key=since_s.__getitem__), loop.time())
        next_s = min((at_s for queue, at_s in since_s.items() if queue not in self._stalled), default=None)
        if next_s is None:
            self._timer = None
        else:
            # Pause after a report, so that partitions that stall one after the other share the next report.
            pause_s = STALLED_AFTER_S if late else 0.0
            self._timer = loop.call_at(max(next_s + STALLED_AFTER_S, loop.time() + pause_s), self._check)

    def _report(self, late: list[PartitionQueue], now_s: float) -> None:
        since_s = late[0].waits_since_s or now_s
        self._since_s = min(self._since_s, since_s) if self._stalled else since_s
        self._stalled.update(late)
        self._metrics.gauge("produce_stalled", len(self._stalled))
        reason = late[0].batches[0].failure
        stall_log.warning(
            "no broker has stored a record of %s for %.0f s; %s%s",
            some(queue.topic_partition for queue in late),
            now_s - since_s,
            counted(sum(queue.unsettled for queue in late), "record waits", "records wait"),
            f", and the last try failed: {reason}; trying again" if reason is not None else " for the first answer",
        )

    def _report_end(self) -> None:
        self._metrics.gauge("produce_stalled", len(self._stalled))
        if not self._stalled:
            now_s = asyncio.get_running_loop().time()
            stall_log.warning("brokers store the records of all partitions again, after %.1f s", now_s - self._since_s)


class Sender:
    """
    Sends the records that are added to its queues. A sender belongs to one event loop.

    ``choice`` is the result of ``fast_choice``.
    """

    def __init__(
        self, cluster: ClusterMetadata, config: ProducerConfig, metrics: Metrics, choice: tuple[object, object]
    ) -> None:
        self._cluster = cluster
        self._backoff = cluster.new_backoff()
        self._config = config
        self._linger_s = 0.0 if config.linger_ms is None else config.linger_ms / 1000
        self._batch_size: float = config.batch_size
        if config.linger_ms is None and config.batch_size > 1:
            # Send only on ``send_waiting``: the producer counts ``batch_size`` over all partitions.
            self._linger_s = self._batch_size = math.inf
        self._metrics = metrics
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._brokers: dict[int, BrokerQueue] = {}
        #: Adds records to open batches without a call of the sender, and counts the bytes of all records.
        self.appender = Appender(*choice, asyncio.get_running_loop, asyncio.Future)
        self._most_bytes = min(config.batch_bytes, config.max_request_bytes)
        self.appender.most_batch_bytes = self._most_bytes
        self.appender.most_buffered_bytes = min(config.max_buffered_bytes, _ANY_NUMBER)
        if self._linger_s == 0.0 or self._batch_size == 1:
            # The first record of a batch makes the batch due.
            self.appender.due_after = _ANY_NUMBER
        else:
            # The record that makes a batch due must come by ``add``.
            self.appender.due_after = int(min(self._batch_size, _ANY_NUMBER)) - 1
        self._stalls = StallWatch(self._queues.values(), metrics)
        self._progress = asyncio.Event()
        self._closed = False
        #: Not the loop's own executor: the program may have filled it with functions that wait for these records.
        self._compressors = ThreadPoolExecutor(_MOST_IN_FLIGHT, "kiel-groups-compression")
        #: When a broker last stored a batch, on the loop's clock.
        self.stored_at_s = -math.inf

    @cached_property
    def _now_s(self) -> Callable[[], float]:
        # The loop's clock is kept: in Python 3.11, get_running_loop() makes a system call.
        return asyncio.get_running_loop().time

    @property
    def unsettled(self) -> int:
        """The number of messages without an outcome."""
        return sum(queue.unsettled for queue in self._queues.values())

    @property
    def unknown(self) -> int:
        """The number of messages without an outcome that brokers may have stored."""
        batches = (batch for queue in self._queues.values() for batch in queue.batches)
        return sum(len(batch) for batch in batches if batch.unresolved_tries)

    def queue_of(self, tp: TopicPartition) -> PartitionQueue:
        """Return the queue of a partition."""
        queue = self._queues.get(tp)
        if queue is None:
            queue = self._queues[tp] = PartitionQueue(tp)
        return queue

    def add(
        self, queue: PartitionQueue, key: bytes | None, value: bytes | None, size_bytes: int, outcome: Outcome
    ) -> None:
        """Queue one message of this size, and start to send its batch if the batch is due."""
        batch = self._open(queue, size_bytes)
        batch.keys.append(key)
        batch.values.append(value)
        batch.outcomes.append(outcome)
        batch.size_bytes += size_bytes
        self.appender.buffered_bytes += size_bytes
        if not queue.busy and (len(batch.outcomes) == 1 or len(batch.outcomes) >= self._batch_size):
            self._offer(queue)

    def add_many(
        self,
        queue: PartitionQueue,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        outcomes: Sequence[Outcome],
    ) -> None:
        """Queue messages, and start to send their batches if these are due."""
        size_bytes = messages_bytes(keys, values)
        room = self._room(queue)
        if len(values) > 1 and (size_bytes > self._most_bytes or size_bytes > room > self._most_bytes // 8):
            # The parts fill the rest of the open batch, and then the next one. To fill a small rest costs more than the
            # rest.
            middle = len(values) // 2
            self.add_many(queue, keys[:middle], values[:middle], outcomes[:middle])
            self.add_many(queue, keys[middle:], values[middle:], outcomes[middle:])
            return
        batch = self._open(queue, size_bytes)
        batch.keys += keys
        batch.values += values
        batch.outcomes += outcomes
        batch.size_bytes += size_bytes
        self.appender.buffered_bytes += size_bytes
        self._offer(queue)

    def _room(self, queue: PartitionQueue) -> int:
        """Return how many bytes the open batch of a partition still takes, or those of a new one if none is open."""
        batch = queue.newest
        return self._most_bytes if batch is None or batch.sealed else self._most_bytes - batch.size_bytes

    def _open(self, queue: PartitionQueue, size_bytes: int) -> Batch:
        """Return the last batch of a partition if it has room for so many bytes, or else a new one."""
        batch = queue.newest
        if batch is None or batch.sealed or size_bytes > self._room(queue):
            queue.newest = batch = Batch(self._now_s())
            queue.batches.append(batch)
        return batch

    # ------------------------------------------------------------------ waiting

    async def progress(self) -> None:
        """Wait until a batch has an outcome, or until ``wake``."""
        self._progress.clear()
        await self._progress.wait()

    def wake(self) -> None:
        """End the waits of ``progress``."""
        self._progress.set()

    async def flush(self) -> None:
        """Send all queued records without lingering, and wait until each record is stored or has failed."""
        self.send_waiting()
        targets = {queue: queue.due for queue in self._queues.values() if queue.batches}
        while any(queue.settled < target for queue, target in targets.items()):
            await self.progress()

    def without_outcome(self, reason: KielGroupsError) -> Iterator[tuple[Outcome, KielGroupsError]]:
        """Yield each outcome that is not set, and the error that says whether its record may be stored."""
        for queue in self._queues.values():
            for batch in queue.batches:
                track(batch.outcomes)
                yield from zip(batch.outcomes, repeat(_failure(queue.topic_partition, batch, reason)), strict=False)

    def close(self) -> None:
        """
        Fail the records without an outcome, and ignore later answers of brokers.

        A record that no broker can have stored fails with ClosedError, any other with OutcomeUnknownError.
        """
        self._closed = True
        self._compressors.shutdown(wait=False)
        self._stalls.close()
        self.wake()
        for queue in self._queues.values():
            while queue.batches:
                self._give_up(queue, ClosedError("the producer was closed"))

    # ------------------------------------------------------------------ sending

    def send_waiting(self) -> None:
        """Start to send all records added so far, without waiting for further records."""
        for queue in self._queues.values():
            queue.due = queue.settled + queue.unsettled
            self._offer(queue)

    def _offer(self, queue: PartitionQueue) -> None:
        """
        Queue the first batch for its leader if the batch is due. If the batch may wait longer, start its linger timer.

        Do nothing while a batch is in flight or waits for a retry.
        """
        if queue.busy or not queue.batches or self._closed:
            return
        if not queue.is_ready(now_s := self._now_s(), self._linger_s, self._batch_size):
            if queue.timer is None and self._linger_s < math.inf:
                ends_s = queue.batches[0].created_s + self._linger_s
                queue.timer = asyncio.get_running_loop().call_at(ends_s, self._lingered, queue)
            return
        queue.busy = True
        self._stalls.sent(queue, now_s)
        leader = self._cluster.leader_of(queue.topic_partition)
        if leader is None:
            # Not at once: without retries, each batch that fails would offer the next one in a deeper call.
            asyncio.get_running_loop().call_soon(self._failed, queue, self._cluster.no_leader(queue.topic_partition))
            return
        broker = self._brokers.get(leader)
        if broker is None:
            broker = self._brokers[leader] = BrokerQueue(leader)
        broker.add(queue)
        self._plan_request(broker)

    def _plan_request(self, broker: BrokerQueue) -> None:
        """If a request is due, send what will be ready in the next iteration of the loop."""
        if broker.is_due and not broker.is_planned:
            broker.is_planned = True
            sent: list[PartitionQueue] = []
            resume = partial(self._resume, broker, sent)
            spawn(self._send_ready(broker, sent), f"produce to broker {broker.node_id}", resume)

    def _resume(self, broker: BrokerQueue, sent: Sequence[PartitionQueue]) -> None:
        """Continue after a cancelled ``_send_ready``, which had sent the first batches of these partitions."""
        broker.is_planned = False
        for queue in sent:
            self._failed(queue, RetriableBrokerError("the program has cancelled the task that sent the records"))
        self._plan_request(broker)

    def _lingered(self, queue: PartitionQueue) -> None:
        queue.timer = None
        self._offer(queue)

    async def _send_ready(self, broker: BrokerQueue, sent: list[PartitionQueue]) -> None:
        """
        Send one request after the other to a broker, while they are due. The last one in flight leaves none due.

        ``sent`` always has the partitions of the request in flight.
        """
        broker.is_planned = False
        while broker.is_due and not self._closed:
            sent += broker.take(self._config.max_request_bytes)
            broker.in_flight += 1
            try:
                self._plan_request(broker)
                await self._send(broker, sent)
            finally:
                broker.in_flight -= 1
            sent.clear()

    async def _send(self, broker: BrokerQueue, queues: list[PartitionQueue]) -> None:
        try:
            answer = await self._request(broker, queues)
        except KielGroupsError as error:
            for queue in queues:
                self._failed(queue, error)
        except Exception as error:
            # A bug, or garbage from the broker. The records must not wait for ever.
            log.exception("producing to broker %d failed in a way that is not expected", broker.node_id)
            for queue in queues:
                self._failed(queue, KielGroupsError(f"unexpected: {error!r}"))
        else:
            if not self._closed:
                self._answered(queues, answer)

    async def _request(
        self, broker: BrokerQueue, queues: list[PartitionQueue]
    ) -> Mapping[TopicPartition, ProducedPartition] | None:
        batches = {queue.topic_partition: queue.batches[0] for queue in queues}
        for batch in batches.values():
            batch.sealed = True
        message_sets = await self._message_sets(batches)
        request = ProduceRequest(self._config.required_acks, self._config.ack_timeout_ms, message_sets)
        # The broker begins with a request when it has answered the one before it, which may wait for replicas, too.
        waits_ms = broker.in_flight * self._config.ack_timeout_ms
        timeout_ms = waits_ms + self._cluster.config.request_timeout_ms
        connection = self._cluster.connection(broker.node_id, "produce")
        await connection.wait_open()
        self._compress_ahead(queues)
        for batch in batches.values():
            batch.unresolved_tries += 1
        return await connection.request(request, timeout_ms)

    async def _message_sets(self, batches: Mapping[TopicPartition, Batch]) -> dict[TopicPartition, bytes]:
        """Encode batches. Compress many bytes on another thread, unless that has begun already."""
        if self._config.compression is None:
            return _encode(batches, None)
        ahead = {tp: batch.compressing for tp, batch in batches.items() if batch.compressing is not None}
        rest = {tp: batch for tp, batch in batches.items() if tp not in ahead}
        if _size_bytes(rest) <= _MOST_COMPRESSED_HERE_BYTES:
            found = _encode(rest, self._config.compression)
        else:
            found = await self._compress(rest)
        for tp in ahead:
            batches[tp].compressing = None
        # Each set is taken: a partition that is stalled must not keep the sets of others.
        return found | {tp: (await asyncio.shield(sets)).pop(tp) for tp, sets in ahead.items()}

    def _compress(self, batches: Mapping[TopicPartition, Batch]) -> asyncio.Future[dict[TopicPartition, bytes]]:
        loop = asyncio.get_running_loop()
        try:
            return loop.run_in_executor(self._compressors, _encode, batches, self._config.compression)
        except RuntimeError:  # the limit of threads
            compressed: asyncio.Future[dict[TopicPartition, bytes]] = loop.create_future()
            compressed.set_result(_encode(batches, self._config.compression))
            return compressed

    def _compress_ahead(self, queues: Sequence[PartitionQueue]) -> None:
        """Compress the batches behind these partitions' first ones, if complete, while the first ones are in flight."""
        if self._config.compression is None or self._closed:
            return
        # No record is added to a batch that has another one behind it.
        behind = {queue.topic_partition: queue.batches[1] for queue in queues if len(queue.batches) > 2}
        behind = {tp: batch for tp, batch in behind.items() if batch.compressing is None}
        if _size_bytes(behind) > _MOST_COMPRESSED_HERE_BYTES:
            sets = self._compress(behind)
            for batch in behind.values():
                batch.compressing = sets

    # ------------------------------------------------------------------ outcomes

    def _answered(
        self, queues: list[PartitionQueue], results: Mapping[TopicPartition, ProducedPartition] | None
    ) -> None:
        stored: list[Batch] = []
        for queue in queues:
            result = results.get(queue.topic_partition) if results is not None else ProducedPartition(NO_ERROR, -1)
            if result is None:
                self._failed(queue, BrokerError("the broker's answer leaves the partition out"))
            elif result.error.number == NO_ERROR.number:
                stored.append(queue.batches[0])
                self._stored(queue, result.base_offset)
            else:
                self._refused(queue, result)
        if stored:
            self.stored_at_s = self._now_s()
            self._metrics.count("records_produced", sum(map(len, stored)))
            self._metrics.count("bytes_produced", sum(batch.size_bytes for batch in stored))

    def _stored(self, queue: PartitionQueue, base_offset: int) -> None:
        batch = queue.batches[0]
        batch.stored(queue.topic_partition, base_offset)
        queue.pop_settled()
        self._stalls.stored(queue)
        if queue.needs_keys and None in batch.keys:
            queue.needs_keys = False
        self._settled(queue, batch)

    def _refused(self, queue: PartitionQueue, result: ProducedPartition) -> None:
        batch = queue.batches[0]
        if self._appends_nothing(result.error):
            batch.unresolved_tries -= 1
        if result.error.number in _TOO_LARGE:
            self._too_large(queue, result)
        elif result.error.number in _INVALID and None in batch.keys:
            self._without_keys(queue, result.error)
        else:
            self._refused_whole(queue, result.error)

    def _refused_whole(self, queue: PartitionQueue, error: ErrorCode, why: str = "") -> None:
        records = counted(len(queue.batches[0]), "record was", "records were")
        self._failed(queue, error.exception(f"{records} refused{why}"))

    def _appends_nothing(self, error: ErrorCode) -> bool:
        waits_for_replicas = self._config.required_acks not in (0, 1)
        return error.refuses or (error.number in _NOT_LEADER and not waits_for_replicas)

    def _without_keys(self, queue: PartitionQueue, error: ErrorCode) -> None:
        """
        Handle the refusal of a batch that has records without a key: a compacted topic refuses such records.

        The missing key is known to be the cause only when a batch of records without keys is refused. Until then, a
        batch is divided at its first change between records with and without keys, so that records keep their order.
        Once the cause is known, records with keys are sent, and records without keys fail.
        """
        batch = queue.batches[0]
        batch.invalid_tries += 1
        has_key = [key is not None for key in batch.keys]
        if not any(has_key):
            if not (queue.needs_keys or error == INVALID_RECORD or batch.invalid_tries >= _KEYLESS_TRIES):
                self._refused_whole(queue, error, ", perhaps because a compacted topic takes none without a key")
                return
            queue.needs_keys = True
        elif queue.needs_keys:
            numbers = range(len(has_key))
            queue.split_first([n for n in numbers if not has_key[n]], [n for n in numbers if has_key[n]])
        else:
            cut = has_key.index(not has_key[0])
            queue.split_first(range(cut), range(cut, len(has_key)))
            self._offer(queue)
            return
        refused = queue.batches[0]
        refused.failures += 1
        why = "the record has no key, which brokers refuse in a compacted topic (cleanup.policy=compact)"
        self._give_up(queue, BrokerError(f"{why}: {error}; give each record of the topic a key", code=error.number))

    def _too_large(self, queue: PartitionQueue, result: ProducedPartition) -> None:
        batch = queue.batches[0]
        if len(batch) > 1:
            # Either one message is too large, or only the batch is. Halving it lets all other messages be stored.
            middle = len(batch) // 2
            queue.split_first(range(middle), range(middle, len(batch)))
            self._offer(queue)
            return
        self._give_up(queue, result.error.exception(f"a message of {batch.size_bytes} bytes was refused"))

    def _failed(self, queue: PartitionQueue, error: KielGroupsError) -> None:
        if self._closed:
            return
        batch = queue.batches[0]
        batch.sealed = True
        batch.failures, batch.failure = batch.failures + 1, error
        if not error.retriable or batch.failures > self._config.retries:
            self._give_up(queue, error)
            return
        log.info("producing to %s, try %d failed: %s; trying again", queue.topic_partition, batch.failures, error)
        self._metrics.count("produce_retries")
        self._retry(queue, batch.failures)

    def _retry(self, queue: PartitionQueue, failures: int) -> None:
        resume = partial(self._retry, queue, failures)
        spawn(self._try_again(queue, failures), f"retry of {queue.topic_partition}", resume)

    async def _try_again(self, queue: PartitionQueue, failures: int) -> None:
        # The first refresh is sent at once: when a request fails, most leaders have moved already.
        await asyncio.sleep(self._backoff.delay_s(failures - 1))
        try:
            await self._cluster.refresh([queue.topic_partition.topic], "produce")
        except ClosedError:
            return
        except KielGroupsError as error:
            log.info("no metadata for %s: %s", queue.topic_partition.topic, error)
        queue.busy = False
        self._offer(queue)

    def _give_up(self, queue: PartitionQueue, reason: KielGroupsError) -> None:
        batch = queue.batches[0]
        self._stalls.given_up(queue)
        error = _failure(queue.topic_partition, batch, reason)
        log.error("%s (%s)", error, counted(len(batch), "record"))
        self._metrics.count("produce_unknown" if batch.unresolved_tries else "produce_failures", len(batch))
        batch.failed(error)
        queue.pop_settled()
        self._settled(queue, batch)

    def _settled(self, queue: PartitionQueue, batch: Batch) -> None:
        self.appender.buffered_bytes -= batch.size_bytes
        self.wake()
        self._offer(queue)


def _size_bytes(batches: Mapping[TopicPartition, Batch]) -> int:
    return sum(batch.size_bytes for batch in batches.values())


def _encode(batches: Mapping[TopicPartition, Batch], compression: str | None) -> dict[TopicPartition, bytes]:
    return {tp: encode_message_set(batch.keys, batch.values, compression) for tp, batch in batches.items()}


def _failure(tp: TopicPartition, batch: Batch, reason: KielGroupsError) -> KielGroupsError:
    """Return the error for the records of a batch that is given up."""
    tries = f" after {batch.failures} tries" if batch.failures > 1 else ""
    error: KielGroupsError
    if batch.unresolved_tries:
        message = f"the outcome of producing to {tp} is unknown{tries}, the record may or may not be stored: {reason}"
        code = reason.code if isinstance(reason, BrokerError) else None
        error = OutcomeUnknownError(message, topic=tp.topic, partition=tp.partition, code=code)
    else:
        error = copy(reason)
        error.args = (f"producing to {tp} failed{tries}: {reason}",)
    error.__cause__ = reason
    return error
