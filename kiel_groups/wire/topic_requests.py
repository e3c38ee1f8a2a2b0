"""
The requests that create, delete and grow topics, and that read and change their settings.

All have version 0, except DescribeConfigs, which has version 1. Brokers support CreateTopics and DeleteTopics from
0.10.1 to 3.9, and CreatePartitions from 1.0 on. In ZooKeeper mode, only the controller executes these three requests.
Other brokers refuse these requests. In KRaft mode, each broker forwards them to the controller. DescribeConfigs (from
1.1 on), AlterConfigs (from 0.11 on) and IncrementalAlterConfigs (from 2.3 on) concern the settings of one topic. Every
broker executes these last three requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, NamedTuple

from kiel_groups.wire.error_codes import ERROR, ErrorCode
from kiel_groups.wire.framing import Request
from kiel_groups.wire.primitives import (
    INT8,
    INT16,
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


class NewTopic(NamedTuple):
    """The number of partitions and replicas of a new topic, and its settings. The controller places the replicas."""

    partitions: int
    replication: int
    #: The number of partitions whose replicas are assigned here.
    assignments: int = 0
    settings: Mapping[str, str] = MappingProxyType({})


_ERRORS = mapping(STRING, ERROR, "topic")


@dataclass(frozen=True, slots=True)
class CreateTopicsRequest(Request[Mapping[str, ErrorCode]]):
    """Create topics. The broker answers when the topics are created, at the latest after ``timeout_ms``."""

    API_KEY, API_VERSION, ANSWER_NAME, ANSWER = 19, 0, "a create-topics response", _ERRORS
    BODY = fields(
        topics=mapping(STRING, structure(NewTopic, INT32, INT16, INT32, mapping(STRING, STRING, "setting")), "topic"),
        timeout_ms=INT32,
    )

    topics: Mapping[str, NewTopic]
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class CreatePartitionsRequest(Request[Mapping[str, ErrorCode]]):
    """Increase the number of partitions of topics to the given numbers."""

    API_KEY, API_VERSION, ANSWER_NAME = 37, 0, "a create-partitions response"
    BODY = fields(counts=mapping(STRING, tuple_of(INT32, INT32), "topic"), timeout_ms=INT32, validate_only=INT8)
    ANSWER = throttled(mapping(STRING, structure(lambda error, text: error, ERROR, NULLABLE_STRING), "topic"))

    partitions: Mapping[str, int]
    timeout_ms: int
    validate_only: ClassVar[bool] = False

    @property
    def counts(self) -> Mapping[str, tuple[int, int]]:
        """The new number of partitions and a null replica assignment for each topic, as the request sends them."""
        return {topic: (count, -1) for topic, count in self.partitions.items()}


@dataclass(frozen=True, slots=True)
class DeleteTopicsRequest(Request[Mapping[str, ErrorCode]]):
    """
    Delete topics. The broker answers when the topics are deleted, at the latest after ``timeout_ms``.

    Brokers delete the logs later.
    """

    API_KEY, API_VERSION, ANSWER_NAME, ANSWER = 20, 0, "a delete-topics response", _ERRORS
    BODY = fields(topics=array(STRING), timeout_ms=INT32)

    topics: tuple[str, ...]
    timeout_ms: int


#: The type of a resource that is a topic, and the source of a setting that the topic has itself.
_TOPIC = 2
OF_TOPIC = 1

_SET, _DELETE = 0, 1


class ConfigEntry(NamedTuple):
    """The value of a setting, and the number of its source: 1 for the topic, 2 to 4 for a broker, 5 for the default."""

    value: str
    source: int


class ConfigAnswer(NamedTuple):
    """The outcome for a topic: the error with the broker's text, and the topic's settings if they were requested."""

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
    """Ask for all settings of a topic, including those that the topic inherits from brokers and defaults."""

    API_KEY, API_VERSION, ANSWER_NAME = 32, 1, "a describe-configs response"
    BODY = fields(resources=array(tuple_of(INT8, STRING, INT32)), synonyms=INT8)
    ANSWER = _answer(mapping(STRING, _ENTRY, "setting"))

    topic: str
    synonyms: ClassVar[bool] = False

    @property
    def resources(self) -> tuple[tuple[int, str, int], ...]:
        """The topic, as the request sends it. The -1 is a null array of setting names, and requests all settings."""
        return ((_TOPIC, self.topic, -1),)


@dataclass(frozen=True, slots=True)
class AlterConfigsRequest(Request[tuple[ConfigAnswer, ...]]):
    """
    Replace all of a topic's own settings. With ``validate_only``, the broker only checks whether it could do that.
    """

    API_KEY, API_VERSION, ANSWER_NAME, ANSWER = 33, 0, "an alter-configs response", _answer()
    BODY = fields(resources=array(tuple_of(INT8, STRING, mapping(STRING, STRING, "setting"))), validate_only=INT8)

    topic: str
    settings: Mapping[str, str]
    validate_only: bool

    @property
    def resources(self) -> tuple[tuple[int, str, Mapping[str, str]], ...]:
        """The topic with its new settings, as the request sends them."""
        return ((_TOPIC, self.topic, self.settings),)


@dataclass(frozen=True, slots=True)
class IncrementalAlterConfigsRequest(Request[tuple[ConfigAnswer, ...]]):
    """Change some of a topic's own settings, and remove those in ``unset``, so that their inherited values apply."""

    API_KEY, API_VERSION, ANSWER_NAME, ANSWER = 44, 0, "an incremental-alter-configs response", _answer()
    BODY = fields(resources=array(tuple_of(INT8, STRING, array(tuple_of(STRING, INT8, STRING)))), validate_only=INT8)

    topic: str
    settings: Mapping[str, str]
    unset: tuple[str, ...]
    validate_only: bool

    @property
    def resources(self) -> tuple[tuple[int, str, tuple[tuple[str, int, str], ...]], ...]:
        """The topic with the changes of its settings, as the request sends them. A removal has an empty value."""
        changes = [(name, _SET, value) for name, value in self.settings.items()]
        return ((_TOPIC, self.topic, (*changes, *((name, _DELETE, "") for name in self.unset))),)
