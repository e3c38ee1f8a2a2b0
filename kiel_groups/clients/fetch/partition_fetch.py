"""Keep one partition's fetch state: its position, its buffered batches, and how many bytes the next fetch requests."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from typing import TypeVar

from kiel_groups.backoff import Backoff
from kiel_groups.clients.net.log_marks import LogMark
from kiel_groups.errors import DamagedRecordError, MessageTooLargeError, ProtocolError
from kiel_groups.model import FencingToken, Record, TopicPartition
from kiel_groups.wire.message_sets.columns import Columns, columns_of
from kiel_groups.wire.message_sets.decoder import MessageRun, ValueRun, message_steps, values_of
from kiel_groups.wire.message_sets.message_layout import DamagedMessage
from kiel_groups.wire.message_sets.record_columns import RecordColumns

# Decide how much a fetch asks for. The consumers and the Spark source share these rules.
#
# A broker of 0.8 has one index entry for each set that a producer sent, at most. For each partition of a fetch it scans
# the log message by message, from the last entry before the position, and once more before the high watermark. So a
# partition costs up to a whole set, however few bytes are asked for, and a request has much of a few partitions rather
# than little of many.


#: Added to the expected size of a rest: message sizes vary, and another fetch costs more than this.
_SPARE_BYTES = 4 << 10
#: The assumed size of a message until one was read.
_ASSUMED_BYTES = 1 << 10
#: Sizes are averaged over the last messages: beyond this many offsets, older ones lose half of their weight.
_MOST_OFFSETS = 1 << 17

#: A full answer that takes less time than this in seconds may be larger.
FAST_S = 0.05
#: A full answer that takes more time than this in seconds should be smaller.
SLOW_S = 0.5

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class MessageSizes:
    """Measures the average size of a partition's messages in fetched message sets."""

    read_bytes: int = 0
    read_offsets: int = 0

    def note(self, read_bytes: int, read_offsets: int) -> None:
        """Add a fetched message set of this size, which spans this many offsets, to the average."""
        self.read_bytes += read_bytes
        self.read_offsets += read_offsets
        while self.read_offsets > _MOST_OFFSETS:
            self.read_bytes //= 2
            self.read_offsets //= 2

    def expected_bytes(self, offsets: int) -> int:
        """Return how many bytes to request in order to get the messages of this many offsets, with some spare."""
        measured = self.read_offsets > 0
        expected = offsets * self.read_bytes // self.read_offsets if measured else offsets * _ASSUMED_BYTES
        return expected + expected // 8 + _SPARE_BYTES


def fill_answer(wanted: Iterable[tuple[Key, int]], most_bytes: int) -> dict[Key, int]:
    """
    Choose the first partitions, as many as fill one answer, and return how many bytes to request of each partition.

    Args:
        wanted: Partitions in the order of their turns, with the bytes to request of each partition.
        most_bytes: The size of the answer, in bytes. The first partition is chosen even if its bytes exceed this size.
    """
    asked: dict[Key, int] = {}
    left = most_bytes
    for key, wanted_bytes in wanted:
        if asked and wanted_bytes > left:
            break
        asked[key] = wanted_bytes
        left -= wanted_bytes
    return asked


