"""The driver's view of the cluster: the partitions, their leaders, and the first and next offsets of their logs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from types import TracebackType
from typing import Self, TypeVar

from kiel_groups.clients.net.cluster_metadata import AGE, ClusterMetadata
from kiel_groups.clients.net.offset_lookup import list_offsets
from kiel_groups.config import HostPort
from kiel_groups.errors import KielGroupsError, RetriableBrokerError, UnknownTopicError
from kiel_groups.metrics import Metrics
from kiel_groups.model import INTERNAL_TOPICS, TopicPartition
from kiel_groups.spark.options import ReadOptions
from kiel_groups.sync import LoopThread
from kiel_groups.wire.fetch import FetchPosition, FetchRequest
from kiel_groups.wire.list_offsets import EARLIEST, LATEST
from kiel_groups.wire.message_sets.message_layout import OVERHEAD_BYTES, offset_and_size_at
from kiel_groups.wire.metadata import MetadataRequest

__all__ = ["LogView"]

log = logging.getLogger(__name__)


T = TypeVar("T")

#: The time that a call may take in addition to its request, in seconds: lookups of leaders have retries of their own.
_LEADER_LOOKUP_S = 30.0
#: How many bytes of messages show their average size, and how long to wait for them, in milliseconds.
_SAMPLE_BYTES = 64 << 10
_SAMPLE_MS = 2_000


class LogView:
    """
    Looks up partitions, leaders and offsets, for use by one thread; the options bound the time of every call.

    The requests run on the view's own event loop. Callers may send other requests with ``loop`` and ``cluster``.

    Args:
        options: The brokers, and how often and how long to retry.
        patient: Whether to retry after transient failures, as queries should. A command at a terminal should rather
            report the first failure.
    """

    def __init__(self, options: ReadOptions, *, patient: bool = True) -> None:
        self._options = options
        self._patient = patient
        self.loop = LoopThread("the Spark source's view of the brokers")
        self.cluster = ClusterMetadata(options.broker_config, Metrics())
        #: The same brokers with connections of their own, for commits, which take long: a broker answers the requests
        #: of a connection one after another, and lookups would wait.
        self.commit_cluster = ClusterMetadata(options.broker_config, Metrics())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections, and stop the loop."""
        self.loop.post(self.cluster.close)
        self.loop.post(self.commit_cluster.close)
        self.loop.stop()

    def partitions(self, *, all_must_exist: bool = True) -> tuple[TopicPartition, ...]:
        """
        Look up which of the partitions that the options name exist at this moment, in ascending order.

        Raises:
            UnknownTopicError: A named topic or partition does not exist, and ``all_must_exist`` is set.
            BrokerError: No broker could be reached, or none gave a usable answer.
        """
        return self._run(lambda: self._find_partitions(all_must_exist))

    def earliest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Look up the first offsets of the partitions' logs. Raises the errors of ``offset_lookup.list_offsets``."""
        return self._run(lambda: list_offsets(self.cluster, partitions, EARLIEST))

    def latest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Look up the next offsets of the partitions' logs. Raises the errors of ``offset_lookup.list_offsets``."""
        return self._run(lambda: list_offsets(self.cluster, partitions, LATEST))

    def leaders(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, HostPort | None]:
        """Return the last known leader of each partition, or None. Look up leaders that are not known yet."""
        if unled := {partition.topic for partition in partitions if self.cluster.leader_of(partition) is None}:
            self._run(lambda: self.cluster.refresh(unled, "leaders"))
        brokers = self.cluster.brokers
        nodes = {partition: self.cluster.leader_of(partition) for partition in partitions}
        return {partition: None if node is None else brokers.get(node) for partition, node in nodes.items()}

    def message_bytes(self, partition: TopicPartition, offset: int) -> float | None:
        """Return about how many bytes of the log a message takes, as seen at ``offset``, or None if unknown."""
        request = FetchRequest(0, 1, {partition: FetchPosition(offset, _SAMPLE_BYTES)})
        try:
            answer = self.run(lambda: self.cluster.send(partition, request, timeout_ms=_SAMPLE_MS))
        except KielGroupsError as error:
            log.info("the size of %s's messages is unknown: %s", partition.topic, error)
            return None
        found = answer.get(partition)
        return None if found is None else bytes_per_offset(found.message_set)

    def run(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Run ``ask`` on the loop once, within the time of one lookup attempt."""
        return self.loop.run(_as_coroutine(ask), self.timeout_s)

    # ------------------------------------------------------------------ asking

    @property
    def timeout_s(self) -> float:
        """How long one lookup attempt may take, in seconds."""
        return self._options.request_timeout_ms / 1000 + _LEADER_LOOKUP_S

    def _run(self, lookup: Callable[[], Awaitable[T]]) -> T:
        """
        Run a lookup.

        If patient, retry retriable errors at least ``fetchOffset.numRetries`` times, and at least for the request
        timeout.
        """
        retries_s = self._options.offset_retries * self._options.offset_retry_interval_ms / 1000
        return self.loop.run(self._retry(lookup), (self._options.offset_retries + 2) * self.timeout_s + retries_s)

    async def _retry(self, lookup: Callable[[], Awaitable[T]]) -> T:
        until_s = time.monotonic() + self._options.request_timeout_ms / 1000
        tries = 0
        while True:
            try:
                return await lookup()
            except KielGroupsError as error:
                tries += 1
                if not (error.retriable and self._patient):
                    raise
                if tries > self._options.offset_retries and time.monotonic() > until_s:
                    raise
                # One warning is enough for operators; the log has the other failures as INFO.
                log.log(logging.INFO if tries > 1 else logging.WARNING, "retrying a lookup at the brokers: %s", error)
            await asyncio.sleep(self._options.offset_retry_interval_ms / 1000)

    async def _find_partitions(self, all_must_exist: bool) -> tuple[TopicPartition, ...]:
        options = self._options
        topics = set(options.topics) or {partition.topic for partition in options.assigned}
        if options.topic_pattern is not None:
            named = set(await self._topics()) - INTERNAL_TOPICS
            topics = {topic for topic in named if options.topic_pattern.search(topic)}
        topics -= options.held.topics
        # Without ``all_must_exist``, the caller itself repeats the lookup. AGE makes each refresh ask another broker
        # than the last one: a broker that is cut off from ZooKeeper would repeat its outdated answer.
        await (self.cluster.await_topics(topics) if all_must_exist else self.cluster.refresh(topics, AGE))
        numbers = {topic: self.cluster.known_partitions(topic) or () for topic in topics}
        found = {TopicPartition(topic, number) for topic in topics for number in numbers[topic]}
        if not options.assigned:
            return tuple(sorted(found))
        if all_must_exist and (missing := sorted(set(options.assigned) - found)):
            raise UnknownTopicError(f"assign: {missing[0]} does not exist; {missing[0].topic} has fewer partitions")
        return tuple(sorted(found.intersection(options.assigned)))

    async def _topics(self) -> list[str]:
        await self.cluster.refresh((), "pattern")
        answer = await self.cluster.some_connection().request(MetadataRequest(()))
        if answer is None or not answer.brokers:
            raise RetriableBrokerError("the brokers do not say which topics there are")
        return [topic.topic for topic in answer.topics]


def bytes_per_offset(messages: memoryview) -> float | None:
    """
    Return the size of a message set divided by its number of offsets, or None if it has no message.

    The set may end within a message. Compressed messages count with their compressed size.
    """
    # A compressed message has the offset of its last record. So the first one only tells where the next one begins.
    ends: list[tuple[int, int]] = []
    position = 0
    while position + OVERHEAD_BYTES <= len(messages):
        offset, size = offset_and_size_at(messages, position)
        if size <= 0 or (ends and offset <= ends[-1][0]):
            break
        position += OVERHEAD_BYTES + size
        ends.append((offset, position))
    if not ends:
        return None
    (first, begin), (last, end) = ends[0], ends[-1]
    return (end - begin) / (last - first) if last > first else end


async def _as_coroutine(lookup: Callable[[], Awaitable[T]]) -> T:
    return await lookup()
