"""
Read the ranges of one Spark task from their leaders, as Arrow batches.

The ranges of a leader are divided into two *lanes*. A task has one request in flight for each lane. So the broker
works on the request of one lane while the task decodes the answer for the other lane, and passes it to Spark. If a
leader has moved, the task looks up the new leader. A task fails when it has received nothing for
``kafkaConsumer.pollTimeoutMs``.
"""

from __future__ import annotations

import logging
import random
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from kiel_groups import errors
from kiel_groups.backoff import Backoff, shortening
from kiel_groups.clients.fetch.partition_fetch import MessageSizes, damage_at, fill_answer
from kiel_groups.config import HostPort
from kiel_groups.model import Record, TopicPartition
from kiel_groups.spark.checkpoint import Loss, OffsetRange, loss_cause
from kiel_groups.spark.columns import INCARNATION, JsonFields, MisfitError, arrow_schema
from kiel_groups.spark.options import FAIL, QUARANTINE, ROW, ReadOptions
from kiel_groups.spark.side_tables import Quarantine, SideRow, record_loss
from kiel_groups.spark.task_planner import ReadTask
from kiel_groups.spark.worker_connections import BrokerSocket, borrowed, find_leaders, freeze_collector
from kiel_groups.wire.error_codes import LEADER_NOT_AVAILABLE, NO_ERROR, OFFSET_OUT_OF_RANGE, UNKNOWN
from kiel_groups.wire.fetch import FetchedPartition, FetchPosition, FetchRequest
from kiel_groups.wire.list_offsets import EARLIEST, LATEST, ListOffsetsRequest, OffsetQuery
from kiel_groups.wire.message_sets.arrow_arrays import binary_array, offset_array
from kiel_groups.wire.message_sets.columns import Columns, columns_of
from kiel_groups.wire.message_sets.decoder import decode_columns
from kiel_groups.wire.message_sets.message_layout import DamagedMessage, NoRecords, PartialMessage
from kiel_groups.wording import counted

log = logging.getLogger(__name__)


_MIN_SHARE_BYTES = 16 << 10
#: The empty answers in a row after which messages below the high watermark count as lost. Fewer prove nothing: a broker
#: reads its log before its high watermark, so an empty answer may be older than the watermark that it reports. A leader
#: that is cut off answers in the same way.
_MAX_EMPTY_ANSWERS = 5


