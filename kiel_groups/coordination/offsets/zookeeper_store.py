"""
The ``zookeeper`` offset store: the v0 offset znodes that every tool of 0.8 reads, written with fences.

A commit sets an offset znode at the version it was last seen with, in a transaction that checks the member znode: a
late write of a former owner, or one that would hide an operator's reset, is refused and never lands.
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
    What stands in an offset znode: the next offset and the znode's version.

    ``offset`` is None where the znode holds no decimal number. ``mzxid`` is when it was written, 0 where nobody knows.
    """

    offset: int | None
    version: int
    mzxid: int = 0


class Starts(NamedTuple):
    """
    Where claims start, and for others why that is not known yet.

    A claim that is in neither of them is opened by another call, or its owner znode has vanished.
    """

    found: dict[TopicPartition, StartPosition]
    failures: dict[TopicPartition, KielGroupsError]


class _Standing(NamedTuple):
    """
    The claims of one topic, by whether their offsets may be rewritten now.

    ``created`` is the topic's creation zxid, 0 if the topic is gone. ``ready`` are the partitions to rewrite, and
    ``stored`` their offsets as far as they were read already. ``failures`` says why the others have no offset yet.
    """

    created: int
    ready: list[TopicPartition]
    stored: dict[TopicPartition, StoredOffset]
    failures: dict[TopicPartition, KielGroupsError]


class _Taken(NamedTuple):
    """Claims of a topic, with their offsets and new versions; and why others have none."""

    created: int
    versions: dict[TopicPartition, int]
    offsets: dict[TopicPartition, int]
    failures: dict[TopicPartition, KielGroupsError]


