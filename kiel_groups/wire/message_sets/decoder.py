"""
Decode message sets of magic 0: ``[offset int64, size int32, crc int32, magic int8, attributes int8, key, value]*``.

The compiled code reads message sets (see ``compiled_decoder``). If it was not built, ``python_decoder`` reads them.
"""

from __future__ import annotations

from kiel_groups.model import Record, TopicPartition
from kiel_groups.wire.message_sets import compiled_decoder
from kiel_groups.wire.message_sets.message_layout import NoRecords, PartialMessage
from kiel_groups.wire.primitives import Buffer

__all__ = ["NoRecords", "PartialMessage", "decode_message_set"]


def decode_message_set(
    message_set: Buffer, topic_partition: TopicPartition, position: int, *, max_decompressed_bytes: int
) -> list[Record]:
    """
    Decode the message set of a fetch from one partition.

    Args:
        message_set: The set as received. An unfinished message at its end is dropped, as is filler.
        topic_partition: The partition that the set belongs to.
        position: The offset of the fetch. Older records, which a compressed wrapper may contain, are skipped.
        max_decompressed_bytes: How many bytes compressed messages may unpack to.

    Returns:
        Records by ascending offset, up to the first message that cannot be read, or that unpacks to more than is left
        of the bound. The next fetch begins with that message. The list is empty if the set is empty or has only older
        records.

    Raises:
        PartialMessage: There is no record to return, and the set ends with the beginning of a message.
        NoRecords: There is no record to return, and the log has none up to another offset.
        MessageTooLargeError: No record precedes a wrapper that unpacks to more than ``max_decompressed_bytes``.
        ProtocolError: No record precedes a bad CRC, a bad magic, an unknown codec, a wrapper inside a wrapper, an
            offset that does not ascend, or garbage. The error names topic, partition and offset.
    """
    if compiled_decoder.COMPILED:
        found = compiled_decoder.check_set(message_set, topic_partition, position, max_decompressed_bytes)
        records = found.records()
        if not records:
            found.raise_reason()
        return records
    # aiokafka takes a while to import, so it is imported only where it is needed.
    from kiel_groups.wire.message_sets.python_decoder import decode_uncompiled

    return decode_uncompiled(bytes(message_set), topic_partition, position, max_decompressed_bytes)
