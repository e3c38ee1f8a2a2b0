"""Look up where logs begin and end, with ListOffsets requests to the leaders of many partitions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple, TypeAlias, TypeVar

from kiel_groups.clients.calls.eager_methods import spawn
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.errors import BrokerError, KielGroupsError, RetriableBrokerError
from kiel_groups.members.partition_handler import LogOffsets
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wire.error_codes import NO_ERROR, OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION, ErrorCode
from kiel_groups.wire.list_offsets import (
    EARLIEST,
    LATEST,
    NO_MESSAGE,
    WITHOUT_TIMES,
    FoundOffset,
    ListedOffsets,
    ListOffsetsRequest,
    ListOffsetsRequestV1,
    OffsetQuery,
)
from kiel_groups.wording import counted, some

log = logging.getLogger(__name__)

#: The tries take about six seconds with the default backoff; an election takes one or two seconds.
_TRIES = 8

#: How long a look-up of log ends retries while leaders are missing, in seconds; an election takes one or two seconds. A
#: partition that misses the look-up of a new group's first offsets is read from its beginning later, which may be days
#: of records, so the wait is worth it. The beginning of a log hardly changes, so its look-up does not retry.
LEADERLESS_PATIENCE_S = 2.0

#: The most segments of a log whose first offsets are requested.
_MOST_SEGMENTS = 10_000

#: The beginning of the errors' texts.
_WHAT = "the offsets of {} cannot be listed"

T = TypeVar("T")

#: A time for all partitions, or a time for each partition.
At: TypeAlias = int | Mapping[TopicPartition, int]


class LogRange(NamedTuple):
    """The first offset in a partition's log, and the offset of the next message."""

    start: int
    end: int


async def list_offsets(
    cluster: ClusterMetadata, partitions: Iterable[TopicPartition], at: At
) -> dict[TopicPartition, int]:
    """
    Look up the offsets of partitions at a time: ask their leaders, and retry with backoff while leaders change.

    Args:
        cluster: Provides the leaders, and the connections to them.
        partitions: Any number of partitions, of any topics.
        at: -2 for the earliest offset in the log, -1 for the offset of the next message, or a time in epoch
            milliseconds. One time for all partitions, or a time for each partition. Leaders of 0.10.1 and later return
            the offset of the first message of this time or later, or the end of the log. Older leaders, and all leaders
            of logs whose messages have no timestamps, return the first offset of the newest segment whose last write
            was before this time. Without such a segment, these leaders return the earliest offset.

    Raises:
        UnknownTopicError: No broker knows one of the topics.
        BrokerError: An offset was not found in time. The error is the last failure for one of the partitions.
        ProtocolError: A leader's answer cannot be decoded.
    """
    missing = frozenset(partitions)
    await cluster.await_topics(sorted({tp.topic for tp in missing if cluster.leader_of(tp) is None}))
    found: dict[TopicPartition, int] = {}
    failures: Mapping[TopicPartition, KielGroupsError] = {}
    backoff = cluster.new_backoff()
    for attempt in range(_TRIES):
        if attempt:
            await asyncio.sleep(backoff.next_s())
            await cluster.refresh({tp.topic for tp in missing}, "offsets")
        failures = await ask_leaders(cluster, missing, at, found)
        missing = frozenset(failures)
        if not missing:
            return found
        _log_missing(failures)
        for error in failures.values():
            if not error.retriable:
                raise error
    raise failures[min(missing)]


async def policy_offsets(cluster: ClusterMetadata, partitions: Iterable[TopicPartition], policy: str) -> LogOffsets:
    """Look up the start offsets of partitions for a reset policy, "earliest" or "latest"; see ``PartitionHandler``."""
    if policy == "latest":
        return await find_offsets(cluster, partitions, LATEST, patience_s=LEADERLESS_PATIENCE_S)
    return await find_offsets(cluster, partitions, EARLIEST)


