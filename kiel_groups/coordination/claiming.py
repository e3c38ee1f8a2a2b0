"""Taking and giving back owner znodes: the reads and transactions behind the claims of one member."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass

from kiel_groups.coordination.fenced import FencedWriter
from kiel_groups.coordination.offset_store import ZooKeeperOffsetStore
from kiel_groups.coordination.session import Session
from kiel_groups.group.layout import GroupLayout
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.group.transactions import Create, Delete, Failure, Operation, Put
from kiel_groups.group.znodes import encode_owner
from kiel_groups.metrics import Metrics
from kiel_groups.model import MemberId, TopicPartition

__all__ = ["Claimant", "Releases"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Releases:
    """``released`` by this member; ``gone`` before it could be done."""

    released: frozenset[TopicPartition]
    gone: frozenset[TopicPartition]


class Claimant:
    """Owner znodes, as one member of one session handles them."""

    def __init__(
        self,
        session: Session,
        layout: GroupLayout,
        member_id: MemberId,
        writer: FencedWriter,
        store: ZooKeeperOffsetStore,
        subscription: SubscriptionState,
        metrics: Metrics,
        *,
        commits: bool,
    ) -> None:
        self._session = session
        self._layout = layout
        self._writer = writer
        self._store = store
        self._subscription = subscription
        self._metrics = metrics
        self._owner = encode_owner(member_id)
        self._commits = commits

    async def claim(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """
        Create the owner znodes of those that are free.

        Returns:
            Those that are this member's now; the others are somebody else's.
        """
        waiting = await self._seen_free(partitions)
        claimed: set[TopicPartition] = set()
        while waiting:
            outcome = await self._writer.write(
                {partition: self._creation(partition) for partition in sorted(waiting)}, lambda *_: None
            )
            claimed |= outcome.done.keys()
            folderless = {p for p, failure in outcome.dropped.items() if failure is Failure.NO_NODE}
            await self._session.ensure(sorted({self._layout.topic_owners(p.topic) for p in folderless}))
            # What exists now although it was seen free may be this member's own, by a create whose answer was lost.
            doubtful = (outcome.unknown | outcome.dropped.keys()) - folderless
            mine, free = await self._whose(doubtful)
            claimed |= mine
            waiting = folderless | (free & outcome.unknown)
        self._metrics.count("partitions_claimed", len(claimed))
        return frozenset(claimed)

    def _creation(self, partition: TopicPartition) -> tuple[Operation, ...]:
        return (Create(self._layout.owner(partition), self._owner, ephemeral=True),)

    async def _seen_free(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Those without an owner znode, by one read a topic."""
        free: set[TopicPartition] = set()
        for topic in sorted({partition.topic for partition in partitions}):
            owned = set(await self._session.children(self._layout.topic_owners(topic)) or ())
            free |= {p for p in partitions if p.topic == topic and str(p.partition) not in owned}
        return free

    async def _whose(self, partitions: Collection[TopicPartition]) -> tuple[set[TopicPartition], set[TopicPartition]]:
        """Which of these are owned by this session, and which by nobody."""
        listed = list(partitions)
        nodes = await self._session.exists_many([self._layout.owner(partition) for partition in listed])
        mine = {p for p, node in zip(listed, nodes, strict=True) if node and node.owner == self._session.id}
        free = {p for p, node in zip(listed, nodes, strict=True) if node is None}
        return mine, free

    async def verify(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Those that are *not* this session's (any more)."""
        if not partitions:
            return frozenset()
        await self._writer.prove()
        mine, _ = await self._whose(partitions)
        return frozenset(partitions) - mine

    async def wait_free(self, partition: TopicPartition, watcher: Callable[[], None]) -> tuple[bool, bool]:
        """
        Look at an owner znode and set a watch on it.

        Returns:
            Whether nobody owns the partition, and whether this session does.
        """
        node = await self._session.exists(self._layout.owner(partition), watcher)
        return node is None, node is not None and node.owner == self._session.id

    async def release(self, partitions: Collection[TopicPartition]) -> Releases:
        """
        Commit what is finished and delete the owner znodes, both at once for each partition.

        Where the application commits by itself nothing is committed here. A partition whose offset somebody else wrote
        is released without a commit: theirs stands.
        """
        waiting = {partition: self._release(partition) for partition in sorted(partitions)}
        released: set[TopicPartition] = set()
        gone: set[TopicPartition] = set()
        while waiting:
            outcome = await self._writer.write(waiting, self._on_refused)
            released |= outcome.done.keys()
            gone |= outcome.dropped.keys()
            mine, _ = await self._whose(outcome.unknown)
            # Unanswered and not ours any more: it happened, for our session was proved alive since.
            released |= outcome.unknown - mine
            waiting = {partition: waiting[partition] for partition in sorted(mine)}
        self._metrics.count("partitions_released", len(released))
        return Releases(frozenset(released), frozenset(gone))

    def _release(self, partition: TopicPartition) -> tuple[Operation, ...]:
        deletion = Delete(self._layout.owner(partition))
        state = self._subscription.state(partition)
        if state is None or not state.uncommitted or not self._commits:
            return (deletion,)
        return (self._store.write(partition, state.finished, state.version), deletion)

    def _on_refused(
        self, partition: TopicPartition, operation: Operation, failure: Failure
    ) -> tuple[Operation, ...] | None:
        deletion = Delete(self._layout.owner(partition))
        if isinstance(operation, Delete):
            return None
        state = self._subscription.state(partition)
        if isinstance(operation, Put) and failure is Failure.NO_NODE and state is not None:
            creation = self._store.on_refused(partition, failure, state.finished)
            return (*(creation or ()), deletion)
        self._metrics.count("commits_superseded")
        log.warning(
            "group %s: the offset of %s was changed by somebody else; it is released without a commit",
            self._layout.group,
            partition,
        )
        return (deletion,)
