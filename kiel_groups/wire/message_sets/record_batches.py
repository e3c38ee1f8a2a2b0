"""
Recognise record batches (magic 2) that have no record for consumers.

Brokers of 0.11 to 1.1 send batches as they are in the log if none of those that fit has a record to convert to magic 0.
These are control batches, the marks of ended transactions, and batches that compaction has emptied.
"""

from __future__ import annotations

from functools import cache
from struct import Struct

from kiel_groups.wire.message_sets.message_layout import MAGIC_START, OVERHEAD_BYTES, message_at, offset_and_size_at
from kiel_groups.wire.primitives import Buffer

__all__ = ["offset_after_empty_batches"]

#: CRC, attributes, and the difference from the first to the last offset. 34 more bytes precede the records.
_HEADER = Struct(">17xIhi")
_HEADER_BYTES = 61
#: The CRC is of what follows it.
_CHECKED_START = 21
#: The bit of the attributes of a control batch.
_CONTROL = 0x20
#: A control batch of a transaction has 78 bytes.
_MOST_BYTES = 256
#: So many batches are examined at once, which takes some 10 ms.
_MOST_BATCHES = 1_000


def offset_after_empty_batches(data: Buffer, start: int) -> int | None:
    """Return the offset after the batches without records that begin at ``start``, or None if there is none."""
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
    # Without this, a damaged message could have offsets with records skipped.
    return offset + last + 1 if _crc32c(message_at(data, start)[_CHECKED_START:]) == crc else None


def _crc32c(data: Buffer) -> int:
    """Return the CRC-32C of some bytes. The one of aiokafka would block the event loop for its import, 250 ms."""
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
