"""
The ``broker-v0`` offset store: the same znodes, written by the brokers on request.

As kiel had it. The member itself still writes where the group and its claims start. A broker checks nothing: a commit
that is late may step back, which repeats records and loses none. So it is never waited for beyond the lease, and what
stands there is read afterwards.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping

from kiel_groups.coordination.machine import boot_time_s
from kiel_groups.coordination.offset_store import StoredOffset, ZooKeeperOffsetStore
from kiel_groups.group.subscription import StartPosition
from kiel_groups.model import TopicPartition

__all__ = ["BrokerOffsetStore", "FetchOffsets", "SendCommit"]

log = logging.getLogger(__name__)

#: Ask brokers to store next offsets, with a metadata text.
SendCommit = Callable[[Mapping[TopicPartition, int], str], Awaitable[object]]

#: Ask brokers for committed next offsets; raises where they refuse for good.
FetchOffsets = Callable[[Collection[TopicPartition]], Awaitable[object]]


class BrokerOffsetStore(ZooKeeperOffsetStore):
    """Reads and starts as the ``zookeeper`` store does; commits by way of ``send_commit``."""

    commits_with_release = False
    send_commit: SendCommit
    fetch_offsets: FetchOffsets

    async def start(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, StartPosition]:
        """
        Where claims start: at what the offset znodes say, once brokers have shown that they serve this group's offsets.

        A broker that refuses to read them would refuse to write them, too; better to know before anything is
        processed. What it answers is not needed: that there is no offset, it also says of a topic that it has not heard
        of yet, and the znode, read on the claiming session, knows better.

        Raises:
            NoOffsetsError: Brokers refuse for good.
        """
        await self.fetch_offsets(partitions)
        return await super().start(partitions)

    async def commit(
        self, offsets: Mapping[TopicPartition, tuple[int, int]], metadata: str = ""
    ) -> tuple[dict[TopicPartition, StoredOffset], dict[TopicPartition, StoredOffset]]:
        """
        Have next offsets stored, then read what stands there.

        Returns:
            What stands there now, whoever wrote it; nothing counts as somebody else's, for the broker asks nobody.

        Raises:
            SessionLostError: The session is over.
        """
        if not offsets:
            return {}, {}
        remaining_s = self._session.gate.deadline_s - boot_time_s()
        wanted = {partition: offset for partition, (offset, _) in offsets.items()}
        try:
            await asyncio.wait_for(self.send_commit(wanted, metadata), max(0.0, remaining_s))
        except TimeoutError:
            self._metrics.count("commits_timed_out")
            log.warning("group %s: brokers did not store offsets within the lease", self._layout.group)
        # The broker wrote on a session of its own: after an answered quorum write of ours, ours sees it.
        await self._writer.prove()
        return await self.read(sorted(offsets)), {}
