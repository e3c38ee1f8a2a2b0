"""
Commit the offsets of one member's partitions, and adopt offsets that other writers store.

Another writer is an operator, or the partition's next owner. The member does not overwrite another writer's offset,
unless it is unreadable or the topic is created again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import TypeAlias

from kiel_groups.config import GroupConfig
from kiel_groups.coordination.offsets.zookeeper_store import StoredOffset, ZooKeeperOffsetStore
from kiel_groups.coordination.partition_handler import PartitionHandler
from kiel_groups.errors import CoordinationError, KielGroupsError
from kiel_groups.group.member.pending_reset import PendingReset
from kiel_groups.group.member.subscription import SubscriptionState
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wording import counted

__all__ = ["OwnedOffsets"]

log = logging.getLogger(__name__)

#: The first and the longest pause before brokers are asked again for log starts that they did not know, in seconds.
RETRY_S = 0.5
LONGEST_RETRY_S = 5.0

_Stored: TypeAlias = dict[TopicPartition, StoredOffset]
#: Stores next offsets at expected versions, unless outdated; returns the stored offsets, and those of other writers.
_Write: TypeAlias = Callable[
    [Mapping[TopicPartition, tuple[int, int]], Callable[[TopicPartition], bool]],
    Awaitable[tuple[_Stored, _Stored]],
]


class OwnedOffsets:
    """
    Stores the offsets of the subscription state during one session, and adopts those of other writers.

    ``owned`` returns the partitions that the member owns now, without those that are being revoked.
    """

    def __init__(
        self,
        config: GroupConfig,
        store: ZooKeeperOffsetStore,
        handler: PartitionHandler,
        subscription: SubscriptionState,
        metrics: Metrics,
        owned: Callable[[], frozenset[TopicPartition]],
    ) -> None:
        self._config = config
        self._store = store
        self._handler = handler
        self._subscription = subscription
        self._metrics = metrics
        self._owned = owned
        #: Held by commits and releases. Two concurrent writes of an offset expect the same version, so one would fail.
        self.writing = asyncio.Lock()

    async def commit_finished(self, metadata: str = "") -> frozenset[TopicPartition]:
        """
        Store the next offset of every owned partition that has newly finished records.

        If another writer has changed an offset meanwhile, the member adopts the new offset and continues there.

        Args:
            metadata: A text for stores that have room for one.

        Returns:
            The partitions whose offsets were stored. A partition whose topic was created again is included only after
            its reset to the new log.

        Raises:
            SessionLostError: The session is over; records whose offsets were not stored will be delivered again.
        """
        async with self.writing:
            return await self.store_finished(self._subscription.assigned_partitions(), metadata)

    async def store_finished(
        self, partitions: Collection[TopicPartition], metadata: str = ""
    ) -> frozenset[TopicPartition]:
        """
        Store the finished offsets of these partitions; the caller holds the lock ``writing``.

        If an earlier commit whose caller was interrupted turns out to be stored, another attempt stores the offsets
        finished since.
        """
        stored: frozenset[TopicPartition] = frozenset()
        waiting = partitions
        while True:
            finished = self._subscription.all_consumed_offsets()
            offsets = {partition: finished[partition] for partition in sorted(waiting) if partition in finished}
            done, waiting = await self._store_once(offsets, partial(self._store.write_commit, metadata=metadata))
            stored |= done
            if not waiting:
                return stored

    async def store_reset(self, partition: TopicPartition, reset: PendingReset) -> int | None:
        """
        Store the position that a reset chose, once no older record of the partition is buffered or in flight.

        The member itself writes the position, even if brokers write the commits or only the application commits.
        Otherwise the next owner might choose another position.

        Returns:
            The offset to continue at; None if the reset is void: the partition is released or lost, its topic was
            created again, or another writer has set its offset.

        Raises:
            SessionLostError: The session is over; nothing was stored.
        """
        async with self.writing:
            state = self._subscription.state(partition)
            while state is not None and state.reset is reset and not state.outdated:
                offset = state.reset_offset(autocommit=self._config.autocommit)
                assert offset is not None
                if offset == state.committed and not state.unreadable:
                    self._subscription.seek(partition, reset.offset_after(state.finished))
                    return state.position
                await self._store_once({partition: offset}, self._store.put)
                state = self._subscription.state(partition)
            return None

    async def _store_once(
        self, offsets: Mapping[TopicPartition, int], write: _Write
    ) -> tuple[frozenset[TopicPartition], frozenset[TopicPartition]]:
        """
        Make one attempt to store next offsets.

        The caller holds the lock ``writing`` while it reads the offsets, too, so that they fit the versions that they
        replace. An operator's offset may be adopted between two commits, and an older offset must not overwrite it.

        Returns:
            The partitions whose offsets are stored; and those where this attempt failed because an earlier commit of
            this consumer turned out to be stored.
        """
        wanted = {
            partition: (offset, state.version)
            for partition, offset in offsets.items()
            if (state := self._subscription.state(partition)) is not None
        }
        sent = self._subscription.mark_sent({partition: offset for partition, (offset, _) in wanted.items()})
        found, foreign = await write(wanted, self._subscription.is_outdated)
        self._subscription.mark_answered(sent)
        for partition, now in found.items():
            if now.offset is not None:
                self._subscription.mark_committed(partition, now.offset, now.version)
        made = [partition for partition, now in foreign.items() if self._adopt(partition, now.offset, now.version)]
        stored_now = found | {partition: foreign[partition] for partition in made}
        stored = frozenset(partition for partition, now in stored_now.items() if now.offset == wanted[partition][0])
        self._metrics.count("offsets_committed", len(stored))
        return stored, frozenset(made) - stored

    async def adopt_foreign_offsets(self) -> None:
        """
        Adopt the offsets that other writers stored between commits.

        The znode's version reveals another writer, even if the stored offset is the same. That is a reset, too: the
        records after the offset must be delivered again.
        """
        async with self.writing:
            versions = {
                partition: state.version
                for partition in sorted(self._owned())
                if (state := self._subscription.state(partition)) is not None and not state.outdated
            }
            for partition, changed in (await self._store.changed(versions)).items():
                self._adopt(partition, changed.offset, changed.version)

    async def reset_recreated(self, topic: str, created: int) -> None:
        """
        Reset the partitions of a topic that was deleted and created again to the beginning of its new log.

        Partitions that are being revoked are reset, too. Until brokers return the start of a partition's new log, no
        offset of the partition is committed.

        Args:
            topic: The topic's name.
            created: The creation zxid of the new topic. Partitions whose claims were opened in its log are left out.
        """
        pause_s = RETRY_S
        while outdated := self._subscription.mark_recreated(topic, created):
            reason = "brokers did not return the start of every log"
            try:
                if failures := await self._reset_known(topic, created, outdated):
                    reason = str(failures[min(failures)])
            except CoordinationError:
                raise
            except KielGroupsError as error:
                reason = str(error)
            if left := self._subscription.mark_recreated(topic, created):
                self._metrics.count("start_overs_put_off", len(left))
                log.warning(
                    "group %s: topic %s was created again, and %s cannot be reset to its new log yet: %s; trying again"
                    " in %.1f s",
                    self._config.group,
                    topic,
                    counted(left, "partition"),
                    reason,
                    pause_s,
                )
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_RETRY_S)

    async def _reset_known(
        self, topic: str, created: int, outdated: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, KielGroupsError]:
        """
        Reset the partitions for which brokers return the start of the new log.

        An offset that an operator has already set in the new log is adopted. Unreadable data is overwritten.

        Returns:
            The reason for each partition whose log start is not known.
        """
        renew = self._store.unless_recreated(topic)
        # Outside the lock: brokers may take long, and the member's other partitions must be committed meanwhile.
        earliest, failures = await self._handler.log_offsets(outdated, "earliest")
        async with self.writing:
            # Some partitions may have been released meanwhile, or the topic created once more.
            still = sorted(self._subscription.mark_recreated(topic, created) & earliest.keys())
            states = {partition: state for partition in still if (state := self._subscription.state(partition))}

            def is_known(partition: TopicPartition, found: StoredOffset) -> bool:
                return states[partition].knows(found.offset, found.version)

            current = await self._store.reset_recreated(topic, {p: earliest[p] for p in states}, is_known, renew)
            for partition, found in current.items():
                if found.offset is not None and self._subscription.state(partition) is states[partition]:
                    self._subscription.reset_recreated(partition, found.offset, found.version, created)
                    self._handler.offset_changed(partition, found.offset)
                    self._warn_if_set(partition, earliest[partition], found.offset)
        return failures

    def _warn_if_set(self, partition: TopicPartition, earliest: int, offset: int) -> None:
        if offset != earliest:
            log.warning(
                "group %s: another writer set the offset of %s to %d in the new log of its topic; continuing there",
                self._config.group,
                partition,
                offset,
            )

    def _adopt(self, partition: TopicPartition, offset: int | None, version: int) -> bool:
        """Adopt another writer's offset; if an earlier commit of this consumer stored it, record that, return True."""
        state = self._subscription.state(partition)
        if state is None:
            return False
        if offset is not None and state.made(offset, version):
            self._subscription.mark_committed(partition, offset, version)
            return True
        self._metrics.count("commits_superseded")
        if offset is None:
            # The next commit, or the release, overwrites the unreadable data.
            self._subscription.mark_unreadable(partition, version)
            return False
        log.warning(
            "group %s: another writer changed the offset of %s to %d; continuing there",
            self._config.group,
            partition,
            offset,
        )
        self._subscription.adopt(partition, offset, version)
        self._handler.offset_changed(partition, offset)
        return False
