"""Create, grow and delete topics by requests to brokers, which take them from Kafka 0.10.1 on, or 1.0 for growth."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from kiel_groups.admin.cluster_admin import check_topic
from kiel_groups.admin.topic_refusals import existing_topics, unknown_topics
from kiel_groups.backoff import Backoff
from kiel_groups.broker_admin.broker_session import BrokerSession
from kiel_groups.errors import BrokerError, ConfigError, KielGroupsError
from kiel_groups.wire.api.metadata_v0 import MetadataRequest, MetadataResponse
from kiel_groups.wire.api.topic_changes_v0 import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    NewTopic,
)
from kiel_groups.wire.error_codes import (
    NO_ERROR,
    NOT_CONTROLLER,
    TOPIC_ALREADY_EXISTS,
    UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode,
)
from kiel_groups.wire.framing import Request
from kiel_groups.wording import counted

__all__ = ["create_topic", "delete_topic", "grow_topic"]

#: How long a change may take, until every live broker knows it.
_LIMIT_S: Final = 30.0
_LIMIT_MS = round(_LIMIT_S * 1000)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.2


async def create_topic(session: BrokerSession, topic: str, partitions: int, replication: int) -> None:
    """
    Create a topic, and wait until every live broker knows the leaders of its partitions.

    Raises:
        ConfigError: ``check_topic`` refuses the topic, the topic exists, ``replication`` is not between 1 and the
            number of brokers, or the brokers are too old for such requests.
        BrokerError: The controller refuses, no broker is the controller, or leaders are missing after 30 s.
    """
    check_topic(topic, partitions)
    count = len(session.brokers)
    if not 1 <= replication <= count:
        raise ConfigError(f"replication: {replication} given; expected 1 to {count}, the number of live brokers")
    request = CreateTopicsRequest({topic: NewTopic(partitions, replication)}, _LIMIT_MS)
    error = (await _ask_controller(session, request, "create topics", "0.10.1"))[topic]
    if error is TOPIC_ALREADY_EXISTS:
        raise existing_topics([topic])
    _check(error, topic, "created")
    await _await_everywhere(session, lambda found: _led(found, topic) >= partitions, f"all leaders of topic {topic!r}")


async def grow_topic(session: BrokerSession, topic: str, partitions: int) -> None:
    """
    Increase a topic's number of partitions to ``partitions``, and wait until every live broker knows their leaders.

    Raises:
        UnknownTopicError: The topic does not exist.
        ConfigError: The topic has at least ``partitions`` already, its name is too long for that number, or the brokers
            are too old for such requests.
        BrokerError: As for ``create_topic``.
    """
    found = session.topics.get(topic)
    if found is None:
        raise unknown_topics([topic], session.topics, session.place)
    if partitions <= len(found.partitions):
        raise ConfigError(
            f"topic {topic!r} has {counted(found.partitions, 'partition', 'partitions')} already;"
            f" --partitions {partitions} given, expected more"
        )
    check_topic(topic, partitions)
    request = CreatePartitionsRequest({topic: partitions}, _LIMIT_MS)
    _check((await _ask_controller(session, request, "add partitions", "1.0"))[topic], topic, "grown")
    await _await_everywhere(session, lambda found: _led(found, topic) >= partitions, f"all leaders of topic {topic!r}")


async def delete_topic(session: BrokerSession, topic: str) -> None:
    """
    Delete a topic, and wait until no live broker knows it.

    Raises:
        UnknownTopicError: The topic does not exist.
        ConfigError: The brokers are too old for such requests.
        BrokerError: As for ``create_topic``.
    """
    error = (await _ask_controller(session, DeleteTopicsRequest((topic,), _LIMIT_MS), "delete topics", "0.10.1"))[topic]
    if error is UNKNOWN_TOPIC_OR_PARTITION:
        raise unknown_topics([topic], session.topics, session.place)
    _check(error, topic, "deleted")
    await _await_everywhere(
        session, lambda found: all(each.topic != topic for each in found.topics), f"the end of topic {topic!r}"
    )


async def _ask_controller(
    session: BrokerSession, request: Request[Mapping[str, ErrorCode]], what: str, release: str
) -> Mapping[str, ErrorCode]:
    """Ask each live broker until one is the controller, or knows it: only those of KRaft mode pass requests on."""
    if request.API_KEY not in session.ranges:
        raise ConfigError(
            f"brokers {what} on request from Kafka {release} on, and these are older; give '--coordination zookeeper'"
            " with '--zookeeper' instead"
        )
    backoff, until_s = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S), asyncio.get_running_loop().time() + _LIMIT_S
    failure: KielGroupsError = BrokerError(f"no broker is the controller {session.place}: none is alive")
    while True:
        for node_id in sorted(session.brokers):
            try:
                answer = await session.ask(node_id, request, timeout_ms=2 * _LIMIT_MS)
            except KielGroupsError as error:
                failure = error
                continue
            if NOT_CONTROLLER not in answer.values():
                return answer
            failure = NOT_CONTROLLER.exception(f"{session.name_of(node_id)} does not {what}")
        pause_s = backoff.next_s()
        if asyncio.get_running_loop().time() + pause_s > until_s:
            raise failure
        await asyncio.sleep(pause_s)
        await session.refresh()


async def _await_everywhere(session: BrokerSession, is_done: Callable[[MetadataResponse], bool], what: str) -> None:
    """Wait until every live broker's metadata shows a change."""
    until_s = asyncio.get_running_loop().time() + _LIMIT_S
    for node_id in sorted(session.brokers):
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        # All topics: a broker that creates topics on demand would do so for a name that it does not know.
        while not is_done(await session.ask(node_id, MetadataRequest(()))):
            if asyncio.get_running_loop().time() > until_s:
                raise BrokerError(f"{session.name_of(node_id)} does not know {what} after {_LIMIT_S:g} s; see its log")
            await asyncio.sleep(backoff.next_s())


def _led(found: MetadataResponse, topic: str) -> int:
    return sum(each.leader >= 0 for known in found.topics if known.topic == topic for each in known.partitions)


def _check(error: ErrorCode, topic: str, change: str) -> None:
    if error is not NO_ERROR:
        raise error.exception(f"topic {topic!r} was not {change}")
