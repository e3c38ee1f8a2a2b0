"""The layout of message sets of magic 0: plain messages, wrappers (compressed sets), partial ends, and damage."""

from __future__ import annotations

import zlib
from functools import cache
from struct import Struct

from kiel_groups.errors import MessageTooLargeError, ProtocolError
from kiel_groups.model import TopicPartition
from kiel_groups.wire.codecs import Codec, codec_by_number
from kiel_groups.wire.primitives import Buffer

#: Offset and size, which precede a message and do not count in its size.
OVERHEAD_BYTES = 8 + 4
#: CRC, magic, attributes, and the lengths of a null key and a null value.
LEAST_SIZE = 4 + 1 + 1 + 4 + 4
#: Where the magic byte and the key are, in bytes from the offset of the message.
MAGIC_START = 16
KEY_START = 18

#: The bits of the attributes that name a codec; all zero means plain.
CODEC_BITS = 0x07

#: The offset of filler. Brokers from 2.0 on write batches of later formats in magic 0 one by one, while they send the
#: set. They have announced its size before that, so they fill the rest with the beginning of a message that has this
#: offset, and is longer than the rest.
FILLER_OFFSET = -1

_PLACE = Struct(">qi")


def offset_at(data: Buffer, position: int) -> int:
    """Return the offset of the message at ``position``."""
    offset: int = _PLACE.unpack_from(data, position)[0]
    return offset


def offset_and_size_at(data: Buffer, position: int) -> tuple[int, int]:
    """Return the offset of the message at ``position``, and its size without ``OVERHEAD_BYTES``."""
    offset, size = _PLACE.unpack_from(data, position)
    return offset, size


def message_at(data: Buffer, position: int) -> Buffer:
    """Return the whole message at ``position``, with its offset and size."""
    return data[position : position + OVERHEAD_BYTES + offset_and_size_at(data, position)[1]]


# Recognise record batches (magic 2) that have no record for consumers.
#
# Brokers of 0.11 to 1.1 send batches as they are in the log if none of those that fit has a record to convert to magic
# 0. These are control batches, the marks of ended transactions, and batches that compaction has emptied.


#: CRC, attributes, and the difference from the first to the last offset. 34 more bytes precede the records.
_HEADER = Struct(">17xIhi")
_HEADER_BYTES = 61
#: The CRC covers the bytes from this position on.
_CHECKED_START = 21
#: The bit of the attributes of a control batch.
_CONTROL = 0x20
#: A control batch of a transaction has 78 bytes.
_MOST_BYTES = 256
#: At most this many batches are examined in one call, which takes some 10 ms.
_MOST_BATCHES = 1_000


def offset_after_empty_batches(data: Buffer, start: int) -> int | None:
    """
    Return the offset after the record batches of magic 2 without records that begin at ``start``.

    Return None if there is no such batch. At most 1,000 batches are examined.
    """
    following = None
    for _ in range(_MOST_BATCHES):
        after = _offset_after_empty_batch(data, start)
        if after is None:
            break
        following = after
        start += OVERHEAD_BYTES + offset_and_size_at(data, start)[1]
    return following


def _offset_after_empty_batch(data: Buffer, start: int) -> int | None:
    if len(data) - start < _HEADER_BYTES or data[start + MAGIC_START] != 2:
        return None
    offset, length = offset_and_size_at(data, start)
    size = OVERHEAD_BYTES + length
    if not _HEADER_BYTES <= size <= min(_MOST_BYTES, len(data) - start):
        return None
    crc, attributes, last = _HEADER.unpack_from(data, start)
    if not (attributes & _CONTROL or size == _HEADER_BYTES) or offset < 0 or last < 0:
        return None
    # Without this check, a damaged message could make the fetcher skip offsets that have records.
    return offset + last + 1 if _crc32c(message_at(data, start)[_CHECKED_START:]) == crc else None


def _crc32c(data: Buffer) -> int:
    """
    Return the CRC-32C of these bytes. This function replaces aiokafka's, whose import would block the loop for 250 ms.
    """
    table, crc = _crc_table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


