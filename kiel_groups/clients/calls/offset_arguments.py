"""Check partitions, offsets and times that applications pass to a consumer, in the forms that kafka-python accepts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kiel_groups.config import check_name
from kiel_groups.errors import ArgumentTypeError, ConfigError
from kiel_groups.group.member.subscription_arguments import check_offset
from kiel_groups.model import OffsetAndMetadata, TopicPartition

__all__ = ["is_partition", "offsets_of", "partition_of", "partitions_of", "times_of"]

#: Times are int64 in the protocol.
_TIMES = 1 << 63


def is_partition(given: object) -> bool:
    """Return whether an argument is one partition: a TopicPartition, or a tuple of a topic and a number."""
    return isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str) and not isinstance(given[1], str)


def partition_of(given: object, call: str) -> TopicPartition:
    """
    Return the partition that an application passed, as a TopicPartition or a plain tuple.

    Raises:
        ArgumentTypeError: It is neither, or its number is no whole number. It is a TypeError and a ConfigError.
        ConfigError: The topic's name is not legal, or the number is negative.
    """
    expected = f"{call}: {given!r} given; expected TopicPartition(topic, number of at least 0)"
    if not isinstance(given, tuple) or len(given) != 2:
        raise ArgumentTypeError(expected)
    topic, number = given
    if not isinstance(topic, str) or type(number) is not int:
        raise ArgumentTypeError(expected)
    if number < 0:
        raise ConfigError(expected)
    return TopicPartition(check_name(topic, "topic"), number)


def partitions_of(given: object, call: str) -> list[TopicPartition]:
    """
    Return the partitions that an application passed, without duplicates.

    Raises:
        ArgumentTypeError: The argument is not a list of partitions, such as one partition alone. It is a TypeError and
            a ConfigError.
        ConfigError: A topic's name is not legal, or a number is negative.
    """
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes)) or is_partition(given):
        raise ArgumentTypeError(
            f"{call}: {given!r} given; expected a list of partitions, [TopicPartition(topic, number)]"
        )
    return list(dict.fromkeys(partition_of(each, call) for each in given))


def times_of(given: object, call: str) -> dict[TopicPartition, int]:
    """
    Return the times that an application passed, by partition, in whole milliseconds since 1970.

    Like kafka-python, it accepts fractions, such as ``time.time() * 1000``, and drops what is after the point.

    Raises:
        ArgumentTypeError: The argument is no mapping of partitions to numbers. It is a TypeError and a ConfigError.
        ConfigError: A time is negative, or beyond what the protocol can carry.
    """
    if not isinstance(given, Mapping):
        raise ArgumentTypeError(
            f"{call}: {given!r} given; expected a dict of TopicPartition(topic, number) to milliseconds since 1970"
        )
    return {partition_of(partition, call): _time_of(time, f"{call}: {partition}") for partition, time in given.items()}


def _time_of(given: object, where: str) -> int:
    expected = f"{where}: {given!r} given; expected milliseconds since 1970"
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise ArgumentTypeError(expected)
    # Also False for a NaN.
    if not 0 <= given < _TIMES:
        raise ConfigError(f"{expected}; beginning_offsets and end_offsets return the ends of the log")
    return int(given)


def offsets_of(given: object, call: str) -> dict[TopicPartition, OffsetAndMetadata]:
    """
    Return the next offsets that an application passed, by partition.

    Raises:
        ArgumentTypeError: The argument is no mapping, or a key is no partition. It is a TypeError and a ConfigError.
        ConfigError: A value is no whole number, no OffsetAndMetadata, and no tuple of an offset and a text; or an
            offset is negative, or beyond what the protocol can carry.
    """
    if not isinstance(given, Mapping):
        raise ArgumentTypeError(
            f"{call}: {given!r} given; expected a dict of TopicPartition(topic, number) to the next offset to read"
        )
    return {
        partition_of(partition, call): _offset_of(value, f"{call}: {partition}") for partition, value in given.items()
    }


def _offset_of(given: object, where: str) -> OffsetAndMetadata:
    offset, metadata = given, ""
    if isinstance(given, tuple):
        if len(given) != 2 or not (given[1] is None or isinstance(given[1], str)):
            raise ConfigError(f"{where}: {given!r} given; expected OffsetAndMetadata(offset, text)")
        offset, metadata = given[0], given[1] or ""
    return OffsetAndMetadata(check_offset(offset, where), metadata)
