"""Create and delete the owner znodes of one member (claim and release), and read the leaders of its partitions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kiel_groups.config import HostPort
from kiel_groups.errors import CoordinationError, ProtocolError
from kiel_groups.group.partition_offsets import Release, StoredOffset
from kiel_groups.group.znodes.contents import encode_owner, parse_broker, parse_leader, whole_number
from kiel_groups.group.znodes.layout import BROKER_IDS, partition_state_path
from kiel_groups.group.znodes.transactions import Check, Create, Delete, Failure, Operation
from kiel_groups.members.offsets.topic_incarnations import TopicIncarnations
from kiel_groups.members.offsets.zookeeper_store import OffsetZnodes
from kiel_groups.model import TopicPartition
from kiel_groups.wording import counted
from kiel_groups.zookeeper.fenced_writes import FencedWriter, Stop
from kiel_groups.zookeeper.session import Node, Session
from kiel_groups.zookeeper.tasks import MemberContext

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Releases:
    """The partitions that this member ``released``, and the partitions whose owner znode was ``gone`` already."""

    released: frozenset[TopicPartition]
    gone: frozenset[TopicPartition]


class Ownership(NamedTuple):
    """
    The result of reading owner znodes: the partitions that this session owns, and the partitions without an owner.

    Other partitions belong to other sessions.
    """

    mine: frozenset[TopicPartition]
    free: frozenset[TopicPartition]


class OwnerZnodes:
    """Claims and releases partitions for one member on one session."""

    def __init__(self, context: MemberContext, writer: FencedWriter, offsets: OffsetZnodes) -> None:
        self._session = context.session
        self._layout = context.layout
        self._tracker = context.tracker
        self._metrics = context.metrics
        self._writer = writer
        self._offsets = offsets
        self._owner = encode_owner(context.member_id)
        #: The topics whose offsets folder exists or was created on this session.
        self._prepared: set[str] = set()

    async def claim(
        self, partitions: Collection[TopicPartition], freed: Collection[TopicPartition] = ()
    ) -> frozenset[TopicPartition]:
        """
        Create the owner znodes of partitions that are free.

        Args:
            partitions: The partitions to claim.
            freed: The partitions of ``partitions`` whose owner znodes were just deleted. The method does not read these
                znodes first.

        Returns:
            The partitions that this member owns now. Other sessions own the other partitions.
        """
        unseen = frozenset(partitions) - frozenset(freed)
        free, _ = await asyncio.gather(self._seen_free(unseen), self._prepare({p.topic for p in partitions}))
        waiting = set(freed) | free
        claimed: set[TopicPartition] = set()
        while waiting:
            outcome = await self._writer.write(
                {partition: self._creation(partition) for partition in sorted(waiting)}, self._on_taken
            )
            claimed |= outcome.done.keys()
            folderless = {p for p, failure in outcome.dropped.items() if failure is Failure.NO_NODE}
            await self._restore_folders({p.topic for p in folderless})
            # An owner znode that exists now may be this member's own: the answer to its create may have been lost.
            doubtful = waiting - outcome.done.keys() - folderless
            ownership = await self._read_owners(doubtful)
            claimed |= ownership.mine
            waiting = folderless | ownership.free
        self._metrics.count("partitions_claimed", len(claimed))
        return frozenset(claimed)

    @staticmethod
    def _on_taken(partition: TopicPartition, operation: Operation, failure: Failure) -> None:
        """
        Raise Stop if another session owns a partition.

        That session may own more of the partitions, and a refused transaction for each of them would take long.
        """
        if failure is Failure.NODE_EXISTS:
            raise Stop

    async def _restore_folders(self, topics: Collection[str]) -> None:
        """Create deleted folders of owner znodes again. The leader had created them before it published the plan."""
        folders = sorted(map(self._layout.topic_owners, topics))
        if folders:
            self._metrics.count("owner_folders_restored", len(folders))
            log.warning("group %s: %s were deleted; creating them again", self._layout.group, ", ".join(folders))
            await self._session.ensure(folders)

    async def _prepare(self, topics: Collection[str]) -> None:
        if fresh := set(topics) - self._prepared:
            await self._offsets.ensure_parents(fresh)
            self._prepared |= fresh

    def _creation(self, partition: TopicPartition) -> tuple[Operation, ...]:
        return (Create(self._layout.owner(partition), self._owner, ephemeral=True),)

    async def _seen_free(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return the partitions without an owner znode, with one read for each topic."""
        topics = sorted({partition.topic for partition in partitions})
        found = await self._session.children_many([self._layout.topic_owners(topic) for topic in topics])
        owned = {topic: frozenset(names or ()) for topic, names in zip(topics, found, strict=True)}
        return {p for p in partitions if str(p.partition) not in owned[p.topic]}

    async def _read_owners(self, partitions: Collection[TopicPartition]) -> Ownership:
        listed = sorted(partitions)
        return self._ownership(
            listed, await self._session.exists_many([self._layout.owner(partition) for partition in listed])
        )

    def _ownership(self, partitions: Iterable[TopicPartition], nodes: Iterable[Node | None]) -> Ownership:
        found = dict(zip(partitions, nodes, strict=True))
        mine = (p for p, node in found.items() if node is not None and node.owner == self._session.id)
        return Ownership(frozenset(mine), frozenset(p for p, node in found.items() if node is None))

    async def holds(self, partitions: Collection[TopicPartition]) -> bool:
        """
        Return whether these partitions certainly have owner znodes and the offsets that the tracker knows.

        The check takes one transaction for many partitions, and no read. It also detects another owner: before a member
        delivers records of a partition, it writes the offset, so the offset znode has another version.
        """
        versions = {partition: state.version for partition in partitions if (state := self._tracker.of(partition))}
        if self._tracker.rules.in_kafka or versions.keys() != set(partitions):
            return False
        owners = (Check(self._layout.owner(partition)) for partition in sorted(versions))
        offsets = (self._offsets.check(partition, version) for partition, version in sorted(versions.items()))
        return await self._writer.holds([*owners, *offsets])

    async def verify(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Return the partitions that this session does *not* own. The tracker forgets their unopened claims."""
        if not partitions:
            return frozenset()
        await self._writer.prove()
        gone = frozenset(partitions) - (await self._read_owners(partitions)).mine
        self._tracker.end_unopened(gone)
        return gone

    async def watch(self, watchers: Mapping[TopicPartition, Callable[[], None]]) -> Ownership:
        """Watch the owner znodes of these partitions, and return their ownership."""
        paths = [self._layout.owner(partition) for partition in watchers]
        return self._ownership(watchers, await self._session.exists_many(paths, list(watchers.values())))

    async def release(self, partitions: Collection[TopicPartition]) -> Releases:
        """
        Commit finished records and delete the owner znodes, atomically for each partition.

        Without autocommit, and with a store that does not commit in releases, this method commits only positions that a
        reset chose. A partition whose offset another writer has changed is released without a commit, and that offset
        remains. If a topic was created again meanwhile, this method reads the offsets of its partitions before the
        release.
        """
        unopened, gone = await self._read_unopened(partitions)
        waiting = {each: self._release(each, unopened.get(each)) for each in sorted(set(partitions) - gone)}
        released: set[TopicPartition] = set()
        seen: dict[TopicPartition, StoredOffset | None] = {}

        def renew(partition: TopicPartition, operations: tuple[Operation, ...]) -> tuple[Operation, ...] | None:
            return operations if partition in seen or self._tracker.may_store(partition) else None

        while waiting:
            outcome = await self._writer.write(waiting, self._on_refused, renew=renew)
            released |= outcome.done.keys()
            self._warn(
                {p for p in outcome.done.keys() & seen.keys() if outcome.done[p][0] is not None},
                "offsets_of_deleted_topic",
                "were stored while their topic was created again; they are set to 0",
            )
            doubtful = outcome.unknown | outcome.dropped.keys()
            left_alone = sorted(waiting.keys() - outcome.done.keys() - doubtful)
            # Offsets are read before owners, so that the next attempt checks a version read before the owner znode.
            stored = await self._offsets.read([*sorted(outcome.dropped), *left_alone])
            mine = (await self._read_owners(doubtful)).mine
            # If the answer was lost and the znode is gone, the release was done: the session was proved alive since.
            released |= outcome.unknown - mine
            gone |= outcome.dropped.keys() - mine
            refused = {partition: outcome.dropped[partition] for partition in sorted(outcome.dropped.keys() & mine)}
            again = (outcome.unknown & mine) | await self._offsets.restore_parents(refused)
            waiting = {partition: waiting[partition] for partition in sorted(again)}
            waiting |= self._release_changed({p: stored.get(p) for p in refused if p not in again})
            seen |= {partition: stored.get(partition) for partition in left_alone}
            waiting |= {partition: self._release(partition, seen[partition]) for partition in left_alone}
        self._tracker.end(partitions)
        self._metrics.count("partitions_released", len(released))
        return Releases(frozenset(released), frozenset(gone))

    async def release_stored(self, partitions: Collection[TopicPartition]) -> Releases:
        """
        Delete the owner znodes of partitions whose offsets are stored elsewhere already.

        The transaction cannot check these offsets. So this method first reads the owner znodes: an operator may have
        deleted an owner znode, and another member may have created it again.
        """
        # The opening of a claim, which may be under way, stores nothing from now on.
        self._tracker.end_unopened(partitions)
        await self._writer.prove()
        waiting = (await self._read_owners(partitions)).mine
        gone, released = frozenset(partitions) - waiting, frozenset[TopicPartition]()
        while waiting:
            deletions = {each: (Delete(self._layout.owner(each)),) for each in sorted(waiting)}
            outcome = await self._writer.write(deletions, lambda *_: None)
            # If the answer was lost and the znode is gone, the release was done: the session was proved alive since.
            waiting = (await self._read_owners(outcome.unknown)).mine
            released |= outcome.done.keys() | (outcome.unknown - waiting)
            gone |= outcome.dropped.keys()
        self._tracker.end(partitions)
        self._metrics.count("partitions_released", len(released))
        return Releases(released, gone)

    async def _read_unopened(
        self, partitions: Collection[TopicPartition]
    ) -> tuple[dict[TopicPartition, StoredOffset], set[TopicPartition]]:
        """
        Return the offsets of claims that were never opened, and the claims that are lost, as their owner znodes show.

        This method reads the owner znodes after the offsets. A new owner writes the offset before it delivers a record.
        So if the release still finds the version that was read here, no other member has opened a claim of the
        partition in between.
        """
        unopened = sorted(p for p in partitions if not self._tracker.is_open(p))
        if not unopened:
            return {}, set()
        await self._writer.prove()
        stored = await self._offsets.read(unopened)
        mine = (await self._read_owners(unopened)).mine
        return stored, set(unopened) - mine

    def _operations(self, partition: TopicPartition, decision: Release) -> tuple[Operation, ...]:
        """Return the operations that store or verify the offset, and delete the owner znode."""
        deletion = Delete(self._layout.owner(partition))
        if decision.version is None:
            return (deletion,)
        if decision.offset is None:
            return (self._offsets.check(partition, decision.version), deletion)
        return (self._offsets.write(partition, decision.offset, decision.version), deletion)

    def _release(self, partition: TopicPartition, found: StoredOffset | None) -> tuple[Operation, ...]:
        return self._operations(partition, self._tracker.release(partition, found))

    def _release_changed(
        self, stored: Mapping[TopicPartition, StoredOffset | None]
    ) -> dict[TopicPartition, tuple[Operation, ...]]:
        """Return the operations that release partitions whose stored offset is not the expected offset."""
        decisions = {p: self._tracker.release_changed(p, found) for p, found in stored.items()}
        self._warn(
            [partition for partition, decision in decisions.items() if decision.is_superseded],
            "commits_superseded",
            "were changed by another writer; they are released without a commit",
        )
        return {partition: self._operations(partition, decision) for partition, decision in decisions.items()}

    def _on_refused(
        self, partition: TopicPartition, operation: Operation, failure: Failure
    ) -> tuple[Operation, ...] | None:
        """
        Create a deleted offset znode again. In other cases, drop the partition, so that ``release`` reads its znodes.
        """
        if isinstance(operation, Delete) or failure is not Failure.NO_NODE:
            return None
        deletion = Delete(self._layout.owner(partition))
        offset = self._tracker.offset_to_restore(partition)
        if offset is None:
            return (deletion,)
        # If the creation was refused, the parent znode is missing.
        return None if isinstance(operation, Create) else (self._offsets.creation(partition, offset), deletion)

    def _warn(self, partitions: Collection[TopicPartition], counter: str, what: str) -> None:
        """Log one warning for all of these partitions."""
        if partitions:
            self._metrics.count(counter, len(partitions))
            log.warning(
                "group %s: offsets of %s, first %s, %s",
                self._layout.group,
                counted(partitions, "partition"),
                min(partitions),
                what,
            )


async def registered_brokers(session: Session) -> dict[int, HostPort]:
    """
    Return the addresses of the brokers that are registered at this moment, by broker id, ascending.

    Brokers without a listener for the client's protocol are logged and left out.
    """
    numbers = map(whole_number, await session.children(BROKER_IDS) or [])
    ids = sorted(number for number in numbers if number is not None)
    paths = [f"{BROKER_IDS}/{node_id}" for node_id in ids]
    found = {}
    for node_id, path, node in zip(ids, paths, await session.get_many(paths), strict=True):
        try:
            if node is not None:
                found[node_id] = parse_broker(node.data, path, session.broker_protocol)
        except ProtocolError as error:
            log.warning("%s; ignoring that broker", error)
    return found


class PartitionLeaders:
    """
    Reads the leaders of a member's partitions in ZooKeeper, and passes these leaders to the handler.

    A broker that loses only its connection to ZooKeeper is not notified that it was deposed. Such a broker keeps
    answering fetches of partitions that another broker leads. Its consumers miss the records that the new leader
    accepts. A partition's ``state`` znode names the elected leader.
    """

    def __init__(self, context: MemberContext, writer: FencedWriter, topics: TopicIncarnations) -> None:
        self._group = context.group
        self._session = context.session
        self._handler = context.handler
        self._metrics = context.metrics
        self._writer = writer
        self._topics = topics
        self._is_refused = False
        #: The leaders that were last read, each with the creation zxid of its topic and the version of its znode.
        self._known: dict[TopicPartition, tuple[int, int, int]] = {}

    async def pass_on(self, partitions: Collection[TopicPartition]) -> None:
        """
        Read the leaders of these partitions, and pass them on to the handler.

        Leave out a leader that is not registered: if all replicas are dead, the znode keeps the last leader, or −1.
        Leave out a partition whose znode cannot be parsed, too. For such partitions, the brokers' metadata applies. If
        an ACL denies reading, the metadata applies to all partitions and the member continues, because it needs these
        znodes for nothing else.

        Raises:
            SessionLostError: The session is over.
        """
        if not partitions:
            self._handler.leaders_changed({}, {})
            return
        try:
            if not await self._holds(partitions):
                # A server that lags behind could name a leader that brokers already know to be deposed.
                await self._writer.prove()
                await self._read(sorted(partitions))
            brokers = await registered_brokers(self._session)
            leaders = {each: leader for each, (_, _, leader) in self._known.items() if leader in brokers}
        except CoordinationError as error:
            if error.retriable:
                raise
            leaders, brokers = {}, {}
            self._metrics.count("leaders_unreadable")
            if not self._is_refused:
                self._is_refused = True
                text = "group %s: the leaders of partitions cannot be read: %s; using those that brokers name"
                log.warning(text, self._group, error)
        self._handler.leaders_changed(leaders, brokers)

    async def _holds(self, partitions: Collection[TopicPartition]) -> bool:
        """Return whether the leaders of these partitions are certainly known, by one transaction and no read."""
        known = {each: found for each, found in self._known.items() if found[0] == self._topics.creation(each.topic)}
        if known.keys() != set(partitions):
            return False
        checks = [Check(partition_state_path(each), version) for each, (_, version, _) in sorted(known.items())]
        return await self._writer.holds(checks)

    async def _read(self, partitions: Sequence[TopicPartition]) -> None:
        """Read and remember the leaders of these partitions."""
        self._known = {}
        created = {partition: self._topics.creation(partition.topic) for partition in partitions}
        paths = [partition_state_path(partition) for partition in partitions]
        for partition, path, node in zip(partitions, paths, await self._session.get_many(paths), strict=True):
            try:
                if node is not None:
                    self._known[partition] = (created[partition], node.version, parse_leader(node.data, path))
            except ProtocolError as error:
                log.warning("group %s: %s; using the leader that brokers name", self._group, error)
                self._metrics.count("znodes_unreadable")
