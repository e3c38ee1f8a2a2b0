"""One range of offsets while a task reads it: what to ask for next, and what an answer means."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from kiel_groups.errors import MessageTooLargeError, OffsetOutOfRangeError, ProtocolError, RetriableBrokerError
from kiel_groups.model import TopicPartition
from kiel_groups.spark.checkpoint.query_offsets import OffsetRange
from kiel_groups.wire.api.fetch_v0 import FetchedPartition, FetchPosition
from kiel_groups.wire.error_codes import NO_ERROR, UNKNOWN
from kiel_groups.wire.message_sets.columns import Columns, decode_columns
from kiel_groups.wire.message_sets.decoder import PartialMessage

__all__ = ["RangeReading", "ask_for"]

log = logging.getLogger(__name__)

#: What is added to the bytes that the rest of a range is expected to take: sizes differ, and one more fetch costs more.
_SPARE_BYTES = 4 << 10
#: What a message is taken for while none was read: with too much, a few ranges fewer share the first answer.
_GUESSED_BYTES = 1 << 10
_LEAST_SHARE_BYTES = 16 << 10
#: A broker reads its log before it notes the high watermark, so an empty answer may belong to an older watermark; a
#: leader that is cut off answers so, too. So many answers in a row, each one later than the watermark, are believed.
_EMPTY_ANSWERS = 5


@dataclass(slots=True, eq=False)
class RangeReading:
    """
    Where the reading of a range stands.

    ``position`` is the next offset to fetch; what is read has come to ``read_bytes`` in ``read_offsets`` offsets.
    ``needed_bytes`` is what the next message takes, 0 where an ordinary share will do. ``empty_answers`` counts those
    in a row that had no message, although the broker had the whole range by its high watermark.
    """

    range: OffsetRange
    fail_on_data_loss: bool
    max_message_bytes: int
    position: int = 0
    needed_bytes: int = 0
    read_bytes: int = 0
    read_offsets: int = 0
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
        What to ask a broker for.

        Args:
            share_bytes: What an answer may hold of this partition, where its next message needs no more.
        """
        if self.needed_bytes:
            return FetchPosition(self.position, self.needed_bytes)
        rest = self.range.end - self.position
        # The log goes on behind the range: what is not asked for is not sent in vain.
        rest_bytes = rest * self.read_bytes // self.read_offsets if self.read_offsets else rest * _GUESSED_BYTES
        return FetchPosition(self.position, min(share_bytes, rest_bytes + rest_bytes // 8 + _SPARE_BYTES))

    def take(self, fetched: FetchedPartition | None, asked: FetchPosition) -> Columns | None:
        """
        What an answer brought of the range, and go on behind it; None where it brought nothing.

        Raises:
            RetriableBrokerError: The broker has the range by its high watermark and sent nothing; to be asked again,
                on another connection.
            OffsetOutOfRangeError: It was asked often enough, and losing messages is not allowed.
            BrokerError: The broker refuses; the code is on it.
            ProtocolError: The messages cannot be read.
        """
        if fetched is None:
            raise UNKNOWN.exception(f"{self.topic_partition} is left out of the broker's answer")
        if fetched.error != NO_ERROR:
            raise fetched.error.exception(f"{self.topic_partition} at offset {self.position} cannot be fetched")
        if not len(fetched.message_set):
            if fetched.high_watermark >= self.range.end:
                self._came_empty(fetched.high_watermark)
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
            self._grow(asked.max_bytes, error)
            return None
        if columns.next_offset == self.position:
            raise ProtocolError(
                f"{self.topic_partition} at offset {self.position}: the broker sends older messages only"
            )
        self.needed_bytes = self.empty_answers = 0
        self.read_bytes += len(fetched.message_set)
        self.read_offsets += columns.next_offset - self.position
        self.position = columns.next_offset
        return columns if len(columns) else None

    def _came_empty(self, high_watermark: int) -> None:
        """
        Have the broker asked again, or give the rest of the range up.

        Compaction leaves a gap in front of later messages, and the broker sends those: an answer without any is no
        sign of it.
        """
        self.empty_answers += 1
        what = (
            f"{self.topic_partition}: offsets {self.position} to {self.range.end} are to be read, and the broker has a"
            f" log of up to {high_watermark} and sends no message"
        )
        if self.empty_answers < _EMPTY_ANSWERS:
            raise RetriableBrokerError(f"{what}; asked {self.empty_answers} times")
        self._give_up(
            f"{what}, asked {self.empty_answers} times: they are lost, unless compaction has removed the last messages"
            " of the log",
            remedy="Wait for a later message, which proves that, or set failOnDataLoss to false to go on without them",
        )
        self.position = self.range.end

    def _give_up(self, what: str, remedy: str) -> None:
        """Raise that messages are lost, or log it where that is allowed."""
        if self.fail_on_data_loss:
            raise OffsetOutOfRangeError(f"{what}. {remedy}")
        log.warning("%s; going on, as failOnDataLoss is false", what)

    def _grow(self, asked_bytes: int, partial: PartialMessage) -> None:
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
        The log does not have the position: go on where it begins, or give the rest up.

        Raises:
            OffsetOutOfRangeError: Losing messages is not allowed; names what was asked for, what there is and what to
                do.
        """
        what = (
            f"{self.topic_partition}: offsets {self.position} to {self.range.end} are to be read, and the log has"
            f" {earliest} to {latest}: retention was faster, or the topic was deleted and created again"
        )
        self._give_up(
            what, remedy="Start with a new checkpoint, or set failOnDataLoss to false to go on with what there is"
        )
        if self.position < earliest < self.range.end:
            self.position = earliest
        else:
            self.position = self.range.end


def ask_for(readings: Iterable[RangeReading], most_bytes: int) -> dict[RangeReading, FetchPosition]:
    """
    What to ask for in one request: the first of the ranges that are not finished, as many as fill the answer.

    Much of few partitions rather than a little of many: for each one, a broker of 0.8 reads its log message by message
    from the last entry of its index, and there is one entry for each set that a producer has sent.

    Args:
        readings: In the order in which they are to be read; of one partition, one is asked for.
        most_bytes: What the answer may hold; more where one message needs more.
    """
    share, left = max(_LEAST_SHARE_BYTES, most_bytes), most_bytes
    asked: dict[TopicPartition, tuple[RangeReading, FetchPosition]] = {}
    for reading in readings:
        if reading.finished or reading.topic_partition in asked:
            continue
        position = reading.ask(share)
        if asked and position.max_bytes > left:
            break
        asked[reading.topic_partition] = reading, position
        left -= position.max_bytes
    return dict(asked.values())
