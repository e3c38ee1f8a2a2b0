"""
The ends of message sets that are no whole messages of magic 0.

Brokers cut a fetched set at ``max_bytes``, wherever that is. Brokers from 0.11 on convert it to magic 0. If the fetch
has no whole batch, those up to 2.8 send its beginning as it is in the log, and those of 3.x send nothing. Brokers from
2.0 on end a set that they have converted with filler.
"""

from __future__ import annotations

from kiel_groups.errors import MessageTooLargeError, ProtocolError
from kiel_groups.model import TopicPartition
from kiel_groups.wire.message_sets.message_layout import FILLER_OFFSET, OVERHEAD_BYTES, offset_and_size_at
from kiel_groups.wire.message_sets.record_batches import offset_after_empty_batches
from kiel_groups.wire.primitives import Buffer

__all__ = ["NoRecords", "PartialMessage", "unfinished_message"]


class PartialMessage(MessageTooLargeError):  # noqa: N818 - a signal: fetch again with more bytes
    """
    A fetch returned only the beginning of one message: the fetch's ``max_bytes`` is smaller than that message.

    ``needed_bytes`` is the size of the whole message, or None if the fetch did not include that size.
    """

    def __init__(self, message: str, *, needed_bytes: int | None) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes


class NoRecords(ProtocolError):  # noqa: N818 - a signal: fetch from another offset
    """
    The log has no record from the position of a fetch to ``next_offset``, although it has batches there.

    These are control batches (the marks of ended transactions), and batches that compaction has emptied.
    """

    def __init__(self, message: str, *, next_offset: int) -> None:
        super().__init__(message)
        self.next_offset = next_offset


def unfinished_message(data: Buffer, start: int, source: TopicPartition, position: int) -> PartialMessage | NoRecords:
    """Return the error for a fetch from ``position`` that returned only the end of a set, which begins at ``start``."""
    needed, following = None, None
    if len(data) - start >= OVERHEAD_BYTES:
        offset, length = offset_and_size_at(data, start)
        needed = OVERHEAD_BYTES + length
        # Filler says nothing about further offsets.
        following = position + 1 if offset == FILLER_OFFSET else offset_after_empty_batches(data, start)
    if following is not None and following > position:
        return NoRecords(f"{source} at offset {position}: the log has no record there", next_offset=following)
    size = f"{needed} bytes" if needed is not None else "more bytes"
    return PartialMessage(
        f"{source} at offset {position}: the message takes {size}, only {len(data) - start} were fetched; "
        "fetch with a larger max_bytes",
        needed_bytes=needed,
    )