@dataclass(slots=True, eq=False)
class RangeReader:
    """
    Tracks the reading of one range, and decodes its answers.

    ``archive`` is the URI of the archive's output, or None for other queries. ``position`` is the next offset to fetch.
    ``sizes`` has the size of the messages read so far. ``needed_bytes`` is the fetch size for the next message, or 0 if
    an ordinary share is enough. ``empty_answers`` counts successive answers without a message, although the broker's
    high watermark covered the whole range. ``suspect`` has the bytes of a damaged message that was received once. The
    network may have damaged it, so it is fetched again.
    """

    range: OffsetRange
    fail_on_data_loss: bool
    max_message_bytes: int
    archive: str | None = None
    position: int = 0
    needed_bytes: int = 0
    sizes: MessageSizes = field(default_factory=MessageSizes)
    empty_answers: int = 0
    suspect: bytes | None = None

    def __post_init__(self) -> None:
        self.position = self.range.start

    @property
    def topic_partition(self) -> TopicPartition:
        return self.range.topic_partition

    @property
    def finished(self) -> bool:
        return self.position >= self.range.end

    def ask(self, share_bytes: int) -> FetchPosition:
        """
        Return the position and the size of the next fetch.

        Args:
            share_bytes: The most bytes of this partition in an answer, unless the next message needs more.
        """
        if self.needed_bytes:
            return FetchPosition(self.position, self.needed_bytes)
        # The log continues after the range: a smaller fetch keeps the broker from sending messages of no use.
        rest_bytes = self.sizes.expected_bytes(self.range.end - self.position)
        return FetchPosition(self.position, min(share_bytes, rest_bytes))

    def take(
        self, fetched: FetchedPartition | None, asked: FetchPosition
    ) -> Columns | errors.DamagedRecordError | None:
        """
        Decode the messages of an answer, and advance the position. Return None if there are no messages to pass on.

        If the first message is damaged in the same way in two answers, advance the position past this message, and
        return the error. If the broker sent nothing several times in a row, and ``fail_on_data_loss`` is not set,
        record the rest of the range as lost, and skip it.

        Args:
            fetched: What the answer has of this partition, or None if it lacks the partition.
            asked: The position and the size of the fetch, as ``ask`` returned them.

        Raises:
            RetriableBrokerError: The broker sent nothing although its high watermark covers the range. The caller
                should retry on another connection.
            OffsetOutOfRangeError: The broker sent nothing several times in a row, and ``fail_on_data_loss`` is set.
            BrokerError: The broker refused the fetch, or left out the partition. The error has the broker's code.
            MessageTooLargeError: The next message, or its unpacked content, is larger than ``max_message_bytes``.
            ProtocolError: The messages cannot be decoded, and it is not known where the damage ends.
        """
        if fetched is None:
            raise UNKNOWN.exception(f"{self.topic_partition} is left out of the broker's answer")
        if fetched.error != NO_ERROR:
            raise fetched.error.exception(f"{self.topic_partition} at offset {self.position} cannot be fetched")
        if not len(fetched.message_set):
            if fetched.high_watermark >= self.range.end:
                self._on_empty_answer(fetched.high_watermark)
            return None
        try:
            columns = decode_columns(
                fetched.message_set,
                self.topic_partition,
                self.position,
                max_decompressed_bytes=self.max_message_bytes,
                end=self.range.end,
            )
        except PartialMessage as error:
            self._enlarge_fetch(asked.max_bytes, error)
            return None
        except errors.MessageTooLargeError as error:
            raise errors.MessageTooLargeError(
                f"{self.topic_partition} at offset {self.position}: a compressed message unpacks to more than"
                f" kiel.max.message.bytes, {self.max_message_bytes}; raise it, and the memory of the executors with it."
                " Above 2 GiB Arrow has no room for it: begin after it"
            ) from error
        except NoRecords as error:
            # What follows may be larger than the fetch.
            self.needed_bytes = min(2 * asked.max_bytes, self.max_message_bytes)
            self.position = min(error.next_offset, self.range.end)
            return None
        except DamagedMessage as damage:
            bad = damage_at(damage, self.topic_partition, self.position, fetched.high_watermark)
            if not isinstance(bad, errors.DamagedRecordError):
                raise bad from damage
            if damage.message != self.suspect:
                # The network may have damaged the bytes. If the log has, the next answer is the same.
                self.suspect = damage.message
                return None
            self.needed_bytes = self.empty_answers = 0
            bad.next_offset = self.position = min(bad.next_offset, self.range.end)
            return bad
        if columns.next_offset == self.position:
            raise errors.ProtocolError(
                f"{self.topic_partition} at offset {self.position}: the broker sends older messages only"
            )
        self.needed_bytes = self.empty_answers = 0
        self.sizes.note(len(fetched.message_set), columns.next_offset - self.position)
        self.position = columns.next_offset
        return columns if len(columns) else None

    def _on_empty_answer(self, high_watermark: int) -> None:
        """
        Raise an error so that the caller retries. After several empty answers, treat the rest of the range as lost.

        A gap that compaction has left causes no empty answer, because the broker sends the messages after the gap.
        """
        self.empty_answers += 1
        # Brokers of 3.x send nothing of a message that is larger than the fetch.
        self.needed_bytes = self.max_message_bytes
        what = (
            f"offsets {self.position} to {self.range.end} are to be read, and the broker has a"
            f" log of up to {high_watermark} and sends no message"
        )
        if self.empty_answers < _MAX_EMPTY_ANSWERS:
            raise errors.RetriableBrokerError(f"{self.topic_partition}: {what}; asked {self.empty_answers} times")
        self._on_loss(
            f"{what}, asked {self.empty_answers} times: they are lost, unless compaction has removed the last messages"
            f" of the log, or the next one is larger than kiel.max.message.bytes, {self.max_message_bytes}",
            remedy="Wait for a later message, which proves that, or set failOnDataLoss to false to continue without",
            end=self.range.end,
        )
        self.position = self.range.end

    def _on_loss(self, what: str, remedy: str, end: int) -> None:
        """
        Raise an error because the messages from the position to ``end`` are lost.

        If ``fail_on_data_loss`` is not set, log and record the loss instead.
        """
        loss = Loss(self.topic_partition, self.position, end, self.range.incarnation, what)
        if self.fail_on_data_loss:
            raise errors.OffsetOutOfRangeError(f"{loss}. {remedy}")
        log.warning("%s; continuing without them, as failOnDataLoss is false", loss)
        record_loss(self.archive, loss)

    def _enlarge_fetch(self, asked_bytes: int, partial: PartialMessage) -> None:
        needed, most = partial.needed_bytes or 0, self.max_message_bytes
        if needed > most or asked_bytes >= most:
            size = f"takes {needed} bytes" if needed else "takes more"
            raise errors.MessageTooLargeError(
                f"{self.topic_partition} at offset {self.position}: the message {size}, kiel.max.message.bytes is"
                f" {most}; raise it, and the memory of the executors with it"
            ) from partial
        self.needed_bytes = min(max(needed, 2 * asked_bytes), most)

    def resolve_out_of_range(self, earliest: int, latest: int) -> None:
        """
        Handle a position that the log does not have, and record the loss.

        If the log begins within the range, continue at its first offset. Otherwise, skip the rest of the range.

        Args:
            earliest: The first offset of the log.
            latest: The next offset of the log.

        Raises:
            OffsetOutOfRangeError: ``fail_on_data_loss`` is set. The message names the wanted offsets, the offsets of
                the log and the remedy.
        """
        what = (
            f"offsets {self.position} to {self.range.end} are to be read, and the log has {earliest} to {latest}:"
            f" {loss_cause(self.position, earliest)}"
        )
        following = earliest if self.position < earliest < self.range.end else self.range.end
        self._on_loss(
            what,
            remedy="Start with a new checkpoint, or set failOnDataLoss to false to continue with what there is",
            end=following,
        )
        self.position = following


