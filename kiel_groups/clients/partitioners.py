"""Which partition a record goes to."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

__all__ = ["Partitioner", "hash_or_random", "key_bytes"]

#: Called with the key as it was made and the topic's partition numbers, ascending; returns one of them.
Partitioner: TypeAlias = Callable[[Any, Sequence[int]], int]


def key_bytes(key: Any) -> bytes | None:
    """A key as it goes over the wire: bytes as they are, None as null, anything else as the UTF-8 of its ``str()``."""
    if key is None or isinstance(key, bytes):
        return key
    return str(key).encode()


def hash_or_random(source: random.Random) -> Partitioner:
    """
    Records without a key go to any partition at random, the others where the CRC-32 of their key's bytes says.

    The same key always goes to the same of n partitions, in every process and on every machine; librdkafka's
    ``consistent_random`` chooses alike.
    """

    def choose(key: Any, partitions: Sequence[int]) -> int:
        data = key_bytes(key)
        if data is None:
            return partitions[int(source.random() * len(partitions))]
        return partitions[zlib.crc32(data) % len(partitions)]

    return choose
