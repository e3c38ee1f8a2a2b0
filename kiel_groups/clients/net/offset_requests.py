"""Commit and fetch offsets in ZooKeeper through any broker, with OffsetCommit and OffsetFetch v0."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.offset_lookup import policy_offsets
from kiel_groups.config import HostPort
from kiel_groups.errors import (
    BrokerConnectionError,
    BrokerError,
    ConfigError,
    KielGroupsError,
    NoBrokersError,
    NoOffsetsError,
    ProtocolError,
    RequestTimeoutError,
)
from kiel_groups.group.seen_topics import LogSight
from kiel_groups.members.partition_handler import KafkaOffsets, LogOffsets
from kiel_groups.metrics import Metrics
from kiel_groups.model import OffsetAndMetadata, TopicPartition
from kiel_groups.wire.error_codes import (
    NO_ERROR,
    OFFSET_METADATA_TOO_LARGE,
    UNKNOWN,
    UNKNOWN_MEMBER_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode,
)
from kiel_groups.wire.framing import Request
from kiel_groups.wire.offsets import FetchedOffset, OffsetCommitRequest, OffsetFetchRequest
from kiel_groups.wire.primitives import LONGEST_STRING
from kiel_groups.wording import counted

log = logging.getLogger(__name__)


A = TypeVar("A")

_TRIES = 6

#: How long one broker may take for an offset request, in milliseconds. The broker only reads or writes ZooKeeper.
ANSWER_MS = 1_500

_LIVE_GROUP = (
    "brokers coordinate a group of this name, and take commits of its members only; stop those consumers, or choose"
    " another group"
)

#: The answers that are not retried: the offset was found, or the partition probably has none.
_SETTLED = (NO_ERROR, UNKNOWN_TOPIC_OR_PARTITION)


async def check_offset_api(cluster: ClusterMetadata, group: str) -> None:
    """
    Check that the brokers support offset requests. Brokers of 0.8.0 close the connection instead of answering.

    Raises:
        ConfigError: The brokers do not support offset requests.
        NoBrokersError: No broker answers.
        ProtocolError: A broker's answer cannot be decoded.
    """
    silence: KielGroupsError | None = None
    backoff = cluster.new_backoff()
    for attempt in range(_TRIES):
        await asyncio.sleep(backoff.delay_s(attempt))
        try:
            await _fetch(cluster, group, ())
            return
        except BrokerConnectionError:
            # The broker is of 0.8.0, or down. Only a live broker answers the metadata request.
            silence = None
            await cluster.refresh((), "offset API")
        except RequestTimeoutError as error:
            # A frozen or busy broker does not show what it supports; another broker may answer.
            log.info("group %s: %s", group, error)
            silence = error
    if silence is not None:
        raise NoBrokersError(f"no broker answers for offsets: {silence}")
    raise ConfigError(
        "store: 'broker-v0' needs brokers that store offsets, and these close the connection on being asked, as those"
        " of Kafka 0.8.0 do; use store='zookeeper' (the offsets are in the same place)"
    )


async def fetch_offsets(
    cluster: ClusterMetadata, group: str, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """
    Ask any broker for committed next offsets. Retry with backoff after failures that may pass.

    Returns:
        The offsets that brokers found. A partition is left out if it has no offset, or if the broker does not know its
        topic yet: brokers answer error 3 in both cases. A partition is also left out if brokers cannot read its znode
        in any try, as when the znode's data is not a number: brokers answer error -1 then.

    Raises:
        NoOffsetsError: A broker answers with an error that a retry cannot fix. The text names a partition.
        BrokerError, ProtocolError: No broker gave a usable answer in time.
    """
    waiting = tuple(sorted(partitions))
    found: dict[TopicPartition, int] = {}
    failure: KielGroupsError | None = None
    again: dict[TopicPartition, ErrorCode] = {}
    backoff = cluster.new_backoff()
    for attempt in range(_TRIES):
        await asyncio.sleep(backoff.delay_s(attempt))
        try:
            if attempt:
                await cluster.refresh({tp.topic for tp in waiting}, "offsets")
            answers = await _fetch(cluster, group, waiting)
        except (BrokerError, ProtocolError) as error:
            failure, again = error, {}
            continue
        found |= {tp: answer.offset for tp, answer in answers.items() if answer.error == NO_ERROR}
        again = {tp: answer.error for tp, answer in answers.items() if answer.error not in _SETTLED}
        for tp, code in again.items():
            failure = code.exception(f"group {group}: the offset of {tp} cannot be fetched")
            if not _may_pass(code):
                raise NoOffsetsError(str(failure), code=code.number)
        waiting = tuple(sorted(again))
        if not waiting:
            return found
    if set(again.values()) == {UNKNOWN}:
        log.warning("group %s: brokers cannot read the offsets of %s", group, ", ".join(map(str, waiting)))
        return found
    assert failure is not None
    raise failure


async def commit_offsets(
    cluster: ClusterMetadata, metrics: Metrics, group: str, offsets: Mapping[TopicPartition, int], metadata: str
) -> dict[TopicPartition, ErrorCode]:
    """
    Ask any broker to store next offsets. Retry with backoff after failures that may pass.

    Args:
        cluster: The brokers.
        metrics: Counts offsets that brokers refused.
        group: The group that the offsets belong to.
        offsets: The next offset of each partition.
        metadata: A text. Brokers check its length, and then discard the text. A text that is too long is not sent.

    Returns:
        The last answer for every partition, or UNKNOWN if no broker answered. Then the offset may or may not be stored.
    """
    answers: dict[TopicPartition, ErrorCode] = dict.fromkeys(offsets, UNKNOWN)
    waiting = dict(offsets)
    refresh_first = False
    if len(metadata.encode()) > LONGEST_STRING:
        _warn_of_metadata(group, metadata)
        metadata = ""
    backoff = cluster.new_backoff()
    for attempt in range(_TRIES):
        await asyncio.sleep(backoff.delay_s(attempt))
        request = OffsetCommitRequest(group, {tp: OffsetAndMetadata(at, metadata) for tp, at in waiting.items()})
        try:
            if refresh_first:
                await cluster.refresh({tp.topic for tp in waiting}, "commit")
            answers |= await _ask(cluster, request, lambda answer: answer)
            refresh_first = True
        except (BrokerError, ProtocolError) as error:
            # The offsets may be stored or not. After a silent broker the next try goes to another broker. Any
            # other failure may mean that the metadata is stale.
            log.info("group %s: no answer to a commit: %s", group, error)
            answers |= dict.fromkeys(waiting, UNKNOWN)
            refresh_first = not isinstance(error, RequestTimeoutError)
        if OFFSET_METADATA_TOO_LARGE in answers.values() and metadata:
            _warn_of_metadata(group, metadata)
            metadata = ""
        waiting = {tp: offsets[tp] for tp, error in answers.items() if _may_pass(error)}
        if not waiting:
            break
    report_refused(group, metrics, {tp: error for tp, error in answers.items() if error != NO_ERROR})
    return answers


def _may_pass(error: ErrorCode) -> bool:
    return error.retriable or error in (UNKNOWN, OFFSET_METADATA_TOO_LARGE)


async def _ask(
    cluster: ClusterMetadata, request: Request[Mapping[TopicPartition, A]], error_of: Callable[[A], ErrorCode]
) -> Mapping[TopicPartition, A]:
    """Send a request to any broker, preferably a broker without a recent failure. Wait ``ANSWER_MS`` at most."""
    timeout_ms = min(ANSWER_MS, cluster.config.request_timeout_ms)
    connection = cluster.some_connection()
    try:
        answers = await connection.request(request, timeout_ms)
    except (BrokerError, ProtocolError):
        cluster.note_failure(connection)
        raise
    assert answers is not None, "offset requests have answers"
    if any(error_of(answer).retriable for answer in answers.values()):
        cluster.note_failure(connection)
    return answers


async def _fetch(
    cluster: ClusterMetadata, group: str, partitions: tuple[TopicPartition, ...]
) -> Mapping[TopicPartition, FetchedOffset]:
    return await _ask(cluster, OffsetFetchRequest(group, partitions), lambda answer: answer.error)


def report_refused(group: str, metrics: Metrics, refused: Mapping[TopicPartition, ErrorCode]) -> None:
    """Count and log the offsets that a broker refuses to store, with the reason."""
    for code in sorted(set(refused.values()), key=lambda each: each.number):
        partitions = [partition for partition, each in refused.items() if each == code]
        metrics.count("commits_refused", len(partitions), error=code.name)
        log.error(
            "group %s: the offsets of %s, first %s, were not stored: %s: %s",
            group,
            counted(partitions, "partition"),
            min(partitions),
            code,
            _LIVE_GROUP if code == UNKNOWN_MEMBER_ID else code.hint,
        )


def _warn_of_metadata(group: str, metadata: str) -> None:
    length = counted(len(metadata), "character")
    log.warning("group %s: the metadata of a commit is too long (%s): left out", group, length)


class GroupBrokers:
    """
    A base class of partition handlers, with the methods of ``PartitionHandler`` that send requests to brokers.

    Args:
        cluster: The brokers that look up and store offsets.
        group: The group's name.
        metrics: Counts commits that brokers refuse.
        kafka_offsets: The group's offsets in Kafka.
    """

    def __init__(self, cluster: ClusterMetadata, group: str, metrics: Metrics, kafka_offsets: KafkaOffsets) -> None:
        self._cluster = cluster
        self._group = group
        self._metrics = metrics
        self.kafka_offsets = kafka_offsets

    async def log_offsets(self, partitions: Collection[TopicPartition], policy: str) -> LogOffsets:
        """Look up the first offsets ("earliest") or next offsets ("latest") of partitions whose leaders answer."""
        return await policy_offsets(self._cluster, partitions, policy)

    async def look_at_logs(self, positions: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, LogSight]:
        """Return an empty dict, because ZooKeeper shows when a topic was created again."""
        return {}

    async def fetch_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Fetch the group's committed offsets from the brokers."""
        return await fetch_offsets(self._cluster, self._group, partitions)

    async def send_commit(self, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        """Ask the brokers to store the group's next offsets. Offsets that brokers refuse are logged and counted."""
        await commit_offsets(self._cluster, self._metrics, self._group, offsets, metadata)

    def leaders_changed(self, leaders: Mapping[TopicPartition, int], brokers: Mapping[int, HostPort]) -> None:
        """Send requests to the leaders that ZooKeeper names, even if brokers name other leaders."""
        self._cluster.override_leaders(leaders, brokers)