async def find_offsets(
    cluster: ClusterMetadata, partitions: Iterable[TopicPartition], at: int, *, patience_s: float = 0.0
) -> LogOffsets:
    """
    Look up the offsets that leaders report now. Return the found offsets, and the errors of the other partitions.

    Each try refreshes the metadata, then asks each leader and waits at most ``connect_timeout_ms`` for its answer.

    Missing partitions are retried for ``patience_s`` seconds. The other arguments are those of ``list_offsets``.
    """
    now_s = asyncio.get_running_loop().time
    # As with metadata, brokers answer from memory: one that takes longer than a handshake is stuck.
    timeout_ms = min(cluster.config.connect_timeout_ms, cluster.config.request_timeout_ms)
    until_s = now_s() + patience_s
    found: dict[TopicPartition, int] = {}
    missing, backoff = frozenset(partitions), cluster.new_backoff()
    while True:
        try:
            await cluster.refresh({tp.topic for tp in missing}, "offsets")
            failures = await ask_leaders(cluster, missing, at, found, timeout_ms)
        except KielGroupsError as error:
            failures = dict.fromkeys(missing - found.keys(), error)
        missing = frozenset(failures)
        pause_s = backoff.next_s()
        if not missing or now_s() + pause_s > until_s:
            if missing:
                _log_missing(failures)
            return LogOffsets(found, failures)
        await asyncio.sleep(pause_s)


async def log_range(cluster: ClusterMetadata, partition: TopicPartition) -> LogRange:
    """
    Ask the leader of a partition for the range of its log.

    Raises:
        KielGroupsError: As for ``list_offsets``.
    """
    starts, ends = await asyncio.gather(
        list_offsets(cluster, [partition], EARLIEST), list_offsets(cluster, [partition], LATEST)
    )
    return LogRange(starts[partition], ends[partition])


def _log_missing(failures: Mapping[TopicPartition, KielGroupsError]) -> None:
    missing, first = counted(failures, "partition"), next(iter(failures.values()))
    log.info("offsets of %s are missing, the first because: %s", missing, first)


async def ask_leaders(
    cluster: ClusterMetadata,
    partitions: Iterable[TopicPartition],
    at: At,
    found: dict[TopicPartition, int],
    timeout_ms: int | None = None,
    times_ms: dict[TopicPartition, int] | None = None,
) -> dict[TopicPartition, KielGroupsError]:
    """
    Ask all leaders once, concurrently. Add offsets to ``found`` as leaders answer, and return the errors of the other
    partitions. Another try may find an offset if its error is retriable.

    If ``times_ms`` is given, add the timestamps of the messages that were found for a time, if they have timestamps.
    """
    times_ms = {} if times_ms is None else times_ms
    failures: dict[TopicPartition, KielGroupsError] = {}
    led, leaderless = by_leader(cluster, partitions)
    if leaderless:
        failures |= await cluster.leaderless(leaderless, _WHAT)

    async def ask(leader: int) -> None:
        for tp, result in (await _ask_leader(cluster, leader, led[leader], at, timeout_ms, times_ms)).items():
            if isinstance(result, int):
                found[tp] = result
            else:
                failures[tp] = result

    await asyncio.gather(*map(ask, led))
    cluster.drop_overrides(failures)
    if any(getattr(each, "code", None) == UNKNOWN_TOPIC_OR_PARTITION.number for each in failures.values()):
        cluster.listing.doubt()
    return failures


def by_leader(
    cluster: ClusterMetadata, partitions: Iterable[TopicPartition]
) -> tuple[dict[int, list[TopicPartition]], list[TopicPartition]]:
    """Return the partitions of each leader, and the partitions without a known leader."""
    led: dict[int, list[TopicPartition]] = {}
    leaderless: list[TopicPartition] = []
    for partition in partitions:
        leader = cluster.leader_of(partition)
        (leaderless if leader is None else led.setdefault(leader, [])).append(partition)
    return led, leaderless


