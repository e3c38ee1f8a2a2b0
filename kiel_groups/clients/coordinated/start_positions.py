"""Find where the partitions of a new assignment start: at the group's offsets, else as the reset policy says."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import NamedTuple

from kiel_groups.clients.coordinated.coordinator_commits import CoordinatorOffsets
from kiel_groups.config import GroupConfig
from kiel_groups.coordination.partition_handler import PartitionHandler
from kiel_groups.errors import KielGroupsError, NoOffsetsError, SessionLostError
from kiel_groups.group.member.partition_offsets import StartOrigin, StartPosition
from kiel_groups.metrics import Metrics
from kiel_groups.model import GenerationToken, TopicPartition
from kiel_groups.wording import counted, some

__all__ = ["Positions", "StartPositions"]

log = logging.getLogger(__name__)

#: The most partitions that an error names.
_MOST_NAMES = 10


class Positions(NamedTuple):
    """
    The start positions that were found, and the error of each other partition.

    ``lacking`` are those of which the group has no offset, and ``auto_offset_reset`` chooses none.
    """

    found: Mapping[TopicPartition, StartPosition]
    failures: Mapping[TopicPartition, KielGroupsError]
    lacking: frozenset[TopicPartition] = frozenset()


class StartPositions:
    """
    Finds start positions, and has the coordinator store those that it lacks before any record is delivered.

    Otherwise the next owner might choose another position, and records between the two would never be delivered.

    Args:
        config: The group's name and its reset policy.
        handler: Looks up the ends of logs.
        offsets: The group's offsets.
        metrics: Counts ``offsets_missing``.
    """

    def __init__(
        self, config: GroupConfig, handler: PartitionHandler, offsets: CoordinatorOffsets, metrics: Metrics
    ) -> None:
        self._group = config.group
        self._policy = config.auto_offset_reset
        self._handler = handler
        self._offsets = offsets
        self._metrics = metrics
        #: How many partitions a topic had when this process first had one of its partitions assigned.
        self._first_counts: dict[str, int] = {}
        #: The offsets that were chosen in the newest membership. Whether they are stored may be unknown. Another try
        #: must not choose others: the log may have grown, and records between the two would be skipped.
        self._chosen: dict[TopicPartition, int] = {}
        self._token: GenerationToken | None = None

    async def find(
        self, partitions: Collection[TopicPartition], counts: Mapping[str, int], token: GenerationToken
    ) -> Positions:
        """
        Find the start positions of assigned partitions.

        Args:
            partitions: The partitions.
            counts: How many partitions each of their topics has.
            token: The membership that they were assigned to.

        Raises:
            SessionLostError: The membership is over.
        """
        for topic, count in counts.items():
            self._first_counts.setdefault(topic, count)
        if token != self._token:
            self._token, self._chosen = token, {}
        # What is stored while the coordinator answers may be missing in the answer, and is not lost.
        remembered = self._offsets.remembered(partitions)
        try:
            stored = await self._offsets.fetch(partitions)
        except SessionLostError:
            raise
        except KielGroupsError as error:
            return Positions({}, dict.fromkeys(partitions, error))
        missing = frozenset(partitions) - stored.keys()
        known = self._offsets.lost_offsets(missing & remembered)
        chosen = {each: offset for each, offset in self._chosen.items() if each in missing - known.keys()}
        fresh, failures = await self._choose(missing - known.keys() - chosen.keys())
        self._warn_of_missing(fresh.keys(), {partition.topic for partition in stored})
        chosen |= fresh
        self._chosen |= fresh
        created = known | chosen
        saved = await self._offsets.store(created) if created else frozenset()
        for partition in created.keys() - saved:
            failures[partition] = NoOffsetsError(f"group {self._group}: the start of {partition} was not stored")
        starts = {each: _start(offset, token, StartOrigin.STORED) for each, offset in (stored | known).items()}
        starts |= {each: _start(offset, token, StartOrigin.FIRST) for each, offset in chosen.items()}
        lacking = missing - known.keys() if self._policy == "none" else frozenset()
        return Positions({each: start for each, start in starts.items() if each not in failures}, failures, lacking)

    async def _choose(
        self, partitions: Collection[TopicPartition]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, KielGroupsError]]:
        """
        Look up the offsets that the reset policy names.

        A partition that was added to its topic while this process was in the group starts at its earliest offset, or
        its first records would be skipped.
        """
        if not partitions:
            return {}, {}
        if self._policy == "none":
            return {}, dict.fromkeys(partitions, self._no_offsets(sorted(partitions)))
        added = frozenset(filter(self._is_added, partitions))
        found: dict[TopicPartition, int] = {}
        failures: dict[TopicPartition, KielGroupsError] = {}
        for policy, wanted in (("earliest", added), (self._policy, frozenset(partitions) - added)):
            if wanted:
                looked_up = await self._handler.log_offsets(wanted, policy)
                found |= looked_up.found
                failures |= looked_up.failures
        return found, failures

    def _is_added(self, partition: TopicPartition) -> bool:
        """Whether the partition was added to its topic since this process first had one of the topic's partitions."""
        return partition.partition >= self._first_counts.get(partition.topic, 0)

    def _warn_of_missing(self, chosen: Collection[TopicPartition], known_topics: Collection[str]) -> None:
        """Report partitions that start by the policy although the group has committed in their topics."""
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


def _start(offset: int, token: GenerationToken, origin: StartOrigin) -> StartPosition:
    # The coordinator's offsets have no versions.
    return StartPosition(offset, version=0, token=token, origin=origin)
