"""
Implement the ``zookeeper`` offset store: fenced writes of the v0 offset znodes that every tool of Kafka 0.8 reads.

A commit expects the version that the member last saw of an offset znode, in a transaction that checks the member znode.
So ZooKeeper refuses a late write of a former owner, and a write that would overwrite an operator's reset.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kiel_groups.coordination.offsets.start_offsets import LookUp, StartOffsets
from kiel_groups.coordination.offsets.topic_incarnations import TopicIncarnations
from kiel_groups.coordination.session.fenced_writes import FencedWriter, Outcome, Renew
from kiel_groups.coordination.session.zk_session import Node, Session
from kiel_groups.errors import KielGroupsError, ProtocolError
from kiel_groups.group.member.subscription import StartPosition
from kiel_groups.group.znodes.contents import encode_offset, parse_offset, parse_topic
from kiel_groups.group.znodes.layout import GroupLayout, topic_path
from kiel_groups.group.znodes.transactions import Create, Failure, Operation, Put
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wording import counted

__all__ = ["Starts", "StoredOffset", "ZooKeeperOffsetStore"]

log = logging.getLogger(__name__)

ANY_VERSION = -1


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """
    The content of an offset znode: the next offset and the znode's version.

    ``offset`` is None if the znode contains no decimal number. ``mzxid`` is the zxid of the last write, 0 if unknown.
    """

    offset: int | None
    version: int
    mzxid: int = 0


class Starts(NamedTuple):
    """
    The start positions of claims, and the reason for each claim whose position is not known yet.

    A claim that is in neither is opened by a later call, or its owner znode is gone.
    """

    found: dict[TopicPartition, StartPosition]
    failures: dict[TopicPartition, KielGroupsError]


class _ClaimOffsets(NamedTuple):
    """
    The claims of one topic, divided by whether their offsets can be rewritten now.

    ``created`` is the topic's creation zxid, 0 if the topic is gone. ``ready`` are the partitions to rewrite, and
    ``stored`` their offsets as far as they were read already. ``failures`` has the reason for each claim without one.
    """

    created: int
    ready: list[TopicPartition]
    stored: dict[TopicPartition, StoredOffset]
    failures: dict[TopicPartition, KielGroupsError]


class _OpenedClaims(NamedTuple):
    """The opened claims of a topic with their offsets and new versions, and the reasons why others have no offset."""

    created: int
    versions: dict[TopicPartition, int]
    offsets: dict[TopicPartition, int]
    failures: dict[TopicPartition, KielGroupsError]


class ZooKeeperOffsetStore:
    """Reads and writes the offsets of one group on one member's session."""

    #: Whether a release commits in the transaction that deletes the owner znode.
    commits_with_release = True
    #: Whether a version that this member did not write always means that another writer stored the offset.
    versions_identify_writers = True

    def __init__(
        self,
        session: Session,
        layout: GroupLayout,
        writer: FencedWriter,
        topics: TopicIncarnations,
        metrics: Metrics,
        look_up: LookUp,
        reset: str,
    ) -> None:
        self._session = session
        self._layout = layout
        self._writer = writer
        self._topics = topics
        self._metrics = metrics
        self._first = StartOffsets(session, layout, writer, look_up, reset, self.unless_recreated)
        #: The claims that are being opened, each with the creation zxid that its topic had when opening started.
        self._created_at_claim: dict[TopicPartition, int] = {}

    def hurry(self, within_s: float) -> None:
        """Limit waits for brokers to ``within_s``, because the member is leaving; this store has no such waits."""

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Stop tracking these claims as being opened: they are open, released or lost."""
        for partition in partitions:
            self._created_at_claim.pop(partition, None)

    def creation(self, topic: str) -> int:
        """Return the creation zxid of the topic's newest known incarnation, 0 if none is known."""
        return self._topics.creation(topic)

    def is_outdated(self, partition: TopicPartition) -> bool:
        """Return whether the topic was created again since opening the claim started: its offset is of the old log."""
        created = self.creation(partition.topic)
        return self._created_at_claim.get(partition, created) != created

    def sent(self, partition: TopicPartition, offset: int) -> bool:
        """Return whether a broker may still store this offset for this member; always False in this store."""
        return False

    async def read(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, StoredOffset]:
        """Read the stored offsets; a partition without an offset znode is left out."""
        nodes = await self._session.get_many([self._layout.offset(partition) for partition in partitions])
        return {
            partition: self._parse(partition, node)
            for partition, node in zip(partitions, nodes, strict=True)
            if node is not None
        }

    async def changed(self, versions: Mapping[TopicPartition, int]) -> dict[TopicPartition, StoredOffset]:
        """Read the offsets whose version differs from ``versions``; skip deleted znodes, which a commit recreates."""
        found = await self.read(list(versions))
        return {partition: stored for partition, stored in found.items() if stored.version != versions[partition]}

    def _parse(self, partition: TopicPartition, node: Node) -> StoredOffset:
        try:
            offset: int | None = parse_offset(node.data, self._layout.offset(partition))
        except ProtocolError as error:
            self._metrics.count("offsets_unreadable")
            log.error("%s; treating it as no committed offset", error)
            offset = None
        return StoredOffset(offset, node.version, node.mzxid)

    async def start(self, partitions: Collection[TopicPartition]) -> Starts:
        """
        Open freshly claimed partitions, and return their start positions.

        If some partitions of a topic have a valid stored offset, only those are opened, because they need no broker.
        Otherwise, missing offsets are looked up for the whole topic, and stored as far as leaders return them: so the
        group starts at one moment, and tools that count offset znodes see all of them. The member rewrites the offsets
        of its own claims unchanged: the new version fences every older writer.
        """
        by_topic: dict[str, list[TopicPartition]] = defaultdict(list)
        for partition in sorted(partitions):
            by_topic[partition.topic].append(partition)
        starts = Starts({}, {})
        for topic, listed in by_topic.items():
            claims = await self._open_claims(topic, listed)
            starts.failures.update(claims.failures)
            opened = sorted(claims.versions)
            owners = await self._session.exists_many([self._layout.owner(partition) for partition in opened])
            for partition, owner in zip(opened, owners, strict=True):
                if owner is not None and owner.owner == self._session.id:
                    starts.found[partition] = StartPosition(
                        claims.offsets[partition], claims.versions[partition], owner.czxid, claims.created
                    )
        return starts

    async def _find_or_create(self, topic: str, mine: Sequence[TopicPartition]) -> _ClaimOffsets:
        """
        Return the partitions of ``mine`` with valid offsets; if there are none, create offsets that leaders return.

        Offsets of partitions that no member owns yet are created together with the missing ones of ``mine``.
        """
        renew = self.unless_recreated(topic)
        topic_node, nodes = await asyncio.gather(
            self._session.get(topic_path(topic)),
            self._session.get_many([self._layout.offset(partition) for partition in mine]),
        )
        created = 0 if topic_node is None else topic_node.czxid
        stored = {p: self._parse(p, node) for p, node in zip(mine, nodes, strict=True) if node is not None}
        # Offsets older than the topic belong to a deleted topic of the same name.
        outdated = [p for p, found in stored.items() if self.is_outdated(p) or found.mzxid < created]
        sound = {p: found for p, found in stored.items() if found.offset is not None and p not in outdated}
        if sound:
            return _ClaimOffsets(created, list(sound), sound, {})
        failures: dict[TopicPartition, KielGroupsError] = {}
        if outdated:
            offsets = await self._first.of_new_logs(outdated)
            await self.reset_recreated(topic, offsets.found, lambda p, found: found.version == stored[p].version, renew)
            failures |= offsets.failures
        if unreadable := [partition for partition in stored if partition not in outdated]:
            offsets = await self._first.of_log(unreadable, late=True)
            await self._put({p: (offset, stored[p].version) for p, offset in offsets.found.items()}, renew)
            failures |= offsets.failures
        if missing := [partition for partition in mine if partition not in stored]:
            numbers = parse_topic(topic_node.data, topic_path(topic)) if topic_node is not None else ()
            numbers = tuple(sorted({*numbers, *(partition.partition for partition in mine)}))
            failures |= await self._first.create(topic, numbers, missing)
        return _ClaimOffsets(created, [partition for partition in mine if partition not in failures], {}, failures)

    async def reset_recreated(
        self,
        topic: str,
        earliest: Mapping[TopicPartition, int],
        is_known: Callable[[TopicPartition, StoredOffset], bool],
        renew: Renew[object],
    ) -> dict[TopicPartition, StoredOffset]:
        """
        Store the ``earliest`` offsets of a topic that was deleted and created again.

        Each replaces the version that was just read. An offset that another writer has stored since the topic was
        created is kept, because an operator has set it in the new log; this requires ``versions_identify_writers``.
        ``is_known`` returns whether this member has seen, or written, a stored offset in the old log.

        Returns:
            The offsets that are stored now, without those that ``renew`` dropped.
        """
        created, current, waiting = self.creation(topic), dict[TopicPartition, StoredOffset](), sorted(earliest)
        while waiting:
            for partition, found in (stored := await self.read(waiting)).items():
                is_set = found.offset is not None and found.mzxid > created and not is_known(partition, found)
                if is_set and self.versions_identify_writers:
                    current[partition] = found
            versions = {p: stored[p].version if p in stored else ANY_VERSION for p in waiting if p not in current}
            written, changed = await self._put({p: (earliest[p], version) for p, version in versions.items()}, renew)
            current |= written
            waiting = sorted(changed)
            if written:
                self._metrics.count("offsets_of_deleted_topic", len(written))
                log.warning(
                    "group %s: topic %s was deleted and created again; %s at the earliest offset",
                    self._layout.group,
                    topic,
                    counted(written, "partition starts", "partitions start"),
                )
        return current

    async def prepare(self, topics: Collection[str]) -> None:
        """
        Create the parent znodes of the topics' offsets; to be called before partitions of these topics are claimed.

        If a claim is older than the last change of the parent znode, its owner is assumed to know the offset.
        """
        await self._session.ensure(sorted(map(self._layout.topic_offsets, topics)))

    def unless_recreated(self, topic: str) -> Renew[object]:
        """Return a ``renew`` function that drops all writes as soon as a newer incarnation of the topic is known."""
        created = self.creation(topic)
        return lambda _, written: written if self.creation(topic) == created else None

    async def _open_claims(self, topic: str, partitions: Sequence[TopicPartition]) -> _OpenedClaims:
        """Open the claims of one topic: find or create their offsets, and rewrite those that are known."""
        while True:
            await self._topics.catch_up()
            seen = self.creation(topic)
            for partition in partitions:
                self._created_at_claim.setdefault(partition, seen)
            renew = self.unless_recreated(topic)
            claims = await self._find_or_create(topic, partitions)
            versions, offsets = await self._rewrite(claims.ready, claims.stored, renew)
            if self.creation(topic) == seen:
                # The others stay in ``_created_at_claim``: a later call must notice if their topic is created again.
                self.forget(versions)
                return _OpenedClaims(claims.created, versions, offsets, claims.failures)

    async def _rewrite(
        self,
        partitions: Sequence[TopicPartition],
        known: Mapping[TopicPartition, StoredOffset],
        renew: Renew[object],
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Rewrite stored offsets to fence older writers; return versions and offsets. ``known`` ones are not read."""
        versions: dict[TopicPartition, int] = {}
        offsets: dict[TopicPartition, int] = {}
        waiting: Sequence[TopicPartition] = partitions
        while waiting:
            stored, known = known or await self.read(waiting), {}
            items: dict[TopicPartition, tuple[Operation, ...]] = {}
            for partition, found in stored.items():
                if found.offset is not None:
                    offsets[partition] = found.offset
                    items[partition] = (
                        Put(self._layout.offset(partition), encode_offset(found.offset), found.version),
                    )
            outcome = await self._writer.write(items, lambda *_: None, renew=renew)
            versions |= {partition: done[0] for partition, done in outcome.done.items() if done[0] is not None}
            # Another writer was faster, or the answer was lost: read the current offsets again.
            waiting = [*outcome.dropped, *sorted(outcome.unknown)]
        return versions, offsets

    async def write_commit(
        self,
        offsets: Mapping[TopicPartition, tuple[int, int]],
        is_outdated: Callable[[TopicPartition], bool],
        metadata: str = "",
    ) -> tuple[dict[TopicPartition, StoredOffset], dict[TopicPartition, StoredOffset]]:
        """Write as ``put`` does, without ``metadata``, for which an offset znode has no room."""
        return await self.put(offsets, is_outdated)

    async def put(
        self, offsets: Mapping[TopicPartition, tuple[int, int]], is_outdated: Callable[[TopicPartition], bool]
    ) -> tuple[dict[TopicPartition, StoredOffset], dict[TopicPartition, StoredOffset]]:
        """
        Write next offsets, each with the version that its znode must have: ``{partition: (offset, version)}``.

        Partitions for which ``is_outdated`` is true right before they are written are skipped.

        Returns:
            The stored offsets with their new versions; and the offsets of other writers, which apply from now on.

        Raises:
            SessionLostError: The session is over; nothing more was stored.
        """
        return await self._put(offsets, lambda partition, written: None if is_outdated(partition) else written)

    async def _put(
        self, offsets: Mapping[TopicPartition, tuple[int, int]], renew: Renew[TopicPartition]
    ) -> tuple[dict[TopicPartition, StoredOffset], dict[TopicPartition, StoredOffset]]:
        """
        Write next offsets, each with the version that its znode must have: ``{partition: (offset, version)}``.

        Returns:
            The stored offsets with their new versions; and the offsets of other writers. Partitions that ``renew``
            dropped are in neither.
        """
        stored: dict[TopicPartition, StoredOffset] = {}
        foreign: dict[TopicPartition, StoredOffset] = {}
        waiting = dict(offsets)
        while waiting:
            wanted = waiting
            outcome = await self._writer.write(
                {partition: (self.write(partition, *target),) for partition, target in wanted.items()},
                lambda partition, refused, failure: self.on_refused(partition, refused, failure, offsets[partition][0]),
                renew=renew,
            )
            await self.restore_parents(outcome.dropped)
            for partition, versions in outcome.done.items():
                # A znode that was created again starts at version 0.
                stored[partition] = StoredOffset(wanted[partition][0], versions[0] or 0)
            waiting = await self._reconcile(wanted, outcome, stored, foreign)
        return stored, foreign

    def write(self, partition: TopicPartition, offset: int, version: int) -> Operation:
        """Return the operation that writes a partition's offset if its znode has this version."""
        return Put(self._layout.offset(partition), encode_offset(offset), version)

    def on_refused(
        self, partition: TopicPartition, refused: Operation, failure: Failure, offset: int
    ) -> tuple[Operation, ...] | None:
        """Create a deleted znode again; drop the write if another writer changed the znode, or its parent is gone."""
        if failure is Failure.NO_NODE and not isinstance(refused, Create):
            return (Create(self._layout.offset(partition), encode_offset(offset)),)
        return None

    async def restore_parents(self, dropped: Mapping[TopicPartition, Failure]) -> set[TopicPartition]:
        """Create deleted parent znodes of offsets again; return the dropped partitions whose parent was missing."""
        orphaned = {partition for partition, failure in dropped.items() if failure is Failure.NO_NODE}
        folders = sorted({self._layout.topic_offsets(partition.topic) for partition in orphaned})
        if folders:
            self._metrics.count("offset_folders_restored", len(folders))
            log.warning(
                "group %s: another client deleted %s; storing the finished offsets there again",
                self._layout.group,
                ", ".join(folders),
            )
            await self._session.ensure(folders)
        return orphaned

    async def _reconcile(
        self,
        wanted: Mapping[TopicPartition, tuple[int, int]],
        outcome: Outcome[TopicPartition],
        stored: dict[TopicPartition, StoredOffset],
        foreign: dict[TopicPartition, StoredOffset],
    ) -> dict[TopicPartition, tuple[int, int]]:
        """
        Read the offsets whose write was refused or has an unknown outcome, and add them to ``stored`` or ``foreign``.

        Returns:
            The offsets that were not written and must be tried again.
        """
        again: dict[TopicPartition, tuple[int, int]] = {}
        partitions = [*outcome.dropped, *sorted(outcome.unknown)]
        current = await self.read(partitions) if partitions else {}
        for partition in partitions:
            offset, version = wanted[partition]
            found = current.get(partition)
            if found is None or found.version == version:
                again[partition] = wanted[partition]
            elif partition in outcome.unknown and (found.version, found.offset) == (version + 1, offset):
                # After a refusal the offset is another writer's. Even with the same value it is a reset to follow.
                stored[partition] = found
            else:
                foreign[partition] = found
        return again
