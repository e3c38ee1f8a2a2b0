"""
Implement the ``broker-v0`` offset store of kiel: the brokers write the offset znodes on request.

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
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from kiel_groups.coordination.offsets.zookeeper_store import Starts, StoredOffset, ZooKeeperOffsetStore
from kiel_groups.coordination.zookeeper.runtime import boot_time_s
from kiel_groups.model import TopicPartition

__all__ = ["BrokerOffsetStore", "FetchOffsets", "SendCommit"]

log = logging.getLogger(__name__)

#: Asks brokers to store next offsets, with a metadata text.
SendCommit = Callable[[Mapping[TopicPartition, int], str], Awaitable[object]]

#: Asks brokers for committed next offsets; raises NoOffsetsError if they refuse permanently.
FetchOffsets = Callable[[Collection[TopicPartition]], Awaitable[object]]


class BrokerOffsetStore(ZooKeeperOffsetStore):
    """An offset store that reads offsets and opens claims as the ``zookeeper`` store, and commits through brokers."""

    commits_with_release = False
    #: A late broker may have stored the offset for this member, or for the previous owner.
    versions_identify_writers = False
    send_commit: SendCommit
    fetch_offsets: FetchOffsets

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        #: The offsets last sent to brokers. A late broker may still write them; they are not another writer's offsets.
        self._sent: dict[TopicPartition, int] = {}
        #: When to stop waiting for brokers altogether, on the event loop's clock; and the timeout of the current wait.
        self._give_up_s = math.inf
        self._timeout: asyncio.Timeout | None = None

    def hurry(self, within_s: float) -> None:
        self._give_up_s = asyncio.get_running_loop().time() + within_s
        if self._timeout is not None:
            self._timeout.reschedule(min(self._give_up_s, self._timeout.when() or math.inf))

    async def start(self, partitions: Collection[TopicPartition]) -> Starts:
        """
        Check that brokers serve this group's offsets, then open claims as the ``zookeeper`` store does.

        A broker that refuses to read offsets would also refuse to write them, and the member must know that before it
        processes anything. The offsets themselves are read from the znodes on the member's session, because a broker
        also reports "no offset" for a topic that it does not know yet.

        Raises:
            NoOffsetsError: Brokers refuse permanently.
        """
        await self.fetch_offsets(partitions)
        return await super().start(partitions)

    async def write_commit(
        self,
        offsets: Mapping[TopicPartition, tuple[int, int]],
        is_outdated: Callable[[TopicPartition], bool],
        metadata: str = "",
    ) -> tuple[dict[TopicPartition, StoredOffset], dict[TopicPartition, StoredOffset]]:
        """
        Have brokers store next offsets, except where another writer changed them; then read the stored offsets.

        Partitions for which ``is_outdated`` is true right before the brokers are asked are skipped.

        Returns:
            The stored offsets of this member; and those that another writer stored before or after the commit, which
            apply from now on.

        Raises:
            SessionLostError: The session is over.
        """
        if not offsets:
            return {}, {}
        versions = {partition: version for partition, (_, version) in offsets.items()}
        _, before = await self._read_own_and_foreign(versions)
        await self._writer.wait_ready()
        # Checked as late as possible: from here on the only waits are for broker connections and broker answers.
        wanted = {
            partition: offset
            for partition, (offset, _) in offsets.items()
            if partition not in before and not is_outdated(partition)
        }
        if wanted:
            await self._send(wanted, metadata)
        own, after = await self._read_own_and_foreign({partition: versions[partition] for partition in wanted})
        return own, before | after

    async def put(
        self, offsets: Mapping[TopicPartition, tuple[int, int]], is_outdated: Callable[[TopicPartition], bool]
    ) -> tuple[dict[TopicPartition, StoredOffset], dict[TopicPartition, StoredOffset]]:
        """Write as the ``zookeeper`` store does; a commit that a late broker writes after that counts as foreign."""
        for partition in offsets:
            self._sent.pop(partition, None)
        return await super().put(offsets, is_outdated)

    async def _send(self, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        lease_s = self._session.gate.deadline_s - boot_time_s()
        until_s = min(asyncio.get_running_loop().time() + lease_s, self._give_up_s)
        self._sent |= offsets
        try:
            async with asyncio.timeout_at(until_s) as self._timeout:
                await self.send_commit(offsets, metadata)
        except TimeoutError:
            self._metrics.count("commits_timed_out")
            log.warning("group %s: brokers did not store offsets in time; reading what is stored", self._layout.group)
        finally:
            self._timeout = None

    def sent(self, partition: TopicPartition, offset: int) -> bool:
        """Return whether ``offset`` was the last one sent to brokers, so that a late broker may still store it."""
        return self._sent.get(partition) == offset

    async def changed(self, versions: Mapping[TopicPartition, int]) -> dict[TopicPartition, StoredOffset]:
        """Return changed offsets as the ``zookeeper`` store does, without those that a broker wrote for this member."""
        return (await self._read_own_and_foreign(versions))[1]

    async def _read_own_and_foreign(
        self, versions: Mapping[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, StoredOffset], dict[TopicPartition, StoredOffset]]:
        """Read the stored offsets: those unchanged since ``versions`` or sent by this member, and all others."""
        if not versions:
            return {}, {}
        # Brokers write on sessions of their own. An answered quorum write makes their writes visible on this session.
        await self._writer.prove()
        found = await self.read(list(versions))
        foreign = {
            partition: stored
            for partition, stored in found.items()
            if stored.version != versions[partition] and stored.offset != self._sent.get(partition)
        }
        for partition in foreign:
            self._sent.pop(partition, None)
        return {partition: stored for partition, stored in found.items() if partition not in foreign}, foreign
