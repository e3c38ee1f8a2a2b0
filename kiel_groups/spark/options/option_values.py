"""Values out of the texts of options; what is none is refused: the option, what was given, what was expected."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection

from kiel_groups.config import check_name
from kiel_groups.errors import ConfigError
from kiel_groups.model import TopicPartition

__all__ = [
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

_UNITS_MS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1_000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
}
#: A decimal number that has one form only, so that no partition is given twice.
_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")
#: What brokers can hold: 64 bits of an offset, 32 of a partition.
_LARGEST_OFFSET = (1 << 63) - 1
_LARGEST_PARTITION = (1 << 31) - 1
_DURATION = re.compile(r"(\d+)\s*([a-z]*)")


def flag(name: str, text: str) -> bool:
    """``true`` or ``false``, in any case."""
    return one_of(name, text, ("true", "false")) == "true"


def one_of(name: str, text: str, choices: Collection[str]) -> str:
    """One of a few words, given in any case, returned in lower case."""
    word = text.strip().lower()
    if word not in choices:
        raise ConfigError(f"{name}: {text!r} given; expected {' or '.join(choices)}")
    return word


def whole_number(name: str, text: str, least: int) -> int:
    """A decimal number that is not below ``least``."""
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit()) or int(digits) < least:
        raise ConfigError(f"{name}: {text!r} given; expected a whole number of at least {least}")
    return int(digits)


def duration_ms(name: str, text: str) -> int:
    """Milliseconds of ``500ms``, ``30s``, ``15m``, ``2h``, ``1d`` or, without a unit, milliseconds."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or (found[2] and found[2] not in _UNITS_MS):
        raise ConfigError(f"{name}: {text!r} given; expected a time such as '30s' or '15m'")
    return int(found[1]) * _UNITS_MS.get(found[2], 1)


def refuse_headers(name: str, text: str) -> None:
    """Headers may be declined, and not asked for."""
    if flag(name, text):
        raise ConfigError(f"{name}: refused: messages of Kafka 0.8 have no headers; drop it")


def pattern(name: str, text: str) -> re.Pattern[str]:
    """A regular expression that whole topic names are to match; blanks around it do not count."""
    expression = text.strip()
    if not expression:
        raise ConfigError(f"{name}: {text!r} is blank, and no topic has such a name; expected such as 'logs-.*'")
    try:
        return re.compile(expression)
    except re.error as error:
        raise ConfigError(f"{name}: {text!r} is no regular expression: {error}") from error


def parsed_json(name: str, text: str, example: str) -> dict[str, object]:
    """
    A JSON object by topic.

    Raises:
        ConfigError: No JSON, no object, a key given twice in one, or one that no topic can have as its name.
    """

    def once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
        # Of two that are the same, the parser would take the last, and drop the other without a word.
        for key, times in Counter(key for key, _ in pairs).items():
            if times > 1:
                raise ConfigError(f"{name}: {key!r} stands there {times} times; name each topic and partition once")
        return dict(pairs)

    try:
        value = json.loads(text, object_pairs_hook=once_each)
    except ValueError as error:
        raise ConfigError(f"{name}: {text!r} is no JSON ({error}); expected such as {example}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{name}: {text!r} given; expected such as {example}")
    for topic in value:
        check_name(topic, name)
    return value


def partition_list(name: str, text: str) -> tuple[TopicPartition, ...]:
    """The partitions of ``{"topic": [0, 1]}``, in ascending order."""
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
    The offsets of ``{"topic": {"0": 23, "1": -2}}``; ``special`` are the negative ones that have a meaning here.

    Raises:
        ConfigError: Anything else.
    """
    example = '{"topic": {"0": 23, "1": -1}}'
    found = {}
    for topic, offsets in parsed_json(name, text, example).items():
        if not isinstance(offsets, dict):
            raise ConfigError(f"{name}: {offsets!r} given for {topic}; expected such as {example}")
        for number, offset in offsets.items():
            if not _PARTITION.fullmatch(number) or int(number) > _LARGEST_PARTITION:
                raise ConfigError(f"{name}: {number!r} is no partition of {topic}; expected such as {example}")
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
