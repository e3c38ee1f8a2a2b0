"""Taking and giving back owner znodes: the reads and transactions behind the claims of one member."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from kiel_groups.coordination.offsets.zookeeper_store import StoredOffset, ZooKeeperOffsetStore
from kiel_groups.coordination.session.fenced_writes import FencedWriter
from kiel_groups.coordination.session.zk_session import Session
from kiel_groups.group.member.subscription import PartitionState, SubscriptionState
from kiel_groups.group.znodes.contents import encode_owner
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.group.znodes.transactions import Check, Create, Delete, Failure, Operation
from kiel_groups.metrics import Metrics
from kiel_groups.model import MemberId, TopicPartition
from kiel_groups.wording import counted

__all__ = ["OwnerZnodes", "Releases"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Releases:
    """``released`` by this member; ``gone`` before it could be done."""

    released: frozenset[TopicPartition]
    gone: frozenset[TopicPartition]


class OwnerZnodes:
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
        #: Whether what the application has finished is committed without its word, and whether a release does that.
        self._autocommit = commits
        self._commits = commits and store.commits_with_release
        #: The topics whose offsets have had a folder on this session.
        self._prepared: set[str] = set()

    async def claim(
        self, partitions: Collection[TopicPartition], freed: Collection[TopicPartition] = ()
    ) -> frozenset[TopicPartition]:
        """
        Create the owner znodes of those that are free.

        Args:
            partitions: What to claim.
            freed: Those of them whose owner znodes were just seen to go: that need not be read again.

        Returns:
            Those that are this member's now; the others are somebody else's.
        """
        unseen = frozenset(partitions) - frozenset(freed)
        free, _ = await asyncio.gather(self._seen_free(unseen), self._prepare({p.topic for p in partitions}))
        waiting = set(freed) | free
        claimed: set[TopicPartition] = set()
        while waiting:
            outcome = await self._writer.write(
                {partition: self._creation(partition) for partition in sorted(waiting)}, lambda *_: None
            )
            claimed |= outcome.done.keys()
            folderless = {p for p, failure in outcome.dropped.items() if failure is Failure.NO_NODE}
            await self._restore_folders({p.topic for p in folderless})
            # What exists now although it was seen free may be this member's own, by a create whose answer was lost.
            doubtful = (outcome.unknown | outcome.dropped.keys()) - folderless
            mine, unowned = await self._whose(doubtful)
            claimed |= mine
            waiting = folderless | (unowned & outcome.unknown)
        self._metrics.count("partitions_claimed", len(claimed))
        return frozenset(claimed)

    async def _restore_folders(self, topics: Collection[str]) -> None:
        """The leader has created the folders of owners before it published; these are missing all the same."""
        folders = sorted(map(self._layout.topic_owners, topics))
        if folders:
            self._metrics.count("owner_folders_restored", len(folders))
            log.warning("group %s: %s were deleted; creating them again", self._layout.group, ", ".join(folders))
            await self._session.ensure(folders)

    async def _prepare(self, topics: Collection[str]) -> None:
        if fresh := set(topics) - self._prepared:
            await self._store.prepare(fresh)
            self._prepared |= fresh

    def _creation(self, partition: TopicPartition) -> tuple[Operation, ...]:
        return (Create(self._layout.owner(partition), self._owner, ephemeral=True),)

    async def _seen_free(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Those without an owner znode, by one read a topic."""
        topics = sorted({partition.topic for partition in partitions})
        found = await self._session.children_many([self._layout.topic_owners(topic) for topic in topics])
        owned = {topic: frozenset(names or ()) for topic, names in zip(topics, found, strict=True)}
        return {p for p in partitions if str(p.partition) not in owned[p.topic]}

    async def _whose(self, partitions: Collection[TopicPartition]) -> tuple[set[TopicPartition], set[TopicPartition]]:
        """Which of these are owned by this session, and which by nobody."""
        listed = sorted(partitions)
        nodes = await self._session.exists_many([self._layout.owner(partition) for partition in listed])
        mine = {p for p, node in zip(listed, nodes, strict=True) if node and node.owner == self._session.id}
        free = {p for p, node in zip(listed, nodes, strict=True) if node is None}
        return mine, free

    async def verify(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Those that are *not* this session's (any more); nothing of them is taken over any more, either."""
        if not partitions:
            return frozenset()
        await self._writer.prove()
        mine, _ = await self._whose(partitions)
        gone = frozenset(partitions) - mine
        self._store.forget(gone)
        return gone

    async def wait_free(
        self, watchers: Mapping[TopicPartition, Callable[[], None]]
    ) -> tuple[frozenset[TopicPartition], frozenset[TopicPartition]]:
        """
        Look at the owner znodes of some partitions and set a watch on each.

        Returns:
            Those that nobody owns, and those that this session does.
        """
        paths = [self._layout.owner(partition) for partition in watchers]
        found = dict(zip(watchers, await self._session.exists_many(paths, list(watchers.values())), strict=True))
        free = frozenset(partition for partition, node in found.items() if node is None)
        mine = (partition for partition, node in found.items() if node is not None and node.owner == self._session.id)
        return free, frozenset(mine)

    async def release(self, partitions: Collection[TopicPartition]) -> Releases:
        """
        Commit what is finished and delete the owner znodes, both at once for each partition.

        If the application commits by itself, only positions that a reset chose are committed here. A partition whose
        offset another writer has changed is released without a commit, and the other offset stays. A partition whose
        topic was created again meanwhile is checked first.
        """
        standing, gone = await self._look_at_unopened(partitions)
        waiting = {
            partition: self._release(partition, standing.get(partition)) for partition in sorted(set(partitions) - gone)
        }
        released: set[TopicPartition] = set()
        seen: dict[TopicPartition, StoredOffset | None] = {}

        def renew(partition: TopicPartition, operations: tuple[Operation, ...]) -> tuple[Operation, ...] | None:
            return operations if partition in seen or not self._is_outdated(partition) else None

        while waiting:
            outcome = await self._writer.write(waiting, self._on_refused, renew=renew)
            released |= outcome.done.keys()
            self._tell(
                {p for p in outcome.done.keys() & seen.keys() if outcome.done[p][0] is not None},
                "offsets_of_deleted_topic",
                "were stored while their topic was created again; they are set to 0",
            )
            doubtful = outcome.unknown | outcome.dropped.keys()
            left_alone = sorted(waiting.keys() - outcome.done.keys() - doubtful)
            # Offsets first: a version that was read before the owner is checked by the next attempt.
            standing = await self._store.read([*sorted(outcome.dropped), *left_alone])
            mine, _ = await self._whose(doubtful)
            # Unanswered and not ours any more: it happened, for our session was proved alive since.
            released |= outcome.unknown - mine
            gone |= outcome.dropped.keys() - mine
            refused = {partition: outcome.dropped[partition] for partition in sorted(outcome.dropped.keys() & mine)}
            again = (outcome.unknown & mine) | await self._store.restore_folders(refused)
            waiting = {partition: waiting[partition] for partition in sorted(again)}
            waiting |= self._released_otherwise({p: standing.get(p) for p in refused if p not in again})
            seen |= {partition: standing.get(partition) for partition in left_alone}
            waiting |= {partition: self._release(partition, seen[partition]) for partition in left_alone}
        self._store.forget(partitions)
        self._metrics.count("partitions_released", len(released))
        return Releases(frozenset(released), frozenset(gone))

    async def _look_at_unopened(
        self, partitions: Collection[TopicPartition]
    ) -> tuple[dict[TopicPartition, StoredOffset], set[TopicPartition]]:
        """
        Read the offsets of claims that were never opened, and after that the owners of these claims.

        A new owner writes the offset before it delivers anything. If the offset's version has not changed since it was
        read, and it was read before the owner znode, then no other member has opened a claim in between.

        Returns:
            What is stored, and the claims that are gone.
        """
        unopened = sorted(p for p in partitions if self._subscription.state(p) is None)
        if not unopened:
            return {}, set()
        await self._writer.prove()
        standing = await self._store.read(unopened)
        mine, _ = await self._whose(unopened)
        return standing, set(unopened) - mine

    def _release(self, partition: TopicPartition, found: StoredOffset | None = None) -> tuple[Operation, ...]:
        """
        Commit or check the offset, and delete the owner znode.

        A new owner gives the offset a new version at once: an owner znode that was deleted by hand and is another
        member's now is not deleted under its hands.

        Of a topic that was created again nothing is committed; and what was, when nobody could know (``found``), would
        be taken for an offset of the new log. Brokers have not told where that begins: it is at 0, then.
        """
        deletion = Delete(self._layout.owner(partition))
        state = self._subscription.state(partition)
        if found is not None and self._is_misleading(partition, found):
            return (self._store.write(partition, 0, state.version if state else found.version), deletion)
        if state is None:
            # Without an offset there is nothing to check: whose the claim is has just been read.
            return (deletion,) if found is None else (Check(self._layout.offset(partition), found.version), deletion)
        offset = self._left_by(state)
        if (state.unreadable or offset != state.committed) and not state.outdated:
            return (self._store.write(partition, offset, state.version), deletion)
        return (Check(self._layout.offset(partition), state.version), deletion)

    def _left_by(self, state: PartitionState) -> int:
        """The offset for the next owner. A position that a reset chose is not chosen again."""
        chosen = state.reset_offset(autocommit=self._autocommit)
        if chosen is not None:
            return chosen
        return state.finished if self._commits else state.committed

    def _tell(self, partitions: Collection[TopicPartition], counter: str, what: str) -> None:
        """Once for all of them."""
        if partitions:
            self._metrics.count(counter, len(partitions))
            log.warning(
                "group %s: offsets of %s, first %s, %s",
                self._layout.group,
                counted(partitions, "partition"),
                min(partitions),
                what,
            )

    def _is_outdated(self, partition: TopicPartition) -> bool:
        """Whether what is known of it, or is being taken over, is of a log that is gone."""
        return self._subscription.is_outdated(partition) or self._store.is_outdated(partition)

    def _is_misleading(self, partition: TopicPartition, found: StoredOffset) -> bool:
        """
        Whether an offset that was stored since the topic was created again is of a log that is gone.

        Or somebody has set it by hand: the version tells, where there is a state.
        """
        state = self._subscription.state(partition)
        is_set = state is not None and found.version == state.adopted and self._store.versions_tell
        if found.offset is None or is_set:
            return False
        return found.mzxid > self._store.creation(partition.topic) and self._is_outdated(partition)

    def _released_otherwise(
        self, standing: Mapping[TopicPartition, StoredOffset | None]
    ) -> dict[TopicPartition, tuple[Operation, ...]]:
        """Of those whose offset is another one than was expected: by a commit of ours, by somebody else, or garbage."""
        operations, given_up = {}, []
        for partition, found in standing.items():
            state = self._subscription.state(partition)
            if found and state and found.offset is None:
                self._subscription.mark_unreadable(partition, found.version)
                operations[partition] = self._release(partition, found)
            elif (
                found
                and state
                and found.offset is not None
                and (state.made(found.offset, found.version) or self._store.sent(partition, found.offset))
            ):
                # A commit of ours of which nobody heard.
                self._subscription.mark_committed(partition, found.offset, found.version)
                operations[partition] = self._release(partition, found)
            else:
                deletion = Delete(self._layout.owner(partition))
                check = () if found is None else (Check(self._layout.offset(partition), found.version),)
                operations[partition] = (*check, deletion)
                if state is not None:
                    given_up.append(partition)
        self._tell(given_up, "commits_superseded", "were changed by somebody else; they are released without a commit")
        return operations

    def _on_refused(
        self, partition: TopicPartition, operation: Operation, failure: Failure
    ) -> tuple[Operation, ...] | None:
        """An offset that was deleted is created again; whatever else is in the way, or missing, is looked at first."""
        state = self._subscription.state(partition)
        if isinstance(operation, Delete) or failure is not Failure.NO_NODE:
            return None
        deletion = Delete(self._layout.owner(partition))
        if state is None or state.outdated:
            return (deletion,)
        creation = self._store.on_refused(partition, operation, failure, self._left_by(state))
        return None if creation is None else (*creation, deletion)
