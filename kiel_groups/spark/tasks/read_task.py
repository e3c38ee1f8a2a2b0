"""
Read the ranges of one Spark task from their leaders, as Arrow batches.

With more than one range, a task has two requests in flight, for different ranges: the broker works on one while the
task decodes the other answer and passes it to Spark. If a leader has moved, the task looks up the new one. A task fails
when it has received nothing for ``kafkaConsumer.pollTimeoutMs``.
"""

from __future__ import annotations

import logging
import random
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from kiel_groups.backoff import Backoff, shortening
from kiel_groups.config import HostPort
from kiel_groups.errors import BrokerError, KielGroupsError, NoBrokersError, RequestTimeoutError
from kiel_groups.model import TopicPartition
from kiel_groups.spark.tasks.arrow_batches import merged, record_batch
from kiel_groups.spark.tasks.broker_socket import BrokerSocket
from kiel_groups.spark.tasks.range_reader import RangeReader, ask_for
from kiel_groups.spark.tasks.task_planner import ReadTask
from kiel_groups.spark.tasks.worker_connections import borrowed, find_leaders, freeze_collector
from kiel_groups.wire.api.fetch_v0 import FetchPosition, FetchRequest, FetchResponse
from kiel_groups.wire.api.list_offsets_v0 import EARLIEST, LATEST, ListOffsetsRequest, OffsetQuery
from kiel_groups.wire.error_codes import LEADER_NOT_AVAILABLE, NO_ERROR, OFFSET_OUT_OF_RANGE

__all__ = ["FetchSettings", "read_task"]

log = logging.getLogger(__name__)

_LANES = 2
#: How long a broker delays an answer that would be empty, in milliseconds.
_MAX_WAIT_MS = 500
#: The room for names and numbers in an answer, besides the messages, in bytes.
_ANSWER_BYTES = 1 << 20
_BACKOFF = Backoff(0.05, 2.0, shortening(random.random))
#: The failures in a row after which a log end is accepted: a leader that was just elected may not know all of its log.
_TRIES_OUT_OF_RANGE = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """
    How a task fetches; times in milliseconds, sizes in bytes.

    ``brokers`` are asked for the new leaders after a leader has moved.
    """

    brokers: tuple[HostPort, ...]
    client_id: str
    request_timeout_ms: int
    poll_timeout_ms: int
    fetch_max_bytes: int
    max_message_bytes: int
    fail_on_data_loss: bool