class ZooKeeperOffsetStore:
    """Offsets of one group, on one member's session."""

    #: Whether a release commits in the transaction that deletes the owner znode.
    commits_with_release = True
    #: Whether an offset at a version that this member did not make is another one's.
    versions_tell = True

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
        self._first = StartOffsets(session, layout, writer, look_up, reset, self.while_same)
        #: What is being taken over, with the creation zxid of its topic when that began.
        self._begun: dict[TopicPartition, int] = {}

    def hurry(self, within_s: float) -> None:
        """The member leaves: wait for nobody but ZooKeeper longer than this, in seconds from now."""

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Of these, nothing is taken over any more: it is done, or they are somebody else's."""
        for partition in partitions:
            self._begun.pop(partition, None)

    def creation(self, topic: str) -> int:
        """The creation zxid of the newest topic of that name that was heard of, 0 where none was."""
        return self._topics.creation(topic)

    def is_outdated(self, partition: TopicPartition) -> bool:
        """Whether it was being taken over when its topic was created again: what it wrote is of the log before."""
        created = self.creation(partition.topic)
        return self._begun.get(partition, created) != created

    def sent(self, partition: TopicPartition, offset: int) -> bool:
        """Whether somebody else may still be about to store this offset for us; here, nobody does."""
        return False

    async def read(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, StoredOffset]:
        """What is stored; a partition without an offset znode is left out."""
        nodes = await self._session.get_many([self._layout.offset(partition) for partition in partitions])
        return {
            partition: self._parse(partition, node)
            for partition, node in zip(partitions, nodes, strict=True)
            if node is not None
        }

    async def changed(self, versions: Mapping[TopicPartition, int]) -> dict[TopicPartition, StoredOffset]:
        """What stands where the version is another than this; one that was deleted comes again with the next commit."""
        found = await self.read(list(versions))
        return {partition: stored for partition, stored in found.items() if stored.version != versions[partition]}

    def _parse(self, partition: TopicPartition, node: Node) -> StoredOffset:
        try:
            offset: int | None = parse_offset(node.data, self._layout.offset(partition))
        except ProtocolError as error:
            self._metrics.count("offsets_unreadable")
            log.error("%s; it counts as no committed offset", error)
            offset = None
        return StoredOffset(offset, node.version, node.mzxid)

    async def start(self, partitions: Collection[TopicPartition]) -> Starts:
        """
        Where freshly claimed partitions start.

        Partitions whose stored offsets are valid are opened first, because they need no broker. Only if there are none
        are the missing offsets looked up. They are looked up for the whole topic and stored as far as leaders return
        them: so the group starts at one moment, and tools that count offset znodes see all of them. The member rewrites
        the offsets of its own claims unchanged: the new version fences every older writer.
        """
        by_topic: dict[str, list[TopicPartition]] = defaultdict(list)
        for partition in sorted(partitions):
            by_topic[partition.topic].append(partition)
        starts = Starts({}, {})
        for topic, listed in by_topic.items():
            taken = await self._take_over(topic, listed)
            starts.failures.update(taken.failures)
            opened = sorted(taken.versions)
            owners = await self._session.exists_many([self._layout.owner(partition) for partition in opened])
            for partition, owner in zip(opened, owners, strict=True):
                if owner is not None and owner.owner == self._session.id:
                    starts.found[partition] = StartPosition(
                        taken.offsets[partition], taken.versions[partition], owner.czxid, taken.created
                    )
        return starts

    async def _look_over(self, topic: str, mine: Sequence[TopicPartition]) -> _Standing:
        """
        Find the partitions of ``mine`` that have a valid offset; if none has one, create those that leaders tell.

        If ``mine`` lack offsets, offsets of partitions that no member owns yet are created together with them.
        """
        renew = self.while_same(topic)
        topic_node, nodes = await asyncio.gather(
            self._session.get(topic_path(topic)),
            self._session.get_many([self._layout.offset(partition) for partition in mine]),
        )
        created = 0 if topic_node is None else topic_node.czxid
        stored = {p: self._parse(p, node) for p, node in zip(mine, nodes, strict=True) if node is not None}
        # Offsets older than the topic belong to a deleted one of the same name.
        outdated = [p for p, found in stored.items() if self.is_outdated(p) or found.mzxid < created]
        sound = {p: found for p, found in stored.items() if found.offset is not None and p not in outdated}
        if sound:
            return _Standing(created, list(sound), sound, {})
        failures: dict[TopicPartition, KielGroupsError] = {}
        if outdated:
            offsets = await self._first.of_new_logs(outdated)
            await self.start_over(topic, offsets.found, lambda p, found: found.version == stored[p].version, renew)
            failures |= offsets.failures
        if unreadable := [partition for partition in stored if partition not in outdated]:
            offsets = await self._first.of_log(unreadable, late=True)
            await self._put({p: (offset, stored[p].version) for p, offset in offsets.found.items()}, renew)
            failures |= offsets.failures
        if missing := [partition for partition in mine if partition not in stored]:
            numbers = parse_topic(topic_node.data, topic_path(topic)) if topic_node is not None else ()
            numbers = tuple(sorted({*numbers, *(partition.partition for partition in mine)}))
            failures |= await self._first.create(topic, numbers, missing)
        return _Standing(created, [partition for partition in mine if partition not in failures], {}, failures)

    async def start_over(
        self,
        topic: str,
        earliest: Mapping[TopicPartition, int],
        is_known: Callable[[TopicPartition, StoredOffset], bool],
        renew: Renew[object],
    ) -> dict[TopicPartition, StoredOffset]:
        """
        Store the ``earliest`` offsets of a topic that was deleted and created again.

        Each replaces the version that was just read. An offset that somebody else has stored since the topic was
        created stays: an operator has set it in the new log. ``is_known`` tells whether this member has seen, or
        written, a stored offset in the old log.

        Returns:
            What stands there now, without what ``renew`` had left alone.
        """
        created, standing, waiting = self.creation(topic), dict[TopicPartition, StoredOffset](), sorted(earliest)
        while waiting:
            for partition, found in (stored := await self.read(waiting)).items():
                is_set = found.offset is not None and found.mzxid > created and not is_known(partition, found)
                if is_set and self.versions_tell:
                    standing[partition] = found
            versions = {p: stored[p].version if p in stored else ANY_VERSION for p in waiting if p not in standing}
            begun, changed = await self._put({p: (earliest[p], version) for p, version in versions.items()}, renew)
            standing |= begun
            waiting = sorted(changed)
            if begun:
                self._metrics.count("offsets_of_deleted_topic", len(begun))
                log.warning(
                    "group %s: topic %s was deleted and created again; %s at the earliest offset",
                    self._layout.group,
                    topic,
                    counted(begun, "partition starts", "partitions start"),
                )
        return standing

    async def prepare(self, topics: Collection[str]) -> None:
        """To be called before anything of these is claimed: who claims before there is a folder knows the offsets."""
        await self._session.ensure(sorted(map(self._layout.topic_offsets, topics)))

    def while_same(self, topic: str) -> Renew[object]:
        """Lets be written only what is begun now, for as long as no newer topic of that name is heard of."""
        created = self.creation(topic)
        return lambda _, written: written if self.creation(topic) == created else None

    async def _take_over(self, topic: str, partitions: Sequence[TopicPartition]) -> _Taken:
        """Rewrite the offsets of a topic as they stand, or as they are to be, as far as that is known."""
        while True:
            await self._topics.catch_up()
            seen = self.creation(topic)
            for partition in partitions:
                self._begun.setdefault(partition, seen)
            renew = self.while_same(topic)
            standing = await self._look_over(topic, partitions)
            versions, offsets = await self._rewrite(standing.ready, standing.stored, renew)
            if self.creation(topic) == seen:
                # The others stay in ``_begun``: a later call must notice if their topic was created again since.
                self.forget(versions)
                return _Taken(standing.created, versions, offsets, standing.failures)

    async def _rewrite(
        self,
        partitions: Sequence[TopicPartition],
        standing: Mapping[TopicPartition, StoredOffset],
        renew: Renew[object],
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Rewrite the offsets as they stand, which may be known already."""
        versions: dict[TopicPartition, int] = {}
        offsets: dict[TopicPartition, int] = {}
        waiting: Sequence[TopicPartition] = partitions
        while waiting:
            stored, standing = standing or await self.read(waiting), {}
            items: dict[TopicPartition, tuple[Operation, ...]] = {}
            for partition, found in stored.items():
                if found.offset is not None:
                    offsets[partition] = found.offset
                    items[partition] = (
                        Put(self._layout.offset(partition), encode_offset(found.offset), found.version),
                    )
            outcome = await self._writer.write(items, lambda *_: None, renew=renew)
            versions |= {partition: done[0] for partition, done in outcome.done.items() if done[0] is not None}
            # Somebody wrote in between, or the answer was lost: what stands there now is read again.
            waiting = [*outcome.dropped, *sorted(outcome.unknown)]
        return versions, offsets

    async def write_commit(
        self,
        offsets: Mapping[TopicPartition, tuple[int, int]],
        is_outdated: Callable[[TopicPartition], bool],
        metadata: str = "",
    ) -> tuple[dict[TopicPartition, StoredOffset], dict[TopicPartition, StoredOffset]]:
        """As ``put``: here, members write their commits themselves. An offset znode has no room for ``metadata``."""
        return await self.put(offsets, is_outdated)

    async def put(
        self, offsets: Mapping[TopicPartition, tuple[int, int]], is_outdated: Callable[[TopicPartition], bool]
    ) -> tuple[dict[TopicPartition, StoredOffset], dict[TopicPartition, StoredOffset]]:
        """
        Write next offsets, each at the version it was last seen with: ``{partition: (offset, version)}``.

        What ``is_outdated`` by the time is left alone.

        Returns:
            What was stored, with its new version; and what stands where somebody else wrote, which is now the truth.

        Raises:
            SessionLostError: The session is over; nothing more was stored.
        """
        return await self._put(offsets, lambda partition, written: None if is_outdated(partition) else written)

    async def _put(
        self, offsets: Mapping[TopicPartition, tuple[int, int]], renew: Renew[TopicPartition]
    ) -> tuple[dict[TopicPartition, StoredOffset], dict[TopicPartition, StoredOffset]]:
        """
        Write next offsets, each at the version it was last seen with: ``{partition: (offset, version)}``.

        Returns:
            What was stored, with its new version; and what stands where somebody else wrote. What ``renew`` had left
            alone is in neither.
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
            await self.restore_folders(outcome.dropped)
            for partition, versions in outcome.done.items():
                # A znode that was created anew begins at version 0.
                stored[partition] = StoredOffset(wanted[partition][0], versions[0] or 0)
            waiting = await self._compare(wanted, outcome, stored, foreign)
        return stored, foreign

    def write(self, partition: TopicPartition, offset: int, version: int) -> Operation:
        """The operation that commits one partition."""
        return Put(self._layout.offset(partition), encode_offset(offset), version)

    def on_refused(
        self, partition: TopicPartition, refused: Operation, failure: Failure, offset: int
    ) -> tuple[Operation, ...] | None:
        """A znode that was deleted is created again; one that somebody else wrote, or has no folder, is left alone."""
        if failure is Failure.NO_NODE and not isinstance(refused, Create):
            return (Create(self._layout.offset(partition), encode_offset(offset)),)
        return None

    async def restore_folders(self, dropped: Mapping[TopicPartition, Failure]) -> set[TopicPartition]:
        """Which of what was refused have lost their topic's folder, by somebody's hand; it stands again afterwards."""
        folderless = {partition for partition, failure in dropped.items() if failure is Failure.NO_NODE}
        folders = sorted({self._layout.topic_offsets(partition.topic) for partition in folderless})
        if folders:
            self._metrics.count("offset_folders_restored", len(folders))
            log.warning(
                "group %s: somebody deleted %s; what is finished is stored there anew",
                self._layout.group,
                ", ".join(folders),
            )
            await self._session.ensure(folders)
        return folderless

    async def _compare(
        self,
        wanted: Mapping[TopicPartition, tuple[int, int]],
        outcome: Outcome[TopicPartition],
        stored: dict[TopicPartition, StoredOffset],
        foreign: dict[TopicPartition, StoredOffset],
    ) -> dict[TopicPartition, tuple[int, int]]:
        """
        Sort out what was refused or may have happened, by what stands there now.

        Returns:
            What did not happen and is to be tried again.
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
                # What was refused is somebody else's, also where it is the same: a reset is followed.
                stored[partition] = found
            else:
                foreign[partition] = found
        return again
