"""
CreateTopics, DeleteTopics (brokers support both from 0.10.1 to 3.9) and CreatePartitions (from 1.0 on) v0.

In ZooKeeper mode, only the controller executes these requests; other brokers refuse them. In KRaft mode, each broker
forwards them to the controller.
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
    array,
    fields,
    mapping,
    numbers,
    structure,
    throttled,
    tuple_of,
)


class NewTopic(NamedTuple):
    """The size of a topic. The controller assigns the replicas to brokers."""

    partitions: int
    replication: int
    #: The number of partitions whose replicas are assigned here.
    assignments: int = 0
    #: The number of settings that differ from those of the brokers.
    settings: int = 0


_ERRORS = mapping(STRING, ERROR, "topic")


@dataclass(frozen=True, slots=True)
class CreateTopicsRequest(Request[Mapping[str, ErrorCode]]):
    """Create topics. The broker answers when the controller knows them, at the latest after ``timeout_ms``."""

    API_KEY, API_VERSION, ANSWER_NAME, ANSWER = 19, 0, "a create-topics response", _ERRORS
    BODY = fields(topics=mapping(STRING, numbers(NewTopic, "ihii"), "topic"), timeout_ms=INT32)

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
        """The numbers in the form that the request sends: with null as the assignment of replicas."""
        return {topic: (count, -1) for topic, count in self.partitions.items()}


@dataclass(frozen=True, slots=True)
class DeleteTopicsRequest(Request[Mapping[str, ErrorCode]]):
    """Delete topics. The broker answers when the controller knows of the deletion; brokers delete the logs later."""

    API_KEY, API_VERSION, ANSWER_NAME, ANSWER = 20, 0, "a delete-topics response", _ERRORS
    BODY = fields(topics=array(STRING), timeout_ms=INT32)

    topics: tuple[str, ...]
    timeout_ms: int