async def segment_starts(
    cluster: ClusterMetadata, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, tuple[int, ...]]:
    """
    Return the first offset of each log segment, ascending, followed by the log's end, for each partition.

    Each leader is asked once. A partition without a leader, or whose leader does not answer, is left out. In logs whose
    messages have no timestamps, a look-up by time finds only these offsets.
    """
    led, _ = by_leader(cluster, partitions)
    found: dict[TopicPartition, tuple[int, ...]] = {}

    async def ask(leader: int) -> None:
        request = ListOffsetsRequest(dict.fromkeys(led[leader], OffsetQuery(LATEST, _MOST_SEGMENTS)))
        with suppress(KielGroupsError):
            answer = await cluster.send(leader, request)
            found.update((p, each.offsets[::-1]) for p, each in answer.items() if each.error == NO_ERROR)

    await asyncio.gather(*map(ask, led))
    return found


async def _ask_leader(
    cluster: ClusterMetadata,
    leader: int,
    partitions: list[TopicPartition],
    at: At,
    timeout_ms: int | None,
    times_ms: dict[TopicPartition, int],
) -> dict[TopicPartition, int | KielGroupsError]:
    times = dict.fromkeys(partitions, at) if isinstance(at, int) else {tp: at[tp] for tp in partitions}
    try:
        if any(time >= 0 for time in times.values()) and await cluster.knows(leader, ListOffsetsRequestV1):
            return await _ask_by_message(cluster, leader, times, timeout_ms, times_ms)
        return await _ask_by_segment(cluster, leader, times, timeout_ms)
    except KielGroupsError as error:
        return dict.fromkeys(partitions, error)


async def _ask_by_message(
    cluster: ClusterMetadata,
    leader: int,
    times: Mapping[TopicPartition, int],
    timeout_ms: int | None,
    times_ms: dict[TopicPartition, int],
) -> dict[TopicPartition, int | KielGroupsError]:
    """Ask a leader of 0.10.1 or later for offsets by time. Add the timestamps of the found messages to ``times_ms``."""

    async def ask(times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | KielGroupsError | None]:
        answer = await cluster.send(leader, ListOffsetsRequestV1(times), timeout_ms=timeout_ms)
        times_ms.update((p, each.timestamp) for p, each in answer.items() if times.get(p, 0) > 0 <= each.timestamp)
        return {tp: _read_found(tp, answer.get(tp), time) for tp, time in times.items()}

    results = await ask(times)
    late = {tp: time for tp, time in times.items() if results[tp] is None}
    if not late:
        return _known(results)
    # All messages are older than the time, or they have no timestamps, like the messages of this library's producer and
    # of older formats. If a message has a timestamp, the result is the end of the log; otherwise only segments have
    # times. The end is looked up before the time is looked up again, because a message that arrives in between must not
    # be skipped.
    ends, firsts = await ask(dict.fromkeys(late, LATEST)), await ask(dict.fromkeys(late, 0))
    for tp, result in (await ask(late)).items():
        results[tp] = ends[tp] if result is None and firsts[tp] is not None else result
    undated = {tp: time for tp, time in late.items() if results[tp] is None}
    return _known(results) | (await _ask_by_segment(cluster, leader, undated, timeout_ms) if undated else {})


async def _ask_by_segment(
    cluster: ClusterMetadata, leader: int, times: Mapping[TopicPartition, int], timeout_ms: int | None
) -> dict[TopicPartition, int | KielGroupsError]:
    request = ListOffsetsRequest({tp: OffsetQuery(time) for tp, time in times.items()})
    answer = await cluster.send(leader, request, timeout_ms=timeout_ms)
    results = {tp: _read(tp, answer.get(tp), time) for tp, time in times.items()}
    early = [tp for tp, result in results.items() if result is None]
    earliest = await _ask_by_segment(cluster, leader, dict.fromkeys(early, EARLIEST), timeout_ms) if early else {}
    return _known(results) | earliest


def _known(
    results: Mapping[TopicPartition, int | KielGroupsError | None],
) -> dict[TopicPartition, int | KielGroupsError]:
    return {tp: result for tp, result in results.items() if result is not None}


