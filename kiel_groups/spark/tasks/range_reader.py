"""Read one range of offsets within a task: choose the next fetch, and process its answer."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from kiel_groups.errors import MessageTooLargeError, OffsetOutOfRangeError, ProtocolError, RetriableBrokerError
from kiel_groups.fetch_sizing import MessageSizes, fill_answer
from kiel_groups.model import TopicPartition
from kiel_groups.spark.checkpoint.query_offsets import OffsetRange
from kiel_groups.wire.api.fetch_v0 import FetchedPartition, FetchPosition
from kiel_groups.wire.error_codes import NO_ERROR, UNKNOWN
from kiel_groups.wire.message_sets.columns import Columns, decode_columns
from kiel_groups.wire.message_sets.decoder import NoRecords, PartialMessage

__all__ = ["RangeReader", "ask_for"]

log = logging.getLogger(__name__)

#: The assumed size of a message until one was read; if it is too large, the first answer has room for fewer ranges.
_ASSUMED_BYTES = 1 << 10
_MIN_SHARE_BYTES = 16 << 10
#: The empty answers in a row after which messages below the high watermark count as lost. Fewer prove nothing: a broker
#: reads its log before its high watermark, so an empty answer may be older than the watermark that it reports. A leader
#: that is cut off answers in the same way.
_MAX_EMPTY_ANSWERS = 5


@dataclass(slots=True, eq=False)
class RangeReader:
    """
    The state of reading one range.

    ``position`` is the next offset to fetch. ``sizes`` has the size of the messages read so far. ``needed_bytes`` is
    the fetch size for the next message, or 0 if an ordinary share is enough. ``empty_answers`` counts answers in a row
    without a message, although the broker's high watermark covered the whole range.
    """

    range: OffsetRange
    fail_on_data_loss: bool
    max_message_bytes: int
    position: int = 0
    needed_bytes: int = 0
    sizes: MessageSizes = field(default_factory=MessageSizes)
    empty_answers: int = 0

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
        rest_bytes = self.sizes.expected_bytes(self.range.end - self.position, _ASSUMED_BYTES)
        return FetchPosition(self.position, min(share_bytes, rest_bytes))

    def take(self, fetched: FetchedPartition | None, asked: FetchPosition) -> Columns | None:
        """
        Decode the messages of an answer, and advance the position. Return None if there are no messages to pass on.

        Raises:
            RetriableBrokerError: The broker's high watermark covers the range, but it sent nothing; the caller should
                retry on another connection.
            OffsetOutOfRangeError: The broker sent nothing several times in a row, and ``fail_on_data_loss`` is set.
            BrokerError: The broker refuses; the error has its code.
            MessageTooLargeError: The next message is larger than ``max_message_bytes``.
            ProtocolError: The messages cannot be decoded.
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
        except NoRecords as error:
            # What follows may be larger than the fetch.
            self.needed_bytes = min(2 * asked.max_bytes, self.max_message_bytes)
            self.position = min(error.next_offset, self.range.end)
            return None
        if columns.next_offset == self.position:
            raise ProtocolError(
                f"{self.topic_partition} at offset {self.position}: the broker sends older messages only"
            )
        self.needed_bytes = self.empty_answers = 0
        self.sizes.note(len(fetched.message_set), columns.next_offset - self.position)
        self.position = columns.next_offset
        return columns if len(columns) else None

    def _on_empty_answer(self, high_watermark: int) -> None:
        """
        Raise an error for a retry, or treat the rest of the range as lost.

        A gap that compaction has left does not cause an empty answer: the broker sends the messages after the gap.
        """
        self.empty_answers += 1
        # Brokers of 3.x send nothing of a message that is larger than the fetch.
        self.needed_bytes = self.max_message_bytes
        what = (
            f"{self.topic_partition}: offsets {self.position} to {self.range.end} are to be read, and the broker has a"
            f" log of up to {high_watermark} and sends no message"
        )
        if self.empty_answers < _MAX_EMPTY_ANSWERS:
            raise RetriableBrokerError(f"{what}; asked {self.empty_answers} times")
        self._on_loss(
            f"{what}, asked {self.empty_answers} times: they are lost, unless compaction has removed the last messages"
            f" of the log, or the next one is larger than kiel.max.message.bytes, {self.max_message_bytes}",
            remedy="Wait for a later message, which proves that, or set failOnDataLoss to false to go on without them",
        )
        self.position = self.range.end

    def _on_loss(self, what: str, remedy: str) -> None:
        """Raise an error because messages are lost, or log a warning if the options allow losses."""
        if self.fail_on_data_loss:
            raise OffsetOutOfRangeError(f"{what}. {remedy}")
        log.warning("%s; continuing without them, as failOnDataLoss is false", what)

    def _enlarge_fetch(self, asked_bytes: int, partial: PartialMessage) -> None:
        needed, most = partial.needed_bytes or 0, self.max_message_bytes
        if needed > most or asked_bytes >= most:
            size = f"takes {needed} bytes" if needed else "takes more"
            raise MessageTooLargeError(
                f"{self.topic_partition} at offset {self.position}: the message {size}, kiel.max.message.bytes is"
                f" {most}; raise it, and the memory of the executors with it"
            ) from partial
        self.needed_bytes = min(max(needed, 2 * asked_bytes), most)

    def resolve_out_of_range(self, earliest: int, latest: int) -> None:
        """
        Handle a position that the log does not have: continue where the log begins, or skip the rest of the range.

        Raises:
            OffsetOutOfRangeError: ``fail_on_data_loss`` is set; the message names the wanted offsets, those of the log
                and the remedy.
        """
        what = (
            f"{self.topic_partition}: offsets {self.position} to {self.range.end} are to be read, and the log has"
            f" {earliest} to {latest}: retention was faster, or the topic was deleted and created again"
        )
        self._on_loss(
            what, remedy="Start with a new checkpoint, or set failOnDataLoss to false to go on with what there is"
        )
        if self.position < earliest < self.range.end:
            self.position = earliest
        else:
            self.position = self.range.end


def ask_for(readings: Iterable[RangeReader], most_bytes: int) -> dict[RangeReader, FetchPosition]:
    """
    Return the fetches of one request, for as many of the first unfinished ranges as fill the answer.

    Why few ranges and much of each: see ``fetch_sizing``.

    Args:
        readings: The ranges in the order in which to read them; one request has at most one range of a partition.
        most_bytes: The most bytes of messages in the answer; exceeded if one message needs more.
    """
    share = max(_MIN_SHARE_BYTES, most_bytes)
    first: dict[TopicPartition, RangeReader] = {}
    for reading in readings:
        if not reading.finished:
            first.setdefault(reading.topic_partition, reading)
    asked = fill_answer(((reading, reading.ask(share).max_bytes) for reading in first.values()), most_bytes)
    return {reading: FetchPosition(reading.position, size) for reading, size in asked.items()}
