"""Choose the partition of a record, by its key or at random, and encode the record's key and value."""

from __future__ import annotations

import json
import operator
import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from struct import Struct
from typing import Any, TypeAlias, cast

from kiel_groups.errors import ConfigError
from kiel_groups.wording import counted

_UINT32 = Struct("<I")
#: How many records without a key get the same partition, one by one and in one call.
_STICKY_RECORDS, _MOST_IN_ROW = 100, 1_000

#: What is sent as its bytes, besides bytes.
_BUFFERS = (bytearray, memoryview)

#: Called with the application's key and a new, ascending list of the topic's partition numbers. Returns one of these
#: numbers.
Partitioner: TypeAlias = Callable[[Any, list[int]], int]


def key_bytes(key: Any) -> bytes | None:
    """
    Encode a key: keep bytes and None (a null key), copy a bytearray or memoryview, and encode any other key as the
    UTF-8 of its ``str()``.

    Raises:
        ConfigError: UTF-8 cannot represent the text.
    """
    if key is None or isinstance(key, bytes):
        return key
    return bytes(key) if isinstance(key, _BUFFERS) else _utf8(str(key), "key")


def _utf8(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{name}: it has no form in UTF-8 ({error}); give bytes") from error


def random_partitioner(key: Any, partitions: Sequence[int]) -> int:
    """Choose a partition at random, regardless of the key."""
    return partitions[int(random.random() * len(partitions))]  # nosec B311 # it decides nothing that must be secret


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


def murmur2_partitioner(key: Any, partitions: Sequence[int]) -> int:
    """Choose a partition as Java's producer does for a key, or at random for a record without a key."""
    data = key_bytes(key)
    if data is None:
        return random_partitioner(key, partitions)
    return partitions[(murmur2(data) & 0x7FFFFFFF) % len(partitions)]


def murmur2(data: bytes) -> int:
    """Return the 32-bit hash by which Java's producers choose partitions: MurmurHash2 by Austin Appleby."""
    whole = len(data) & ~3
    found = 0x9747B28C ^ len(data)
    for (word,) in _UINT32.iter_unpack(data[:whole]):
        word = word * 0x5BD1E995 & 0xFFFFFFFF
        found = found * 0x5BD1E995 & 0xFFFFFFFF ^ (word ^ word >> 24) * 0x5BD1E995 & 0xFFFFFFFF
    if whole < len(data):
        found = (found ^ int.from_bytes(data[whole:], "little")) * 0x5BD1E995 & 0xFFFFFFFF
    found = (found ^ found >> 13) * 0x5BD1E995 & 0xFFFFFFFF
    return found ^ found >> 15


class _StickyPartitioner:
    """
    Chooses as ``murmur2_partitioner``, but gives up to 100 records without a key in a row the same partition.

    Fewer and larger batches cost less. Topics with equal numbers of partitions share the run.
    """

    def __init__(self) -> None:
        #: By the number of partitions: the index of the present one, and how many more records it gets.
        self._runs: dict[int, tuple[int, int]] = {}

    def __call__(self, key: Any, partitions: Sequence[int]) -> int:
        if key is not None:
            return murmur2_partitioner(key, partitions)
        count = len(partitions)
        index, left = self._runs.get(count, (0, 0))
        if not left:
            index, left = random_partitioner(None, range(count)), _STICKY_RECORDS
        self._runs[count] = (index, left - 1)
        return partitions[index]


#: By name: what makes a partitioner.
_NAMED: dict[str, Callable[[], Partitioner]] = {
    "random": lambda: random_partitioner,
    "hash": lambda: hash_partitioner,
    "murmur2": lambda: murmur2_partitioner,
    "sticky": _StickyPartitioner,
}
#: The names of the partitioners of this package.
PARTITIONERS = tuple(_NAMED)


def find_partitioner(wanted: Partitioner | str | None) -> Partitioner:
    """
    Return a partitioner by its name, "random" for None, and a function as it is.

    Raises:
        ConfigError: There is no partitioner of this name, or ``wanted`` is no function.
    """
    if wanted is None or callable(wanted):
        return wanted or random_partitioner
    if not isinstance(wanted, str) or wanted not in _NAMED:
        raise ConfigError(f"partitioner: {wanted!r} given; expected a function or {', '.join(map(repr, _NAMED))}")
    return _NAMED[wanted]()


def with_any_sequence(partitioner: Partitioner) -> Callable[[Any, Sequence[int]], int]:
    """Return a function that chooses as the partitioner. A partitioner of the application gets a list of its own."""
    if _is_ours(partitioner):
        return cast(Callable[[Any, Sequence[int]], int], partitioner)
    return lambda key, numbers: partitioner(key, list(numbers))


def _is_ours(choose: Callable[..., int]) -> bool:
    return choose in (random_partitioner, hash_partitioner, murmur2_partitioner) or isinstance(
        choose, _StickyPartitioner
    )


def fast_choice(
    partitioner: Partitioner,
) -> tuple[Callable[[Any, Sequence[int]], int] | None, Callable[[], float] | None]:
    """
    Return how ``Appender`` chooses partitions: a partitioner or None, and a function of random numbers or None.

    Both are None for a partitioner of the application, which may raise errors.
    """
    if partitioner is random_partitioner:
        return None, random.random
    return cast(Callable[[Any, Sequence[int]], int], partitioner) if _is_ours(partitioner) else None, None


def divide(
    choose: Callable[[Any, Sequence[int]], int],
    keys: Sequence[Any],
    chosen: Sequence[int | None],
    numbers: Sequence[int],
) -> Iterator[tuple[int, Sequence[int]]]:
    """
    Divide records among partitions. Yield each partition with the indexes of its records, ascending.

    Args:
        choose: The result of ``with_any_sequence``.
        keys: The key of each record, as the application gave it.
        chosen: The partition of each record, if the application has chosen it.
        numbers: The numbers of the topic's partitions.
    """
    if len(keys) > 1 and _is_ours(choose) and not any(each is not None for each in chain(keys, chosen)):
        for start in range(0, len(keys), _MOST_IN_ROW):
            yield choose(None, numbers), range(start, min(start + _MOST_IN_ROW, len(keys)))
        return
    partitions = [choose(key, numbers) if each is None else each for key, each in zip(keys, chosen, strict=True)]
    if all(each == partitions[0] for each in partitions):
        yield from [(each, range(len(partitions))) for each in partitions[:1]]
        return
    indexes: dict[int, list[int]] = {}
    for index, partition in enumerate(partitions):
        indexes.setdefault(partition, []).append(index)
    yield from indexes.items()


def as_values(given: Iterable[Any]) -> list[Any]:
    """
    Return the values of one call as a list.

    Raises:
        ConfigError: A single value is given, whose parts would be sent as values.
    """
    if _is_single(given):
        raise ConfigError(f"messages: {type(given).__name__} given; expected a list or another iterable of values")
    return list(given)


def as_keys(given: Iterable[Any] | None, count: int) -> list[Any]:
    """
    Return the keys of ``count`` values as a list.

    Raises:
        ConfigError: There are fewer or more keys, or a single one is given.
    """
    return [None] * count if given is None else _as_list(given, count, "keys")


def as_partitions(given: Iterable[int] | int | None, count: int) -> list[int | None]:
    """
    Return the partitions of ``count`` values as a list, with None if the partitioner chooses.

    Raises:
        ConfigError: There are fewer or more partitions, or one is not a number.
    """
    number = as_number(given)
    if given is None or number is not None:
        return [number] * count
    partitions = _as_list(given, count, "partitions")
    numbers = list(map(as_number, partitions))
    if None in numbers:
        wrong = partitions[numbers.index(None)]
        raise ConfigError(f"partitions: {wrong!r:.100} given; expected a number for each value, or one for all")
    return numbers


def as_number(given: object) -> int | None:
    """Return a whole number, such as one of numpy, as an int, or None for any other object."""
    try:
        return operator.index(given)  # type: ignore[arg-type]
    except TypeError:
        return None


def _is_single(given: object) -> bool:
    return not isinstance(given, Iterable) or isinstance(given, (str, bytes, *_BUFFERS, Mapping))


def _as_list(given: Any, count: int, name: str) -> list[Any]:
    if _is_single(given):
        raise ConfigError(f"{name}: {given!r:.100} given; expected one for each value")
    found = list(given)
    if len(found) != count:
        raise ConfigError(f"{name}: {len(found)} given for {counted(count, 'value')}")
    return found


#: Encodes a value; text is sent as UTF-8, None as null.
Serializer: TypeAlias = Callable[[Any], bytes | str | None]


def serialize_value(value: Any, serializer: Serializer | None) -> bytes | None:
    """
    Encode a value, or return None for a null value (a tombstone).

    With a serializer, use its result, and encode a str as UTF-8. Without a serializer, keep bytes and None, and encode
    any other value as JSON with sorted keys. In both cases, copy a bytearray or memoryview.

    Raises:
        ConfigError: JSON cannot represent the value, or the serializer returned something that cannot be sent.
    """
    made = value if serializer is None else serializer(value)
    if made is None or isinstance(made, bytes):
        return made
    if isinstance(made, _BUFFERS):
        return bytes(made)
    if serializer is None:
        return _json(value)
    if isinstance(made, str):
        return _utf8(made, "serializer: its text")
    raise ConfigError(f"serializer: {type(made).__name__} returned; expected bytes, str or None")


def _json(value: Any) -> bytes:
    try:
        return json.dumps(value, sort_keys=True).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"value: it has no form in JSON ({error}); send bytes, or give a serializer") from error