def _read(tp: TopicPartition, listed: ListedOffsets | None, at: int) -> int | KielGroupsError | None:
    """Return the offset that a leader listed, or the failure, or None if no segment is older than time ``at``."""
    if listed is None or listed.error != NO_ERROR:
        return _failure(tp, None if listed is None else listed.error)
    if listed.offsets:
        return listed.offsets[0]
    return None if at >= 0 else RetriableBrokerError(f"{_what(tp)}: the leader's answer is empty")


def _read_found(tp: TopicPartition, found: FoundOffset | None, at: int) -> int | KielGroupsError | None:
    """Return the offset that was found, or the failure, or None if no message has time ``at`` or a later time."""
    if found is None or (found.error != NO_ERROR and found.error.number != WITHOUT_TIMES):
        return _failure(tp, None if found is None else found.error)
    return None if at >= 0 and found.offset == NO_MESSAGE else found.offset


def _failure(tp: TopicPartition, error: ErrorCode | None) -> BrokerError:
    if error is None:
        return RetriableBrokerError(f"{_what(tp)}: the leader's answer leaves it out")
    if error == OFFSET_OUT_OF_RANGE:
        # The request names no offset, so the broker has a problem: no position is out of range.
        return BrokerError(f"{_what(tp)}: {error}", code=error.number)
    return error.exception(_what(tp))


def _what(tp: TopicPartition) -> str:
    return _WHAT.format(tp)


#: Seconds between two log lines about the partitions that are still missing.
MISSING_LOG_INTERVAL_S = 60.0

#: The most partitions that a log line names.
_MOST_NAMES = 10


class StartLookup:
    """
    Looks up start positions in the background, and retries with backoff while positions are missing.

    The gauge ``partitions_unopened`` is the number of missing positions. A partition without a leader delays no other
    partition.

    Args:
        cluster: Provides the leaders, and the connections to them.
        metrics: Receives the gauge.
        assign: Called with the start positions that were found.
    """

    def __init__(
        self, cluster: ClusterMetadata, metrics: Metrics, assign: Callable[[Mapping[TopicPartition, int]], None]
    ) -> None:
        self._cluster = cluster
        self._metrics = metrics
        self._assign = assign
        #: The time to look up, by partition; see ``at`` of ``list_offsets``.
        self._times: dict[TopicPartition, int] = {}
        self._task: asyncio.Task[None] | None = None
        self._logged_s = float("-inf")

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._times

    def add(self, times: Mapping[TopicPartition, int]) -> None:
        """Start to look up the offset of each partition at its time."""
        self._times |= times
        if self._times and (self._task is None or self._task.done()):
            self._task = spawn(self._look_up(), "look-up of start positions")

    def discard(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop looking up these partitions."""
        for partition in partitions:
            self._times.pop(partition, None)

    def close(self) -> None:
        """Stop looking up start positions."""
        if self._task is not None:
            self._task.cancel()

    async def _look_up(self) -> None:
        backoff = self._cluster.new_backoff()
        while self._times:
            failures = await self._look_up_once()
            self._metrics.gauge("partitions_unopened", len(self._times))
            if failures:
                self._log_missing(failures)
                await asyncio.sleep(backoff.next_s())

    async def _look_up_once(self) -> dict[TopicPartition, KielGroupsError]:
        failures: dict[TopicPartition, KielGroupsError] = {}
        for at in set(self._times.values()):
            offsets = await find_offsets(self._cluster, [tp for tp, each in self._times.items() if each == at], at)
            # Others were discarded during the look-up.
            found = {
                partition: offset for partition, offset in offsets.found.items() if self._times.get(partition) == at
            }
            self.discard(found)
            self._assign(found)
            failures |= offsets.failures
        return failures

    def _log_missing(self, failures: Mapping[TopicPartition, KielGroupsError]) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._logged_s >= MISSING_LOG_INTERVAL_S:
            self._logged_s = now_s
            log.warning(
                "the start positions of %s (%s) are not known yet: %s; the brokers are asked again, and the"
                " other partitions are read",
                counted(failures, "partition"),
                some(sorted(failures), most=_MOST_NAMES),
                failures[min(failures)],
            )
