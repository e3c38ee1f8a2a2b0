"""
What a Spark task does: read its ranges of offsets from their leaders, as Arrow batches.

Two requests are on their way wherever there is more than one range, over different ranges each: while one answer is
decoded and handed to Spark, the broker works on the other. A leader that has moved is looked up and followed; nothing
is waited for longer than ``kafkaConsumer.pollTimeoutMs`` without a message.
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

from kiel_groups.clients.net.backoff import Backoff
from kiel_groups.config import HostPort
from kiel_groups.errors import BrokerError, KielGroupsError, NoBrokersError, RequestTimeoutError
from kiel_groups.model import TopicPartition
from kiel_groups.spark.tasks.arrow_batches import merged, record_batch
from kiel_groups.spark.tasks.broker_socket import BrokerSocket
from kiel_groups.spark.tasks.range_reader import RangeReading, ask_for
from kiel_groups.spark.tasks.task_planner import ReadTask
from kiel_groups.spark.tasks.worker_connections import borrowed, calm_the_collector, find_leaders
from kiel_groups.wire.api.fetch_v0 import FetchPosition, FetchRequest, FetchResponse
from kiel_groups.wire.api.list_offsets_v0 import EARLIEST, LATEST, ListOffsetsRequest, OffsetQuery
from kiel_groups.wire.error_codes import LEADER_NOT_AVAILABLE, NO_ERROR, OFFSET_OUT_OF_RANGE

__all__ = ["FetchSettings", "read_task"]

log = logging.getLogger(__name__)

_LANES = 2
#: How long a broker holds back an answer that would be empty, in milliseconds.
_MAX_WAIT_MS = 500
#: Beside the messages asked for, an answer holds names and numbers.
_ANSWER_BYTES = 1 << 20
_BACKOFF = Backoff(base_ms=50, max_ms=2_000)
#: A leader that was elected a moment ago may not know all of its log yet.
_TRIES_OUT_OF_RANGE = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """
    How a task fetches; times in milliseconds, sizes in bytes.

    ``brokers`` are asked who leads what, when a leader has moved.
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
    Everything in the ranges of a task, each range in the order of its offsets.

    Raises:
        OffsetOutOfRangeError: A log does not have a range, or not all of it, and ``fail_on_data_loss`` is set.
        BrokerError: A broker refuses for good, or nothing has come for ``poll_timeout_ms``.
        ProtocolError: Messages cannot be read.
    """
    calm_the_collector()
    return _TaskReader(task, settings, schema).batches()


class _Asked(NamedTuple):
    """A request on its way: the lane that it is for, and what it asks of which range."""

    lane: Sequence[RangeReading]
    positions: Mapping[RangeReading, FetchPosition]


class _TaskReader:
    """One run of one task."""

    def __init__(self, task: ReadTask, settings: FetchSettings, schema: pa.Schema) -> None:
        self._settings = settings
        self._schema = schema
        self._readings = [
            RangeReading(each, settings.fail_on_data_loss, settings.max_message_bytes) for each in task.ranges
        ]
        self._leaders: Mapping[TopicPartition, HostPort | None] = {
            each.topic_partition: task.leader for each in task.ranges
        }
        self._topics = {each.topic_partition.topic for each in task.ranges}
        #: Of which a broker has said that its log does not have them.
        self._out_of_range: list[RangeReading] = []
        #: Failures in a row.
        self._failures = 0
        #: When something came last.
        self._moved_at_s = time.monotonic()

    def batches(self) -> Iterator[pa.RecordBatch]:
        while unfinished := [reading for reading in self._readings if not reading.finished]:
            by_leader: dict[HostPort | None, list[RangeReading]] = defaultdict(list)
            for reading in unfinished:
                by_leader[self._leaders.get(reading.topic_partition)].append(reading)
            for leader, readings in by_leader.items():
                try:
                    yield from self._read_from(leader, readings)
                except KielGroupsError as error:
                    self._heal(error)
                    break

    def _read_from(self, leader: HostPort | None, readings: Sequence[RangeReading]) -> Iterator[pa.RecordBatch]:
        if leader is None:
            partition = readings[0].topic_partition
            raise LEADER_NOT_AVAILABLE.exception(f"{partition} has no leader; is the broker that holds it down?")
        with borrowed(leader, self._settings.client_id) as broker:
            asked: deque[_Asked] = deque()
            for number in range(_LANES):
                if (trouble := self._ask(broker, readings[number::_LANES], asked)) is not None:
                    raise trouble
            while asked:
                lane, positions = asked.popleft()
                batches, trouble = self._take(positions, broker.receive(self._timeout_s))
                # Before what came is handed on: the broker works while Spark does.
                trouble = trouble or self._ask(broker, lane, asked)
                if batches:
                    yield from merged(batches)
                    # What Spark does with them may take as long as it likes.
                    self._moved_at_s = time.monotonic()
                if trouble is not None:
                    raise trouble

    @property
    def _timeout_s(self) -> float:
        return (self._settings.request_timeout_ms + _MAX_WAIT_MS) / 1000

    def _ask(self, broker: BrokerSocket, lane: Sequence[RangeReading], asked: deque[_Asked]) -> KielGroupsError | None:
        """Ask for what comes next in a lane, for nothing where it is finished; returns why that was not possible."""
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
        asked.append(_Asked(lane, positions))
        return None

    # ------------------------------------------------------------------ answers

    def _take(
        self, asked: Mapping[RangeReading, FetchPosition], answer: FetchResponse
    ) -> tuple[list[pa.RecordBatch], KielGroupsError | None]:
        """What an answer brought, and the first trouble that it tells of."""
        batches: list[pa.RecordBatch] = []
        troubles: list[KielGroupsError] = []
        for reading, position in asked.items():
            partition = reading.topic_partition
            try:
                columns = reading.take(answer.partitions.get(partition), position)
            except BrokerError as error:
                if error.code == OFFSET_OUT_OF_RANGE.number:
                    self._out_of_range.append(reading)
                troubles.append(error)
                continue
            if columns is not None:
                batches.append(record_batch(columns, partition, self._schema))
            if columns is not None or reading.finished:
                self._failures, self._moved_at_s = 0, time.monotonic()
        if not troubles and self._waited_s > self._most_wait_s:
            self._out_of_range += asked
            troubles.append(OFFSET_OUT_OF_RANGE.exception(f"nothing has come for {self._waited_s:.0f} s"))
        return batches, troubles[0] if troubles else None

    @property
    def _waited_s(self) -> float:
        return time.monotonic() - self._moved_at_s

    @property
    def _most_wait_s(self) -> float:
        return self._settings.poll_timeout_ms / 1000

    # ------------------------------------------------------------------ healing

    def _heal(self, error: KielGroupsError) -> None:
        """Wait a little and look up who leads now; raises what does not heal, or has not in time."""
        out_of_range, self._out_of_range = self._out_of_range, []
        if not (error.retriable or out_of_range):
            raise error
        self._failures += 1
        log.info("reading is tried again (%d): %s", self._failures, error)
        time.sleep(_BACKOFF.delay_s(self._failures - 1, random.random))
        self._look_for_leaders()
        for reading in out_of_range:
            try:
                self._place(reading)
            except KielGroupsError as failure:
                if not failure.retriable:
                    raise
                log.info("where %s begins and ends is asked again: %s", reading.topic_partition, failure)
        if self._waited_s > self._most_wait_s:
            raise RequestTimeoutError(
                f"nothing could be read for {self._waited_s:.0f} s (kafkaConsumer.pollTimeoutMs is"
                f" {self._settings.poll_timeout_ms}); the last reason: {error}"
            ) from error

    def _look_for_leaders(self) -> None:
        known = filter(None, self._leaders.values())
        addresses = list(dict.fromkeys([*self._settings.brokers, *known]))
        # An old view is better than none: the next failure is counted, too.
        with suppress(NoBrokersError):
            self._leaders = find_leaders(addresses, self._settings.client_id, self._topics)

    def _place(self, reading: RangeReading) -> None:
        """Find out what the log has of a range of which the broker has said that it is not there."""
        leader = self._leaders.get(reading.topic_partition)
        if leader is None:
            return
        earliest, latest = (self._list_offset(leader, reading.topic_partition, at) for at in (EARLIEST, LATEST))
        # A leader that was elected a moment ago may not know all of its log yet.
        settled = self._failures >= _TRIES_OUT_OF_RANGE or self._waited_s > self._most_wait_s
        if reading.position < earliest or (settled and latest < reading.range.end):
            reading.resolve_out_of_range(earliest, latest)
            self._moved_at_s = time.monotonic()

    def _list_offset(self, leader: HostPort, partition: TopicPartition, at: int) -> int:
        with borrowed(leader, self._settings.client_id) as broker:
            request = ListOffsetsRequest({partition: OffsetQuery(at)})
            answer = broker.ask(request, most_bytes=_ANSWER_BYTES, timeout_s=self._timeout_s)
        listed = answer.partitions[partition]
        if listed.error != NO_ERROR or not listed.offsets:
            raise listed.error.exception(f"the offsets of {partition} cannot be listed")
        return listed.offsets[0]
