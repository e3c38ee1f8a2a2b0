"""Check partitions and offsets that applications pass to a consumer, in the forms that kafka-python accepts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kiel_groups.config import check_name
from kiel_groups.errors import ConfigError
from kiel_groups.group.member.subscription_arguments import check_offset
from kiel_groups.model import OffsetAndMetadata, TopicPartition

__all__ = ["is_partition", "offsets_of", "partition_of", "partitions_of"]


def is_partition(given: object) -> bool:
    """Return whether an argument is one partition: a TopicPartition, or a tuple of a topic and a number."""
    return isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str) and not isinstance(given[1], str)


def partition_of(given: object, call: str) -> TopicPartition:
    """
    Return the partition that an application passed, as a TopicPartition or a plain tuple.

    Raises:
        ConfigError: It is neither, the topic's name is not legal, or the number is negative or no whole number.
    """
    if isinstance(given, tuple) and len(given) == 2:
        topic, number = given
        if isinstance(topic, str) and type(number) is int and number >= 0:
            return TopicPartition(check_name(topic, "topic"), number)
    raise ConfigError(f"{call}: {given!r} given; expected TopicPartition(topic, number of at least 0)")


def partitions_of(given: object, call: str) -> list[TopicPartition]:
    """
    Return the partitions that an application passed, without duplicates.

    Raises:
        ConfigError: The argument is not a list of partitions.
    """
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes)):
        raise ConfigError(f"{call}: {given!r} given; expected partitions, each TopicPartition(topic, number)")
    return list(dict.fromkeys(partition_of(each, call) for each in given))


def offsets_of(given: object, call: str) -> dict[TopicPartition, OffsetAndMetadata]:
    """
    Return the next offsets that an application passed, by partition.

    Raises:
        ConfigError: The argument is no mapping of partitions to whole numbers, to OffsetAndMetadata, or to tuples of
            an offset and a text; or an offset is negative, or beyond what the protocol can carry.
    """
    if not isinstance(given, Mapping):
        raise ConfigError(
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
