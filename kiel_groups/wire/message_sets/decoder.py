"""
Message sets of magic 0: ``[offset int64, size int32, crc int32, magic int8, attributes int8, key, value]*``.

Our own compiled half reads them (see ``runs``); where that was not built, ``uncompiled`` does.
"""

from __future__ import annotations

from kiel_groups.model import Record, TopicPartition
from kiel_groups.wire.message_sets import compiled_decoder
from kiel_groups.wire.message_sets.wrappers import PartialMessage
from kiel_groups.wire.primitives import Buffer

__all__ = ["PartialMessage", "decode_message_set"]


def decode_message_set(
    message_set: Buffer, topic_partition: TopicPartition, position: int, *, max_decompressed_bytes: int
) -> list[Record]:
    """
    Read what a fetch brought from one partition.

    Args:
        message_set: As it came; an unfinished message at its end is dropped.
        topic_partition: Where it came from.
        position: The offset asked for; older records, which a compressed wrapper may bring along, are skipped.
        max_decompressed_bytes: How much compressed messages may unpack to.

    Returns:
        Records by ascending offset, up to the first message that cannot be read, or that unpacks to more than is left
        of the bound: the next fetch begins with it. An empty list where the set is empty or holds older records only.

    Raises:
        PartialMessage: There is no record to return, but the beginning of one.
        MessageTooLargeError: Nor is there one before a wrapper that unpacks to more than ``max_decompressed_bytes``.
        ProtocolError: Nor before a bad CRC, a bad magic, an unknown codec, a wrapper inside a wrapper, an offset that
            does not ascend, or garbage; names topic, partition and offset.
    """
    if compiled_decoder.COMPILED:
        found = compiled_decoder.checked_set(message_set, topic_partition, position, max_decompressed_bytes)
        records = found.records()
        if not records:
            found.raise_reason()
        return records
    # aiokafka takes a while to import: only those who need it wait for it.
    from kiel_groups.wire.message_sets.python_decoder import decode_uncompiled

    return decode_uncompiled(bytes(message_set), topic_partition, position, max_decompressed_bytes)
