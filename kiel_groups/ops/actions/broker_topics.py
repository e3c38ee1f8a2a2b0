"""
Read, create, grow and delete topics by requests to brokers.

Brokers create and delete topics on request from Kafka 0.10.1 on, and grow topics from 1.0 on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from kiel_groups.backoff import Backoff
from kiel_groups.errors import BrokerError, ConfigError, KielGroupsError, NoBrokersError, RequestTimeoutError
from kiel_groups.model import TopicPartition
from kiel_groups.ops.actions.topics import (
    DescribedTopics,
    LiveBroker,
    PartitionState,
    TopicSize,
    TopicState,
    check_absent,
    check_growth,
    check_present,
    check_replication,
    check_topic,
    existing_topics,
    most_replicas,
    unknown_topics,
)
from kiel_groups.ops.broker_reader import BrokerSession, in_session
from kiel_groups.wire.error_codes import (
    INVALID_PARTITIONS,
    NO_ERROR,
    NOT_CONTROLLER,
    REQUEST_TIMED_OUT,
    TOPIC_ALREADY_EXISTS,
    UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode,
)
from kiel_groups.wire.framing import Request
from kiel_groups.wire.metadata import ClusterRequest, MetadataRequest, MetadataResponse, TopicMetadata
from kiel_groups.wire.topic_requests import CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest, NewTopic
from kiel_groups.wording import some

T = TypeVar("T")

#: The longest time for the controller to make a change, and for all live brokers to learn of the change, in seconds.
_LIMIT_S = 30.0

#: How much longer to wait for the controller's answer, in seconds: after ``_LIMIT_S``, it answers with an error.
_ANSWER_S = 5.0

#: The key of a request that only brokers in KRaft mode know: DescribeQuorum.
_QUORUM = 55

_POLL_S = 0.1
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.2


class BrokerTopics:
    """
    Reads and changes the topics of a cluster by requests to its brokers.

    The calls block, and raise the errors of ``BrokerSession``.

    Args:
        brokers: ``host:port`` of some brokers, separated by commas.
        timeout_s: How long a broker may take for an answer, in seconds.
        count: How many brokers must be alive before each call, so that every broker learns of a change. A call waits
            for these brokers, and raises BrokerError after 30 s.
        security: The file with the credentials, if it is not the one that the environment names.
    """

    def __init__(self, brokers: str, *, timeout_s: float = 10.0, count: int = 0, security: Path | None = None) -> None:
        self._brokers = brokers
        self._timeout_s = timeout_s
        self._count = count
        self._security = security

    def names(self) -> list[str]:
        """Return the names of all topics, in alphabetical order."""
        return sorted(self._metadata())

    def sizes(self) -> Mapping[str, TopicSize]:
        """Return the size of each topic by the topic's name, in alphabetical order."""
        return {
            name: TopicSize(len(topic.partitions), most_replicas(each.replicas for each in topic.partitions))
            for name, topic in sorted(self._metadata().items())
        }

    def brokers(self) -> list[LiveBroker]:
        """
        Return the live brokers, in the order of their ids.

        Brokers before 0.10.1, and brokers in KRaft mode, do not name the controller. Then ``controller`` is None.
        """

        async def read(session: BrokerSession) -> list[LiveBroker]:
            controller = None
            if session.knows(ClusterRequest()) and _QUORUM not in session.ranges:
                controller = (await session.ask_any(ClusterRequest())).controller
            return [
                LiveBroker(number, str(address), None if controller is None else number == controller)
                for number, address in sorted(session.brokers.items())
            ]

        return self._with(read)

    def describe(self, names: Sequence[str]) -> DescribedTopics:
        """Return the states of topics, in the order of ``names``. Raise UnknownTopicError if a topic does not exist."""

        async def read(session: BrokerSession) -> DescribedTopics:
            check_present(names, session.topics, session.place)
            states = [_state(session.topics[name]) for name in names]
            return DescribedTopics(states, list(session.brokers.values()), frozenset(session.brokers))

        return self._with(read)

    def await_brokers(self, count: int, timeout_s: float) -> None:
        """Wait until ``count`` brokers are alive, at most ``timeout_s`` seconds; a timeout raises no error."""

        async def alive(session: BrokerSession) -> int:
            return len(session.brokers)

        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            with suppress(NoBrokersError):  # No broker has started yet.
                if self._with(alive) >= count:
                    return
            time.sleep(_POLL_S)

    def create(
        self, topic: str, partitions: int, replication: int = 1, settings: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic, and wait until every live broker knows its leaders; see ``create_topic``."""
        self._with(lambda session: create_topic(session, topic, partitions, replication, settings or {}))

    def grow(self, topic: str, partitions: int) -> None:
        """
        Increase a topic's number of partitions, and wait until every live broker knows the change; see ``grow_topic``.
        """
        self._with(lambda session: grow_topic(session, topic, partitions))

    def delete(self, topic: str) -> None:
        """Delete a topic, and wait until no live broker knows it; see ``delete_topic``."""
        self._with(lambda session: delete_topic(session, topic))

    def _metadata(self) -> dict[str, TopicMetadata]:
        async def read(session: BrokerSession) -> dict[str, TopicMetadata]:
            return session.topics

        return self._with(read)

    def _with(self, work: Callable[[BrokerSession], Awaitable[T]]) -> T:
        async def awaited(session: BrokerSession) -> T:
            await session.await_brokers(self._count, _LIMIT_S)
            return await work(session)

        return in_session(self._brokers, self._timeout_s, awaited, security=self._security)


def _state(topic: TopicMetadata) -> TopicState:
    partitions = tuple(
        PartitionState(
            TopicPartition(topic.topic, each.partition),
            each.replicas,
            each.leader if each.leader >= 0 else None,
            each.isr,
        )
        for each in sorted(topic.partitions, key=lambda each: each.partition)
    )
    return TopicState(topic.topic, partitions, config=None, is_being_deleted=None)


class _Kind(NamedTuple):
    """
    A kind of change of topics, with the first release that supports it and words for messages.

    ``conflict`` is the controller's answer if the topic is already as the change would make it. ``late`` is the end of
    the message about a change that takes too long.
    """

    what: str
    release: str
    done: str
    conflict: ErrorCode
    late: str = ""


_CREATION = _Kind("create topics", "0.10.1", "created", TOPIC_ALREADY_EXISTS)
_GROWTH = _Kind("add partitions", "1.0", "grown", INVALID_PARTITIONS)
_DELETION = _Kind(
    "delete topics",
    "0.10.1",
    "deleted",
    UNKNOWN_TOPIC_OR_PARTITION,
    "; before Kafka 1.0, brokers delete topics only if delete.topic.enable=true is set",
)


async def create_topic(
    session: BrokerSession, topic: str, partitions: int, replication: int, settings: Mapping[str, str]
) -> None:
    """
    Create a topic with settings of its own, and wait until every live broker knows the leaders of its partitions.

    Raises:
        ConfigError: ``check_topic`` refuses the topic, the topic exists, ``replication`` is not between 1 and the
            number of brokers, or the brokers are too old for such requests.
        BrokerError: The controller refuses the request, no broker answers as the controller, or a broker does not know
            the change after 30 s. In the last case, and after a timeout, the change may have been made.
    """
    check_topic(topic, partitions)
    check_replication(replication, session.brokers)
    check_absent([topic], session.topics)
    request = CreateTopicsRequest({topic: NewTopic(partitions, replication, settings=settings)}, _limit_ms())
    if await _change(session, request, topic, _CREATION) is TOPIC_ALREADY_EXISTS:
        raise existing_topics([topic])
    await _await_everywhere(session, topic, _CREATION, lambda found: _led(found, topic) >= partitions)


async def grow_topic(session: BrokerSession, topic: str, partitions: int) -> None:
    """
    Increase a topic's number of partitions, and wait until every live broker knows the leaders of all partitions.

    Raises:
        UnknownTopicError: The topic does not exist.
        ConfigError: The topic has at least ``partitions`` already, the name is too long for this number, or the brokers
            are too old for such requests.
        BrokerError: As for ``create_topic``.
    """
    check_present([topic], session.topics, session.place)
    check_growth(topic, session.topics[topic].partitions, partitions)
    error = await _change(session, CreatePartitionsRequest({topic: partitions}, _limit_ms()), topic, _GROWTH)
    if error is not NO_ERROR:
        raise error.exception(f"topic {topic!r} was not grown")
    await _await_everywhere(session, topic, _GROWTH, lambda found: _led(found, topic) >= partitions)


async def delete_topic(session: BrokerSession, topic: str) -> None:
    """
    Delete a topic, and wait until no live broker knows it.

    Raises:
        UnknownTopicError: The topic does not exist.
        ConfigError: The brokers are too old for such requests.
        BrokerError: As for ``create_topic``.
    """
    if await _change(session, DeleteTopicsRequest((topic,), _limit_ms()), topic, _DELETION) is not NO_ERROR:
        raise unknown_topics([topic], session.topics, session.place)
    await _await_everywhere(session, topic, _DELETION, lambda found: all(each.topic != topic for each in found.topics))


async def _change(
    session: BrokerSession, request: Request[Mapping[str, ErrorCode]], topic: str, kind: _Kind
) -> ErrorCode:
    """
    Send a request to the live brokers in turn, until a broker answers as the controller.

    Brokers in KRaft mode forward the request to the controller.

    Returns:
        NO_ERROR, or the conflict of ``kind``. A conflict counts as NO_ERROR if the answer to an earlier request was
        lost, because that request may have made the change.

    Raises:
        ConfigError: The brokers are too old for such requests.
        BrokerError: The controller refuses the request, or no broker answers as the controller within 30 s.
    """
    if request.API_KEY not in session.ranges:
        raise ConfigError(
            f"brokers {kind.what} on request from Kafka {kind.release} on, and these are older; give"
            " '--coordination zookeeper' with '--zookeeper' instead"
        )
    backoff, until_s = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S), asyncio.get_running_loop().time() + _LIMIT_S
    is_unknown = False
    while True:
        problems = []
        for node_id in sorted(session.brokers):
            is_sent = False
            try:
                # A quick request finds a broker that answers nothing; the controller may take long for a change.
                await _metadata(session, node_id)
                is_sent = True
                answer = await session.ask(node_id, request, timeout_ms=_limit_ms(_ANSWER_S))
            except KielGroupsError as failure:
                is_unknown |= is_sent
                problems.append(str(failure))
                continue
            error = answer.get(topic, NOT_CONTROLLER)
            if error is not NOT_CONTROLLER:
                return NO_ERROR if is_unknown and error is kind.conflict else _checked(error, topic, kind)
            problems.append(f"{session.name_of(node_id)}: {error}")
        pause_s = backoff.next_s()
        if asyncio.get_running_loop().time() + pause_s > until_s:
            outcome = "may have been" if is_unknown else "was not"
            what = f"topic {topic!r} {outcome} {kind.done}: no broker has answered as the controller"
            raise BrokerError(f"{what}: {some(problems) or 'none is alive'}")
        await asyncio.sleep(pause_s)
        await session.refresh()


def _checked(error: ErrorCode, topic: str, kind: _Kind) -> ErrorCode:
    """Return the controller's answer if it is NO_ERROR or the conflict. Raise BrokerError for any other answer."""
    if error is REQUEST_TIMED_OUT:
        text = f"topic {topic!r}: the controller has not {kind.done} it within {_LIMIT_S:g} s, and may do so later"
        raise RequestTimeoutError(f"{text}{kind.late}", code=error.number)
    if error not in (NO_ERROR, kind.conflict):
        raise error.exception(f"topic {topic!r} was not {kind.done}")
    return error


async def _await_everywhere(
    session: BrokerSession, topic: str, kind: _Kind, is_done: Callable[[MetadataResponse], bool]
) -> None:
    """
    Wait until the metadata of every live broker shows a change.

    Raises:
        BrokerError: A live broker does not show the change after 30 s.
    """
    until_s = asyncio.get_running_loop().time() + _LIMIT_S
    for node_id in sorted(session.brokers):
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while node_id in session.brokers:
            reason = "see its log"
            try:
                if is_done(await _metadata(session, node_id)):
                    break
            except KielGroupsError as error:
                reason = str(error)
                await session.refresh()
            if asyncio.get_running_loop().time() > until_s:
                name = session.name_of(node_id)
                raise BrokerError(
                    f"topic {topic!r} was {kind.done}, and {name} does not know that after {_LIMIT_S:g} s: {reason}"
                )
            await asyncio.sleep(backoff.next_s())


async def _metadata(session: BrokerSession, node_id: int) -> MetadataResponse:
    """Return a broker's metadata of all topics. The request names no topic, because a broker might create the topic."""
    return await session.ask(node_id, MetadataRequest(()), timeout_ms=session.cluster.config.connect_timeout_ms)


def _led(found: MetadataResponse, topic: str) -> int:
    return sum(each.leader >= 0 for known in found.topics if known.topic == topic for each in known.partitions)


def _limit_ms(more_s: float = 0.0) -> int:
    return round((_LIMIT_S + more_s) * 1000)
