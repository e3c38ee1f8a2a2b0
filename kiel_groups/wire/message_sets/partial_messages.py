"""Partial messages: brokers of Kafka 0.8 cut a fetched message set at ``max_bytes``, wherever that is."""

from __future__ import annotations

from kiel_groups.errors import MessageTooLargeError
from kiel_groups.model import TopicPartition
from kiel_groups.wire.message_sets.message_layout import OVERHEAD_BYTES, offset_and_size_at
from kiel_groups.wire.primitives import Buffer

__all__ = ["PartialMessage", "partial_message"]


class PartialMessage(MessageTooLargeError):  # noqa: N818 - a signal: fetch again with more bytes
    """
    A fetch returned only the beginning of one message: the fetch's ``max_bytes`` is smaller than that message.

    ``needed_bytes`` is the size of the whole message, or None if the fetch did not include that size.
    """

    def __init__(self, message: str, *, needed_bytes: int | None) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes


def partial_message(data: Buffer, start: int, source: TopicPartition, position: int) -> PartialMessage:
    """Return the error for a fetch from ``position`` that returned only the beginning of the message at ``start``."""
    needed = None
    if len(data) - start >= OVERHEAD_BYTES:
        needed = OVERHEAD_BYTES + offset_and_size_at(data, start)[1]
    size = f"{needed} bytes" if needed is not None else "more bytes"
    return PartialMessage(
        f"{source} at offset {position}: the message takes {size}, only {len(data) - start} were fetched; "
        "fetch with a larger max_bytes",
        needed_bytes=needed,
    )
