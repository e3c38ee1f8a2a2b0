"""
Tell whether the logs of a query are still those that it has read, or logs of topics that were created again since.

With ZooKeeper, the creation zxid of the topic's znode is the incarnation. Without, a message that was read is compared
with the one that the log has at its offset now. That is known for a message without which the log cannot continue where
the query is, so a log that has grown past the query's position is recognised, too.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Iterable, Mapping
from struct import Struct
from zlib import crc32

from kiel_groups.errors import CoordinationError, KielGroupsError, ProtocolError
from kiel_groups.group.znodes.layout import TOPICS, GroupLayout, topic_path
from kiel_groups.model import TopicPartition
from kiel_groups.ops.zookeeper_client import zookeeper
from kiel_groups.ops.zookeeper_reader import read_znodes
from kiel_groups.spark.checkpoint import Mark, Span
from kiel_groups.spark.log_view import LogView
from kiel_groups.spark.options import ReadOptions
from kiel_groups.wire.error_codes import NO_ERROR
from kiel_groups.wire.fetch import FetchPosition, FetchRequest
from kiel_groups.wire.message_sets.decoder import decode_columns
from kiel_groups.wire.message_sets.message_layout import PartialMessage

__all__ = ["LogIdentity"]

log = logging.getLogger(__name__)

#: How long incarnations are valid, in seconds: each look opens a session with ZooKeeper.
_INCARNATIONS_S = 5.0
#: The pause after a look that failed, in seconds: a server that does not answer delays the trigger.
_OUTAGE_S = 60.0
#: How often messages are compared, in seconds.
_MARKS_S = 60.0
#: How much is fetched of each log first; a larger message is fetched again.
_SAMPLE_BYTES = 4096
_HEAD = Struct(">qq")


class LogIdentity:
    """
    Identifies the logs of one query; its methods block.

    Args:
        view: The brokers.
        options: The ZooKeeper of the cluster, if the query names one.
    """

    def __init__(self, view: LogView, options: ReadOptions) -> None:
        self._view = view
        self._options = options
        self._incarnations: dict[str, int] = {}
        self._topics: set[str] = set()
        #: When ZooKeeper is read next; None before the first time.
        self._next_look_s: float | None = None
        self._compared_at_s: float | None = None
        #: Whether this trigger compares messages, and so may choose other messages for the next comparison.
        self._is_comparing = False

    # ------------------------------------------------------------------ ZooKeeper

    def incarnations(self, topics: Iterable[str], *, again: bool = False) -> Mapping[str, int]:
        """
        Return the creation zxids of the topics that exist, as of some seconds ago; none without ZooKeeper.

        If ZooKeeper fails later than at the first call, the last known ones are returned, and a warning is logged: a
        new incarnation is noticed by a later call.

        Args:
            topics: The names of the topics.
            again: Whether to read them now.

        Raises:
            CoordinationError: ZooKeeper did not answer to the first call.
        """
        wanted = set(topics)
        if self._options.zookeeper is None or not wanted:
            return {}
        is_recent = self._next_look_s is not None and time.monotonic() < self._next_look_s
        if again or not is_recent or not wanted <= self._topics:
            self._topics |= wanted
            pause_s = _INCARNATIONS_S
            try:
                self._incarnations |= self._read(self._options.zookeeper.hosts)
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
        """Return the partitions whose topics have another incarnation than their spans, with the reason."""
        created = self.incarnations({partition.topic for partition in spans})
        return {
            partition: f"the topic was deleted and created again since (incarnation {span.incarnation}, and now"
            f" {created[partition.topic]}): what its log had from there on is lost"
            for partition, span in spans.items()
            if span.incarnation is not None and created.get(partition.topic, span.incarnation) != span.incarnation
        }

    def outdated_offsets(self, group: str, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """
        Return the partitions whose stored offsets are older than their topics; none without ZooKeeper.

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
        Return the partitions whose logs have another message than the one that was read, with the reason.

        Messages are compared once a minute, and only where there is more to read. If a log cannot be compared, because
        retention or compaction has removed the message, the other partitions of its topic decide.

        Args:
            spans: The query's position.
            advancing: The partitions of which there is more to read.
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

    def _compare(self, marks: Mapping[TopicPartition, Mark]) -> dict[TopicPartition, bool]:
        found = self._marks({partition: mark.offset for partition, mark in marks.items()})
        return {partition: mark == marks[partition] for partition, mark in found.items()}

    def identified(
        self, spans: Mapping[TopicPartition, Span], known: Mapping[TopicPartition, Span]
    ) -> dict[TopicPartition, Span]:
        """
        Return the spans with the identity of their logs: the incarnation, or without ZooKeeper a mark.

        Without a need, identities stay as they are, because Spark reads a batch wherever a span has changed.

        Args:
            spans: The end of the next batch.
            known: Its start.
        """
        if self._options.zookeeper is not None:
            created = self.incarnations({partition.topic for partition in spans})
            return {
                each: span._replace(incarnation=span.incarnation or created.get(each.topic), mark=None)
                for each, span in spans.items()
            }
        wanted = {
            each: span.to - 1
            for each, span in spans.items()
            if span.to and (span.mark is None or each not in known or known[each].to < span.to)
        }
        marks = self._marks(wanted) if self._is_comparing or self._compared_at_s is None else {}
        return {each: span._replace(mark=marks.get(each, span.mark)) for each, span in spans.items()}

    def _marks(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, Mark]:
        """Return the marks of the messages at these offsets, without those that cannot be had."""
        try:
            return self._view.run(lambda: self._fetch_marks(offsets)) if offsets else {}
        except KielGroupsError as error:
            log.info("messages cannot be compared: %s", error)
            return {}

    async def _fetch_marks(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, Mark]:
        found, larger = await self._sample({each: FetchPosition(at, _SAMPLE_BYTES) for each, at in offsets.items()})
        if larger:
            found |= (await self._sample({each: FetchPosition(offsets[each], size) for each, size in larger.items()}))[
                0
            ]
        return found

    async def _sample(
        self, positions: Mapping[TopicPartition, FetchPosition]
    ) -> tuple[dict[TopicPartition, Mark], dict[TopicPartition, int]]:
        """Ask each leader once. Return marks, and the sizes of messages that were larger than the fetch."""
        cluster, most_bytes = self._view.cluster, self._options.fetch_max_bytes
        by_leader: dict[int, dict[TopicPartition, FetchPosition]] = {}
        for partition, position in positions.items():
            if (leader := cluster.leader_of(partition)) is not None:
                by_leader.setdefault(leader, {})[partition] = position
        found: dict[TopicPartition, Mark] = {}
        larger: dict[TopicPartition, int] = {}

        async def ask(leader: int) -> None:
            asked = by_leader[leader]
            try:
                answer = await cluster.send(leader, FetchRequest(0, 0, asked))
            except KielGroupsError as error:
                log.info("messages of broker %d cannot be compared: %s", leader, error)
                return
            for partition in asked.keys() & answer.keys():
                fetched, position = answer[partition], asked[partition]
                try:
                    if fetched.error == NO_ERROR and (
                        mark := self._mark(fetched.message_set, partition, position.offset)
                    ):
                        found[partition] = mark
                except PartialMessage as error:
                    size = error.needed_bytes or most_bytes
                    if position.max_bytes < size <= most_bytes:
                        larger[partition] = size
                except ProtocolError as error:
                    log.info("a message cannot be compared: %s", error)

        await asyncio.gather(*map(ask, by_leader))
        return found, larger

    def _mark(self, message_set: memoryview, partition: TopicPartition, offset: int) -> Mark | None:
        """
        Return the mark of the message at an offset, or None if the set does not begin with it.

        The checksum is of the content, because brokers may compress a message in another way when they compact the log.
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
