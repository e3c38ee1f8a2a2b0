"""
The ``broker-v0`` offset store: the same znodes, written by the brokers on request.

As kiel had it. The member itself still writes where the group and its claims start, and what a reset chose. A broker
checks nothing: a commit that is late may step back, which repeats records and loses none (but in a topic that was
created again meanwhile). So it is never waited for beyond the lease, and what stands there is read before and
afterwards. If another writer has changed it since, its offset is adopted. An offset that another writer sets between
that read and the broker's own write is lost; only the ``zookeeper`` store prevents that.
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

#: Ask brokers to store next offsets, with a metadata text.
SendCommit = Callable[[Mapping[TopicPartition, int], str], Awaitable[object]]

#: Ask brokers for committed next offsets; raises where they refuse for good.
FetchOffsets = Callable[[Collection[TopicPartition]], Awaitable[object]]


class BrokerOffsetStore(ZooKeeperOffsetStore):
    """Reads and starts as the ``zookeeper`` store does; commits by way of ``send_commit``."""

    commits_with_release = False
    #: A broker that is late may have stored it for this member, or for the one before.
    versions_tell = False
    send_commit: SendCommit
    fetch_offsets: FetchOffsets

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        #: What brokers were last asked to store: one that is late still writes it, and that is no word of others.
        self._sent: dict[TopicPartition, int] = {}
        #: When to stop waiting for brokers altogether, on the event loop's clock, and the wait that goes on.
        self._no_later_s = math.inf
        self._patience: asyncio.Timeout | None = None

    def hurry(self, within_s: float) -> None:
        self._no_later_s = asyncio.get_running_loop().time() + within_s
        if self._patience is not None:
            self._patience.reschedule(min(self._no_later_s, self._patience.when() or math.inf))

    async def start(self, partitions: Collection[TopicPartition]) -> Starts:
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

    async def write_commit(
        self,
        offsets: Mapping[TopicPartition, tuple[int, int]],
        is_outdated: Callable[[TopicPartition], bool],
        metadata: str = "",
    ) -> tuple[dict[TopicPartition, StoredOffset], dict[TopicPartition, StoredOffset]]:
        """
        Have next offsets stored, but where somebody else wrote; then read what stands there.

        What ``is_outdated`` when brokers are asked is left alone.

        Returns:
            What stands there by our own doing; and what somebody else wrote, before or after, which is now the truth.

        Raises:
            SessionLostError: The session is over.
        """
        if not offsets:
            return {}, {}
        versions = {partition: version for partition, (_, version) in offsets.items()}
        _, before = await self._standing(versions)
        await self._writer.ready()
        # As late as can be: from here on only a connection that is not open yet, and silent brokers, are waited for.
        wanted = {
            partition: offset
            for partition, (offset, _) in offsets.items()
            if partition not in before and not is_outdated(partition)
        }
        if wanted:
            await self._send(wanted, metadata)
        ours, after = await self._standing({partition: versions[partition] for partition in wanted})
        return ours, before | after

    async def put(
        self, offsets: Mapping[TopicPartition, tuple[int, int]], is_outdated: Callable[[TopicPartition], bool]
    ) -> tuple[dict[TopicPartition, StoredOffset], dict[TopicPartition, StoredOffset]]:
        """As the ``zookeeper`` store does; a commit that a broker still writes afterwards is not ours any more."""
        for partition in offsets:
            self._sent.pop(partition, None)
        return await super().put(offsets, is_outdated)

    async def _send(self, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        lease_s = self._session.gate.deadline_s - boot_time_s()
        until_s = min(asyncio.get_running_loop().time() + lease_s, self._no_later_s)
        self._sent |= offsets
        try:
            async with asyncio.timeout_at(until_s) as self._patience:
                await self.send_commit(offsets, metadata)
        except TimeoutError:
            self._metrics.count("commits_timed_out")
            log.warning("group %s: brokers did not store offsets in time", self._layout.group)
        finally:
            self._patience = None

    def sent(self, partition: TopicPartition, offset: int) -> bool:
        """Whether brokers were last asked to store this offset: one that is late does so yet."""
        return self._sent.get(partition) == offset

    async def changed(self, versions: Mapping[TopicPartition, int]) -> dict[TopicPartition, StoredOffset]:
        """As the ``zookeeper`` store says it; but for what a broker wrote for us, in time or late."""
        return (await self._standing(versions))[1]

    async def _standing(
        self, versions: Mapping[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, StoredOffset], dict[TopicPartition, StoredOffset]]:
        """What stands there by our own doing, or as it was; and what somebody else wrote since these versions."""
        if not versions:
            return {}, {}
        # Brokers write on sessions of their own: after an answered quorum write of ours, ours sees what they wrote.
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
