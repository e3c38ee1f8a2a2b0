"""OffsetCommit and OffsetFetch v0: offsets in ZooKeeper by way of the brokers, any of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
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
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wire.api.offsets_v0 import FetchedOffset, OffsetAndMetadata, OffsetCommitRequest, OffsetFetchRequest
from kiel_groups.wire.error_codes import (
    NO_ERROR,
    OFFSET_METADATA_TOO_LARGE,
    UNKNOWN,
    UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode,
)
from kiel_groups.wire.framing import Request
from kiel_groups.wording import counted

__all__ = ["commit_offsets", "fetch_offsets", "check_offset_api"]

log = logging.getLogger(__name__)

A = TypeVar("A")

_TRIES = 6

#: How long one broker may take for an offset request, in milliseconds: it only has to write to ZooKeeper.
ANSWER_MS = 1_500

#: What the wire can carry of a text.
LONGEST_TEXT_BYTES = 32_767

#: Answers for an offset that leave no question: it is there, or (perhaps) it is not.
_SETTLED = (NO_ERROR, UNKNOWN_TOPIC_OR_PARTITION)


async def check_offset_api(cluster: ClusterMetadata, group: str) -> None:
    """
    Make sure that the brokers know offset requests at all; those of 0.8.0 close the connection on them.

    Raises:
        ConfigError: They do not.
        NoBrokersError: None of them answers anything.
    """
    silence: KielGroupsError | None = None
    for attempt in range(_TRIES):
        await asyncio.sleep(cluster.delay_s(attempt))
        try:
            await _ask(cluster, OffsetFetchRequest(group, ()), _of_fetch)
            return
        except BrokerConnectionError:
            # Closed, or down: one that is alive answers for its metadata.
            silence = None
            await cluster.refresh((), "offset API")
        except RequestTimeoutError as error:
            # Frozen, or busy: that says nothing of what it knows; another one may answer.
            log.info("group %s: %s", group, error)
            silence = error
    if silence is not None:
        raise NoBrokersError(f"no broker answers for offsets: {silence}")
    raise ConfigError(
        "store: 'broker-v0' needs brokers that store offsets, and these close the connection on being asked, as those"
        " of Kafka 0.8.0 do; use store='zookeeper' (the offsets stand in the same place)"
    )


async def fetch_offsets(
    cluster: ClusterMetadata, group: str, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """
    Ask any broker for committed next offsets; what fails for a reason that may pass is tried again, with backoff.

    Returns:
        The offsets that brokers found. A partition that is left out has none, or the broker does not know its topic
        yet: both are error 3, which alone says nothing. Or its znode holds no number: whatever goes wrong while a
        broker reads one is error -1.

    Raises:
        NoOffsetsError: A broker refuses for good; names the first partition and the error.
        BrokerError: No broker answered usefully in time.
    """
    waiting = tuple(sorted(partitions))
    found: dict[TopicPartition, int] = {}
    failure: KielGroupsError | None = None
    again: dict[TopicPartition, ErrorCode] = {}
    for attempt in range(_TRIES):
        await asyncio.sleep(cluster.delay_s(attempt))
        try:
            if attempt:
                await cluster.refresh({tp.topic for tp in waiting}, "offsets")
            answers = await _ask(cluster, OffsetFetchRequest(group, waiting), _of_fetch)
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
    Ask any broker to store next offsets; what fails for a reason that may pass is tried again, with backoff.

    Args:
        cluster: Where to send them.
        metrics: Counts what was refused.
        group: Whose offsets they are.
        offsets: The next offset of each partition.
        metadata: A text that brokers check for its length and then throw away; blank where they find it too long.

    Returns:
        The last answer for every partition; UNKNOWN where no broker answered, and it may be stored or not.
    """
    answers: dict[TopicPartition, ErrorCode] = dict.fromkeys(offsets, UNKNOWN)
    waiting = dict(offsets)
    heal = False
    if len(metadata.encode()) > LONGEST_TEXT_BYTES:
        log.warning("group %s: the metadata of a commit is too long (%d characters): left out", group, len(metadata))
        metadata = ""
    for attempt in range(_TRIES):
        await asyncio.sleep(cluster.delay_s(attempt))
        request = OffsetCommitRequest(group, {tp: OffsetAndMetadata(at, metadata) for tp, at in waiting.items()})
        try:
            if heal:
                await cluster.refresh({tp.topic for tp in waiting}, "commit")
            answers |= await _ask(cluster, request, _of_commit)
            heal = True
        except (BrokerError, ProtocolError) as error:
            # It may be stored or not. A broker that is silent is left for another one; any other trouble may mean that
            # what is known of the cluster is out of date.
            log.info("group %s: no answer to a commit: %s", group, error)
            answers |= dict.fromkeys(waiting, UNKNOWN)
            heal = not isinstance(error, RequestTimeoutError)
        if OFFSET_METADATA_TOO_LARGE in answers.values() and metadata:
            log.warning(
                "group %s: the metadata of a commit is too long (%d characters): left out", group, len(metadata)
            )
            metadata = ""
        waiting = {tp: offsets[tp] for tp, error in answers.items() if _may_pass(error)}
        if not waiting:
            break
    _report(group, answers, metrics)
    return answers


def _may_pass(error: ErrorCode) -> bool:
    return error.retriable or error in (UNKNOWN, OFFSET_METADATA_TOO_LARGE)


async def _ask(
    cluster: ClusterMetadata, request: Request[Mapping[TopicPartition, A]], error_of: Callable[[A], ErrorCode]
) -> Mapping[TopicPartition, A]:
    """Ask a broker, one that failed lately after the others, and none for so long that a lease ends over it."""
    timeout_ms = min(ANSWER_MS, cluster.config.request_timeout_ms)
    connection = cluster.some_connection()
    try:
        answers = await connection.request(request, timeout_ms)
    except (BrokerError, ProtocolError):
        cluster.blame(connection)
        raise
    assert answers is not None, "offset requests have answers"
    if any(error_of(answer).retriable for answer in answers.values()):
        cluster.blame(connection)
    return answers


def _of_commit(answer: ErrorCode) -> ErrorCode:
    return answer


def _of_fetch(answer: FetchedOffset) -> ErrorCode:
    return answer.error


def _report(group: str, answers: Mapping[TopicPartition, ErrorCode], metrics: Metrics) -> None:
    refused: dict[ErrorCode, list[TopicPartition]] = {}
    for tp, error in answers.items():
        if error != NO_ERROR:
            refused.setdefault(error, []).append(tp)
    for error, partitions in refused.items():
        metrics.count("commits_refused", len(partitions), error=error.name)
        log.error(
            "group %s: the offsets of %s, first %s, were not stored: %s: %s",
            group,
            counted(partitions, "partition"),
            min(partitions),
            error,
            error.hint,
        )
