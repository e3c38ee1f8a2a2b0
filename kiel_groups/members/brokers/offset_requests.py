"""Store and read the offsets of a group in Kafka, and retry while the coordinator changes or loads the offsets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from kiel_groups.backoff import Backoff
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.offset_requests import report_refused
from kiel_groups.config import BrokerConfig, HostPort
from kiel_groups.errors import (
    BrokerConnectionError,
    BrokerError,
    ConfigError,
    KielGroupsError,
    NoBrokersError,
    NoOffsetsError,
)
from kiel_groups.group.member_state import CoordinatorCode
from kiel_groups.members.brokers.transport import ClusterTransport, FindError
from kiel_groups.members.partition_handler import ReadOffsets, StoreAnswer
from kiel_groups.metrics import Metrics
from kiel_groups.model import OffsetAndMetadata, TopicPartition
from kiel_groups.wire.error_codes import (
    LEADER_NOT_AVAILABLE,
    NO_ERROR,
    NOT_ENOUGH_REPLICAS,
    NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    OFFSET_METADATA_TOO_LARGE,
    UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode,
)
from kiel_groups.wire.framing import Request
from kiel_groups.wire.offsets import OFFSETS_TOPIC, FetchedOffset, OffsetCommitRequestV1, OffsetFetchRequestV1
from kiel_groups.wording import some

log = logging.getLogger(__name__)


#: The first and the longest pause before an offset request is repeated, in seconds.
FIRST_READ_PAUSE_S, LONGEST_READ_PAUSE_S = 0.05, 1.0

#: The tries of a read take about six seconds, as long as a broker takes to load the offsets of a usual cluster.
_TRIES = 10

#: After these codes, the same request may succeed later, perhaps at another broker.
REPEATED: frozenset[int] = frozenset(
    {
        CoordinatorCode.UNKNOWN,
        CoordinatorCode.REQUEST_TIMED_OUT,
        CoordinatorCode.LOADING,
        CoordinatorCode.NOT_AVAILABLE,
        CoordinatorCode.NOT_COORDINATOR,
    }
)

#: Sends a read to the present coordinator.
Send: TypeAlias = Callable[[OffsetFetchRequestV1], Awaitable[Mapping[TopicPartition, FetchedOffset]]]


async def fetch_stored(
    group: str,
    partitions: Iterable[TopicPartition],
    send: Send,
    refused: Callable[[int], object] = lambda _: None,
    repeated: frozenset[int] = REPEATED,
) -> ReadOffsets:
    """
    Read the offsets that a group has committed, with their texts.

    Args:
        group: The group's name.
        partitions: The partitions whose offsets to read.
        send: Sends a request. The read calls ``send`` once for each try.
        refused: Called with each error code of an answer.
        repeated: The codes after which a partition is asked for again, in several tries. After any other code, the read
            ends.

    Returns:
        The offsets, and the error of each partition whose offset was not read. A NoOffsetsError is a permanent refusal.
    """
    waiting, backoff = tuple(sorted(partitions)), Backoff(FIRST_READ_PAUSE_S, LONGEST_READ_PAUSE_S)
    found: dict[TopicPartition, OffsetAndMetadata] = {}
    failures: dict[TopicPartition, KielGroupsError] = {}
    for attempt in range(_TRIES):
        if not waiting:
            break
        await asyncio.sleep(backoff.delay_s(attempt))
        try:
            answers = await send(OffsetFetchRequestV1(group, waiting))
        except KielGroupsError as error:
            log.info("group %s: no answer to a read of offsets: %s", group, error)
            failures |= dict.fromkeys(waiting, error)
            continue
        sound = {p: each for p, each in answers.items() if each.error == NO_ERROR}
        found |= {p: OffsetAndMetadata(each.offset, each.metadata) for p, each in sound.items() if each.offset >= 0}
        failures = {p: _failure(group, p, answers.get(p)) for p in waiting if p not in sound}
        codes = {each.error.number for each in answers.values() if each.error != NO_ERROR}
        for code in sorted(codes):
            refused(code)
        if codes - repeated:
            break
        waiting = tuple(failures)
        if waiting:
            log.info("%s", failures[waiting[0]])
    return ReadOffsets(found, failures)


def _failure(group: str, partition: TopicPartition, answer: FetchedOffset | None) -> KielGroupsError:
    if answer is None:
        return BrokerError(f"group {group}: the coordinator's answers lack {partition}")
    failure = answer.error.exception(f"group {group}: the offset of {partition} cannot be read")
    if answer.error.number in REPEATED:
        return failure
    return NoOffsetsError(str(failure), code=answer.error.number)


async def read_offsets(
    group: str, partitions: Iterable[TopicPartition], send: Send, refused: Callable[[int], object] = lambda _: None
) -> dict[TopicPartition, int]:
    """
    Read the offsets that a group has committed. The arguments are those of ``fetch_stored``.

    Returns:
        The offset of each partition that has a committed offset.

    Raises:
        NoOffsetsError: The coordinator refuses the read permanently.
        BrokerError: The coordinator has not answered in several tries, or not for all partitions.
        KielGroupsError: ``send`` has failed with this error in several tries.
    """
    found, failures = await fetch_stored(group, partitions, send, refused)
    if failures:
        final = [partition for partition, failure in failures.items() if isinstance(failure, NoOffsetsError)]
        raise failures[min(final or failures)]
    return {partition: each.offset for partition, each in found.items()}


# Store and read the offsets of a group in Kafka, for a group that ZooKeeper coordinates: OffsetCommit and OffsetFetch
# v1.
#
# The group has no members at its coordinator, so nothing fences its commits there.


T = TypeVar("T")

#: How long the coordinator may take for an answer, in milliseconds. It waits for the replicas of its log.
_ANSWER_MS = 3_000

#: How many groups are asked for at the same time.
_MOST_AT_ONCE = 16

#: A group that has no offsets, not even of the topic of the offsets.
_NO_GROUP = "kiel-groups-of-no-name"

#: The tries before brokers that close the connection count as too old. A broker that starts closes it, too.
_STORE_TRIES = 6

#: The generation and the member id of a commit that comes from no member.
NO_GENERATION, NO_MEMBER = -1, ""

#: After these codes, the same request may succeed later. A coordinator does not know a topic until the controller has
#: announced it, and has no leader for its own log while that log moves.
PASSING = REPEATED | {
    UNKNOWN_TOPIC_OR_PARTITION.number,
    LEADER_NOT_AVAILABLE.number,
    NOT_ENOUGH_REPLICAS.number,
    NOT_ENOUGH_REPLICAS_AFTER_APPEND.number,
}


#: After these codes, another broker may be the coordinator.
_DOUBTFUL = frozenset({CoordinatorCode.UNKNOWN, CoordinatorCode.NOT_AVAILABLE, CoordinatorCode.NOT_COORDINATOR})


class StoredInKafka:
    """
    Stores and reads the offsets of a group in Kafka; see ``KafkaOffsets``.

    Args:
        cluster: The brokers.
        group: The group's name.
        metrics: Counts commits that the coordinator refuses.
    """

    def __init__(self, cluster: ClusterMetadata, group: str, metrics: Metrics) -> None:
        self._cluster = cluster
        self._group = group
        self._metrics = metrics
        self._transport = ClusterTransport(cluster, group)
        #: The broker that was last named as the coordinator, and the broker that then failed or denied that role.
        self._coordinator: int | None = None
        self._doubted: int | None = None

    async def read(self, partitions: Collection[TopicPartition]) -> ReadOffsets:
        """Read offsets; see ``KafkaOffsets.read``."""
        return await fetch_stored(self._group, partitions, self._ask, self._note, PASSING)

    async def store(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> Mapping[TopicPartition, StoreAnswer]:
        """Ask the coordinator once to store offsets; see ``KafkaOffsets.store``."""
        request = OffsetCommitRequestV1(self._group, NO_GENERATION, NO_MEMBER, offsets)
        try:
            answers = await self._ask(request)
        except KielGroupsError as error:
            log.info("group %s: no answer to a commit: %s", self._group, error)
            return dict.fromkeys(offsets, StoreAnswer.UNKNOWN)
        for code in {each.number for each in answers.values()}:
            self._note(code)
        found = {partition: answers.get(partition) for partition in offsets}
        refused = {p: code for p, code in found.items() if code is not None and _meaning(code) is _REFUSED}
        report_refused(self._group, self._metrics, refused)
        return {partition: _meaning(code) for partition, code in found.items()}

    async def _ask(self, request: Request[T]) -> T:
        """Send a request to the coordinator. If the coordinator is unknown, find it first."""
        if self._coordinator is None:
            self._coordinator = await self._transport.find(self._doubted)
        timeout_s = min(_ANSWER_MS, self._cluster.config.request_timeout_ms) / 1000
        try:
            return await self._transport.send(self._coordinator, request, timeout_s, aside=True)
        except (KielGroupsError, asyncio.CancelledError):
            self._doubt()
            raise

    def _note(self, code: int) -> None:
        if code in _DOUBTFUL:
            self._doubt()

    def _doubt(self) -> None:
        """Forget the coordinator. The next request asks for it, at another broker if there is another broker."""
        if self._coordinator is not None:
            self._coordinator, self._doubted = None, self._coordinator


_REFUSED = StoreAnswer.REFUSED


def _meaning(code: ErrorCode | None) -> StoreAnswer:
    if code == NO_ERROR:
        return StoreAnswer.STORED
    if code == OFFSET_METADATA_TOO_LARGE:
        return StoreAnswer.TOO_LONG
    return StoreAnswer.UNKNOWN if code is None or code.number in PASSING else _REFUSED


async def check_kafka_offsets(cluster: ClusterMetadata, group: str) -> None:
    """
    Check that the brokers can store offsets in Kafka. Brokers of 0.8.0 and 0.8.1 close the connection on such a
    request.

    Raises:
        ConfigError: The brokers cannot store offsets in Kafka.
        NoBrokersError: No broker answers.
    """
    transport, backoff = ClusterTransport(cluster, group), cluster.new_backoff()
    failure: FindError | None = None
    for attempt in range(_STORE_TRIES):
        await asyncio.sleep(backoff.delay_s(attempt))
        try:
            await transport.find()
            return
        except FindError as error:
            if error.code is not None:
                # A broker that answers can coordinate, if not yet: a new cluster creates the log of offsets first.
                return
            failure = error
        if isinstance(failure.__cause__, BrokerConnectionError):
            # Only a live broker answers the metadata request.
            await cluster.refresh((), "offsets in Kafka")
    assert failure is not None
    if not isinstance(failure.__cause__, BrokerConnectionError):
        raise NoBrokersError(f"no broker answers for offsets in Kafka: {failure}") from failure
    raise ConfigError(
        "store: 'broker-v1' needs brokers that keep offsets in Kafka, from 0.8.2 on, and these close the connection on"
        " being asked, as those of Kafka 0.8.0 and 0.8.1 do; use store='zookeeper', or upgrade the brokers"
    )


@dataclass(frozen=True, slots=True)
class FoundOffsets:
    """
    The offsets of one group in Kafka, without partitions that have no offset.

    ``problem`` is the reason why offsets may be missing, or "" if the coordinator has answered for all partitions.
    """

    offsets: Mapping[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    problem: str = ""


async def find_kafka_offsets(
    brokers: Collection[HostPort],
    wanted: Mapping[str, Collection[TopicPartition]],
    *,
    doubtful: Collection[HostPort] = (),
    timeout_s: float = 5.0,
) -> dict[str, FoundOffsets]:
    """
    Read the offsets of groups, for command-line tools. Return an error as the ``problem`` of a group.

    Args:
        brokers: Addresses of brokers, to ask for the coordinator.
        wanted: Partitions of existing topics, by the group's name.
        doubtful: The addresses of brokers that may run Kafka 0.8.1. Brokers of 0.8.1 close the connection when they are
            asked for a coordinator. So if one of these brokers runs 0.8.1, the result is empty.
        timeout_s: Time for the whole look-up, in seconds.
    """
    found = {group: FoundOffsets() for group in wanted}
    asked = {group: partitions for group, partitions in wanted.items() if partitions}
    if not asked:
        return found
    if not brokers:
        return found | dict.fromkeys(asked, FoundOffsets(problem="no broker is registered in ZooKeeper"))
    cluster = ClusterMetadata(BrokerConfig.of_tool(brokers, timeout_s), Metrics())
    at_once = asyncio.Semaphore(_MOST_AT_ONCE)

    async def read(group: str) -> None:
        async with at_once:
            offsets, failures = await StoredInKafka(cluster, group, Metrics()).read(asked[group])
        found[group] = FoundOffsets(offsets, str(failures[min(failures)]) if failures else "")

    late = {each: f"the coordinator of group {each} did not answer within {timeout_s:g} s" for each in asked}
    found |= {group: FoundOffsets(problem=problem) for group, problem in late.items()}
    try:
        async with asyncio.timeout(timeout_s):
            await cluster.refresh({each.topic for partitions in asked.values() for each in partitions}, "asked")
            if early := [each for each in await asyncio.gather(*(_early(cluster, each) for each in doubtful)) if each]:
                log.info("offsets in Kafka are not asked for, because of brokers of 0.8.1: %s", some(early))
                return {}
            await asyncio.gather(*map(read, asked))
    except TimeoutError:
        pass
    except KielGroupsError as error:
        found |= dict.fromkeys(asked, FoundOffsets(problem=str(error)))
    finally:
        cluster.close()
    return found


async def _early(cluster: ClusterMetadata, address: HostPort) -> HostPort | None:
    """
    Return the address if the broker runs Kafka 0.8.1, or else None.

    Brokers of 0.8.1 answer an OffsetFetch v1 from ZooKeeper, and report a missing znode. Later brokers report that they
    do not coordinate the group, or that it has no offset. The result is None, too, for a broker that does not answer.
    """
    partition = TopicPartition(OFFSETS_TOPIC, 0)
    request = OffsetFetchRequestV1(_NO_GROUP, (partition,))
    try:
        answer = await cluster.connection_to(address, "offsets").request(request, _ANSWER_MS)
    except KielGroupsError:
        return None
    assert answer is not None, "the request has an answer"
    found = answer.get(partition)
    return address if found is not None and found.error == UNKNOWN_TOPIC_OR_PARTITION else None
