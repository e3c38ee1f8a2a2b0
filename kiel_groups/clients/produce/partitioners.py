"""Choose the partition of a record, by its key or at random."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

__all__ = ["Partitioner", "hash_partitioner", "random_partitioner", "key_bytes"]

#: Called with the application's key and a new, ascending list of the topic's partition numbers. Returns one of these
#: numbers.
Partitioner: TypeAlias = Callable[[Any, list[int]], int]


def key_bytes(key: Any) -> bytes | None:
    """Encode a key: bytes as they are, None as null, anything else as the UTF-8 of its ``str()``."""
    if key is None or isinstance(key, bytes):
        return key
    return str(key).encode()


def random_partitioner(key: Any, partitions: Sequence[int]) -> int:
    """Choose a partition at random, regardless of the key."""
    return random.choice(partitions)


def hash_partitioner(key: Any, partitions: Sequence[int]) -> int:
    """
    Choose a partition by the CRC-32 of the encoded key, or at random for a record without a key.

    While the number of partitions stays the same, a key always gets the same partition, in every process and on every
    host.
    librdkafka's ``consistent_random`` makes the same choice for keys that are not empty.
    """
    data = key_bytes(key)
    if data is None:
        return random_partitioner(key, partitions)
    return partitions[zlib.crc32(data) % len(partitions)]