def read_task(task: ReadTask, settings: FetchSettings, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """
    Yield all messages in the ranges of a task, each range in the order of its offsets.

    Raises:
        OffsetOutOfRangeError: A log lacks a range or a part of it, and ``fail_on_data_loss`` is set.
        BrokerError: A broker refuses for good, or no broker has sent anything for ``poll_timeout_ms``.
        ProtocolError: Messages cannot be decoded.
    """
    freeze_collector()
    return _TaskReader(task, settings, schema).batches()


class _Sent(NamedTuple):
    """A request in flight: the lane that it belongs to, and what it fetches of each range."""

    lane: Sequence[RangeReader]
    positions: Mapping[RangeReader, FetchPosition]


class _TaskReader:
    """One run of one task."""

    def __init__(self, task: ReadTask, settings: FetchSettings, schema: pa.Schema) -> None:
        self._settings = settings
        self._schema = schema
        self._readings = [
            RangeReader(each, settings.fail_on_data_loss, settings.max_message_bytes) for each in task.ranges
        ]
        self._leaders: Mapping[TopicPartition, HostPort | None] = {
            each.topic_partition: task.leader for each in task.ranges
        }
        self._topics = {each.topic_partition.topic for each in task.ranges}
        #: Ranges that a broker has reported as out of range, or of which nothing has arrived for too long.
        self._out_of_range: list[RangeReader] = []
        #: The number of failures in a row.
        self._failures = 0
        #: When the task last made progress.
        self._progressed_at_s = time.monotonic()

    def batches(self) -> Iterator[pa.RecordBatch]:
        while unfinished := [reading for reading in self._readings if not reading.finished]:
            by_leader: dict[HostPort | None, list[RangeReader]] = defaultdict(list)
            for reading in unfinished:
                by_leader[self._leaders.get(reading.topic_partition)].append(reading)
            for leader, readings in by_leader.items():
                try:
                    yield from self._read_from(leader, readings)
                except KielGroupsError as error:
                    self._recover(error)
                    break

    def _read_from(self, leader: HostPort | None, readings: Sequence[RangeReader]) -> Iterator[pa.RecordBatch]:
        if leader is None:
            partition = readings[0].topic_partition
            raise LEADER_NOT_AVAILABLE.exception(f"{partition} has no leader; is the broker that holds it down?")
        with borrowed(leader, self._settings.client_id) as broker:
            in_flight: deque[_Sent] = deque()
            for number in range(_LANES):
                if (failure := self._ask(broker, readings[number::_LANES], in_flight)) is not None:
                    raise failure
            while in_flight:
                lane, positions = in_flight.popleft()
                batches, failure = self._take(positions, broker.receive(self._timeout_s))
                # The next request goes out before Spark gets the messages, so that broker and Spark work in parallel.
                failure = failure or self._ask(broker, lane, in_flight)
                if batches:
                    yield from merged(batches)
                    # Spark may take any time over the messages, which does not count as waiting for the broker.
                    self._progressed_at_s = time.monotonic()
                if failure is not None:
                    raise failure

    @property
    def _timeout_s(self) -> float:
        return (self._settings.request_timeout_ms + _MAX_WAIT_MS) / 1000

    def _ask(
        self, broker: BrokerSocket, lane: Sequence[RangeReader], in_flight: deque[_Sent]
    ) -> KielGroupsError | None:
        """Send the next request of a lane, unless the lane is finished. Return the error if sending failed."""
        positions = ask_for(lane, self._settings.fetch_max_bytes)
        if not positions:
            return None
        most_bytes = _ANSWER_BYTES + sum(position.max_bytes for position in positions.values())
        request = FetchRequest(
            _MAX_WAIT_MS, 1, {reading.topic_partition: position for reading, position in positions.items()}
        )
        try:
            broker.send(request, most_bytes=most_bytes, timeout_s=self._timeout_s)
        except KielGroupsError as error:
            return error
        in_flight.append(_Sent(lane, positions))
        return None

    # ------------------------------------------------------------------ answers

    def _take(
        self, asked: Mapping[RangeReader, FetchPosition], answer: FetchResponse
    ) -> tuple[list[pa.RecordBatch], KielGroupsError | None]:
        """Return the messages of an answer, and its first error, if any."""
        batches: list[pa.RecordBatch] = []
        errors: list[KielGroupsError] = []
        for reading, position in asked.items():
            partition = reading.topic_partition
            try:
                columns = reading.take(answer.partitions.get(partition), position)
            except BrokerError as error:
                if error.code == OFFSET_OUT_OF_RANGE.number:
                    self._out_of_range.append(reading)
                errors.append(error)
                continue
            if columns is not None:
                batches.append(record_batch(columns, partition, self._schema))
            if columns is not None or reading.finished:
                self._failures, self._progressed_at_s = 0, time.monotonic()
        if not errors and self._waited_s > self._most_wait_s:
            self._out_of_range += asked
            errors.append(OFFSET_OUT_OF_RANGE.exception(f"nothing has come for {self._waited_s:.0f} s"))
        return batches, errors[0] if errors else None

    @property
    def _waited_s(self) -> float:
        return time.monotonic() - self._progressed_at_s

    @property
    def _most_wait_s(self) -> float:
        return self._settings.poll_timeout_ms / 1000

    # ------------------------------------------------------------------ recovery

    def _recover(self, error: KielGroupsError) -> None:
        """Wait, and look up the present leaders. Raise an error that is permanent, or has lasted too long."""
        out_of_range, self._out_of_range = self._out_of_range, []
        if not (error.retriable or out_of_range):
            raise error
        self._failures += 1
        log.info("retrying to read (failure %d): %s", self._failures, error)
        time.sleep(_BACKOFF.delay_s(self._failures - 1))
        self._refresh_leaders()
        for reading in out_of_range:
            try:
                self._check_bounds(reading)
            except KielGroupsError as failure:
                if not failure.retriable:
                    raise
                log.info("retrying to look up the bounds of %s: %s", reading.topic_partition, failure)
        if self._waited_s > self._most_wait_s:
            raise RequestTimeoutError(
                f"nothing could be read for {self._waited_s:.0f} s (kafkaConsumer.pollTimeoutMs is"
                f" {self._settings.poll_timeout_ms}); the last reason: {error}"
            ) from error

    def _refresh_leaders(self) -> None:
        known = filter(None, self._leaders.values())
        addresses = list(dict.fromkeys([*self._settings.brokers, *known]))
        # If no broker answers, the known leaders are kept; the next failure counts towards the limit, too.
        with suppress(NoBrokersError):
            self._leaders = find_leaders(addresses, self._settings.client_id, self._topics)

    def _check_bounds(self, reading: RangeReader) -> None:
        """Look up the bounds of the log of a range, and skip the offsets that the log certainly does not have."""
        leader = self._leaders.get(reading.topic_partition)
        if leader is None:
            return
        earliest, latest = (self._list_offset(leader, reading.topic_partition, at) for at in (EARLIEST, LATEST))
        # A leader that was just elected may not know all of its log yet.
        settled = self._failures >= _TRIES_OUT_OF_RANGE or self._waited_s > self._most_wait_s
        if reading.position < earliest or (settled and latest < reading.range.end):
            reading.resolve_out_of_range(earliest, latest)
            self._progressed_at_s = time.monotonic()

    def _list_offset(self, leader: HostPort, partition: TopicPartition, at: int) -> int:
        with borrowed(leader, self._settings.client_id) as broker:
            request = ListOffsetsRequest({partition: OffsetQuery(at)})
            answer = broker.ask(request, most_bytes=_ANSWER_BYTES, timeout_s=self._timeout_s)
        listed = answer.partitions[partition]
        if listed.error != NO_ERROR or not listed.offsets:
            raise listed.error.exception(f"the offsets of {partition} cannot be listed")
        return listed.offsets[0]
