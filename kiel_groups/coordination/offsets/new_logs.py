"""Store start offsets in the new logs of a topic that was deleted and created again (decision 0007)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from kiel_groups.coordination.offsets.offset_znodes import OffsetZnodes
from kiel_groups.coordination.offsets.topic_incarnations import TopicIncarnations
from kiel_groups.coordination.session.fenced_writes import Renew
from kiel_groups.coordination.session.session_context import MemberContext
from kiel_groups.group.member.partition_offsets import Commit, StoredOffset
from kiel_groups.model import TopicPartition
from kiel_groups.wording import counted

__all__ = ["NewLogs"]

log = logging.getLogger(__name__)

ANY_VERSION = -1


class NewLogs:
    """Stores the start offsets of new logs for one group, on one member's session."""

    def __init__(self, context: MemberContext, znodes: OffsetZnodes, topics: TopicIncarnations) -> None:
        self._group = context.group
        self._rules = context.tracker.rules
        self._metrics = context.metrics
        self._znodes = znodes
        self._topics = topics

    async def store_starts(
        self,
        topic: str,
        earliest: Mapping[TopicPartition, int],
        is_known: Callable[[TopicPartition, StoredOffset], bool],
        renew: Renew[object],
    ) -> dict[TopicPartition, StoredOffset]:
        """
        Store the ``earliest`` offsets of a topic that was deleted and created again.

        Each replaces the version that was just read. An offset that another writer has stored since the topic was
        created is kept, because an operator has set it in the new log; not so if brokers store the commits, because
        the writer might be a late broker.

        Args:
            topic: The topic.
            earliest: The first offset of each partition's new log.
            is_known: Returns whether this member has seen, or written, a stored offset in the old log.
            renew: Drops the writes once the topic was created again.

        Returns:
            The offsets that are stored now, without those that ``renew`` dropped.
        """
        created = self._topics.creation(topic)
        current, waiting = dict[TopicPartition, StoredOffset](), sorted(earliest)
        while waiting:
            for partition, found in (stored := await self._znodes.read(waiting)).items():
                is_set = found.offset is not None and found.mzxid > created and not is_known(partition, found)
                if is_set and not self._rules.through_brokers:
                    current[partition] = found
            versions = {p: stored[p].version if p in stored else ANY_VERSION for p in waiting if p not in current}
            commits = {p: Commit(earliest[p], version) for p, version in versions.items()}
            written = await self._znodes.put(commits, renew)
            current |= written.stored
            waiting = sorted(written.found)
            if written.stored:
                self._metrics.count("offsets_of_deleted_topic", len(written.stored))
                log.warning(
                    "group %s: topic %s was deleted and created again; %s at the earliest offset",
                    self._group,
                    topic,
                    counted(written.stored, "partition starts", "partitions start"),
                )
        return current
