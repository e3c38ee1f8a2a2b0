"""Which partition a record goes to."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

__all__ = ["Partitioner", "hash_partitioner", "random_partitioner", "key_bytes"]

#: Called with the key as it was made and the topic's partition numbers, ascending, in a list of its own; returns one.
Partitioner: TypeAlias = Callable[[Any, list[int]], int]


def key_bytes(key: Any) -> bytes | None:
    """A key as it goes over the wire: bytes as they are, None as null, anything else as the UTF-8 of its ``str()``."""
    if key is None or isinstance(key, bytes):
        return key
    return str(key).encode()


def random_partitioner(key: Any, partitions: Sequence[int]) -> int:
    """Any partition, whatever the key."""
    return random.choice(partitions)


def hash_partitioner(key: Any, partitions: Sequence[int]) -> int:
    """
    Where the CRC-32 of the key's bytes says; any partition for a record without a key.

    The same key always goes to the same of n partitions, in every process and on every machine; librdkafka's
    ``consistent_random`` chooses alike.
    """
    data = key_bytes(key)
    if data is None:
        return random_partitioner(key, partitions)
    return partitions[zlib.crc32(data) % len(partitions)]
