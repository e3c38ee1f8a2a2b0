"""
The offsets of what one member holds: stored, and followed where somebody else writes them.

An offset that another one wrote is an operator's word, or that of the partition's next owner: it is never written
over, but where a topic is created again.
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

__all__ = ["Offsets"]

log = logging.getLogger(__name__)

#: How long to wait before brokers are asked again for what they did not know yet, in seconds: first, at most.
RETRY_S = 0.5
LONGEST_RETRY_S = 5.0

_Standing: TypeAlias = dict[TopicPartition, StoredOffset]
#: Stores next offsets at expected versions, unless outdated; returns what is stored, and what other writers stored.
_Write: TypeAlias = Callable[
    [Mapping[TopicPartition, tuple[int, int]], Callable[[TopicPartition], bool]],
    Awaitable[tuple[_Standing, _Standing]],
]


class Offsets:
    """
    Between the subscription state and the offset store; one for each session.

    ``held`` tells which partitions are held at the moment, without those that are being handed over.
    """

    def __init__(
        self,
        config: GroupConfig,
        store: ZooKeeperOffsetStore,
        handler: PartitionHandler,
        subscription: SubscriptionState,
        metrics: Metrics,
        held: Callable[[], frozenset[TopicPartition]],
    ) -> None:
        self._config = config
        self._store = store
        self._handler = handler
        self._subscription = subscription
        self._metrics = metrics
        self._held = held
        #: A commit and a release of one partition would refuse each other: both expect the version they have seen.
        self.writing = asyncio.Lock()

    async def commit_finished(self, metadata: str = "") -> frozenset[TopicPartition]:
        """
        Store the next offset of every partition held of which something new is finished.

        Where somebody else wrote the offset meanwhile, theirs is the truth: it is adopted, and handed out from.

        Args:
            metadata: A text for stores that have room for one.

        Returns:
            The partitions whose offsets were stored; without those whose topic was created again, before they have
            started over in its new log.

        Raises:
            SessionLostError: The session is over; what was not stored will be delivered again.
        """
        async with self.writing:
            return await self.store_finished(self._subscription.assigned_partitions(), metadata)

    async def store_finished(
        self, partitions: Collection[TopicPartition], metadata: str = ""
    ) -> frozenset[TopicPartition]:
        """
        Store what is finished of these; for who has the lock ``writing``.

        Where an earlier commit, which its caller was interrupted in, turns out to have been made, what is finished
        since is stored in the place of that.
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
        Store the position that a reset chose, once nothing older of the partition is buffered or in flight.

        The member writes it itself, also where brokers write commits and where the application commits: the next owner
        would choose another one.

        Returns:
            The offset to continue at; None where the reset is void: the partition is given up or lost, its topic was
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
        Store next offsets, once.

        Offsets and the versions they replace are read at one moment, under the lock: between two commits an operator's
        offset may have been adopted, and an offset from before must not be written over it.

        Returns:
            What is stored; and of what an earlier commit was found made, which this one did not expect.
        """
        wanted = {
            partition: (offset, state.version)
            for partition, offset in offsets.items()
            if (state := self._subscription.state(partition)) is not None
        }
        sent = self._subscription.mark_sent({partition: offset for partition, (offset, _) in wanted.items()})
        found, foreign = await write(wanted, self._subscription.is_outdated)
        self._subscription.mark_answered(sent)
        for partition, standing in found.items():
            if standing.offset is not None:
                self._subscription.mark_committed(partition, standing.offset, standing.version)
        made = [
            partition
            for partition, standing in foreign.items()
            if self._adopt(partition, standing.offset, standing.version)
        ]
        standing_now = found | {partition: foreign[partition] for partition in made}
        stored = frozenset(
            partition for partition, standing in standing_now.items() if standing.offset == wanted[partition][0]
        )
        self._metrics.count("offsets_committed", len(stored))
        return stored, frozenset(made) - stored

    async def follow_resets(self) -> None:
        """
        Adopt what somebody else wrote although nothing is being committed; versions tell, not values.

        An offset that is reset to where it stands is a reset all the same: what was handed out since is to come again.
        """
        async with self.writing:
            versions = {
                partition: state.version
                for partition in sorted(self._held())
                if (state := self._subscription.state(partition)) is not None and not state.outdated
            }
            for partition, standing in (await self._store.changed(versions)).items():
                self._adopt(partition, standing.offset, standing.version)

    async def start_over(self, topic: str, created: int) -> None:
        """
        A topic was deleted and created again: what is held of the old log starts at the beginning of the new one.

        That goes for what is being handed over, too. Until brokers tell where the new log begins, nothing is committed.

        Args:
            topic: Its name.
            created: Its creation zxid. What was claimed since may be known to be of the new log already.
        """
        pause_s = RETRY_S
        while outdated := self._subscription.mark_recreated(topic, created):
            reason = "brokers do not tell where all of them begin"
            try:
                if failures := await self._begin_known(topic, created, outdated):
                    reason = str(failures[min(failures)])
            except CoordinationError:
                raise
            except KielGroupsError as error:
                reason = str(error)
            if left := self._subscription.mark_recreated(topic, created):
                self._metrics.count("start_overs_put_off", len(left))
                log.warning(
                    "group %s: %s of %s, which is another topic now, are reset later: %s; again in %.1f s",
                    self._config.group,
                    counted(left, "partition"),
                    topic,
                    reason,
                    pause_s,
                )
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_RETRY_S)

    async def _begin_known(
        self, topic: str, created: int, outdated: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, KielGroupsError]:
        """
        Resume at the start of the new log.

        An offset that an operator has already set in the new log is adopted. Garbage is overwritten.

        Returns:
            Why the start of the new log is not known of others of these partitions.
        """
        renew = self._store.while_same(topic)
        # Brokers may take long, and others of this member's partitions are committed meanwhile.
        earliest, failures = await self._handler.log_offsets(outdated, "earliest")
        async with self.writing:
            # Some may have been given back, or belong to a still later log.
            still = sorted(self._subscription.mark_recreated(topic, created) & earliest.keys())
            states = {partition: state for partition in still if (state := self._subscription.state(partition))}

            def is_known(partition: TopicPartition, found: StoredOffset) -> bool:
                return states[partition].knows(found.offset, found.version)

            standing = await self._store.start_over(topic, {p: earliest[p] for p in states}, is_known, renew)
            for partition, found in standing.items():
                if found.offset is not None and self._subscription.state(partition) is states[partition]:
                    self._subscription.start_over(partition, found.offset, found.version, created)
                    self._handler.moved(partition, found.offset)
                    self._tell_of_set(partition, earliest[partition], found.offset)
        return failures

    def _tell_of_set(self, partition: TopicPartition, earliest: int, offset: int) -> None:
        if offset != earliest:
            log.warning(
                "group %s: the offset of %s was set to %d by somebody else after its topic was created again; it is"
                " followed",
                self._config.group,
                partition,
                offset,
            )

    def _adopt(self, partition: TopicPartition, offset: int | None, version: int) -> bool:
        """Take what stands there for the truth; whether an earlier commit of this consumer's made it that."""
        state = self._subscription.state(partition)
        if state is None:
            return False
        if offset is not None and state.made(offset, version):
            self._subscription.mark_committed(partition, offset, version)
            return True
        self._metrics.count("commits_superseded")
        if offset is None:
            # The next commit, or the release, writes over it.
            self._subscription.mark_unreadable(partition, version)
            return False
        log.warning(
            "group %s: the offset of %s was changed to %d by somebody else; it is followed",
            self._config.group,
            partition,
            offset,
        )
        self._subscription.adopt(partition, offset, version)
        self._handler.moved(partition, offset)
        return False
