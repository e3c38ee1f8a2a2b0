"""Find start positions of assigned partitions: the group's offsets, or else offsets that the reset policy names."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import NamedTuple

from kiel_groups.clients.net.cluster_metadata import DOUBT
from kiel_groups.config import GroupConfig
from kiel_groups.errors import KielGroupsError, NoOffsetsError
from kiel_groups.group.partition_offsets import StartOrigin, StartPosition
from kiel_groups.group.seen_topics import Verdict, judge_logs
from kiel_groups.members.brokers.assignment_planner import TopicSource
from kiel_groups.members.brokers.coordinator_commits import CoordinatorOffsets
from kiel_groups.members.brokers.gate import GenerationGate
from kiel_groups.members.brokers.renewed_topics import warn_of_unknown
from kiel_groups.members.partition_handler import PartitionHandler
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wire.error_codes import LEADER_NOT_AVAILABLE, UNKNOWN_TOPIC_OR_PARTITION
from kiel_groups.wording import counted, some

log = logging.getLogger(__name__)


#: The most partitions that an error names.
_MOST_NAMES = 10


class Positions(NamedTuple):
    """
    The start positions that were ``found``, and the error of each partition without a start position.

    With ``auto_offset_reset="none"``, ``lacking`` has the partitions for which the group has no offset.
    """

    found: Mapping[TopicPartition, StartPosition]
    failures: Mapping[TopicPartition, KielGroupsError]
    lacking: frozenset[TopicPartition] = frozenset()


class StartPositions:
    """
    Finds start positions, and has the coordinator store newly chosen positions before the consumer delivers any record.

    If the coordinator did not store these positions, the next owner might choose a later position, and skip the records
    before that position.

    Args:
        config: The group's name and its reset policy.
        handler: Looks up the ends of logs.
        offsets: The group's offsets.
        metrics: Counts ``offsets_missing``.
        topics: The topics of the cluster, some of which may have been created again.
    """

    def __init__(
        self,
        config: GroupConfig,
        handler: PartitionHandler,
        offsets: CoordinatorOffsets,
        metrics: Metrics,
        topics: TopicSource,
    ) -> None:
        self._group = config.group
        self._policy = config.auto_offset_reset
        self._handler = handler
        self._offsets = offsets
        self._metrics = metrics
        self._topics = topics
        self._seen = topics.seen
        #: How many partitions a topic had when this process first had one of its partitions assigned.
        self._first_counts: dict[str, int] = {}
        #: The topics of earlier assignments to this process.
        self._former_topics: frozenset[str] = frozenset()
        #: The partitions of the present assignment whose stored offsets are of old logs, or were forgotten with those.
        self._outlived: set[TopicPartition] = set()
        #: The offsets that were chosen for the newest assignment. Whether they are stored may be unknown. Another try
        #: must not choose others: the log may have grown, and records between the two would be skipped. The number is
        #: that of the topic's incarnation.
        self._chosen: dict[tuple[TopicPartition, int], int] = {}
        #: The gate of the newest assignment. A member that joins a stable group again keeps its generation and its id.
        self._gate: GenerationGate | None = None

    async def find(
        self, partitions: Collection[TopicPartition], counts: Mapping[str, int], gate: GenerationGate
    ) -> Positions:
        """
        Find the start positions of assigned partitions.

        Args:
            partitions: The partitions.
            counts: The number of partitions of each topic of these partitions.
            gate: The gate of the assignment. Each assignment has a gate of its own.

        Raises:
            SessionLostError: The membership is over.
            KielGroupsError: The offsets, or the logs that they may belong to, are not known at the moment.
        """
        if gate is not self._gate:
            self._gate, self._chosen, self._outlived = gate, {}, set()
            self._former_topics = frozenset(self._first_counts)
        for topic, count in counts.items():
            self._first_counts.setdefault(topic, count)
        # An offset that is stored while the coordinator answers may be missing in the answer, and is not lost.
        remembered = self._offsets.remembered(partitions)
        numbers = {topic: self._seen.number(topic) for topic in counts}
        stored = await self._offsets.fetch(partitions)
        missing = frozenset(partitions) - stored.keys()
        if await self._are_renewed({each.topic for each in missing}, numbers):
            return await self.find(partitions, counts, gate)
        trusted = {topic: found for topic in counts if (found := self._seen.take_doubt(topic)) is not None}
        # With "none", the application may have chosen no start yet for a partition that this process has not stored.
        self._find_forgotten(missing & remembered if self._policy == "none" else missing, trusted)
        await self._look_at(stored, trusted)
        missing |= (former := self._outlived & frozenset(partitions))
        stored = {each: offset for each, offset in stored.items() if each not in former}
        known = self._offsets.lost_offsets((missing - former) & remembered)
        keys = {each: (each, numbers[each.topic]) for each in missing - known.keys()}
        chosen = {each: self._chosen[key] for each, key in keys.items() if key in self._chosen}
        fresh, failures = await self._choose(missing - known.keys() - chosen.keys())
        self._warn_of_missing(fresh.keys(), {partition.topic for partition in stored})
        chosen |= fresh
        self._chosen |= {keys[each]: offset for each, offset in fresh.items()}
        created = known | chosen
        failures |= await self._store(created, numbers, trusted) if created else {}
        origins = dict.fromkeys(stored | known, StartOrigin.STORED)
        origins |= {each: StartOrigin.NEW_LOG if each in former else StartOrigin.FIRST for each in chosen}
        # The coordinator's offsets have no versions.
        starts = {
            each: StartPosition(offset, version=0, token=gate.token, created=numbers[each.topic], origin=origins[each])
            for each, offset in (stored | known | chosen).items()
        }
        refused = frozenset(keys.keys() - chosen.keys()) if self._policy == "none" else frozenset()
        return Positions({each: start for each, start in starts.items() if each not in failures}, failures, refused)

    async def _are_renewed(self, topics: Collection[str], numbers: Mapping[str, int]) -> bool:
        """
        Return whether one of these topics was created again since the numbers of their incarnations were read.

        The coordinator lacks offsets of these topics. From Kafka 0.10 on, a coordinator deletes the offsets of a
        deleted topic. A topic that is created again has another id. Topics without ids are not checked.

        Raises:
            KielGroupsError: No broker has answered, or the broker does not list one of the topics.
        """
        lacking = {topic for topic in topics if self._seen.has_id(topic)}
        if lacking:
            await self._topics.refresh(lacking, DOUBT)
        if gone := sorted(topic for topic in lacking if self._topics.known_partitions(topic) is None):
            raise UNKNOWN_TOPIC_OR_PARTITION.exception(f"a broker does not list {some(gone)}")
        return any(self._seen.number(topic) != numbers[topic] for topic in lacking)

    async def _store(
        self,
        starts: Mapping[TopicPartition, int],
        numbers: Mapping[str, int],
        trusted: Mapping[str, set[TopicPartition]],
    ) -> dict[TopicPartition, KielGroupsError]:
        """
        Store starts that were chosen in the incarnations ``numbers``. Return the error of each start that was not
        stored.
        """

        def is_current(partition: TopicPartition) -> bool:
            return self._seen.number(partition.topic) == numbers[partition.topic]

        saved = await self._offsets.store(starts, may_store=is_current)
        for topic, known in trusted.items():
            known.update(partition for partition in saved if partition.topic == topic)
        failures: dict[TopicPartition, KielGroupsError] = {}
        for partition in starts.keys() - saved:
            text = f"group {self._group}: the start of {partition} was not stored"
            # A deleted topic may be created again, or was meanwhile.
            is_gone = partition in self._offsets.unknown or not is_current(partition)
            failures[partition] = UNKNOWN_TOPIC_OR_PARTITION.exception(text) if is_gone else NoOffsetsError(text)
        return failures

    def _find_forgotten(self, missing: Collection[TopicPartition], trusted: Mapping[str, set[TopicPartition]]) -> None:
        """
        Record partitions whose offsets the coordinator has deleted together with a topic that has no id.

        Coordinators delete these offsets from Kafka 0.10 on. The topic was missing for a time, and an earlier
        assignment had partitions of the topic, so the group must have stored their offsets.
        """
        for topic, known in sorted(trusted.items()):
            forgotten = {each for each in missing if each.topic == topic}.difference(known, self._outlived)
            if not forgotten or topic not in self._former_topics:
                continue
            self._outlived |= forgotten
            self._metrics.count("topics_recreated")
            log.warning(
                "group %s: topic %s was deleted and created again: the coordinator has forgotten the offsets of %s,"
                " first %s; starting at the beginning of the new one",
                self._group,
                topic,
                counted(forgotten, "partition"),
                min(forgotten),
            )

    async def _look_at(self, stored: Mapping[TopicPartition, int], trusted: Mapping[str, set[TopicPartition]]) -> None:
        """
        Record the partitions whose untrusted offsets belong to the logs of deleted topics.

        Such an offset stays untrusted until another offset is stored, because the member may lose the partition before
        that.

        Args:
            stored: The stored offsets.
            trusted: For each topic with untrusted offsets, the partitions whose offsets are trusted.

        Raises:
            BrokerError: Leaders have not answered.
        """
        for topic, known in sorted(trusted.items()):
            unknown = {each for each in stored if each.topic == topic}.difference(known, self._outlived)
            if not unknown:
                continue
            positions = {each: stored[each] for each in sorted(unknown)}
            sights = await self._handler.look_at_logs(positions)
            if silent := sorted(positions.keys() - sights.keys()):
                raise LEADER_NOT_AVAILABLE.exception(f"the logs of {some(silent, _MOST_NAMES)} are not known")
            # This process may have read from the new log, while the other offsets are still of the old one.
            others = {each: sight for each, sight in sights.items() if not sight.has_record}
            if judge_logs(others.values(), was_unknown=True, was_missing=True) is Verdict.NEW:
                self._outlived.update(others)
                self._report_old(topic, {each: positions[each] for each in others})
            else:
                warn_of_unknown(self._group, self._metrics, others)
            known.update(unknown - self._outlived)

    def _report_old(self, topic: str, positions: Mapping[TopicPartition, int]) -> None:
        self._metrics.count("topics_recreated")
        log.warning(
            "group %s: topic %s was deleted and created again: the stored offsets of %s, first %s at offset %d, are of"
            " the old log; starting at the beginning of the new one",
            self._group,
            topic,
            counted(positions, "partition"),
            min(positions),
            positions[min(positions)],
        )

    async def _choose(
        self, partitions: Collection[TopicPartition]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, KielGroupsError]]:
        """
        Return the offsets that the reset policy names, and the error of each partition without such an offset.

        If a partition was added to its topic while this process was in the group, or its topic was created again in
        that time, the partition starts at its earliest offset. Otherwise, the first records of the partition would be
        skipped.
        """
        if not partitions:
            return {}, {}
        none = self._policy == "none"
        added = frozenset(filter(self._is_renewed if none else self._is_added, partitions))
        others = frozenset(partitions) - added
        found: dict[TopicPartition, int] = {}
        failures: dict[TopicPartition, KielGroupsError] = {}
        if none:
            failures |= dict.fromkeys(others, self._no_offsets(sorted(others)))
        for policy, wanted in (("earliest", added), (self._policy, others)):
            if wanted and policy != "none":
                looked_up = await self._handler.log_offsets(wanted, policy)
                found |= looked_up.found
                failures |= looked_up.failures
        return found, failures

    def _is_added(self, partition: TopicPartition) -> bool:
        """Return whether the log is younger than this process's first assignment of a partition of the topic."""
        return self._is_renewed(partition) or partition.partition >= self._first_counts.get(partition.topic, 0)

    def _is_renewed(self, partition: TopicPartition) -> bool:
        """Return whether the topic was created again while this process was in the group."""
        return partition in self._outlived or self._seen.number(partition.topic) > 0

    def _warn_of_missing(self, chosen: Collection[TopicPartition], known_topics: Collection[str]) -> None:
        """Report partitions without a committed offset in topics for which the group has committed other offsets."""
        found = sorted(each for each in chosen if each.topic in known_topics and not self._is_added(each))
        if not found:
            return
        self._metrics.count("offsets_missing", len(found))
        log.warning(
            "group %s: %s, first %s, had no committed offset, but others of the topic have one; starting at the %s"
            " offset. They were added to the topic while this process was not in the group, or the brokers have"
            " expired their offsets (offsets.retention.minutes)",
            self._group,
            counted(found, "partition"),
            found[0],
            self._policy,
        )

    def _no_offsets(self, partitions: list[TopicPartition]) -> NoOffsetsError:
        return NoOffsetsError(
            f"group {self._group} has no offsets of {some(partitions, _MOST_NAMES)}, and auto_offset_reset is 'none';"
            " start them by commit({partition: offset}), or choose 'earliest' or 'latest'"
        )
