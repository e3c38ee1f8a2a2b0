"""
Refuse corrupt message sets: the checks of what is not a plain message, and the errors of both decoders.

The decoders check plain messages themselves, because that has to be fast. Their errors are made here, too.
"""

from __future__ import annotations

from kiel_groups.errors import ProtocolError
from kiel_groups.model import TopicPartition
from kiel_groups.wire.message_sets.message_layout import (
    FILLER_OFFSET,
    LEAST_SIZE,
    MAGIC_START,
    OVERHEAD_BYTES,
    Run,
    offset_and_size_at,
)
from kiel_groups.wire.message_sets.record_batches import offset_after_empty_batches
from kiel_groups.wire.primitives import Buffer

__all__ = ["BAD_CRC", "BAD_LENGTH", "DamagedMessage", "check_content", "check_wrapper", "damage_in_wrapper", "refusal"]

#: Faults of a plain message, as errors name them.
BAD_CRC = "a message that does not match its CRC"
BAD_LENGTH = "a message whose key or value has a length that makes no sense"


class DamagedMessage(ProtocolError):  # noqa: N818 - the fetcher makes an error for the application of it
    """
    A message is damaged, and the set shows where it ends, so that a fetch from ``offset + 1`` passes it.

    ``message`` is the whole message. If it is compressed, it has the offset of its last record.
    """

    def __init__(self, text: str, *, offset: int, message: bytes) -> None:
        super().__init__(text)
        self.offset, self.message = offset, message


def refusal(source: TopicPartition, offset: int, found: str, message: Buffer | None = None) -> ProtocolError:
    """Return the error for an unreadable message at an offset. With ``message``, its bytes, it can be passed."""
    text = f"{source} at offset {offset}: {found}"
    return ProtocolError(text) if message is None else DamagedMessage(text, offset=offset, message=bytes(message))


def damage_in_wrapper(error: ProtocolError, wrapper: Buffer) -> DamagedMessage:
    """Return the error about a wrapper as a whole, for an error about it, or about a message in it."""
    return DamagedMessage(str(error), offset=offset_and_size_at(wrapper, 0)[0], message=bytes(wrapper))


def check_wrapper(data: Buffer, position: int, last_offset: int, source: TopicPartition) -> int | None:
    """Check the wrapper at ``position`` and return its end, or None if the data ends there or inside the message."""
    if len(data) - position < OVERHEAD_BYTES:
        return None
    offset, length = offset_and_size_at(data, position)
    if length < LEAST_SIZE:
        raise refusal(source, offset, f"a message of {length} bytes; the smallest has {LEAST_SIZE}")
    end = position + OVERHEAD_BYTES + length
    if offset == FILLER_OFFSET and end > len(data):
        return None
    if offset <= last_offset:
        raise refusal(source, offset, f"an offset that does not ascend, after {last_offset}")
    if end > len(data):
        return None
    magic = data[position + MAGIC_START]
    if magic and offset_after_empty_batches(data, position) is not None:
        return None
    if magic:
        raise refusal(source, offset, f"a message of magic {magic}; Kafka 0.8 has magic 0 only")
    return end


def check_content(content: Buffer, run: Run, wrapper_offset: int, source: TopicPartition) -> None:
    """Check that a wrapper has whole plain messages only, the last one with the wrapper's own offset."""
    if run.wrapper_end is not None:
        raise refusal(source, wrapper_offset, "a compressed message inside a compressed message")
    if run.end != len(content):
        raise refusal(source, wrapper_offset, "a compressed message whose content is truncated")
    if run.last_offset != wrapper_offset:
        raise refusal(source, wrapper_offset, f"a compressed message whose content ends at offset {run.last_offset}")