@dataclass(slots=True)
class BiteSize:
    """
    The number of bytes (the *bite*) to request from a broker in one answer. The number adapts to the broker's speed.

    Attributes:
        bytes: The present size.
        least: The smallest size.
        most: The largest size.
    """

    bytes: int
    least: int
    most: int

    def note(self, asked_bytes: int, received_bytes: int, took_s: float) -> None:
        """
        Double the size after a full answer that came fast, and halve it after a full answer that took long.

        An answer is full if it has three quarters of the requested bytes. Do nothing if the answer is not full, or if
        the request asked for less than the present size.

        Args:
            asked_bytes: The number of bytes that the request asked for.
            received_bytes: The number of bytes that came.
            took_s: The time from the request to the answer, in seconds.
        """
        if asked_bytes < self.bytes or received_bytes < asked_bytes - asked_bytes // 4:
            return
        if took_s > SLOW_S:
            self.bytes = max(self.least, self.bytes // 2)
        elif took_s < FAST_S:
            self.bytes = min(self.most, self.bytes * 2)


_offset_of = attrgetter("offset")


class _Content:
    """
    The messages of a fetched batch, shared by all parts of the batch: records, or a run of undecoded messages.

    Records replace the run from which they are made, since both together take more memory. Columns are kept beside the
    run, because the application may ask for some records later.
    """

    __slots__ = ("_columns", "_values", "messages")

    def __init__(self, messages: list[Record] | MessageRun) -> None:
        self.messages = messages
        self._columns: Columns | None = None
        self._values: list[bytes | None] | None = None

    def __len__(self) -> int:
        messages = self.messages
        return len(messages) if isinstance(messages, list) else messages.count

    def records(self) -> list[Record]:
        """Return the records. The first call makes the records."""
        messages = self.messages
        if not isinstance(messages, list):
            messages = self.messages = messages.records()
        return messages

    def values(self) -> ValueRun:
        """Return the values, in a new list for each call."""
        messages = self.messages
        return values_of(messages) if isinstance(messages, list) else messages.values()

    def part_values(self, rows: range) -> ValueRun:
        """Return the values of some rows. The first call makes the values and records of all rows."""
        records = self.records()
        if self._values is None:
            self._values = values_of(records).values
        return ValueRun(self._values[rows.start : rows.stop], records[rows.start : rows.stop])

    def columns(self) -> Columns:
        """Return the columns. The first call makes the columns."""
        if self._columns is None:
            made = self.messages
            self._columns = columns_of(made, made[-1].offset + 1) if isinstance(made, list) else made.columns()
        return self._columns

    def offset_of(self, row: int) -> int:
        """Return the offset of a message, without making records."""
        messages = self.messages
        if isinstance(messages, list):
            return messages[row].offset
        if row == 0:
            return messages.first_offset
        return messages.last_offset if row == messages.count - 1 else self.columns().numbers[row]

    def row_of(self, offset: int) -> int:
        """Return the number of messages before an offset, without making records."""
        messages = self.messages
        if isinstance(messages, list):
            return bisect_left(messages, offset, key=_offset_of)
        return bisect_left(self.columns().numbers, offset)


class FetchedBatch:
    """
    One or more records of one partition, in order.

    Args:
        topic_partition: The partition.
        records: The records, or a run: checked messages whose records are made at the first use.
        epoch: The number of the partition's assignment.
        size_bytes: About the size of the messages on the wire, in bytes.
        answer: The number of the broker's answer that has this batch. Numbers start again with each assignment.

    Attributes:
        buffer_bytes: The size of the messages without compression, in bytes. The buffer counts this size.
    """

    __slots__ = ("_content", "_rows", "answer", "buffer_bytes", "epoch", "size_bytes", "topic_partition")

    def __init__(
        self,
        topic_partition: TopicPartition,
        records: list[Record] | MessageRun,
        epoch: int,
        size_bytes: int,
        answer: int = 0,
    ) -> None:
        self.topic_partition = topic_partition
        self._content = _Content(records)
        #: The rows of the content that are the records of this batch.
        self._rows = range(len(self._content))
        self.epoch = epoch
        self.size_bytes = size_bytes
        self.answer = answer
        self.buffer_bytes = size_bytes if isinstance(records, list) else records.size_bytes

    @property
    def records(self) -> list[Record]:
        """The records. The first access makes the records."""
        records = self._content.records()
        if len(records) != len(self._rows):
            records = records[self._rows.start : self._rows.stop]
            self._content, self._rows = _Content(records), range(len(records))
        return records

    def values(self) -> ValueRun:
        """
        Return the values. The records of a whole batch are made only when they are used. The records of a part are made
        at once.
        """
        if len(self._rows) == len(self._content):
            return self._content.values()
        # Each bad value leaves a part for the next call. So the parts share the content, where values are made once.
        return self._content.part_values(self._rows)

    def columns(self, fencing_token: FencingToken | None) -> RecordColumns:
        """Return the records as columns with this fencing token. All parts of a batch share their columns."""
        return RecordColumns(self.topic_partition, fencing_token, self._content.columns(), self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def first_offset(self) -> int:
        """The offset of the first record."""
        return self.offset_of(0)

    @property
    def last_offset(self) -> int:
        """The offset of the last record."""
        return self.offset_of(len(self._rows) - 1)

    def offset_of(self, number: int) -> int:
        """Return the offset of the record with this number, counted from 0."""
        return self._content.offset_of(self._rows[number])

    def count_before(self, offset: int) -> int:
        """Return the number of records before an offset."""
        return min(max(self._content.row_of(offset) - self._rows.start, 0), len(self._rows))

    def part(self, start: int, stop: int) -> FetchedBatch:
        """Return a batch of the records from number ``start`` up to, but not including, ``stop``. Copy no records."""
        changed = self._copy()
        changed._content, changed._rows = self._content, self._rows[start:stop]
        return changed

    def _replace(self, *, records: list[Record]) -> FetchedBatch:
        """Return a copy of the batch with other records."""
        changed = self._copy()
        changed._content, changed._rows = _Content(records), range(len(records))
        return changed

    def _copy(self) -> FetchedBatch:
        changed = FetchedBatch.__new__(FetchedBatch)
        changed.topic_partition = self.topic_partition
        changed.epoch = self.epoch
        changed.size_bytes = self.size_bytes
        changed.answer = self.answer
        changed.buffer_bytes = self.buffer_bytes
        return changed


#: Wrappers above this size, packed or unpacked, are unpacked on a thread. One MiB takes 0.4 to 3 ms in line, the change
#: to a thread and back some 0.1 ms. What producers of 0.8 send by default is smaller.
LARGE_WRAPPER_BYTES = 1 << 20

#: After this many answers, the mark is replaced: the log may soon delete the message of the former mark.
_MARKED_ANSWERS = 4096
#: The pause after empty answers, for brokers that do not wait (``max_wait_ms`` or ``min_bytes`` of 0).
_IDLE = Backoff(first_s=0.001, longest_s=0.1)


def damage_at(
    damage: DamagedMessage, topic_partition: TopicPartition, position: int, high_watermark: int, remedy: str = ""
) -> ProtocolError:
    """
    Return the error for a damaged message: a DamagedRecordError if the message can be skipped, else a ProtocolError.

    A fetch from the ``next_offset`` of a DamagedRecordError skips the message. But no CRC covers the offset of a
    message. If the offset is outside of the log's messages, the offset may be damaged, too, and no offset to skip to is
    known.

    Args:
        damage: The damaged message that the decoder found.
        topic_partition: The partition of the message.
        position: The offset of the fetch.
        high_watermark: The end of the log's messages, as the broker has answered.
        remedy: The end of a DamagedRecordError's text, with the application's choices.
    """
    if not position <= damage.offset < high_watermark:
        return ProtocolError(f"{damage}; its offset is not plausible, so it cannot be skipped; seek past it")
    concerned = f"; this concerns the offsets {position} to {damage.offset}" if damage.offset > position else ""
    return DamagedRecordError(
        f"{damage}{concerned}{remedy}",
        topic_partition=topic_partition,
        offset=position,
        next_offset=damage.offset + 1,
        value=damage.message,
    )


class Demand(Enum):
    """The fetcher's knowledge of whether a partition has messages that are not fetched yet."""

    #: The fetcher does not know: the partition was just assigned.
    UNKNOWN = "unknown"
    #: The last answer says that there are messages.
    BEHIND = "behind"
    #: The last answer says that there are none, or it was empty.
    CAUGHT_UP = "caught up"

    __hash__ = object.__hash__


class Phase(Enum):
    """The phase of fetching one partition during one assignment. Buffered batches are delivered in every phase."""

    #: Entry: just assigned, or the buffer has no room for the partition. Duty: none. Exit: a batch is delivered.
    PARKED = "parked"
    #: Entry: the buffer has room. Duty: wait in its leader's queue. Exit: a request is sent, or the broker is down.
    READY = "ready"
    #: Entry: part of a request. Duty: wait for the answer, and pause if that was empty. Exit: answered, and paused.
    FETCHING = "fetching"
    #: Entry: a fetch failed, or no leader is known. Duty: pause, refresh the leaders. Exit: they are refreshed.
    RETRYING = "retrying"
    #: Entry: the log lacks the position. Duty: ask the caller for another one. Exit: its answer.
    RESETTING = "resetting"
    #: Entry: an error is the last item of the buffer. Duty: none. Exit: ``poll`` has raised the error.
    HALTED = "halted"
    #: Entry: the assignment has ended. Duty: ignore answers. Exit: none; a new assignment is another object.
    DROPPED = "dropped"

    # By identity, like the comparison: the table of moves is looked up twice for each fetch of a partition.
    __hash__ = object.__hash__


#: The legal changes of a partition's phase.
MOVES: Mapping[Phase, frozenset[Phase]] = {
    Phase.PARKED: frozenset({Phase.READY, Phase.RETRYING, Phase.RESETTING, Phase.DROPPED}),
    Phase.READY: frozenset({Phase.FETCHING, Phase.PARKED, Phase.RETRYING, Phase.DROPPED}),
    Phase.FETCHING: frozenset(
        {Phase.READY, Phase.PARKED, Phase.RETRYING, Phase.RESETTING, Phase.HALTED, Phase.DROPPED}
    ),
    Phase.RETRYING: frozenset({Phase.READY, Phase.PARKED, Phase.DROPPED}),
    Phase.RESETTING: frozenset({Phase.READY, Phase.PARKED, Phase.RETRYING, Phase.HALTED, Phase.DROPPED}),
    Phase.HALTED: frozenset({Phase.RETRYING, Phase.DROPPED}),
    Phase.DROPPED: frozenset(),
}


@dataclass(slots=True, eq=False)
class PartitionFetch:
    """
    The state of fetching one partition during one assignment.

    A seek or a new assignment creates another object and drops this object. Answers to requests in flight for a dropped
    object are ignored.
    """

    topic_partition: TopicPartition
    epoch: int
    #: The next offset to fetch.
    position: int
    phase: Phase = Phase.PARKED
    high_watermark: int | None = None
    #: Batches to deliver, in order, and after the last one the error that halted the fetching, if any.
    buffered: deque[FetchedBatch | Exception] = field(default_factory=deque)
    #: Empty answers in a row.
    empty_answers: int = 0
    #: The bytes that the next message is known to need; 0 if an ordinary share is enough.
    needed_bytes: int = 0
    #: The largest share that was answered with nothing, although there is a message at or after the position.
    unanswered_bytes: int = 0
    #: Failures in a row.
    failures: int = 0
    #: Answers in a row that could not be read.
    unreadable: int = 0
    #: Whether the phase is DROPPED. An attribute, because it is read several times for each fetch.
    dropped: bool = False
    #: Whether the application has paused the partition: it is neither fetched nor delivered, and keeps its batches.
    paused: bool = False
    #: How many records of the first buffered batch are delivered already.
    taken: int = 0
    #: The answers with messages so far.
    answers: int = 0
    #: The first message of an early answer, to recognise the log by; None while there is none.
    mark: LogMark | None = None
    #: The size of the messages on the wire.
    sizes: MessageSizes = field(default_factory=MessageSizes)
    #: How many times larger the last message set was without compression.
    expansion: float = 1.0

    def enter(self, phase: Phase) -> None:
        """Enter a phase, or remain in it. A change that is not in ``MOVES`` raises AssertionError."""
        before = self.phase
        assert phase is before or phase in MOVES[before], (self.topic_partition, before, phase)
        self.phase = phase

    @property
    def next_offset(self) -> int:
        """The next offset to deliver."""
        head = self.buffered[0] if self.buffered else None
        if not isinstance(head, FetchedBatch):
            return self.position
        return head.offset_of(self.taken)

    @property
    def idle(self) -> bool:
        """Whether the last answer was empty, so that the next fetch is not urgent."""
        return self.empty_answers > 0

    @property
    def idle_pause_s(self) -> float:
        """The least time from the last fetch to the next fetch, in seconds."""
        return _IDLE.delay_s(self.empty_answers)

    @property
    def full(self) -> bool:
        """Whether batches of two answers are buffered: an answer that is being delivered, and the next answer."""
        first, last = (self.buffered[0], self.buffered[-1]) if self.buffered else (None, None)
        return isinstance(first, FetchedBatch) and (not isinstance(last, FetchedBatch) or last.answer > first.answer)

    @property
    def demand(self) -> Demand:
        """Whether there are messages to fetch. After an empty answer, the partition counts as caught up."""
        if self.high_watermark is None:
            return Demand.UNKNOWN
        return Demand.BEHIND if self.position < self.high_watermark and not self.idle else Demand.CAUGHT_UP

    @property
    def rest_bytes(self) -> int:
        """The number of bytes to request in order to get all messages up to the high watermark."""
        rest = max(0, (self.high_watermark or 0) - self.position)
        return self.sizes.expected_bytes(rest)

    def runs(self, message_set: bytes | memoryview, most_bytes: int) -> Iterator[MessageRun | None]:
        """
        Check a message set, and yield its messages at and after the position, in one or more runs.

        Compressed messages may decompress to ``most_bytes`` at most. A yielded None announces that the next step
        decompresses a message of more than ``LARGE_WRAPPER_BYTES``. The caller may run that step on a thread, because
        the step does not change this object.

        Raises:
            PartialMessage: The set has only the beginning of the next message.
            NoRecords: The log has no message from the position up to a later offset, which the error names.
            MessageTooLargeError: The first compressed message decompresses to more than ``most_bytes``, and no record
                precedes it.
            DamagedRecordError: The message at the position is damaged, and a fetch from the next offset would pass the
                message.
            ProtocolError: The messages cannot be read, or all of them are before the position.
        """
        tp, position, is_empty = self.topic_partition, self.position, True
        try:
            for run in message_steps(
                message_set, tp, position, max_decompressed_bytes=most_bytes, announced_bytes=LARGE_WRAPPER_BYTES
            ):
                yield run
                is_empty = is_empty and run is None
        except DamagedMessage as damage:
            remedy = f"; to pass it, seek to {damage.offset + 1}, or set on_bad_record to 'skip' or to a function"
            raise damage_at(damage, tp, position, self.high_watermark or 0, remedy) from damage
        if is_empty:
            raise ProtocolError(f"{tp} at offset {position}: the broker sends older messages only")

    def grow(self, share: int, needed_bytes: int, most: int) -> None:
        """
        Request more bytes next time, because an answer of ``share`` bytes had only the beginning of a message.

        ``needed_bytes`` is the size of the message, or 0 if it is unknown.

        Raises:
            MessageTooLargeError: The message is larger than ``most``, or ``share`` has reached ``most``.
        """
        if needed_bytes > most or share >= most:
            size = f"takes {needed_bytes} bytes" if needed_bytes else "takes more"
            text = f"{self.topic_partition} at offset {self.position}: the message {size}, max_message_bytes is {most}"
            raise MessageTooLargeError(f"{text}; raise it, or seek past the message")
        self.needed_bytes = min(max(needed_bytes, 2 * share), most)

    def grow_unanswered(self, share: int, most: int, *, is_first: bool) -> None:
        """
        Request more bytes next time, because the answer was empty, although the log has a message at the position.

        Brokers of 3.x send no bytes of a message that is larger than the share. So the share grows up to ``most``.

        Args:
            share: The bytes that the request asked for.
            most: The bound of the growth.
            is_first: Whether the partition is the first partition of the request. Brokers also bound the whole answer
                (``fetch.max.bytes``, quotas). So the answers of later partitions may be empty for that reason.

        Raises:
            MessageTooLargeError: The partition is first, and the message is larger than ``most``.
        """
        self.unanswered_bytes = max(self.unanswered_bytes, share)
        if share >= most and is_first:
            raise MessageTooLargeError(
                f"{self.topic_partition} at offset {self.position}: the broker sends nothing of the message, which is"
                f" larger than max_message_bytes, {most}, or than the broker's fetch.max.bytes; raise the smaller one,"
                " or seek past the message"
            )
        self.needed_bytes = min(2 * self.unanswered_bytes, most)

    def mark_log(self, message_set: bytes | memoryview) -> None:
        """If a new mark is due, make the first message of this message set the log's mark; see ``LogMark``."""
        if self.answers % _MARKED_ANSWERS == 1:
            self.mark = LogMark.of(message_set)

    def doubt_log(self) -> None:
        """
        Delay the next mark, because a broker has denied the topic, the partition or the position: the partition may
        have a new log.
        """
        if self.answers % _MARKED_ANSWERS == 0:
            self.answers += 1

    def move_to(self, offset: int) -> None:
        """Set the position to a later offset. All offsets before the new position are fetched, or have no message."""
        self.position = offset
        self.needed_bytes = self.unanswered_bytes = 0

    def pass_empty(self, offset: int, share: int, most: int) -> bool:
        """
        Move the position to ``offset``, because the answer to a request for ``share`` bytes has no message before
        ``offset``.

        The offsets that follow may have no message either, or a message that is larger than the share. So the next
        request asks for more bytes, up to ``most``.

        Returns:
            False if the log ends before ``offset``. In this case, the position is not moved.
        """
        end = self.high_watermark or 0
        if offset > end:
            return False
        self.move_to(offset)
        if offset < end:
            self.needed_bytes = min(2 * share, most)
        return True

    @property
    def buffered_bytes(self) -> int:
        """The size of all buffered batches."""
        return sum(batch.buffer_bytes for batch in self.buffered if isinstance(batch, FetchedBatch))

    def take(self, most_records: int | None) -> FetchedBatch | Exception:
        """
        Remove and return the next batch or error.

        If the batch has more than ``most_records``, return only its first ``most_records``. The other records remain.
        """
        head = self.buffered[0]
        if isinstance(head, FetchedBatch):
            start, end = self.taken, len(head)
            until = end if most_records is None else start + most_records
            if until < end:
                self.taken = until
                return head.part(start, until)
            self.taken = 0
            head = head.part(start, end) if start else head
        self.buffered.popleft()
        return head

    def put_back(self, batch: FetchedBatch, taken: int) -> bool:
        """
        Put back the last batch that ``take`` returned. The first ``taken`` records of the batch count as delivered.

        Returns:
            Whether the batch had left the buffer. If not, the batch was a part of the first buffered batch.
        """
        if self.taken:
            self.taken -= len(batch) - taken
            return False
        self.buffered.appendleft(batch)
        self.taken = taken
        return True

    def truncate(self, end: int) -> tuple[int, int]:
        """
        Drop the buffered records at and after the offset ``end``.

        Returns:
            How many records were dropped, and the size in bytes of the batches that were dropped as a whole.
        """
        kept: list[FetchedBatch | Exception] = []
        records = size_bytes = 0
        taken, self.taken = self.taken, 0
        for item in self.buffered:
            if isinstance(item, FetchedBatch):
                if item.first_offset >= end:
                    left = taken
                elif item.last_offset < end:
                    left = len(item)
                else:
                    left = max(taken, item.count_before(end))
                records += len(item) - left
                if left == taken:
                    size_bytes += item.buffer_bytes
                    taken = 0
                    continue
                if taken or left < len(item):
                    item = item.part(taken, left)
                taken = 0
            kept.append(item)
        self.buffered = deque(kept)
        return records, size_bytes

    def drop(self) -> int:
        """End this assignment, drop the buffered batches, and return their size in bytes."""
        self.enter(Phase.DROPPED)
        self.dropped = True
        buffered_bytes, self.taken = self.buffered_bytes, 0
        self.buffered.clear()
        return buffered_bytes
