"""Check the pattern, the partitions and the offsets that an application passes to its subscription."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kiel_groups.config import check_name
from kiel_groups.errors import ConfigError
from kiel_groups.model import TopicPartition

__all__ = ["assignable_partitions", "check_offset", "compiled_pattern"]

#: The largest offset of the protocol, an int64.
_MOST_OFFSET = (1 << 63) - 1


def compiled_pattern(pattern: str | re.Pattern[str] | None) -> re.Pattern[str] | None:
    """
    Return a compiled regular expression, or None if there is none.

    Raises:
        ConfigError: The argument is empty, or no regular expression.
    """
    text = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
    if text is None:
        return None
    if not isinstance(text, str) or not text:
        raise ConfigError(f"pattern: {pattern!r} given; expected a regular expression, as text or compiled")
    try:
        return pattern if isinstance(pattern, re.Pattern) else re.compile(text)
    except re.error as error:
        raise ConfigError(f"pattern: {pattern!r} is not a regular expression: {error}") from None


def assignable_partitions(partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
    """
    Return the partitions of a manual assignment.

    Raises:
        ConfigError: One is not a TopicPartition with a legal topic and number.
    """
    listed = list(partitions)
    for partition in listed:
        number = partition.partition if isinstance(partition, TopicPartition) else None
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise ConfigError(f"assign(): {partition!r} given; expected TopicPartition(topic, number of at least 0)")
        check_name(partition.topic, "topic")
    return frozenset(listed)


def check_offset(offset: object, where: str) -> int:
    """
    Return an offset at which an application wants to continue.

    Args:
        offset: The argument.
        where: The call and the partition, for the error.

    Raises:
        ConfigError: It is no whole number, or negative, or beyond what the protocol can carry.
    """
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= _MOST_OFFSET:
        raise ConfigError(
            f"{where}: {offset!r} given; expected the next offset to read, a whole number from 0 to 2**63 - 1"
        )
    return offset
