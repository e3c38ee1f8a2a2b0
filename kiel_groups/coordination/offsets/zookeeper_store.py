"""Store the offsets of a group in its offset znodes: by the member itself, or by brokers on its request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kiel_groups.coordination.offsets.broker_commits import BrokerCommits
from kiel_groups.coordination.offsets.offset_store import Written
from kiel_groups.coordination.offsets.offset_znodes import OffsetZnodes
from kiel_groups.coordination.session.session_context import SessionContext
from kiel_groups.group.member.partition_offsets import Commit, StoredOffset
from kiel_groups.model import TopicPartition

__all__ = ["ZooKeeperStore"]


class ZooKeeperStore:
    """
    The offset znodes as an ``OffsetStore``.

    Commits go through ``brokers`` if there are any; otherwise the member writes to the ``znodes``. The metrics of the
    context observe ``commit``, the time that a commit takes.
    """

    def __init__(self, context: SessionContext, znodes: OffsetZnodes, brokers: BrokerCommits | None) -> None:
        self._metrics = context.metrics
        self._runtime = context.runtime
        self._znodes = znodes
        self._brokers = brokers

    async def commit(self, commits: Mapping[TopicPartition, Commit], metadata: str) -> Written:
        """Store offsets by way of the group's store; znodes have no room for the text."""
        started_s = self._runtime.boot_time_s()
        if self._brokers is not None:
            written = await self._brokers.commit(commits, metadata)
        else:
            written = await self._znodes.commit(commits)
        if commits:
            self._metrics.observe("commit", self._runtime.boot_time_s() - started_s)
        return written

    async def commit_reset(self, commits: Mapping[TopicPartition, Commit]) -> Written:
        """
        Store the positions that resets chose, by the member itself, even if brokers write the commits.

        Otherwise the next owner might choose another position.
        """
        return await self._znodes.commit(commits)

    async def read(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, StoredOffset]:
        """Read the stored offsets; an offset that a broker has written late for this member counts as its own."""
        if self._brokers is not None:
            return dict(await self._brokers.read(partitions))
        return await self._znodes.read(partitions)
