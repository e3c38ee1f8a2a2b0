"""
DescribeConfigs v1 (from Kafka 1.1 on), AlterConfigs v0 (from 0.11 on), IncrementalAlterConfigs v0 (from 2.3 on).

Each request is about the settings of one topic, and every broker executes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from kiel_groups.wire.error_codes import ERROR, ErrorCode
from kiel_groups.wire.framing import Request
from kiel_groups.wire.primitives import (
    INT8,
    INT32,
    NULLABLE_STRING,
    STRING,
    FieldType,
    array,
    fields,
    mapping,
    structure,
    throttled,
    tuple_of,
)

#: The type of a resource that is a topic, and the source of a setting that the topic has itself.
_TOPIC = 2
OF_TOPIC = 1

_SET, _DELETE = 0, 1


class ConfigEntry(NamedTuple):
    """The value of a setting, and the number of its source: 1 the topic, 2 to 4 a broker, 5 the default."""

    value: str
    source: int


class ConfigAnswer(NamedTuple):
    """The outcome for a topic, with the broker's own text of an error; and its settings, if these were asked for."""

    error: ErrorCode
    text: str
    settings: Mapping[str, ConfigEntry] = {}


def _answer(*settings: FieldType[Mapping[str, ConfigEntry]]) -> FieldType[tuple[ConfigAnswer, ...]]:
    def make(error: ErrorCode, text: str, _type: int, _name: str, *found: Mapping[str, ConfigEntry]) -> ConfigAnswer:
        return ConfigAnswer(error, text, *found)

    return throttled(array(structure(make, ERROR, NULLABLE_STRING, INT8, STRING, *settings)))


_ENTRY = structure(
    lambda value, _read_only, source, _sensitive, _synonyms: ConfigEntry(value, source),
    *(NULLABLE_STRING, INT8, INT8, INT8, array(tuple_of(STRING, NULLABLE_STRING, INT8))),
)


@dataclass(frozen=True, slots=True)
class DescribeConfigsRequest(Request[tuple[ConfigAnswer, ...]]):
    """Ask for all settings of a topic."""

    API_KEY, API_VERSION, ANSWER_NAME = 32, 1, "a describe-configs response"
    BODY = fields(resources=array(tuple_of(INT8, STRING, INT32)), synonyms=INT8)
    ANSWER = _answer(mapping(STRING, _ENTRY, "setting"))

    topic: str
    synonyms: ClassVar[bool] = False

    @property
    def resources(self) -> tuple[tuple[int, str, int], ...]:
        """The topic, with null in place of names of settings, which means all."""
        return ((_TOPIC, self.topic, -1),)


@dataclass(frozen=True, slots=True)
class AlterConfigsRequest(Request[tuple[ConfigAnswer, ...]]):
    """Replace all of a topic's own settings."""

    API_KEY, API_VERSION, ANSWER_NAME, ANSWER = 33, 0, "an alter-configs response", _answer()
    BODY = fields(
        resources=array(tuple_of(INT8, STRING, mapping(STRING, STRING, "setting"))),
        validate_only=INT8,
    )

    topic: str
    settings: Mapping[str, str]
    validate_only: bool

    @property
    def resources(self) -> tuple[tuple[int, str, Mapping[str, str]], ...]:
        """The topic with its settings."""
        return ((_TOPIC, self.topic, self.settings),)


@dataclass(frozen=True, slots=True)
class IncrementalAlterConfigsRequest(Request[tuple[ConfigAnswer, ...]]):
    """Set some settings of a topic, and delete others from it."""

    API_KEY, API_VERSION, ANSWER_NAME, ANSWER = 44, 0, "an incremental-alter-configs response", _answer()
    BODY = fields(
        resources=array(tuple_of(INT8, STRING, array(tuple_of(STRING, INT8, STRING)))),
        validate_only=INT8,
    )

    topic: str
    settings: Mapping[str, str]
    unset: tuple[str, ...]
    validate_only: bool

    @property
    def resources(self) -> tuple[tuple[int, str, tuple[tuple[str, int, str], ...]], ...]:
        """The topic with the operations. Brokers ignore the value of a deletion."""
        changes = [(name, _SET, value) for name, value in self.settings.items()]
        return ((_TOPIC, self.topic, (*changes, *((name, _DELETE, "") for name in self.unset))),)