@cache
def _crc_table() -> list[int]:
    table = []
    for entry in range(256):
        for _ in range(8):
            entry = entry >> 1 ^ (0x82F63B78 if entry & 1 else 0)
        table.append(entry)
    return table


# The ends of message sets that are not whole messages of magic 0.
#
# Brokers cut a fetched set at ``max_bytes``, wherever that is. Brokers from 0.11 on convert it to magic 0. If the fetch
# has no whole batch, those up to 2.8 send its beginning as it is in the log, and those of 3.x send nothing. Brokers
# from 2.0 on end a set that they have converted with filler.


class PartialMessage(MessageTooLargeError):  # noqa: N818 - a signal: fetch again with more bytes
    """
    A fetch returned only the beginning of one message, because its ``max_bytes`` is smaller than that message.

    ``needed_bytes`` is the size of the whole message, or None if the fetched bytes do not include that size.
    """

    def __init__(self, message: str, *, needed_bytes: int | None) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes


class NoRecords(ProtocolError):  # noqa: N818 - a signal: fetch from another offset
    """
    The log has no record from the position of a fetch to ``next_offset``, exclusive. The next fetch begins there.

    Only control batches (markers of transactions) and batches that compaction has emptied have these offsets.
    """

    def __init__(self, message: str, *, next_offset: int) -> None:
        super().__init__(message)
        self.next_offset = next_offset


def unfinished_message(data: Buffer, start: int, source: TopicPartition, position: int) -> PartialMessage | NoRecords:
    """
    Return the error for a fetch from ``position`` without a usable record.

    From ``start`` on, the fetched set has no whole message of magic 0. The error is NoRecords for a filler message (see
    ``FetchRequest``) and for empty batches, and PartialMessage for the beginning of a message.
    """
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


# Refuse corrupt message sets: the checks of what is not a plain message, and the errors of both decoders.
#
# The decoders check plain messages themselves, because that has to be fast. Their errors are made here, too.


#: Faults of a plain message, as errors name them.
BAD_CRC = "a message that does not match its CRC"
BAD_LENGTH = "a message whose key or value has a length that makes no sense"


class DamagedMessage(ProtocolError):  # noqa: N818 - the fetcher makes an error for the application of it
    """
    A message is damaged, but its end is known, so a fetch from ``offset + 1`` skips the message.

    ``message`` is the whole message. A compressed message has the offset of its last record.
    """

    def __init__(self, text: str, *, offset: int, message: bytes) -> None:
        super().__init__(text)
        self.offset, self.message = offset, message


def refusal(source: TopicPartition, offset: int, found: str, message: Buffer | None = None) -> ProtocolError:
    """
    Return the error for an unreadable message at ``offset``. The text of the error has ``found``.

    With the whole ``message``, return a DamagedMessage, so that the fetcher can skip the message.
    """
    text = f"{source} at offset {offset}: {found}"
    return ProtocolError(text) if message is None else DamagedMessage(text, offset=offset, message=bytes(message))


def damage_in_wrapper(error: ProtocolError, wrapper: Buffer) -> DamagedMessage:
    """Return a DamagedMessage about the whole wrapper, with the text of an error about the wrapper or its content."""
    return DamagedMessage(str(error), offset=offset_and_size_at(wrapper, 0)[0], message=bytes(wrapper))


def check_wrapper(data: Buffer, position: int, last_offset: int, source: TopicPartition) -> int | None:
    """
    Check the message at ``position``, which is not a valid plain message, and return where it ends.

    Return None if the readable part of the set ends at ``position``, because a filler message (see ``FetchRequest``),
    an unfinished message or empty batches follow.

    Raises:
        ProtocolError: The message is too short, its offset is not above ``last_offset``, or its magic is not 0.
    """
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