def ask_for(readings: Iterable[RangeReader], most_bytes: int) -> dict[RangeReader, FetchPosition]:
    """
    Return the fetches of one request: the first unfinished ranges, as many as fill the answer.

    ``clients.fetch.partition_fetch`` explains why a request has few ranges, and fetches many messages of each range.

    Args:
        readings: The ranges in the order in which to read them. One request has at most one range of a partition.
        most_bytes: The most bytes of messages in the answer, unless one message needs more.
    """
    share = max(_MIN_SHARE_BYTES, most_bytes)
    first: dict[TopicPartition, RangeReader] = {}
    for reading in readings:
        if not reading.finished:
            first.setdefault(reading.topic_partition, reading)
    asked = fill_answer(((reading, reading.ask(share).max_bytes) for reading in first.values()), most_bytes)
    return {reading: FetchPosition(reading.position, size) for reading, size in asked.items()}


#: Spark's timestamp type of messages that have no timestamp, such as those of magic 0.
_NO_TIMESTAMP_TYPE = -1
#: Each batch costs Spark as much as some thousand rows; larger batches than this gain nothing.
_BATCH_ROWS = 8_192


def record_batch(columns: Columns, source: OffsetRange, schema: pa.Schema, **given: list[Any]) -> pa.RecordBatch:
    """
    Return messages as a record batch.

    Args:
        columns: The messages. The batch shares their buffers.
        source: The range of the messages.
        schema: The columns of the batch.
        given: The values of further columns, by name. A column without values here or in messages is null.
    """
    arrays = [
        pa.array(given[field.name], field.type)
        if field.name in given
        else _COLUMNS[field.name](columns, source)
        if field.name in _COLUMNS
        else pa.nulls(len(columns), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def merged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Merge small batches, and yield the larger batches. The rows keep their order. Merging copies the rows."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if waiting and rows + batch.num_rows > _BATCH_ROWS:
            yield _merge(waiting)
            waiting, rows = [], 0
        waiting.append(batch)
        rows += batch.num_rows
    if waiting:
        yield _merge(waiting)


def _merge(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (whole,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return whole


def _repeated(value: str | int | None, kind: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


_COLUMNS: Final[dict[str, Callable[[Columns, OffsetRange], pa.Array]]] = {
    "key": lambda columns, _: binary_array(columns.keys, range(len(columns))),
    "value": lambda columns, _: binary_array(columns.values, range(len(columns))),
    "topic": lambda columns, source: _repeated(source.topic_partition.topic, pa.string(), len(columns)),
    "partition": lambda columns, source: _repeated(source.topic_partition.partition, pa.int32(), len(columns)),
    "offset": lambda columns, _: offset_array(columns, range(len(columns))),
    "timestampType": lambda columns, _: _repeated(_NO_TIMESTAMP_TYPE, pa.int32(), len(columns)),
    INCARNATION: lambda columns, source: _repeated(source.incarnation, pa.int64(), len(columns)),
}


#: How to pass a bad record, at the end of its error.
_BAD_RECORD_REMEDY = "set kiel.onBadRecord to 'skip', or to 'row' for a row without a value"
_BAD_RECORD_REMEDY_OF_ARCHIVES = "set bad_records to 'quarantine' or 'skip'"
#: The number of bad records of a task that are logged one by one.
_MOST_LOGGED = 10


class _BadRecords:
    """
    Handles the bad records of one task as ``kiel.onBadRecord`` says, and counts them.

    Bad records are damaged messages and, in an archive, values that do not fit the schema of their topic.
    """

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._choice = options.on_bad_record
        self._archive = options.archive
        self._schema = schema
        self._records: dict[RangeReader, Quarantine] = {}
        self._count = 0

    def note(self, bad: errors.DamagedRecordError, reading: RangeReader) -> None:
        """
        Count a bad record of this range, and record it in the ``_quarantine`` of an archive.

        Only the first ten bad records of a task are logged.

        Raises:
            DamagedRecordError: ``kiel.onBadRecord`` is ``fail``.
        """
        if self._choice == FAIL:
            remedy = _BAD_RECORD_REMEDY if self._archive is None else _BAD_RECORD_REMEDY_OF_ARCHIVES
            bad.args = (f"{bad}; to pass it, {remedy}",)
            raise bad
        self._count += 1
        if self._count <= _MOST_LOGGED:
            last = bad.next_offset - 1
            place = f"offset {last}" if last == bad.offset else f"offsets {bad.offset} to {last}"
            log.error("%s: skipping %s: %s", bad.topic_partition, place, bad)
        if self._archive is not None:
            # A damaged message within a compressed one is at another offset than the row.
            at = f"{bad.topic_partition} at offset {bad.offset}: "
            self._records.setdefault(reading, Quarantine(self._archive)).add(
                SideRow(
                    topic=bad.topic_partition.topic,
                    partition=bad.topic_partition.partition,
                    offset=bad.offset,
                    end_offset=bad.next_offset,
                    reason=str(bad).removeprefix(at).removeprefix(f"{bad.topic_partition} "),
                    found_at=datetime.now(UTC),
                    incarnation=reading.range.incarnation,
                    raw=bad.value if self._choice == QUARANTINE else None,
                )
            )

    def rows(self, bad: errors.DamagedRecordError, reading: RangeReader) -> list[pa.RecordBatch]:
        """
        Call ``note`` for a damaged message, and return the rows that replace the message.

        The result is one row at the first offset of the damage if ``kiel.onBadRecord`` is ``row``, or in an archive's
        query with the column ``error``. That query counts and drops the rows in which this column is not null. Other
        queries get no row.
        """
        self.note(bad, reading)
        if self._choice != ROW and (self._archive is None or "error" not in self._schema.names):
            return []
        columns = columns_of([Record(*bad.topic_partition, bad.offset, None, None)], bad.next_offset)
        return [record_batch(columns, reading.range, self._schema, error=[str(bad)], raw=[bad.value])]

    def finish(self) -> None:
        """Write the collected bad records into ``_quarantine``. The caller must call this before the task ends."""
        for each in self._records.values():
            each.flush()
        if self._count:
            more = f"; the log names only the first {_MOST_LOGGED}" if self._count > _MOST_LOGGED else ""
            log.error("this task has %s%s", counted(self._count, "bad record"), more)


_LANES = 2
#: How long a broker delays an answer that would be empty, in milliseconds.
_MAX_WAIT_MS = 500
#: The room for names and numbers in an answer, besides the messages, in bytes.
_ANSWER_BYTES = 1 << 20
_BACKOFF = Backoff(0.05, 2.0, shortening(random.random))
#: The failures in a row after which a log end is accepted: a leader that was just elected may not know all of its log.
_TRIES_OUT_OF_RANGE = 6


def task_rows(partition: InputPartition, options: ReadOptions, schema: StructType) -> Iterator[pa.RecordBatch]:
    """
    Return an iterator over all messages in the ranges of a task. The messages of a range are in the order of offsets.

    The iterator raises the errors below.

    Args:
        partition: A task that ``task_partitions`` has wrapped.
        options: The options of the query.
        schema: The columns of the rows.

    Raises:
        OffsetOutOfRangeError: A log lacks a range or a part of it, and ``fail_on_data_loss`` is set.
        BrokerError: A broker refuses permanently, or no broker has sent anything for ``poll_timeout_ms``.
        DamagedRecordError: A message is damaged, and ``kiel.onBadRecord`` is ``fail``.
        ProtocolError: Messages cannot be decoded, and it is not known where the damage ends.
    """
    freeze_collector()
    return _TaskReader(partition.value, options, arrow_schema(schema)).batches()


class _Sent(NamedTuple):
    """A request in flight. ``lane`` has the ranges of its lane, and ``positions`` has what the request fetches."""

    lane: Sequence[RangeReader]
    positions: Mapping[RangeReader, FetchPosition]


#: What a broker answers to one request.
_Answer: TypeAlias = Mapping[TopicPartition, FetchedPartition]


class _TaskReader:
    """Reads the ranges of one task. It is used once."""

    def __init__(self, task: ReadTask, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._bad = _BadRecords(options, schema)
        self._readings = [
            RangeReader(each, options.fail_on_data_loss, options.max_message_bytes, options.archive)
            for each in task.ranges
        ]
        self._fields = {topic: JsonFields(each) for topic, each in options.schemas.items()}
        self._leaders = task.leaders
        self._topics = {each.topic_partition.topic for each in task.ranges}
        #: Ranges that a broker has reported as out of range, or of which nothing has arrived for too long.
        self._out_of_range: list[RangeReader] = []
        #: The number of failures in a row.
        self._failures = 0
        self._most_wait_s = options.poll_timeout_ms / 1000
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
                except errors.KielGroupsError as error:
                    self._recover(error)
                    break
        self._bad.finish()

    def _read_from(self, leader: HostPort | None, readings: Sequence[RangeReader]) -> Iterator[pa.RecordBatch]:
        if leader is None:
            partition = readings[0].topic_partition
            raise LEADER_NOT_AVAILABLE.exception(f"{partition} has no leader; is the broker that holds it down?")
        with borrowed(leader, self._options.broker_config) as broker:
            in_flight: deque[_Sent] = deque()
            for number in range(_LANES):
                if (failure := self._ask(broker, readings[number::_LANES], in_flight)) is not None:
                    raise failure
            while in_flight:
                lane, positions = in_flight.popleft()
                batches, failure = self._take(positions, self._receive(broker, positions))
                # The next request goes out before Spark gets the messages, so that broker and Spark work in parallel.
                failure = failure or self._ask(broker, lane, in_flight)
                if batches:
                    yield from merged(batches)
                    # Spark may take any time over the messages, which does not count as waiting for the broker.
                    self._progressed_at_s = time.monotonic()
                if failure is not None:
                    raise failure

    def _receive(self, broker: BrokerSocket, asked: Mapping[RangeReader, FetchPosition]) -> _Answer:
        """
        Return the next answer. Raise BrokerConnectionError if another broker becomes the leader of a range meanwhile.

        A computer that is frozen or cut off keeps its connections. So only the other brokers show that it is no longer
        the leader.
        """

        def look_up_leaders() -> None:
            others = [each for each in self._known_brokers() if each != broker.address]
            with suppress(errors.NoBrokersError):
                leaders = find_leaders(others, self._options.broker_config, self._topics)
                for each in asked:
                    leader = leaders.get(each.topic_partition)
                    if leader not in (None, broker.address):
                        host, port = broker.address
                        what = f"{broker.address} sends nothing, and {leader} leads {each.topic_partition} now"
                        raise errors.BrokerConnectionError(what, host=host, port=port)

        answer: _Answer = broker.receive(self._timeout_s, look_up_leaders)
        return answer

    @property
    def _timeout_s(self) -> float:
        return (self._options.request_timeout_ms + _MAX_WAIT_MS) / 1000

    def _ask(
        self, broker: BrokerSocket, lane: Sequence[RangeReader], in_flight: deque[_Sent]
    ) -> errors.KielGroupsError | None:
        """Send the next request for the ranges of a lane, unless all are finished. Return the error of a failure."""
        positions = ask_for(lane, self._options.fetch_max_bytes)
        if not positions:
            return None
        most_bytes = _ANSWER_BYTES + sum(position.max_bytes for position in positions.values())
        request = FetchRequest(
            _MAX_WAIT_MS, 1, {reading.topic_partition: position for reading, position in positions.items()}
        )
        try:
            broker.send(request, most_bytes=most_bytes, timeout_s=self._timeout_s)
        except errors.KielGroupsError as error:
            return error
        in_flight.append(_Sent(lane, positions))
        return None

    # ------------------------------------------------------------------ answers

    def _take(
        self, asked: Mapping[RangeReader, FetchPosition], answer: _Answer
    ) -> tuple[list[pa.RecordBatch], errors.KielGroupsError | None]:
        """Return the messages of an answer as rows, and the first error in the answer, or None without an error."""
        batches: list[pa.RecordBatch] = []
        failures: list[errors.KielGroupsError] = []
        for reading, position in asked.items():
            partition = reading.topic_partition
            try:
                found = reading.take(answer.get(partition), position)
            except errors.BrokerError as error:
                if error.code == OFFSET_OUT_OF_RANGE.number:
                    self._out_of_range.append(reading)
                failures.append(error)
                continue
            if isinstance(found, errors.DamagedRecordError):
                batches += self._bad.rows(found, reading)
            elif found is not None:
                batches.append(self._rows(found, reading))
            if found is not None or reading.finished:
                self._failures, self._progressed_at_s = 0, time.monotonic()
        if not failures and self._waited_s > self._most_wait_s:
            self._out_of_range += asked
            failures.append(OFFSET_OUT_OF_RANGE.exception(f"nothing has come for {self._waited_s:.0f} s"))
        return batches, failures[0] if failures else None

    def _rows(self, columns: Columns, reading: RangeReader) -> pa.RecordBatch:
        """
        Return messages as rows. For a topic with a schema, each row has the fields of its JSON value, or an error.

        Raises:
            DamagedRecordError: A value does not fit its schema, and ``kiel.onBadRecord`` is ``fail``.
        """
        partition = reading.topic_partition
        fields = self._fields.get(partition.topic)
        if fields is None:
            return record_batch(columns, reading.range, self._schema)
        values = binary_array(columns.values, range(len(columns))).to_pylist()
        found: list[dict[str, Any] | None] = [None] * len(values)
        reasons: list[str | None] = [None] * len(values)
        for row, value in enumerate(values):
            if value is not None:
                try:
                    found[row] = fields.read(value)
                except MisfitError as misfit:
                    reasons[row], offset = str(misfit), columns.numbers[row]
                    bad = errors.DamagedRecordError(
                        f"{partition} at offset {offset}: the value does not fit the schema: {misfit}",
                        topic_partition=partition,
                        offset=offset,
                        next_offset=offset + 1,
                        value=value,
                    )
                    self._bad.note(bad, reading)
        return record_batch(columns, reading.range, self._schema, fields=found, error=reasons)

    @property
    def _waited_s(self) -> float:
        return time.monotonic() - self._progressed_at_s

    # ------------------------------------------------------------------ recovery

    def _recover(self, error: errors.KielGroupsError) -> None:
        """
        Wait, and look up the present leaders.

        Raise ``error`` if it is permanent, or RequestTimeoutError if the task has made no progress for too long.
        """
        out_of_range, self._out_of_range = self._out_of_range, []
        if not (error.retriable or out_of_range):
            raise error
        self._failures += 1
        log.info("retrying to read (failure %d): %s", self._failures, error)
        time.sleep(_BACKOFF.delay_s(self._failures - 1))
        self._refresh_leaders(error)
        for reading in out_of_range:
            try:
                self._check_bounds(reading)
            except errors.KielGroupsError as failure:
                if not failure.retriable:
                    raise
                log.info("retrying to look up the bounds of %s: %s", reading.topic_partition, failure)
        if self._waited_s > self._most_wait_s:
            raise errors.RequestTimeoutError(
                f"nothing could be read for {self._waited_s:.0f} s (kafkaConsumer.pollTimeoutMs is"
                f" {self._options.poll_timeout_ms}); the last reason: {error}"
            ) from error

    def _refresh_leaders(self, failure: errors.KielGroupsError) -> None:
        # A broker that does not accept connections is asked last: its computer may be down, and each try take seconds.
        down = (failure.host, failure.port) if isinstance(failure, errors.BrokerConnectionError) else None
        addresses = sorted(self._known_brokers(), key=lambda each: each == down)
        # If no broker answers, the known leaders are kept; the next failure counts towards the limit, too.
        with suppress(errors.NoBrokersError):
            self._leaders = find_leaders(addresses, self._options.broker_config, self._topics)

    def _known_brokers(self) -> list[HostPort]:
        """Return the brokers of the options, and then the leaders that are not among them."""
        return list(dict.fromkeys([*self._options.brokers, *filter(None, self._leaders.values())]))

    def _check_bounds(self, reading: RangeReader) -> None:
        """
        Look up the bounds of the log of a range, and skip the offsets that the log certainly does not have.

        If the partition has no known leader, do nothing. Raises the errors of ``resolve_out_of_range``.
        """
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
        with borrowed(leader, self._options.broker_config) as broker:
            request = ListOffsetsRequest({partition: OffsetQuery(at)})
            answer = broker.ask(request, most_bytes=_ANSWER_BYTES, timeout_s=self._timeout_s)
        listed = answer[partition]
        if listed.error != NO_ERROR or not listed.offsets:
            raise listed.error.exception(f"the offsets of {partition} cannot be listed")
        return listed.offsets[0]
