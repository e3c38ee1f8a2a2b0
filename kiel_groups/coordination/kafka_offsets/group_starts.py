"""
Decide where a group without offsets in Kafka begins to read a topic, once for all of its partitions.

Kafka stores the offset of each partition on its own. So ZooKeeper has one znode for each topic, with the first offsets
of all its partitions: the member that creates the znode decides, and every owner of a partition without an offset in
Kafka starts at its first offset. The znode also tells a group that begins from one whose offsets Kafka has lost.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from kiel_groups.coordination.kafka_offsets.kafka_store import KafkaStore
from kiel_groups.coordination.offsets.offset_znodes import OffsetZnodes
from kiel_groups.coordination.offsets.topic_incarnations import TopicIncarnations
from kiel_groups.coordination.partition_handler import LogOffsets
from kiel_groups.coordination.session.fenced_writes import FencedWriter, give_up
from kiel_groups.coordination.session.session_context import MemberContext
from kiel_groups.coordination.session.zk_session import Node
from kiel_groups.errors import KielGroupsError, NoOffsetsError, ProtocolError
from kiel_groups.group.znodes.contents import parse_topic
from kiel_groups.group.znodes.first_offsets import FirstOffsets
from kiel_groups.group.znodes.layout import topic_path
from kiel_groups.group.znodes.transactions import Create, Operation, Put
from kiel_groups.model import TopicPartition
from kiel_groups.wording import counted, some

__all__ = ["GroupStarts"]

log = logging.getLogger(__name__)

#: A group whose first offsets are older than this has stored offsets in Kafka since, in milliseconds. Until then, a
#: partition without an offset may be one that no member has owned yet: members that start together join within seconds.
_BEGUN_MS = 60_000

#: The most partitions that a log line or an error names.
_MOST_NAMES = 10


class GroupStarts:
    """
    The first offsets of one group, on one member's session.

    Args:
        context: The member; its handler asks the brokers, and its group's ``auto_offset_reset`` is the reset policy.
        writer: The member's fenced writer.
        topics: Drops writes once a topic was created again.
        znodes: The offsets that the group has stored in ZooKeeper, if it had another store before.
        store: The offsets in Kafka.
    """

    def __init__(
        self,
        context: MemberContext,
        writer: FencedWriter,
        topics: TopicIncarnations,
        znodes: OffsetZnodes,
        store: KafkaStore,
    ) -> None:
        self._context = context
        self._session = context.session
        self._layout = context.layout
        self._look_up = context.handler.log_offsets
        self._reset = context.config.auto_offset_reset
        self._writer = writer
        self._topics = topics
        self._znodes = znodes
        self._store = store

    async def find(self, topic: str, partitions: Collection[TopicPartition], *, is_new_log: bool) -> LogOffsets:
        """
        Return where owned partitions of a topic start that have no offset in Kafka.

        A partition starts at its first offset. One that the first offsets lack was added to the topic, or had no leader
        when they were decided: it starts at its earliest offset, whatever the reset policy is, so that nothing is
        skipped. A partition is left out if the topic was created again meanwhile, or has an offset by now.

        Args:
            topic: The topic, as ``TopicIncarnations`` knows it.
            partitions: The partitions.
            is_new_log: Whether Kafka has an offset of one of these partitions that belongs to a deleted topic of the
                same name. Then no reset policy applies: the group has read the topic before.
        """
        created, path = self._topics.creation(topic), self._layout.topic_starts(topic)
        while self._topics.creation(topic) == created:
            node = await self._session.get(path)
            first = self._parse(node, path)
            if first is not None and first.created == created:
                return await self._starts(topic, partitions, first)
            decided = await self._decide(topic, created, is_new_log=is_new_log or node is not None)
            if not decided.found:
                return LogOffsets({}, {p: decided.failures[p] for p in partitions if p in decided.failures})
            await self._write(topic, created, node, decided.found)
        return LogOffsets({}, {})

    async def partitions(self) -> list[TopicPartition]:
        """Return the partitions of all topics that the group has begun to read, in ascending order."""
        topics = sorted(await self._session.children(self._layout.starts) or ())
        nodes = await self._session.get_many([topic_path(topic) for topic in topics])
        found = zip(topics, nodes, strict=True)
        return [each for topic, node in found if node is not None for each in _partitions(topic, node)]

    def _parse(self, node: Node | None, path: str) -> FirstOffsets | None:
        if node is None:
            return None
        try:
            return FirstOffsets.parse(node.data, path)
        except ProtocolError as error:
            self._context.metrics.count("offsets_unreadable")
            log.error(
                "group %s: %s; partitions without an offset in Kafka start at their earliest offset",
                self._context.group,
                error,
            )
            return None

    async def _starts(self, topic: str, partitions: Collection[TopicPartition], first: FirstOffsets) -> LogOffsets:
        """Return the first offsets of partitions, or their earliest ones where the logs start later by now."""
        added = sorted(partition for partition in partitions if partition.partition not in first.offsets)
        refused: Mapping[TopicPartition, KielGroupsError] = {}
        if added and self._reset == "none":
            refused = dict.fromkeys(added, self._no_offsets(added))
        earliest, failures = await self._look_up(frozenset(partitions) - refused.keys(), "earliest")
        found = {each: max(offset, first.offsets.get(each.partition, 0)) for each, offset in earliest.items()}
        self._warn_of_added(topic, [partition for partition in added if partition in found])
        self._warn_of_lost(topic, [partition for partition in sorted(found) if partition not in added], first)
        return LogOffsets(found, {**failures, **refused})

    def _warn_of_added(self, topic: str, added: Sequence[TopicPartition]) -> None:
        if added and self._reset != "earliest":
            log.warning(
                "group %s: %s: starting at the earliest offset, although auto_offset_reset is %r. They were added to"
                " %s, or had no leader when the group began to read it. Nothing is skipped",
                self._context.group,
                some(added, _MOST_NAMES),
                self._reset,
                topic,
            )

    def _warn_of_lost(self, topic: str, lost: Sequence[TopicPartition], first: FirstOffsets) -> None:
        age_ms = self._context.runtime.wall_ms() - first.at_ms
        if lost and age_ms > _BEGUN_MS:
            self._context.metrics.count("offsets_expired", len(lost))
            log.error(
                "group %s: Kafka has no offset of %s, although the group began to read %s %s ago. Kafka has"
                " lost it, or it has expired (offsets.retention.minutes of the brokers), unless no member has owned"
                " these partitions yet. They start where the group began: records are repeated, and none is skipped",
                self._context.group,
                some(lost, _MOST_NAMES),
                topic,
                counted(age_ms // _BEGUN_MS, "minute"),
            )

    async def _decide(self, topic: str, created: int, *, is_new_log: bool) -> LogOffsets:
        """Choose the first offsets of all partitions without an offset in Kafka; the write may still come too late."""
        node = await self._session.get(topic_path(topic))
        partitions = [] if node is None else _partitions(topic, node)
        stored, failures = await self._store.stored(partitions)
        if failures:
            # Whether the group begins cannot be decided without all answers.
            return LogOffsets({}, dict.fromkeys(partitions, failures[min(failures)]))
        in_kafka = {partition for partition, (_, log_of) in stored.items() if log_of in (None, created)}
        in_znodes = {} if is_new_log else await self._offsets_in_znodes(partitions, created)
        known = in_kafka | in_znodes.keys()
        missing = [partition for partition in partitions if partition not in known]
        if self._reset == "none" and not is_new_log:
            return LogOffsets(in_znodes, dict.fromkeys(missing, self._no_offsets(missing)) if missing else {})
        policy = "earliest" if is_new_log or in_kafka or in_znodes else self._reset
        found, failures = await self._look_up(missing, policy)
        log.info(
            "group %s: %s of %s without an offset in Kafka: starting at %s",
            self._context.group,
            counted(found, "partition"),
            topic,
            policy,
        )
        return LogOffsets({**in_znodes, **found}, failures)

    async def _offsets_in_znodes(self, partitions: Sequence[TopicPartition], created: int) -> dict[TopicPartition, int]:
        """
        Return the offsets that the group has stored in ZooKeeper, with another store: it continues there.

        An offset that is older than its topic belongs to a deleted topic of the same name.
        """
        found = await self._znodes.read(partitions)
        return {p: each.offset for p, each in found.items() if each.offset is not None and each.mzxid >= created}

    async def _write(self, topic: str, created: int, node: Node | None, offsets: Mapping[TopicPartition, int]) -> None:
        """Create the znode, or replace one of a deleted topic; another member may be faster."""
        path = self._layout.topic_starts(topic)
        first = FirstOffsets(created, self._context.runtime.wall_ms(), {p.partition: at for p, at in offsets.items()})
        await self._session.ensure([self._layout.starts])
        write: Operation = Create(path, first.encode()) if node is None else Put(path, first.encode(), node.version)
        await self._writer.write({path: (write,)}, give_up, renew=self._topics.unless_recreated(topic))

    def _no_offsets(self, partitions: Sequence[TopicPartition]) -> NoOffsetsError:
        return NoOffsetsError(
            f"group {self._context.group} has no offsets of {some(partitions, _MOST_NAMES)} in Kafka, and"
            " auto_offset_reset is 'none'; commit them with another client first, or choose 'earliest' or 'latest'"
        )


def _partitions(topic: str, node: Node) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in parse_topic(node.data, topic_path(topic))]
