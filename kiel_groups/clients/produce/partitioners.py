"""Choose the partition of a record, by its key or at random, and encode the record's key and value."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from kiel_groups.errors import ConfigError

#: Called with the application's key and a new, ascending list of the topic's partition numbers. Returns one of these
#: numbers.
Partitioner: TypeAlias = Callable[[Any, list[int]], int]


def key_bytes(key: Any) -> bytes | None:
    """Encode a key: keep bytes and None (a null key), and encode any other key as the UTF-8 of its ``str()``."""
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
    host. The partitioner ``consistent_random`` of librdkafka makes the same choice for keys that are not empty.
    """
    data = key_bytes(key)
    if data is None:
        return random_partitioner(key, partitions)
    return partitions[zlib.crc32(data) % len(partitions)]


#: Encodes a value; text is sent as UTF-8, None as null.
Serializer: TypeAlias = Callable[[Any], bytes | str | None]


def serialize_value(value: Any, serializer: Serializer | None) -> bytes | None:
    """
    Encode a value, or return None for a null value (a tombstone).

    With a serializer, use its result, and encode a str as UTF-8. Without a serializer, keep bytes and None, and encode
    any other value as JSON with sorted keys.

    Raises:
        ConfigError: JSON cannot represent the value, or the serializer returned something that cannot be sent.
    """
    if serializer is None:
        return value if value is None or isinstance(value, bytes) else _json(value)
    made = serializer(value)
    if made is None or isinstance(made, bytes):
        return made
    if isinstance(made, str):
        return made.encode()
    raise ConfigError(f"serializer: {type(made).__name__} returned; expected bytes, str or None")


def _json(value: Any) -> bytes:
    try:
        return json.dumps(value, sort_keys=True).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"value: it has no form in JSON ({error}); send bytes, or give a serializer") from error
