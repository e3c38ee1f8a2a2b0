"""Parse and validate the texts of options; errors name the option, the given text and the expected form."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection

from kiel_groups.config import check_name
from kiel_groups.errors import ConfigError
from kiel_groups.model import TopicPartition

__all__ = [
    "OFFSETS_EXAMPLE",
    "duration_ms",
    "flag",
    "one_of",
    "offsets_by_partition",
    "parsed_json",
    "partition_list",
    "pattern",
    "refuse_headers",
    "whole_number",
]

#: Offsets by partition, as errors show them.
OFFSETS_EXAMPLE = '{"topic": {"0": 23, "1": -1}}'

_UNITS_MS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1_000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
}
#: The digits of the largest offset. Python refuses to parse thousands.
_MOST_DIGITS = 19
#: A decimal number without leading zeros, so that no partition can be given twice.
_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")
#: The limits of Kafka's protocol: 64 bits for an offset, 32 bits for a partition.
_LARGEST_OFFSET = (1 << 63) - 1
_LARGEST_PARTITION = (1 << 31) - 1
_DURATION = re.compile(r"([0-9]{1,18})\s*([a-z]*)")


def flag(name: str, text: str) -> bool:
    """Parse ``true`` or ``false``, in any case."""
    return one_of(name, text, ("true", "false")) == "true"


def one_of(name: str, text: str, choices: Collection[str]) -> str:
    """Parse one of a few words in any case, and return it in lower case."""
    word = text.strip().lower()
    if word not in choices:
        raise ConfigError(f"{name}: {text!r} given; expected {' or '.join(choices)}")
    return word


def whole_number(name: str, text: str, least: int) -> int:
    """Parse a decimal number that is at least ``least``."""
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit()) or len(digits) > _MOST_DIGITS or int(digits) < least:
        raise ConfigError(f"{name}: {text!r} given; expected a whole number of at least {least}")
    return int(digits)


def duration_ms(name: str, text: str) -> int:
    """Parse a duration such as ``500ms``, ``30s``, ``15m``, ``2h``, ``1d`` or, without a unit, milliseconds."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or (found[2] and found[2] not in _UNITS_MS):
        raise ConfigError(f"{name}: {text!r} given; expected a time such as '30s' or '15m'")
    return int(found[1]) * _UNITS_MS.get(found[2], 1)


def refuse_headers(name: str, text: str) -> None:
    """Accept ``false`` and refuse ``true``, because messages of Kafka 0.8 have no headers."""
    if flag(name, text):
        raise ConfigError(f"{name}: refused: messages of Kafka 0.8 have no headers; drop it")


def pattern(name: str, text: str) -> re.Pattern[str]:
    """Parse a regular expression for whole topic names; blanks around the expression are removed."""
    expression = text.strip()
    if not expression:
        raise ConfigError(f"{name}: {text!r} is blank, and no topic has such a name; expected such as 'logs-.*'")
    try:
        return re.compile(expression)
    except re.error as error:
        raise ConfigError(f"{name}: {text!r} is no regular expression: {error}") from error


def parsed_json(name: str, text: str, example: str) -> dict[str, object]:
    """
    Parse a JSON object whose keys are topics.

    Raises:
        ConfigError: The text is not a JSON object, repeats a key, or has a key that cannot be a topic's name.
    """

    def once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
        # The parser would keep the last of two equal keys, and drop the first one silently.
        for key, times in Counter(key for key, _ in pairs).items():
            if times > 1:
                raise ConfigError(f"{name}: {key!r} is given {times} times; name each topic and partition once")
        return dict(pairs)

    try:
        value = json.loads(text, object_pairs_hook=once_each)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name}: {text!r:.300} is no JSON ({error}); expected such as {example}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{name}: {text!r} given; expected such as {example}")
    for topic in value:
        check_name(topic, name)
    return value


def partition_list(name: str, text: str) -> tuple[TopicPartition, ...]:
    """Parse the partitions of ``{"topic": [0, 1]}``, and return them in ascending order."""
    example = '{"topic": [0, 1]}'
    found = set()
    for topic, numbers in parsed_json(name, text, example).items():
        if not isinstance(numbers, list) or not all(
            _is_number(number) and 0 <= number <= _LARGEST_PARTITION for number in numbers
        ):
            raise ConfigError(f"{name}: {numbers!r} given for {topic}; expected such as {example}")
        found |= {TopicPartition(topic, number) for number in numbers}
    if not found:
        raise ConfigError(f"{name}: {text!r} names no partition; expected such as {example}")
    return tuple(sorted(found))


def offsets_by_partition(name: str, text: str, special: Collection[int]) -> dict[TopicPartition, int]:
    """
    Parse the offsets of ``{"topic": {"0": 23, "1": -2}}``; ``special`` has the negative offsets that are allowed.

    Raises:
        ConfigError: The text has another form, or an offset or a partition out of range.
    """
    found = {}
    for topic, offsets in parsed_json(name, text, OFFSETS_EXAMPLE).items():
        if not isinstance(offsets, dict):
            raise ConfigError(f"{name}: {offsets!r} given for {topic}; expected such as {OFFSETS_EXAMPLE}")
        for number, offset in offsets.items():
            if not _PARTITION.fullmatch(number) or int(number) > _LARGEST_PARTITION:
                raise ConfigError(f"{name}: {number!r} is no partition of {topic}; expected such as {OFFSETS_EXAMPLE}")
            if not _is_number(offset) or not (0 <= offset <= _LARGEST_OFFSET or offset in special):
                allowed = "".join(f", {each}" for each in special)
                raise ConfigError(
                    f"{name}: the offset {offset!r} of {topic}:{number} cannot be; expected 0 or more{allowed},"
                    f" {_LARGEST_OFFSET} at most"
                )
            found[TopicPartition(topic, int(number))] = offset
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
