"""
Implement the commits of the ``broker-v0`` offset store of kiel: the brokers write the offset znodes on request.

The member itself writes start offsets and the offsets that a reset chose. A broker writes without a check: a late
commit may move an offset back, which repeats records and loses none (except in a topic that was created again
meanwhile). So the member never waits for a broker beyond its lease, and reads the stored offsets before and after a
commit. If another writer has changed an offset, the member adopts it. An offset that another writer sets between the
first of these reads and the broker's write is lost; only the ``zookeeper`` store prevents that.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Collection, Mapping

from kiel_groups.coordination.offsets.offset_store import Written
from kiel_groups.coordination.offsets.offset_znodes import OffsetZnodes
from kiel_groups.coordination.session.fenced_writes import FencedWriter
from kiel_groups.coordination.session.session_context import MemberContext
from kiel_groups.group.member.partition_offsets import Commit, Finding, StoredOffset
from kiel_groups.model import TopicPartition

__all__ = ["BrokerCommits"]

log = logging.getLogger(__name__)


class BrokerCommits:
    """
    Commits that brokers write to the offset znodes.

    Args:
        context: The member; the lease of its session limits each wait for brokers.
        znodes: The offset znodes.
        writer: The writer that proves the member's session.
    """

    def __init__(self, context: MemberContext, znodes: OffsetZnodes, writer: FencedWriter) -> None:
        self._context = context
        self._znodes = znodes
        self._writer = writer
        self._tracker = context.tracker
        #: When to stop waiting for brokers altogether, on the event loop's clock; and the timeout of the current wait.
        self._give_up_s = math.inf
        self._timeout: asyncio.Timeout | None = None

    def hurry(self, within_s: float) -> None:
        """Limit all waits for brokers to ``within_s`` seconds from now, because the member leaves."""
        self._give_up_s = asyncio.get_running_loop().time() + within_s
        # A timeout that has expired cannot be set anew: the wait is being cancelled, which may take a while.
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(min(self._give_up_s, self._timeout.when() or math.inf))

    async def check_served(self, partitions: Collection[TopicPartition]) -> None:
        """
        Ask brokers for the offsets: a broker that refuses to read them would also refuse to write them.

        The answer is not used. The offsets themselves are read from the znodes on the member's session, because a
        broker also reports "no offset" for a topic that it does not know yet.

        Raises:
            NoOffsetsError: Brokers refuse permanently.
        """
        await self._context.handler.fetch_offsets(partitions)

    async def commit(self, commits: Mapping[TopicPartition, Commit], metadata: str) -> Written:
        """
        Have brokers store next offsets, except where another writer changed them; then read the stored offsets.

        The partitions that the tracker no longer permits are skipped right before the brokers are asked.

        Returns:
            The offsets that were found; the tracker judges whether a broker stored them for this member.

        Raises:
            SessionLostError: The session is over.
        """
        if not commits:
            return Written({}, {})
        before = await self.read(commits)
        foreign = {partition: stored for partition, stored in before.items() if not self._is_own(partition, stored)}
        await self._writer.wait_ready()
        # Checked as late as possible: from here on the only waits are for broker connections and broker answers.
        wanted = {
            partition: commit.offset
            for partition, commit in commits.items()
            if partition not in foreign and self._tracker.may_store(partition)
        }
        if wanted:
            await self._send(wanted, metadata)
        return Written({}, foreign | await self.read(wanted))

    def _is_own(self, partition: TopicPartition, stored: StoredOffset) -> bool:
        """Return whether this member stored the offset; if a broker stored it late, have the tracker record that."""
        finding = self._tracker.judge(partition, stored)
        if finding is Finding.OWN:
            # The next request replaces the last one, after which this offset would be taken for another writer's.
            self._tracker.read(partition, stored)
        return finding in (Finding.UNCHANGED, Finding.OWN)

    async def _send(self, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        lease_s = self._context.session.gate.deadline_s - self._context.runtime.boot_time_s()
        until_s = min(asyncio.get_running_loop().time() + lease_s, self._give_up_s)
        self._tracker.requested(offsets)
        try:
            async with asyncio.timeout_at(until_s) as self._timeout:
                await self._context.handler.send_commit(offsets, metadata)
        except TimeoutError:
            self._context.metrics.count("commits_timed_out")
            log.warning("group %s: brokers did not store offsets in time; reading what is stored", self._context.group)
        finally:
            self._timeout = None

    async def read(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, StoredOffset]:
        """Read the offsets that brokers have stored; skip deleted znodes, which a commit creates again."""
        if not partitions:
            return {}
        # Brokers write on sessions of their own. An answered quorum write makes their writes visible on this session.
        await self._writer.prove()
        return await self._znodes.read(list(partitions))