def check_content(content: Buffer, end: int, last_offset: int, wrapper_offset: int, source: TopicPartition) -> None:
    """
    Check that a wrapper has only whole plain messages, and that the last message has the wrapper's own offset.

    ``end`` is the position after the plain messages that were found, and ``last_offset`` is the offset of the last of
    these messages.

    Raises:
        ProtocolError: The content has anything but whole plain messages, or the last message has another offset.
    """
    if check_wrapper(content, end, last_offset, source) is not None:
        raise refusal(source, wrapper_offset, "a compressed message inside a compressed message")
    if end != len(content):
        raise refusal(source, wrapper_offset, "a compressed message whose content is truncated")
    if last_offset != wrapper_offset:
        raise refusal(source, wrapper_offset, f"a compressed message whose content ends at offset {last_offset}")


# Compress a message set into a wrapper, and unpack one.
#
# A wrapper is a message whose attributes name a codec, and whose value is a whole compressed set. Offsets inside are
# absolute, and the wrapper has the offset of its last message.

_WRAPPER = Struct(">qiIbbii")
_LENGTH = Struct(">i")


def wrap(value: bytes, codec: Codec, offset: int) -> bytes:
    """Compress a message set into a wrapper without a key and with this offset, and return the wrapper."""
    packed = codec.compress(value)
    size = LEAST_SIZE + len(packed)
    unchecked = bytearray(_WRAPPER.pack(offset, size, 0, 0, codec.number, -1, len(packed)) + packed)
    unchecked[OVERHEAD_BYTES:MAGIC_START] = zlib.crc32(memoryview(unchecked)[MAGIC_START:]).to_bytes(4, "big")
    return bytes(unchecked)


def unwrap(wrapper: Buffer, source: TopicPartition, limit: int) -> Buffer:
    """
    Check a compressed message, and return its unpacked content.

    Raises:
        MessageTooLargeError: The content unpacks to more than ``limit`` bytes.
        ProtocolError: The message is damaged.
    """
    value_start = value_start_of(wrapper, source)
    offset, _, _, _, attributes, _, _ = _WRAPPER.unpack_from(wrapper)
    return unpack(memoryview(wrapper), value_start, attributes & CODEC_BITS, source, offset, limit)


def value_start_of(wrapper: Buffer, source: TopicPartition) -> int:
    """
    Check a compressed message, and return the position where its value starts. The value ends with the message.

    Raises:
        ProtocolError: The CRC does not match, or the length of the key or the value is impossible.
    """
    offset, _, crc, _, _, key_length, _ = _WRAPPER.unpack_from(wrapper)
    if zlib.crc32(memoryview(wrapper)[MAGIC_START:]) != crc:
        raise refusal(source, offset, "a compressed message that does not match its CRC")
    value_start: int = KEY_START + _LENGTH.size + max(key_length, 0) + _LENGTH.size
    if key_length < -1 or value_start > len(wrapper):
        raise refusal(source, offset, f"a compressed message with a key of {key_length} bytes")
    value_length = _LENGTH.unpack_from(wrapper, value_start - _LENGTH.size)[0]
    if value_length != len(wrapper) - value_start:
        raise refusal(source, offset, f"a compressed message with a value of {value_length} bytes")
    return value_start


def unpack(
    wrapper: memoryview, value_start: int, codec_number: int, source: TopicPartition, offset: int, limit: int
) -> Buffer:
    """
    Return the unpacked value of a compressed message. The caller has checked the message.

    Raises:
        MessageTooLargeError: The content unpacks to more than ``limit`` bytes.
        ProtocolError: The value is damaged, or its codec is unknown.
    """
    try:
        return codec_by_number(codec_number).decompress(wrapper[value_start:], limit)
    except MessageTooLargeError as error:
        found = f"a compressed message of {len(wrapper)} bytes {error}"
        raise MessageTooLargeError(
            f"{source} at offset {offset}: {found}, or seek to {offset + 1} to pass all of it"
        ) from error
    except ProtocolError as error:
        raise type(error)(f"{source} at offset {offset}: a compressed message: {error}") from error
