"""
Look up partitions, leaders and offsets for a query's driver, and detect topics that were deleted and created again.

With ZooKeeper, the creation zxid of the topic's znode is the *incarnation* of the topic. A new zxid shows a new log.
Without ZooKeeper, the query keeps a *mark*: the offset and the checksum of a message before its position. If the log
now has another message at that offset, the log is new. This also detects a new log that has grown past the query's
position.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from struct import Struct
from typing import Self, TypeVar
from zlib import crc32

from kiel_groups.clients.net.cluster_metadata import AGE, ClusterMetadata
from kiel_groups.clients.net.offset_lookup import list_offsets
from kiel_groups.config import HostPort
from kiel_groups.errors import CoordinationError, KielGroupsError, RetriableBrokerError, UnknownTopicError
from kiel_groups.group.znodes.layout import TOPICS, GroupLayout, topic_path
from kiel_groups.metrics import Metrics
from kiel_groups.model import INTERNAL_TOPICS, TopicPartition
from kiel_groups.ops.zookeeper_client import zookeeper
from kiel_groups.ops.zookeeper_reader import read_znodes
from kiel_groups.spark.checkpoint import Mark, Span
from kiel_groups.spark.options import ReadOptions
from kiel_groups.sync import LoopThread
from kiel_groups.wire.error_codes import NO_ERROR
from kiel_groups.wire.fetch import FetchPosition, FetchRequest
from kiel_groups.wire.list_offsets import EARLIEST, LATEST
from kiel_groups.wire.message_sets.decoder import decode_columns
from kiel_groups.wire.message_sets.message_layout import OVERHEAD_BYTES, PartialMessage, offset_and_size_at

log = logging.getLogger(__name__)


T = TypeVar("T")

#: The time that a call may take in addition to its request, in seconds: lookups of leaders have retries of their own.
_LEADER_LOOKUP_S = 30.0
#: How many bytes of messages show their average size, and how long to wait for them, in milliseconds.
_SAMPLE_BYTES = 64 << 10
_SAMPLE_MS = 2_000


class LogView:
    """
    Looks up partitions, leaders and offsets, for use by one thread. The options bound the time of every call.

    The requests run on the view's own event loop. Callers may send other requests with ``loop`` and ``cluster``.

    Args:
        options: The brokers, and how often and how long to retry.
        patient: Whether to retry after transient failures. A query should retry. A command at a terminal should report
            the first failure.
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

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections, and stop the loop."""
        self.loop.post(self.cluster.close)
        self.loop.post(self.commit_cluster.close)
        self.loop.stop()

    def partitions(self, *, all_must_exist: bool = True) -> tuple[TopicPartition, ...]:
        """
        Look up the partitions that the options name, and return the existing partitions in ascending order.

        Raises:
            UnknownTopicError: A named topic or partition does not exist, and ``all_must_exist`` is set.
            BrokerError: No broker gave a usable answer.
        """
        return self._run(lambda: self._find_partitions(all_must_exist))

    def earliest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offsets of the partitions' logs. Raises the errors of ``offset_lookup.list_offsets``."""
        return self._run(lambda: list_offsets(self.cluster, partitions, EARLIEST))

    def latest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the next offsets of the partitions' logs. Raises the errors of ``offset_lookup.list_offsets``."""
        return self._run(lambda: list_offsets(self.cluster, partitions, LATEST))

    def leaders(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, HostPort | None]:
        """
        Return the last known leader of each partition, or None if it has no leader.

        Leaders that are not known yet are looked up.
        """
        if unled := {partition.topic for partition in partitions if self.cluster.leader_of(partition) is None}:
            self._run(lambda: self.cluster.refresh(unled, "leaders"))
        brokers = self.cluster.brokers
        nodes = {partition: self.cluster.leader_of(partition) for partition in partitions}
        return {partition: None if node is None else brokers.get(node) for partition, node in nodes.items()}

    def message_bytes(self, partition: TopicPartition, offset: int) -> float | None:
        """Return the average size in bytes of the partition's messages, from a sample at ``offset``, or None."""
        request = FetchRequest(0, 1, {partition: FetchPosition(offset, _SAMPLE_BYTES)})
        try:
            answer = self.run(lambda: self.cluster.send(partition, request, timeout_ms=_SAMPLE_MS))
        except KielGroupsError as error:
            log.info("the size of %s's messages is unknown: %s", partition.topic, error)
            return None
        found = answer.get(partition)
        return None if found is None else bytes_per_offset(found.message_set)

    def run(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Run ``ask`` on the loop once, without retries. Raise TimeoutError after the time of one lookup attempt."""
        return self.loop.run(_as_coroutine(ask), self.timeout_s)

    # ------------------------------------------------------------------ asking

    @property
    def timeout_s(self) -> float:
        """How long one lookup attempt may take, in seconds."""
        return self._options.request_timeout_ms / 1000 + _LEADER_LOOKUP_S

    def _run(self, lookup: Callable[[], Awaitable[T]]) -> T:
        """
        Run a lookup, and return its result.

        A patient view retries after retriable errors, at least ``fetchOffset.numRetries`` times and for the request
        timeout. Then the last error is raised.
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
        answer = await self.cluster.all_metadata()
        if not answer.brokers:
            raise RetriableBrokerError("the brokers do not say which topics there are")
        return [topic.topic for topic in answer.topics]


def bytes_per_offset(messages: memoryview) -> float | None:
    """
    Return the average size of a message set's messages in bytes per offset, or None if the set has no whole message.

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


#: How long incarnations are valid, in seconds: each look opens a session with ZooKeeper.
_INCARNATIONS_S = 5.0
#: The pause after a look that failed, in seconds: a server that does not answer delays the trigger.
_OUTAGE_S = 60.0
#: How often messages are compared, in seconds.
_MARKS_S = 60.0
#: How much is fetched of each log first; a larger message is fetched again.
_MARK_BYTES = 4096
_HEAD = Struct(">qq")


class LogIdentity:
    """
    Detects whether the logs of one query are still the logs that it has read. The methods block.

    Args:
        view: The brokers.
        options: The options of the query. They may name the ZooKeeper of the cluster.
    """

    def __init__(self, view: LogView, options: ReadOptions) -> None:
        self._view = view
        self._options = options
        self._incarnations: dict[str, int] = {}
        #: The topics that ZooKeeper had at the last look.
        self._existing: Collection[str] = ()
        self._topics: set[str] = set()
        #: When ZooKeeper is read next; None before the first time.
        self._next_look_s: float | None = None
        self._compared_at_s: float | None = None
        #: Whether this trigger compares messages, and so may choose other messages for the next comparison.
        self._is_comparing = False

    # ------------------------------------------------------------------ ZooKeeper

    def incarnations(self, topics: Iterable[str], *, again: bool = False) -> Mapping[str, int]:
        """
        Return the creation zxids of topics. Without ZooKeeper, return an empty mapping.

        The zxids may be some seconds old. A deleted topic keeps its last zxid. If ZooKeeper fails after a first
        success, log a warning, and return the last known zxids. A later call then detects a new incarnation.

        Args:
            topics: The names of the topics.
            again: Whether to read the zxids from ZooKeeper even if they were read some seconds ago.

        Raises:
            CoordinationError: ZooKeeper did not answer, and no earlier call has read zxids.
        """
        wanted = set(topics)
        if self._options.zookeeper is None or not wanted:
            return {}
        is_recent = self._next_look_s is not None and time.monotonic() < self._next_look_s
        if again or not is_recent or not wanted <= self._topics:
            self._topics |= wanted
            pause_s = _INCARNATIONS_S
            try:
                found = self._read(self._options.zookeeper.hosts)
                self._incarnations |= found
                self._existing = found.keys()
            except CoordinationError as error:
                if self._next_look_s is None:
                    raise
                pause_s = _OUTAGE_S
                log.warning(
                    "whether topics were created again is unknown, and checked again in %.0f s: %s", pause_s, error
                )
            self._next_look_s = time.monotonic() + pause_s
        return {topic: created for topic in wanted if (created := self._incarnations.get(topic))}

    def _read(self, hosts: str) -> dict[str, int]:
        # A deleted topic keeps its last incarnation: what follows of that is for the brokers to say.
        paths = {topic_path(topic): topic for topic in sorted(self._topics)}
        with zookeeper(hosts) as client:
            # A server that lags would show the topic from before.
            client.sync(TOPICS)
            return {paths[path]: znode.czxid for path, znode in read_znodes(client, list(paths)).items()}

    def recreated(self, spans: Mapping[TopicPartition, Span]) -> dict[TopicPartition, str]:
        """Return the partitions whose topics now have another incarnation than their spans, with the reasons."""
        created = self.incarnations({partition.topic for partition in spans})
        return {
            partition: f"the topic was deleted and created again since (incarnation {span.incarnation}, and now"
            f" {created[partition.topic]}): what its log had from there on is lost"
            for partition, span in spans.items()
            if span.incarnation is not None and created.get(partition.topic, span.incarnation) != span.incarnation
        }

    def missing(self, partition: TopicPartition) -> str:
        """Return the reason why the brokers do not list a partition. With ZooKeeper, look up the topic there now."""
        if self._options.zookeeper is not None:
            self.incarnations([partition.topic], again=True)
            if partition.topic in self._existing:
                return "no broker knows the partition, although ZooKeeper has the topic"
        return "there is no such partition: the topic was deleted"

    def outdated_offsets(self, group: str, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """
        Return the partitions whose stored offsets in ZooKeeper were written before their topics were created.

        Without ZooKeeper, return an empty set.

        Raises:
            CoordinationError: ZooKeeper did not answer.
        """
        if self._options.zookeeper is None:
            return set()
        created = self.incarnations({partition.topic for partition in partitions})
        paths = {GroupLayout(group).offset(partition): partition for partition in sorted(partitions)}
        with zookeeper(self._options.zookeeper.hosts) as client:
            stored = {paths[path]: znode.mzxid for path, znode in read_znodes(client, list(paths)).items()}
        return {partition for partition, zxid in stored.items() if zxid < created.get(partition.topic, 0)}

    # ------------------------------------------------------------------ messages

    def replaced(
        self, spans: Mapping[TopicPartition, Span], advancing: Collection[TopicPartition]
    ) -> dict[TopicPartition, str]:
        """
        Return the partitions whose logs now have another message at the offset of a mark, with the reasons.

        Messages are compared once a minute. Between comparisons, return an empty mapping. Only the partitions in
        ``advancing`` are compared at first, and then the other partitions of a topic with a difference. If a log cannot
        be compared, because retention or compaction has removed the message, the other partitions of its topic decide.
        Partitions whose incarnation is known from ZooKeeper are not compared.

        Args:
            spans: The query's position.
            advancing: The partitions that have more messages to read.
        """
        now_s = time.monotonic()
        self._is_comparing = self._compared_at_s is None or now_s >= self._compared_at_s + _MARKS_S
        if not self._is_comparing:
            return {}
        self._compared_at_s = now_s
        has_zookeeper = self._options.zookeeper is not None
        marks = {
            partition: span.mark
            for partition, span in spans.items()
            if span.mark is not None and not (has_zookeeper and span.incarnation is not None)
        }
        same = self._compare({partition: mark for partition, mark in marks.items() if partition in advancing})
        topics = {partition.topic for partition, is_same in same.items() if not is_same}
        same |= self._compare({p: mark for p, mark in marks.items() if p.topic in topics and p not in same})
        # If a leader has lost messages of one partition, the others show that the topic is the same.
        topics -= {partition.topic for partition, is_same in same.items() if is_same}
        renewed = {p for p, span in spans.items() if span.to and p.topic in topics and p not in same}
        renewed |= {partition for partition, is_same in same.items() if not is_same}
        return {partition: _reason(marks.get(partition)) for partition in renewed}

    def others(
        self, spans: Mapping[TopicPartition, Span], advancing: Collection[TopicPartition]
    ) -> dict[TopicPartition, str]:
        """
        Return the partitions whose logs are new, with the reasons.

        All ``spans`` are checked as by ``recreated``, and the spans in ``advancing`` also as by ``replaced``.
        """
        lost = self.recreated(spans)
        return lost | self.replaced(
            {p: span for p, span in spans.items() if p not in lost and p in advancing}, advancing
        )

    def _compare(self, marks: Mapping[TopicPartition, Mark]) -> dict[TopicPartition, bool]:
        found = self._marks({partition: mark.offset for partition, mark in marks.items()})
        return {partition: mark == marks[partition] for partition, mark in found.items()}

    def identified(
        self, spans: Mapping[TopicPartition, Span], known: Mapping[TopicPartition, Span]
    ) -> dict[TopicPartition, Span]:
        """
        Return the spans with the identity of their logs: the incarnation, or a mark without ZooKeeper.

        An identity is changed only if necessary, because Spark plans a batch whenever a span has changed.

        Args:
            spans: The end of the next batch.
            known: The start of the next batch.
        """
        if self._options.zookeeper is not None:
            created = self.incarnations({partition.topic for partition in spans})
            return {
                each: span._replace(incarnation=span.incarnation or created.get(each.topic), mark=None)
                for each, span in spans.items()
            }
        # A log without a mark, such as a new one, gets it at once: the query may end before the next comparison.
        chosen = any if self._is_comparing or self._compared_at_s is None else all
        wanted = {
            each: span.to - 1
            for each, span in spans.items()
            if span.to and chosen((span.mark is None, each not in known or known[each][:3] != span[:3]))
        }
        marks = self._marks(wanted)
        return {each: span._replace(mark=marks.get(each, span.mark)) for each, span in spans.items()}

    def _marks(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, Mark]:
        """Return the marks of the messages at these offsets. Messages that cannot be fetched are left out."""
        try:
            return self._view.run(lambda: self._fetch_marks(offsets)) if offsets else {}
        except KielGroupsError as error:
            log.info("messages cannot be compared: %s", error)
            return {}

    async def _fetch_marks(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, Mark]:
        found = await asyncio.gather(*(self._fetch_mark(*each) for each in offsets.items()))
        return {partition: mark for partition, mark in zip(offsets, found, strict=True) if mark is not None}

    async def _fetch_mark(self, partition: TopicPartition, offset: int) -> Mark | None:
        """
        Fetch a message from the leader, and return its mark, or None if the message cannot be fetched or compared.

        If the message is larger than the first fetch, fetch it again.
        """
        most_bytes = self._options.fetch_max_bytes
        size = min(_MARK_BYTES, most_bytes)
        try:
            while True:
                request = FetchRequest(0, 0, {partition: FetchPosition(offset, size)})
                fetched = (await self._view.cluster.send(partition, request)).get(partition)
                try:
                    if fetched is None or fetched.error != NO_ERROR:
                        return None
                    return self._mark(fetched.message_set, partition, offset)
                except PartialMessage as error:
                    needed = error.needed_bytes or most_bytes
                    if not size < needed <= most_bytes:
                        return None
                    size = needed
        except KielGroupsError as error:
            log.info("a message of %s cannot be compared: %s", partition, error)
            return None

    def _mark(self, message_set: memoryview, partition: TopicPartition, offset: int) -> Mark | None:
        """
        Return the mark of the message at an offset, or None if the set does not have this message.

        The checksum covers the key and the value, not the stored bytes, because brokers may compress a message in
        another way when they compact the log.
        """
        if not message_set:
            return None
        most_bytes = self._options.max_message_bytes
        columns = decode_columns(message_set, partition, offset, max_decompressed_bytes=most_bytes, end=offset + 1)
        if not len(columns):
            return None
        key, value = columns.keys, columns.values
        sizes = [-1 if each.null_count else len(each.data) for each in (key, value)]
        return Mark(offset, crc32(value.data, crc32(key.data, crc32(_HEAD.pack(*sizes)))))


def _reason(mark: Mark | None) -> str:
    what = "another partition of the topic has" if mark is None else f"at offset {mark.offset} the log has"
    return (
        f"{what} another message than the one that was read: the topic was deleted and created again, or messages were"
        " lost in an election"
    )
