"""
Create, grow and delete topics by requests to brokers in KRaft mode, where no ZooKeeper has the topics.

The functions block, as those of ``admin.cluster_admin`` do, and raise the same errors. ``brokers`` are the addresses of
all running brokers: a topic counts as created when each of them knows the leader of each partition.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from typing import TypeVar

from kiel_groups.admin.cluster_admin import check_topic
from kiel_groups.config import parse_hosts
from kiel_groups.errors import ConfigError, ServerError, UnknownTopicError
from kiel_groups.wire.api.metadata_v0 import MetadataRequest, TopicMetadata
from kiel_groups.wire.api.topic_changes_v0 import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    NewTopic,
)
from kiel_groups.wire.error_codes import (
    NO_ERROR,
    TOPIC_ALREADY_EXISTS,
    UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode,
)
from kiel_groups.wire.framing import SIZE_BYTES, Request, decode_size, encode_request, split_response
from kiel_groups.wording import counted

__all__ = ["create_topic", "delete_topic", "grow_topic"]

ResponseT = TypeVar("ResponseT")

_LIMIT_S = 30.0
_POLL_S = 0.01
_LARGEST_ANSWER_BYTES = 10 << 20


def create_topic(brokers: Sequence[str], topic: str, partitions: int, replication: int = 1) -> None:
    """
    Create a topic, and wait until every broker knows the leaders of its partitions.

    Raises:
        ConfigError: ``check_topic`` refuses the topic, the topic exists, or ``replication`` is not between 1 and the
            number of brokers.
        BrokerError: The controller refuses the topic.
        ServerError: No broker runs, one does not answer, or some partitions have no leader after 30 s.
    """
    check_topic(topic, partitions)
    if brokers and not 1 <= replication <= len(brokers):
        raise ConfigError(f"replication: {replication} given; expected 1 to {len(brokers)}, the number of live brokers")
    request = CreateTopicsRequest({topic: NewTopic(partitions, replication)}, _request_limit_ms())
    error = _ask(_one(brokers), request)[topic]
    if error is TOPIC_ALREADY_EXISTS:
        raise ConfigError(f"topic {topic!r} exists already; delete it first, or choose another name")
    _check(error, topic, "created")
    _await_leaders(brokers, topic, partitions)


def grow_topic(brokers: Sequence[str], topic: str, partitions: int) -> None:
    """
    Increase a topic's number of partitions to ``partitions``, and wait until every broker knows their leaders.

    Raises:
        UnknownTopicError: The topic does not exist.
        ConfigError: The topic has at least ``partitions`` already, or its name is too long for that number.
        BrokerError: The controller refuses.
        ServerError: No broker runs, one does not answer, or some partitions have no leader after 30 s.
    """
    broker = _one(brokers)
    found = _described(broker, topic)
    if found.error is UNKNOWN_TOPIC_OR_PARTITION:
        raise _unknown(topic)
    if partitions <= len(found.partitions):
        raise ConfigError(
            f"topic {topic!r} has {counted(found.partitions, 'partition', 'partitions')} already;"
            f" {partitions} given, expected more"
        )
    check_topic(topic, partitions)
    _check(_ask(broker, CreatePartitionsRequest({topic: partitions}, _request_limit_ms()))[topic], topic, "grown")
    _await_leaders(brokers, topic, partitions)


def delete_topic(brokers: Sequence[str], topic: str) -> None:
    """
    Delete a topic, and wait until no broker knows it.

    Raises:
        UnknownTopicError: The topic does not exist.
        BrokerError: The controller refuses.
        ServerError: No broker runs, one does not answer, or one still knows the topic after 30 s.
    """
    error = _ask(_one(brokers), DeleteTopicsRequest((topic,), _request_limit_ms()))[topic]
    if error is UNKNOWN_TOPIC_OR_PARTITION:
        raise _unknown(topic)
    _check(error, topic, "deleted")
    deadline = time.monotonic() + _LIMIT_S
    for broker in brokers:
        while _described(broker, topic).error is not UNKNOWN_TOPIC_OR_PARTITION:
            if time.monotonic() > deadline:
                raise ServerError(f"topic {topic!r} is still there {_LIMIT_S:g} s after its deletion")
            time.sleep(_POLL_S)


def _await_leaders(brokers: Sequence[str], topic: str, partitions: int) -> None:
    deadline = time.monotonic() + _LIMIT_S
    for broker in brokers:
        while (led := sum(one.leader >= 0 for one in _described(broker, topic).partitions)) < partitions:
            if time.monotonic() > deadline:
                raise ServerError(
                    f"topic {topic!r}: {partitions - led} of {partitions} partitions lack a leader after {_LIMIT_S:g} s"
                    f" at {broker}; look at the brokers' logs"
                )
            time.sleep(_POLL_S)


def _described(broker: str, topic: str) -> TopicMetadata:
    (found,) = _ask(broker, MetadataRequest((topic,))).topics
    return found


def _ask(broker: str, request: Request[ResponseT]) -> ResponseT:
    """Send a request on a connection of its own. Raise ServerError if the broker does not answer."""
    try:
        with socket.create_connection(parse_hosts(broker, 0, "broker")[0], timeout=_LIMIT_S) as connection:
            connection.sendall(encode_request(request, 0, "kiel-groups"))
            with connection.makefile("rb") as answers:
                size = decode_size(answers.read(SIZE_BYTES), _LARGEST_ANSWER_BYTES)
                return request.decode_response(split_response(answers.read(size)).payload)
    except OSError as error:
        raise ServerError(f"the broker at {broker} does not answer: {error}") from error


def _one(brokers: Sequence[str]) -> str:
    if not brokers:
        raise ServerError("no broker of the cluster runs; start one")
    return brokers[0]


def _check(error: ErrorCode, topic: str, change: str) -> None:
    if error is not NO_ERROR:
        raise error.exception(f"topic {topic!r} was not {change}")


def _unknown(topic: str) -> UnknownTopicError:
    return UnknownTopicError(f"topic {topic!r} does not exist")


def _request_limit_ms() -> int:
    return round(_LIMIT_S * 1_000)
